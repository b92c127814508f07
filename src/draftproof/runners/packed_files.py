"""Packed weights in the user's cache folder: the next load maps them instead of packing again.

A file holds one checkpoint in one precision for one set of kernels. It is used if all that it was
made from is as it was, and its bytes are those that were written; else it is made anew.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
import warnings
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

MAGIC = b"draftproof packed weights\n"
PAGE = 4096  # weights begin at a multiple of it
HEAD = 1 << 20  # bytes at the beginning of a checkpoint's file that tell it from another
SUMMED = 1 << 24  # bytes that have a check sum of their own
MOST_HEADER = 1 << 24

Bytes = NDArray[np.uint8]


class PackedFile:
    """Where a model's packed weights are kept, whether they are yet or not.

    sources: the checkpoint's files. kind: what else has a file of its own, such as the precision.
    about: what else the bytes depend on; of another `about` they are replaced.
    """

    def __init__(
        self, sources: Sequence[Path], kind: Mapping[str, Any], about: Mapping[str, Any]
    ) -> None:
        paths = sorted(path.resolve() for path in sources)
        name = _digest(json.dumps({"paths": [*map(str, paths)], **kind}, sort_keys=True).encode())
        self.path = folder() / f"{name}.packed"
        of = {**kind, **about, "sources": [_state(path) for path in paths]}
        self.of = json.loads(json.dumps(of))  # as it is read again

    def mapped(self, size: int) -> Bytes | None:
        """The weights (size,), for reading only; None where they are not kept, or damaged."""
        try:
            with self.path.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    return None
                header = json.loads(file.readline(MOST_HEADER))
                of, sums, begin = header["of"], header["sums"], _round_up(file.tell())
                if of != self.of or os.fstat(file.fileno()).st_size != begin + size:
                    return None
                held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        weights = np.frombuffer(held, np.uint8, size, begin)
        return weights if sums == _sums(weights) else None

    def write(self, weights: Bytes) -> bool:
        """Keep them for the next load. False where that fails, which is said once."""
        written = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Another process may write the same file, or have it mapped.
            with tempfile.NamedTemporaryFile("wb", dir=self.path.parent, delete=False) as file:
                written = Path(file.name)
                file.write(MAGIC)
                file.write(json.dumps({"of": self.of, "sums": _sums(weights)}).encode() + b"\n")
                file.write(b"\0" * (_round_up(file.tell()) - file.tell()))
                file.write(weights.data)
            written.replace(self.path)
            return True
        except OSError as error:
            if written is not None:
                with suppress(OSError):
                    written.unlink()
            _tell(f"{error.strerror or error}: {self.path.parent}")
            return False


def folder() -> Path:
    """Where this user's packed weights are kept."""
    return user_cache_path("draftproof") / "weights"


def kept() -> list[int]:
    """Bytes of each file that is kept."""
    sizes = []
    for path in folder().glob("*.packed"):
        with suppress(OSError):  # somebody removes it meanwhile
            sizes.append(path.stat().st_size)
    return sizes


def _state(path: Path) -> list[Any]:
    """What changes when a file does; not all of it is read."""
    found = path.stat()
    with path.open("rb") as file:
        return [found.st_size, found.st_mtime_ns, _digest(file.read(HEAD))]


def _sums(weights: Bytes) -> list[int]:
    """Of each part, all threads at work."""
    parts = range(0, len(weights), SUMMED)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [*pool.map(lambda at: zlib.crc32(weights[at : at + SUMMED].data), parts)]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _round_up(size: int) -> int:
    return -(-size // PAGE) * PAGE


@cache
def _tell(cause: str) -> None:
    warnings.warn(
        f"packed weights are not kept for the next load ({cause}): make room there, or set "
        "XDG_CACHE_HOME to a folder that has some",
        stacklevel=2,
    )
