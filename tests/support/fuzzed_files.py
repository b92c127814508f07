"""Mutated GGUF files, loaded as far as packed weights: a refusal is a sentence, and nothing breaks.

As a program, `fuzzed_files.py LIBRARY FILE COUNT SEED`, it does so in a library of kernels that an
address sanitiser watches; prints how many of the files were refused.
"""

from __future__ import annotations

import random
import struct
import sys
import time
import tracemalloc
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from draftproof import native
from draftproof.gguf.configuration import configuration
from draftproof.gguf.reader import read
from draftproof.gguf.tokenizer import of_gguf
from draftproof.runners import gguf_checkpoint, packing

SECONDS = 2.0  # of processor time
MEASURED = 4  # of so many files one, because measuring takes longer than reading


def mutate(data: bytes, names: int, rng: random.Random) -> bytes:
    """names: where the header ends. Counts, names and types at both of its ends, and the data."""
    mutated = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.random()
        if place < 0.5:
            at = rng.randrange(1200)
        elif place < 0.9:
            at = max(0, names - rng.randrange(6000))
        else:
            at = rng.randrange(names, len(data))
        if rng.random() < 0.5:
            mutated[at] = rng.randrange(256)
        else:
            value = rng.choice((0, 1, 1 << 14, 1 << 20, 1 << 31, 1 << 40, (1 << 64) - 1))
            mutated[at : at + 8] = struct.pack("<Q", value)
    if rng.random() < 0.1:
        del mutated[rng.randrange(len(mutated)) :]
    return bytes(mutated)


def load(file: Path, vocabulary: bool = False) -> None:
    """As an LLM does, up to the first pass."""
    found = gguf_checkpoint.find(file, dtype=None, as_they_lie=True)
    if packing.refusal(found.model) is None:
        packing.Packed(found, "bfloat16")
    else:
        gguf_checkpoint.load(file, dtype=None, device=torch.device("cpu"))
    if vocabulary:
        of_gguf(file)


def fuzz(whole: Path, folder: Path, count: int, seed: int) -> int:
    """How many of the files were refused. Anything but `ValueError` is a defect.

    What is damaged takes at most twice the file's size more than what is whole.
    """
    data, rng, refused = whole.read_bytes(), random.Random(seed), 0
    names = data.index(b"token_embd.weight") + 2000
    file = folder / "fuzzed.gguf"
    load(whole)
    most = taken(whole) + 2 * len(data)
    for number in range(count):
        file.write_bytes(mutate(data, names, rng))
        if number % MEASURED == 0:
            assert taken(file) < most, (seed, number)
        began = time.process_time()
        try:
            load(file, vocabulary=number % 50 == 0)
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error), error
        assert time.process_time() - began < SECONDS, (seed, number)
    return refused


def taken(file: Path) -> int:
    """Bytes that reading the header takes, at most at a time."""
    tracemalloc.start()
    with suppress(ValueError):
        configuration(read(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main(library: str, whole: str, count: str, seed: str) -> None:
    native.library = cache(lambda: native.load(library))
    print(fuzz(Path(whole), Path(whole).parent, int(count), int(seed)))


if __name__ == "__main__":
    main(*sys.argv[1:])
