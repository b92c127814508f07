"""What was found or trained here, as files that other engines load, with what to tell them.

A draft becomes a plain folder of transformers' with the target's vocabulary and tokenizer, or a
GGUF file; heads become the files that vLLM took until mid-2026. Knows no engine of its own: what
others read was looked up in their sources, in the versions that `engines` names.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from draftproof.export import engines
from draftproof.export.asked import Asked, by_hand, of_profile
from draftproof.export.engines import ENGINES

__all__ = ["ENGINES", "Asked", "by_hand", "export", "of_profile"]


def export(
    asked: Asked, engine: str, out: str | Path, *, precision: str | None = None
) -> list[str]:
    """Write the folder `out` for one of `ENGINES`; lines that tell what is in it.

    precision: of a GGUF file; None is what the profile ran the draft in, or bfloat16. The folder
    appears when it is whole. Raises `ValueError`, in one sentence.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r} is unknown: use {', '.join(ENGINES)}")
    out = Path(out).absolute()
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ValueError(f"{out} is not empty: give another --out, or remove what is in it")
    engines.check(engine, asked, out, precision)
    part = out.with_name(f"{out.name}.{os.getpid()}.part")  # nobody else's
    part.mkdir(parents=True)
    try:
        lines = ENGINES[engine](asked, part, out, precision)
        if out.is_dir():
            out.rmdir()
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return lines
