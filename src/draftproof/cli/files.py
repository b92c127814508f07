"""Files that commands write: where they lie. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path


def place(out: Path, usual: str) -> Path:
    """The file to write: `out` where it ends as the usual name does, else that name in a folder.

    The folder is made. Raises `ValueError` where there can be none.
    """
    path = out if out.suffix == Path(usual).suffix else out / usual
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write results to {path.parent}: {error.strerror}") from error
    return path
