"""What a GGUF file's model takes in memory: its blocks once, and no word that nobody asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import draftproof as dp
import gguf_files
from draftproof import bundled, native
from draftproof.gguf import tokenizer
from draftproof.gguf.cursor import Texts
from draftproof.gguf.reader import read
from draftproof.runners import gguf_checkpoint

NEEDS_KERNELS = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")


@NEEDS_KERNELS
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_packed_weights_are_as_large_as_the_file(tmp_path: Path, kind: str, tied: bool) -> None:
    """A table of embeddings beside its blocks would be a multiple of them here."""
    model = gguf_files.model("llama", vocab_size=1024, tie_word_embeddings=tied)
    file = gguf_files.write(tmp_path / "m.gguf", model, kind)
    lying = sum(stored.data.size for stored in read(file).tensors.values())
    with dp.LLM(file, speculate=None) as llm:
        assert llm.runner.precision == kind.lower()
        assert 0.95 * lying < llm.runner.packed.bytes <= lying


def test_who_wants_weights_makes_no_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = AutoTokenizer.from_pretrained(bundled.folder("target"))
    model = gguf_files.model("llama", vocab_size=len(own))
    file = gguf_files.write(tmp_path / "m.gguf", model, "Q8_0", own)
    asked: list[Texts] = []
    decoded = Texts.read

    def noted(texts: Texts) -> list[str]:
        asked.append(texts)
        return decoded(texts)

    monkeypatch.setattr(Texts, "read", noted)
    gguf_checkpoint.find(file, dtype=None, as_they_lie=True)
    assert not asked
    tokenizer.of_gguf(file)
    assert len(asked) == 2  # tokens and merges


def test_a_tokenizer_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers copies what it is given, and both are there for a while."""
    own = AutoTokenizer.from_pretrained(bundled.folder("target"))
    model = gguf_files.model("llama", vocab_size=len(own))
    file = gguf_files.write(tmp_path / "m.gguf", model, "F32", own)
    made: list[Any] = []
    build = tokenizer._byte_level

    def noted(*given: Any) -> Any:
        made.append(build(*given))
        return made[0]

    monkeypatch.setattr(tokenizer, "_byte_level", noted)
    assert tokenizer.of_gguf(file).backend_tokenizer is made[0]
