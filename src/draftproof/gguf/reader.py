"""What a GGUF file holds: its fields, and where its tensors lie. A file is input from strangers.

Every count, length, offset and type is checked against the file's size before it is used; nothing
is allocated that the file is too small for. Values of tensors are not looked at. After the format's
description in ggml (docs/gguf.md), versions 2 and 3.
"""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.gguf.cursor import Cursor, Damaged, Texts

MAGIC = b"GGUF"
MOST_DIMENSIONS, MOST_ALIGNMENT = 4, 1 << 16
BLOCKS = {  # of tensors, by number: name, elements of a block, and its bytes
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    30: ("BF16", 1, 2),
    28: ("F64", 1, 8),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file: its type by name, its shape, outputs first, and its bytes."""

    kind: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]  # a view of the file
    file: mmap.mmap
    begin: int  # of the data, in the file

    def let_go(self) -> None:
        """Its pages leave memory; whoever looks at `data` again reads them from the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            begin = self.begin // mmap.PAGESIZE * mmap.PAGESIZE
            size = self.begin + self.data.size - begin
            self.file.madvise(mmap.MADV_DONTNEED, begin, size)


@dataclass(frozen=True, slots=True)
class File:
    """A GGUF file, all of its parts together."""

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, Stored]
    parts: tuple[Path, ...] = ()  # all of them, `path` first

    @property
    def architecture(self) -> str:
        return str(self.field("general.architecture", str))

    def field(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of a field; raises `ValueError` for one of another type, or without any.

        "{arch}" in the name is the model's architecture. default: where the field is missing.
        """
        name = name.replace("{arch}", str(self.fields.get("general.architecture")))
        found = self.fields.get(name, default)
        if isinstance(found, Texts):
            try:
                found = found.read()
            except Damaged as error:
                raise ValueError(f"{self.path}: {error}") from None
        if found is None:
            raise ValueError(f"{self.path} has no {name}: it is not a language model, or damaged")
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            raise ValueError(f"{self.path}: {name} is of type {type(found).__name__}: damaged")
        return found


def located(model: object) -> Path | None:
    """The GGUF file that a path names: itself, or the only one of a folder without config.json."""
    if not isinstance(model, str | Path):
        return None
    path = Path(model)
    try:
        if path.is_dir() and not (path / "config.json").exists():
            firsts = [each for each in path.glob("*.gguf") if not later(each)]
            return firsts[0] if len(firsts) == 1 else None
        with path.open("rb") as file:
            return path if file.read(4) == MAGIC else None
    except OSError:
        return None


def later(path: Path) -> bool:
    """Whether it is a part of a file, by its name, and not the first."""
    split = PART.fullmatch(path.name)
    return split is not None and int(split[2]) != 1


def read(path: Path) -> File:
    """A file, or the parts that it is the first of. Raises `ValueError`, in one sentence."""
    split = PART.fullmatch(path.name)
    fields, tensors = _read(path)
    paths, parts = [path], fields.get("split.count", 1)
    if not isinstance(parts, int) or not 0 < parts < 1000:
        raise ValueError(f"{path}: it says that it is one of {parts!r} parts: it is damaged")
    if parts > 1:
        if split is None or int(split[3]) != parts:
            raise ValueError(
                f"{path} is one of {parts} parts, which its name does not say: name them "
                f"NAME-00001-of-{parts:05}.gguf and so on"
            )
        if int(split[2]) != 1:
            raise ValueError(f"{path} is a later part: give {_part(path, split, 1)}")
        for number in range(2, parts + 1):
            other = _part(path, split, number)
            if not other.is_file():
                raise ValueError(f"part {number} of {parts} is missing: {other}")
            more = _read(other)[1]
            if doubled := tensors.keys() & more.keys():
                raise ValueError(f"{other}: {min(doubled)} is in another part too")
            tensors |= more
            paths.append(other)
    return File(path, fields, tensors, tuple(paths))


def _part(path: Path, split: re.Match[str], number: int) -> Path:
    return path.with_name(f"{split[1]}-{number:05}-of-{split[3]}.gguf")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Stored]]:
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty: fetch it again")
    try:
        with path.open("rb") as file:
            return _contents(Cursor(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except Damaged as error:
        raise ValueError(f"{path}: {error}") from None


def _contents(cursor: Cursor) -> tuple[dict[str, Any], dict[str, Stored]]:
    if cursor.take(4) != MAGIC:
        raise Damaged("it does not begin as a GGUF file does")
    version = cursor.one("<I")
    if version not in (2, 3):
        raise Damaged(
            "it is big-endian: get the file for this machine"
            if version % 0x10000 == 0
            else f"it is of version {version}, and 2 and 3 are read: get a newer file"
        )
    tensors = cursor.count(24, "tensors")
    fields: dict[str, Any] = {}
    for _ in range(cursor.count(13, "fields")):
        name = cursor.text()
        if name in fields:
            raise Damaged(f"it has {name} twice")
        fields[name] = cursor.value(cursor.one("<I"))
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= MOST_ALIGNMENT or alignment % 8:
        raise Damaged(f"its alignment is {alignment!r}")
    placed: dict[str, Callable[[int], Stored]] = {}
    for _ in range(tensors):
        name = cursor.text()
        if name in placed:
            raise Damaged(f"it has the tensor {name} twice")
        placed[name] = _tensor(cursor, name, alignment)
    begin = -(-cursor.at // alignment) * alignment
    return fields, {name: place(begin) for name, place in placed.items()}


def _tensor(cursor: Cursor, name: str, alignment: int) -> Callable[[int], Stored]:
    """Reads where a tensor lies; its bytes are had when it is known where all of them begin."""
    dimensions = cursor.one("<I")
    if not 0 < dimensions <= MOST_DIMENSIONS:
        raise Damaged(f"{name} has {dimensions} dimensions")
    shape = tuple(cursor.one("<Q") for _ in range(dimensions))[::-1]
    number, offset = cursor.one("<I"), cursor.one("<Q")
    if number not in BLOCKS:
        raise Damaged(f"{name} is of type {number}, which is not known: get another file")
    kind, elements, size = BLOCKS[number]
    if shape[-1] % elements:
        raise Damaged(f"{name} has rows of {shape[-1]}, no multiple of {kind}'s {elements}")
    total = math.prod(shape) // elements * size
    if offset % alignment or not total:
        raise Damaged(f"{name} is empty, or begins at {offset}, which is not aligned")

    def place(begin: int) -> Stored:
        at = begin + offset
        if at + total > len(cursor.data):
            raise Damaged(f"{name} ends behind its end: it is cut short, fetch it again")
        return Stored(kind, shape, np.frombuffer(cursor.data, np.uint8, total, at), cursor.data, at)

    return place
