"""Folders that results go to: one that cannot be written to is told, and early. Imports little."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def results_in(folder: Path, ending: str | None = None) -> Iterator[None]:
    """Raises `ValueError`, with the way out, where what is done inside cannot write there.

    ending: of a file's name, where --out may be one.
    """
    try:
        yield
    except OSError as error:
        found = isinstance(error, FileExistsError)
        why = "it is no folder" if found else error.strerror or " ".join(str(error).split())
        way = "give another folder as --out"
        way += "" if ending is None else f", or a name that ends in {ending}"
        raise ValueError(f"cannot write results to {folder}: {why}; {way}") from error


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """`OSError` with a way out where a library cannot write; they raise what they like."""
    try:
        yield
    except (ValueError, MemoryError):
        raise
    except Exception as error:
        there = next((each for each in place.absolute().parents if each.exists()), Path.cwd())
        free = shutil.disk_usage(there).free / 1e6
        cause = " ".join(str(error).split())
        raise OSError(
            f"cannot write {place}, where {free:,.0f} MB are free ({cause}): make room, or write "
            "to another folder"
        ) from error


@contextmanager
def whole(file: Path, mark: str = "") -> Iterator[Path]:
    """A path beside `file`; what is written there takes its place, after an error nothing does.

    What is there stays until then, and a folder that is gone meanwhile is made again. mark: one of
    its own for each process, where several write the same file. Raises `OSError`.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}{mark}.part")
    try:
        yield part
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def save_figure(figure: Any, file: Path) -> None:
    """A figure of matplotlib as the kind of picture that the file's name ends in, whole.

    Raises `OSError`.
    """
    with whole(file) as part:
        figure.savefig(part, dpi=110, format=file.suffix[1:])


def check_folder(folder: Path) -> None:
    """Raises `ValueError` for what can be no folder to write to; see `try_folder`."""
    with results_in(folder):
        try_folder(folder)


def try_folder(folder: Path) -> None:
    """Raises `OSError` for what can be no folder to write to.

    A file is written to try, for no right or mount tells it all; what is made is gone again.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise NotADirectoryError(f"{there} is a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    finally:
        for each in made:
            with suppress(OSError):
                each.rmdir()
