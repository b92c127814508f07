"""A GGUF file is input from strangers: whatever is wrong with it, one sentence says so, at once."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import compiled
import draftproof as dp
import fuzzed_files
import gguf_files
from draftproof import bundled
from draftproof.gguf.reader import read
from draftproof.gguf.tokenizer import of_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in which all is well, with a vocabulary."""
    own = AutoTokenizer.from_pretrained(bundled.folder("target"))
    model = gguf_files.model("llama", vocab_size=len(own))
    folder = tmp_path_factory.mktemp("gguf")
    return gguf_files.write(folder / "whole.gguf", model, "Q8_0", own, general__alignment=32)


def after(data: bytes, name: bytes, size: int = 0) -> int:
    """Where the value of a field begins, or what follows the name of a tensor."""
    return data.index(name) + len(name) + size


def put(name: bytes, form: str, value: Any, skip: int = 0) -> Callable[[bytes], bytes]:
    """Another value so many bytes behind a name."""

    def change(data: bytes) -> bytes:
        at = after(data, name, skip)
        return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]

    return change


def at_start(form: str, value: Any, at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no file of this kind": (lambda data: b"GGML" + data[4:], "is a file and no model"),
    "cut short in its data": (lambda data: data[:-1000], "cut short, fetch it again"),
    "cut short in its fields": (lambda data: data[:300], "too early|too small|longer than"),
    "nothing behind its name": (lambda data: data[:4], "ends too early"),
    "version 1": (at_start("<I", 1, 4), "of version 1, and 2 and 3 are read"),
    "big-endian": (at_start(">I", 3, 4), "big-endian"),
    "too many tensors": (at_start("<Q", 1 << 60, 8), "tensors, for which it is too small"),
    "too many fields": (at_start("<Q", 1 << 60, 16), "fields, for which it is too small"),
    "a type of field": (put(b"llama.block_count", "<I", 77), "of type 77, which no GGUF"),
    "no blocks": (put(b"llama.block_count", "<I", 0, 4), "block_count is 0"),
    "too many blocks": (put(b"llama.block_count", "<I", 1 << 31, 4), "block_count is"),
    "layers for an hour": (put(b"llama.block_count", "<I", 1 << 20, 4), "lacks blk.1048575"),
    "more blocks than there are": (put(b"llama.block_count", "<I", 3, 4), "lacks blk.2"),
    "fewer blocks": (put(b"llama.block_count", "<I", 1, 4), "which no llama model has"),
    "heads that do not divide": (put(b"llama.attention.head_count\x04", "<I", 2031620, 3), "heads"),
    "a field of another type": (put(b"llama.block_count", "<I", 6), "is of type float"),
    "an alignment": (put(b"general.alignment", "<I", 31, 4), "its alignment is 31"),
    "an unknown type": (put(b"blk.0.ffn_down.weight", "<I", 63, 20), "of type 63"),
    "a type of blocks": (put(b"blk.0.ffn_down.weight", "<I", 12, 20), "no multiple of Q4_K"),
    "no dimensions": (put(b"blk.0.ffn_down.weight", "<I", 0), "has 0 dimensions"),
    "many dimensions": (put(b"blk.0.ffn_down.weight", "<I", 1 << 31), "dimensions"),
    "an empty tensor": (put(b"blk.0.ffn_down.weight", "<Q", 0, 4), "is empty, or begins at"),
    "a huge tensor": (put(b"blk.0.ffn_down.weight", "<Q", 1 << 62, 4), "cut short"),
    "a tensor far away": (put(b"blk.0.ffn_down.weight", "<Q", 1 << 62, 24), "cut short"),
    "a crooked tensor": (put(b"blk.0.ffn_down.weight", "<Q", 7, 24), "is not aligned"),
    "another shape": (put(b"blk.0.ffn_down.weight", "<Q", 64, 4), "has the shape"),
    "a doubled tensor": (
        lambda data: data.replace(b"blk.0.ffn_down.weight", b"blk.1.ffn_down.weight"),
        "the tensor blk.1.ffn_down.weight twice",
    ),
    "a missing tensor": (
        lambda data: data.replace(b"blk.0.ffn_down.weight", b"blk.0.ffn_dawn.weight"),
        "lacks blk.0.ffn_down.weight",
    ),
    "text that is none": (put(b"tokenizer.ggml.model", "<B", 0xFF, 12), "not UTF-8"),
    "an end that is no token": (
        put(b"tokenizer.ggml.eos_token_id", "<I", 1 << 30, 4),
        "its eos token is 1073741824, of",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_damaged_is_refused_in_a_sentence(
    run: Any, whole: Path, tmp_path: Path, name: str
) -> None:
    change, says = DAMAGE[name]
    file = tmp_path / "bad.gguf"
    file.write_bytes(change(whole.read_bytes()))
    with pytest.raises(ValueError, match=says) as error:
        dp.LLM(file, speculate=None)
    assert "\n" not in str(error.value) and str(file) in str(error.value)
    code, out, err = run("generate", str(file), "x")
    assert (code, out) == (2, "") and err.count("\n") == 1


def test_weights_that_are_not_finite_are_refused(whole: Path, tmp_path: Path) -> None:
    stored = read(whole).tensors["blk.0.ffn_down.weight"]
    data = whole.read_bytes()
    at = data.index(stored.data[:34].tobytes())
    file = tmp_path / "bad.gguf"
    file.write_bytes(data[:at] + struct.pack("<e", float("nan")) + data[at + 2 :])
    with pytest.raises(ValueError, match="not finite|NaN|nan"):
        dp.LLM(file, speculate=None)


def test_what_is_no_text_takes_no_more_memory_than_it_has_bytes(
    whole: Path, tmp_path: Path
) -> None:
    """A name that is said to be a megabyte long, of which most is weights: once four times that."""
    data, file = whole.read_bytes(), tmp_path / "long.gguf"
    at = data.index(b"llama.rope.freq_base") - 8
    file.write_bytes(data[:at] + struct.pack("<Q", 1 << 20) + data[at + 8 :])
    with pytest.raises(ValueError, match="not UTF-8"):
        read(file)
    assert fuzzed_files.taken(file) < fuzzed_files.taken(whole) + 2 * len(data)


def test_mutated_headers_crash_nothing(whole: Path, tmp_path: Path) -> None:
    assert 150 < fuzzed_files.fuzz(whole, tmp_path, 300, 0) < 300


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitiser's runtime is loaded first")
def test_many_mutated_files_under_the_address_sanitiser(whole: Path, tmp_path: Path) -> None:
    library, more = compiled.sanitised(tmp_path)
    program = str(compiled.SUPPORT / "fuzzed_files.py")
    command = [sys.executable, program, str(library), str(whole), "10000", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **more})
    assert done.returncode == 0, done.stderr[-6000:]
    assert 5000 < int(done.stdout) < 10_000


def test_a_mutated_vocabulary_crashes_nothing(whole: Path, tmp_path: Path) -> None:
    data, rng = whole.read_bytes(), random.Random(3)
    begin, end = data.index(b"tokenizer.ggml.model"), data.index(b"token_embd.weight")
    file = tmp_path / "fuzzed.gguf"
    for _ in range(20):
        mutated = bytearray(data)
        for _ in range(4):
            mutated[rng.randrange(begin, end)] = rng.randrange(128)
        file.write_bytes(mutated)
        try:
            of_gguf(file)("def f(x): return 12345")
        except ValueError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("told", [False, True], ids=["alone", "with its configuration"])
@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_tokenizer_beside_a_file(tmp_path: Path, text: str, told: bool) -> None:
    """It is not passed over, and is no traceback."""
    own = AutoTokenizer.from_pretrained(bundled.folder("target"))
    model = gguf_files.model("llama", vocab_size=len(own))
    gguf_files.write(tmp_path / "m.gguf", model, "F32", own)
    if told:
        own.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read, .*fetch it again"):
        dp.LLM(tmp_path / "m.gguf", speculate=None)
