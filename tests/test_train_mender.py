"""`scripts/train_mender.py` and `mender_cards.py`, which make the bundled encoder-decoder."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from draftproof import LLM, DraftModel, bundled
from draftproof.bundled import MENDER, corpus
from draftproof.training import trainer

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """As a module, beside the others."""
    monkeypatch.syspath_prepend(SCRIPTS)
    found = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, name, module)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script with tiny models, few texts, and another place for what it makes."""
    body = "    total = first + second\n    return total\n\n\n"
    modules = [(f"{i}.py", f"def function{i}(first, second):\n{body}" * 9) for i in range(40)]

    def few(root: Path | None = None, only_held_out: bool = False) -> list[tuple[str, str]]:
        return [one for one in modules if not only_held_out or corpus.is_held_out(one[0])]

    assert 0 < len(few(only_held_out=True)) < 40
    monkeypatch.setattr(corpus, "modules", few)
    monkeypatch.setattr(bundled, "MODELS", tmp_path / "models")
    made = script("train_mender", monkeypatch)
    folders = {part: tmp_path / "models" / part for part in ("mender", "mender-draft")}
    monkeypatch.setattr(made, "FOLDERS", dict(zip(made.Part, folders.values(), strict=True)))
    tiny = {"d_model": 96, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    tiny |= {"encoder_layers": 1, "decoder_layers": 1}
    monkeypatch.setattr(made, "SHAPES", dict.fromkeys(made.Part, tiny))
    return made


def test_rows_depend_on_the_seed_and_their_number_alone(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt = [text for _, text in corpus.modules()]
    tokenizer = train.vocabulary(learnt, tmp_path)
    assert tokenizer("first")["input_ids"][-1] == tokenizer.eos_token_id == 1
    assert tokenizer.decode(tokenizer("a  b\n")["input_ids"], skip_special_tokens=True) == "a  b\n"
    count = 4 * script("mender_rows", monkeypatch).GROUP * train.ROWS
    rows, again = (train.Pairs(learnt, tokenizer, count, 3) for _ in range(2))
    late = count - 5
    for at in (late, 7):  # in another order than in training
        for name, tensor in rows[at].items():
            assert torch.equal(tensor, again[at][name])
    with pytest.raises(IndexError):
        rows[count]
    row = rows[late]
    read = row["ids"][row["segments"] >= 0].tolist()
    written = row["labels"][row["labels"] >= 0].tolist()
    assert read[-1] == written[-1] == 1 and len(row["ids"]) == train.TOKENS
    assert tokenizer.decode(written[:-1]) in "".join(learnt).replace("\n    ", "\n    ")
    assert any(row["ids"].tolist() != row["labels"].tolist() for row in (rows[late], rows[7]))


@pytest.mark.slow
def test_a_mender_and_its_draft_are_trained(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that come along, but tiny; what was interrupted goes on."""
    steps: list[str] = []
    honest = trainer._Loop._step

    def counted(self: Any, batches: Any) -> Any:
        steps.append(self.folder.name)
        if len(steps) == 7:
            raise KeyboardInterrupt
        return honest(self, batches)

    def often(*given: Any, **more: Any) -> trainer.Plan:
        return trainer.Plan(*given, **more | {"checkpoint_seconds": 0.0})

    monkeypatch.setattr(trainer._Loop, "_step", counted)
    monkeypatch.setattr(train, "Plan", often)
    with pytest.raises(KeyboardInterrupt):
        train.main(train.Part.target, 12, 1.0, tmp_path, 1, "no")
    train.main(train.Part.target, 12, 1.0, tmp_path, 1, "no")
    train.main(train.Part.draft, 12, 1.0, tmp_path, 1, "no")
    assert steps == ["target"] * 13 + ["draft"] * 12  # but for the seventh none of them twice
    for part in ("mender", "mender-draft"):
        said = json.loads((tmp_path / "models" / part / "provenance.json").read_text())
        assert said["steps"] == 12 and said["held_out"]["texts"] == 400
    with LLM(MENDER, speculate=DraftModel(MENDER)) as llm:
        assert llm.runner.dtype == torch.float32
        assert llm.generate(["function1"])[0].error is None
    cards = script("mender_cards", monkeypatch)
    cards.main(4, 1)
    text = (tmp_path / "models" / "mender" / "README.md").read_text()
    assert "On 4 damaged pieces" in text and text.count("| `") == len(cards.METHODS) + 1
    assert "A draft for" in (tmp_path / "models" / "mender-draft" / "README.md").read_text()
