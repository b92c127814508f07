"""Packed weights that are kept: the next load maps the same bytes, or packs anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import draftproof as dp
import gguf_files
import tiny
from draftproof import native
from draftproof.runners import checkpoint, gguf_checkpoint, packed_files, packing, probe, telling
from draftproof.runners.checkpoint import Checkpoint
from spelling import tokenizer

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")

PROMPT = [5, 9, 33, 21]
GREEDY = dp.SamplingParams(max_tokens=16, ignore_eos=True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    packed_files._tell.cache_clear()
    yield tmp_path / "cache" / "draftproof" / "weights"
    packed_files._tell.cache_clear()


def saved(tmp_path: Path, kind: str, **changes: Any) -> Path:
    """A model of random weights: a folder, or a file of Q8_0."""
    model = gguf_files.model("llama", **changes)
    if kind == "gguf":
        return gguf_files.write(tmp_path / "m.gguf", model, "Q8_0")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def found(path: Path) -> Checkpoint:
    if path.suffix == ".gguf":
        return gguf_checkpoint.find(path, dtype=None, as_they_lie=True)
    made = checkpoint.find(str(path), dtype=None)
    assert made is not None
    return made


def packed(path: Path, precision: str = "bfloat16", **options: Any) -> packing.Packed:
    return packing.Packed(found(path), precision, cached=True, **options)


def weights(made: packing.Packed) -> bytes:
    size = made.bytes - (0 if made._embeddings is None else made._embeddings.nbytes)
    at = made.library.dp_model_packed(made.handle)
    return bytes((packing.ctypes.c_uint8 * size).from_address(at))


def written(path: Path, **options: Any) -> list[int]:
    with dp.LLM(path, speculate=None, runner="native", **options) as llm:
        return llm.generate([PROMPT], GREEDY)[0].token_ids


@pytest.mark.parametrize("kind", ["folder", "gguf"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_next_load_maps_the_same_bytes(tmp_path: Path, kind: str, tied: bool) -> None:
    path = saved(tmp_path, kind, tie_word_embeddings=tied, attention_bias=True)
    plain = packing.Packed(found(path), "bfloat16")
    first = packed(path)
    assert not first.mapped and first.keep()
    second = packed(path)
    assert second.mapped and not second.keep()
    assert weights(second) == weights(first) == weights(plain)
    assert second.bytes == plain.bytes


@pytest.mark.parametrize("kind", ["folder", "gguf"])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "int8", "int4"])
def test_what_is_mapped_writes_the_same(
    tmp_path: Path, kind: str, dtype: str, folder: Path
) -> None:
    path = saved(tmp_path, kind, attention_bias=True)
    wanted = written(path, dtype=dtype)
    assert not folder.exists()
    for _ in range(2):
        assert written(path, dtype=dtype, cache_weights=True) == wanted
        assert len([*folder.iterdir()]) == 1


def test_what_is_mapped_was_compared_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """A model that the comparison refuses leaves nothing; of one that passed it nothing is read."""
    path = saved(tmp_path, "folder")
    with monkeypatch.context() as patch:
        patch.setattr(probe, "agrees", lambda *_: False)
        patch.setattr(probe, "check_native", lambda *_: (_ for _ in ()).throw(ValueError("off")))
        with pytest.raises(ValueError, match="off"):
            written(path, cache_weights=True)
        assert not folder.exists()
    wanted = written(path, cache_weights=True)
    for name in ("agrees", "own_logits"):
        monkeypatch.setattr(probe, name, lambda *_: pytest.fail("it was compared before"))
    assert written(path, cache_weights=True) == wanted


def test_a_draft_is_kept_too(tmp_path: Path, folder: Path) -> None:
    path = saved(tmp_path, "folder")
    draft = gguf_files.write(tmp_path / "draft.gguf", gguf_files.model("llama"), "Q4_0")
    for turn in range(2):
        with dp.LLM(path, speculate=dp.DraftModel(draft), cache_weights=True) as llm:
            assert llm.runner.packed.mapped == bool(turn)
            llm.generate([PROMPT], GREEDY)
        assert len([*folder.iterdir()]) == 2


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def other_head(path: Path) -> None:
    """Another model of the same size, at the same time."""
    state = path.stat()
    data = bytearray(path.read_bytes())
    at = data.index(b"general.architecture") - 8
    data[at + 8 : at + 15] = b"General"
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("change", [touched, other_head])
def test_another_checkpoint_is_packed_anew_in_its_place(
    tmp_path: Path, change: Callable[[Path], None], folder: Path
) -> None:
    path = saved(tmp_path, "gguf")
    first = packed(path)
    first.keep()
    before = packed_files.PackedFile([path], {}, {})
    assert packed(path).mapped
    change(path)
    assert packed_files.PackedFile([path], {}, {}).of != before.of
    if change is touched:
        again = packed(path)
        assert not again.mapped and again.keep() and packed(path).mapped
        assert [again.file.path] == [*folder.iterdir()]


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_file_for_each_precision_and_set_of_kernels(
    tmp_path: Path, precision: str, folder: Path
) -> None:
    path = saved(tmp_path, "folder")
    packed(path).keep()
    assert not (other := packed(path, precision)).mapped and other.keep()
    assert not (slow := packed(path, precision, kernels="portable")).mapped or (
        native.kernels() == "portable"
    )
    slow.keep()
    assert len([*folder.iterdir()]) == 2 + (native.kernels() != "portable")
    assert weights(packed(path, precision)) == weights(other)


def test_blocks_and_numbers_that_were_rounded_to_the_same_type_are_apart(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.model("llama"), "Q4_1")
    first = packed(path)
    first.keep()
    rounded = gguf_checkpoint.find(path, dtype=None, as_they_lie=False)
    second = packing.Packed(rounded, "int4", cached=True)
    assert not second.mapped and second.file.path != first.file.path


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut short": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "of another kind": lambda data: b"x" + data[1:],
    "without a header": lambda data: data[: len(packed_files.MAGIC)],
    "a header that is no JSON": lambda data: data.replace(b'{"of"', b'["of"', 1),
    "a header of another form": lambda data: data.replace(b'"sums"', b'"suns"', 1),
    "made of something else": lambda data: data.replace(b'"kernels"', b'"kernals"', 1),
    "the first weight": lambda data: data[:4096] + bytes([data[4096] ^ 1]) + data[4097:],
    "the last weight": lambda data: data[:-1] + bytes([data[-1] ^ 128]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: str, folder: Path) -> None:
    path = saved(tmp_path, "folder")
    first = packed(path)
    first.keep()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    changed = DAMAGE[damage](whole)
    assert changed != whole
    file.write_bytes(changed)
    again = packed(path)
    assert not again.mapped and weights(again) == weights(first) and again.keep()
    assert file.read_bytes() == whole and packed(path).mapped


def test_where_nothing_can_be_written_it_is_said_once(tmp_path: Path, folder: Path) -> None:
    path = saved(tmp_path, "gguf")
    folder.parent.mkdir(parents=True)
    folder.write_text("a file is in the way")
    with pytest.warns(UserWarning, match="not kept for the next load .*: make room there"):
        wanted = written(path, cache_weights=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert written(path, cache_weights=True) == wanted


def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    made = packed(saved(tmp_path, "folder"))

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert not made.keep()
    assert [*folder.iterdir()] == []


def test_what_keeps_nothing_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="cache_weights keeps what is packed from files"):
        dp.LLM(tiny.model(), cache_weights=True)
    llm = dp.LLM(saved(tmp_path, "folder"), speculate=None)
    with pytest.raises(ValueError, match="shared as they are"):
        dp.LLM(llm, cache_weights=True)
    telling.say_once.cache_clear()
    dp.LLM(tmp_path / "m", runner="torch", cache_weights=True)
    assert "no weights are kept: the torch runner packs none" in caplog.text


def test_the_command_tells_where_and_how_large(
    run: Any, tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path, "folder")
    tokenizer().save_pretrained(path)
    command = ("generate", str(path), "abc", "--max-tokens", "8", "--cache")
    first = run(*command)
    assert "packed weights are kept: " in caplog.text and str(folder) in caplog.text
    caplog.clear()
    assert run(*command) == first and first[0] == 0
    assert "kept" not in caplog.text
    _, out, _ = run("info")
    assert "packed weights" in out and "1 files" in out
    _, out, _ = run("info", "--json")
    (size,) = json.loads(out)["weights"]["bytes"]
    assert size == next(folder.iterdir()).stat().st_size


HELD = """
import sys
from pathlib import Path
from draftproof.runners import gguf_checkpoint, packing
found = gguf_checkpoint.find(Path(sys.argv[1]), dtype=None, as_they_lie=True)
def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return [int(l.split()[1]) * 1024 for l in lines if l.startswith(("VmRSS", "VmHWM"))]
_, before = resident()
made = packing.Packed(found, "q4_0", cached=True)
peak, now = resident()
made.keep()
print(made.mapped, (peak - before) / made.bytes, (now - before) / made.bytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells what was resident")
def test_weights_of_a_file_are_never_held_twice(tmp_path: Path) -> None:
    """Neither beside the file's own pages, nor beside what is kept."""
    sizes = {"vocab_size": 40_000, "hidden_size": 512, "intermediate_size": 2048}
    model = gguf_files.model("llama", **sizes, num_hidden_layers=16, head_dim=64)
    path = gguf_files.write(tmp_path / "m.gguf", model, "Q4_0")
    for turn in (False, True):
        done = subprocess.run(
            [sys.executable, "-c", HELD, str(path)], capture_output=True, text=True, check=True
        )
        mapped, peak, now = done.stdout.split()
        assert mapped == str(turn)
        assert float(peak) < 1.4 and float(now) < 1.15, done.stdout  # twice is 2
