"""What a training keeps in its folder until it is done.

Files are there whole or not at all, whoever else writes them at the same time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKPOINT, BEST = "checkpoint", "best.pt"


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder with a checkpoint that nobody asked to continue: `ValueError`."""
    if (there := folder / CHECKPOINT).exists() and not resume:
        raise ValueError(f"{there} is unfinished: add --resume, or write to another folder")


def clear(folder: Path) -> None:
    """Remove what a finished training needs no more."""
    shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)
    (folder / BEST).unlink(missing_ok=True)


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A path beside `file`; what is written there takes its place, unless there is an error."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        with writing(file):
            yield fresh
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """`OSError` with a way out where a library cannot write; they raise what they like."""
    try:
        yield
    except Exception as error:
        free = shutil.disk_usage(place.parent).free / 1e6
        cause = " ".join(str(error).split())
        raise OSError(
            f"cannot write {place}, where {free:,.0f} MB are free ({cause}): make room, or write "
            "to another folder"
        ) from error
