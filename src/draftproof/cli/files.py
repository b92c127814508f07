"""Files that commands read and write. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from draftproof.out_folders import results_in, try_folder


def place(out: Path, usual: str) -> Path:
    """The file to write: `out` where it ends as the usual name does, else that name in a folder.

    The folder is made. Raises `ValueError` where there can be none.
    """
    ending = Path(usual).suffix
    path = out if out.suffix == ending else out / usual
    with results_in(path.parent, ending):
        try_folder(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


def text_of(file: Path, what: str) -> str:
    """What stands in a file. what: it is called in errors. Raises `ValueError`."""
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"cannot read the {what} {file}: {error.strerror}; give a file") from error
    except UnicodeDecodeError as error:
        said = f"the {what} {file} is not UTF-8 text (byte {error.start})"
        raise ValueError(f"{said}: convert it") from error
