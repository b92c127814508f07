"""Files that commands read and write. Imports nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def place(out: Path, usual: str) -> Path:
    """The file to write: `out` where it ends as the usual name does, else that name in a folder.

    The folder is made. Raises `ValueError` where there can be none.
    """
    ending = Path(usual).suffix
    path = out if out.suffix == ending else out / usual
    with results_in(path.parent, ending):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


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


def check_folder(out: Path) -> None:
    """Raises `ValueError` for what can be no folder to write to, and makes none."""
    there = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    with results_in(out):
        if not there.is_dir():
            raise NotADirectoryError(f"{there} is a file")
        if not os.access(there, os.W_OK):
            raise PermissionError("it may not be written to")


def text_of(file: Path, what: str) -> str:
    """What stands in a file. what: it is called in errors. Raises `ValueError`."""
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"cannot read the {what} {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the {what} {file} is not UTF-8 text (byte {error.start})") from error
