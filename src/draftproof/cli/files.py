"""Files that commands read and write. Imports nothing heavy."""

from __future__ import annotations

import os
from pathlib import Path


def place(out: Path, usual: str) -> Path:
    """The file to write: `out` where it ends as the usual name does, else that name in a folder.

    The folder is made. Raises `ValueError` where there can be none.
    """
    ending = Path(usual).suffix
    path = out if out.suffix == ending else out / usual
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        way = f"give a folder, or a name that ends in {ending}"
        raise ValueError(f"cannot write results to {path.parent}: it is no folder; {way}") from None
    except OSError as error:
        raise ValueError(f"cannot write results to {path.parent}: {error.strerror}") from error
    return path


def check_folder(out: Path) -> None:
    """Raises `ValueError` for what can be no folder to write to, and makes none."""
    there = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    if not there.is_dir():
        raise ValueError(f"cannot write results to {out}: {there} is a file; give a folder")
    if not os.access(there, os.W_OK):
        raise ValueError(f"cannot write results to {out}: it may not be written to; give another")


def text_of(file: Path, what: str) -> str:
    """What stands in a file. what: it is called in errors. Raises `ValueError`."""
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"cannot read the {what} {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the {what} {file} is not UTF-8 text (byte {error.start})") from error
