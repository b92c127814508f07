"""`draftproof convert`: from arguments to a GGUF file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from draftproof.cli.progress import Running
from draftproof.convert import convert
from draftproof.out_folders import check_folder


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    precision = given.dtype or "int4"
    out: Path = given.out
    if out.suffix != ".gguf":
        out /= f"{Path(given.model).name}.{precision}.gguf"
    check_folder(out.parent)
    if out.exists():
        raise ValueError(f"{out} is there already: give another --out, or remove it")
    with Running() as running:
        running(f"loading {given.model}", None)
        written = convert(
            given.model,
            out,
            precision,
            revision=given.revision,
            trust_remote_code=given.trust_remote_code,
            threads=given.threads,
            told=running,
        )
    print(f"written: {written}, {written.stat().st_size / 1e6:.0f} MB")
    return 0
