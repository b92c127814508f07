"""The prompt of one call: an argument, a file, standard input, or two of them."""

from __future__ import annotations

import os
import sys
from codecs import BOM_UTF8
from pathlib import Path

STDIN = "-"  # what stands for standard input, as an argument and as a file


def read(prompt: str | None, file: Path | None) -> str:
    """The prompt as it stands in its source; standard input comes before what is given beside it.

    As `llm` and Ollama do: `draftproof generate MODEL "What does this do?" < file.py`.
    Raises `ValueError`: no prompt, an empty one, or one that cannot be read.
    """
    if prompt is not None and file is not None:
        raise ValueError("a prompt and --prompt-file are both given: drop one")
    try:
        given = b""
        if file is not None and str(file) != STDIN:
            given = file.read_bytes().removeprefix(BOM_UTF8)
        elif prompt is not None and prompt != STDIN:
            given = os.fsencode(prompt)
        elif sys.stdin is None or (prompt is None and file is None and sys.stdin.isatty()):
            raise ValueError("no prompt: give it as an argument, --prompt-file or standard input")
        piped = b"" if sys.stdin is None or (given and sys.stdin.isatty()) else _standard_input()
        gap = b"\n" if given and piped and not piped.endswith(b"\n") else b""
        text = (piped + gap + given).decode()
    except OSError as error:
        of = "standard input" if file is None or str(file) == STDIN else f"the prompt file {file}"
        raise ValueError(f"cannot read {of}: {error.strerror}; give a file of text") from error
    except UnicodeDecodeError as error:
        said = f"the prompt is not UTF-8 text (byte {error.start})"
        raise ValueError(f"{said}: convert it") from error
    if not text:
        raise ValueError("the prompt is empty: write something to continue")
    return text


def _standard_input() -> bytes:
    assert sys.stdin is not None
    return sys.stdin.buffer.read().removeprefix(BOM_UTF8)
