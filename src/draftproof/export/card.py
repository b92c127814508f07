"""The page beside what was exported: what it is, how to start with it, what is otherwise there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftproof.export.asked import Asked
from draftproof.export.draft import Facts

VLLM, SGLANG, LLAMA, TRANSFORMERS = "vllm", "sglang", "llama.cpp", "transformers"


@dataclass(frozen=True)
class Source:
    """What was read of an engine, and what of it was run, as a sentence."""

    version: str
    tried: str


READ = {
    VLLM: Source(
        "0.33.0",
        "Its own classes of configuration took such a folder and these options, on a machine "
        "without a GPU. The rest is written from the source of version 0.33.0, not run.",
    ),
    SGLANG: Source(
        "0.5.23",
        "Its own parser took these flags, its registry and its classes of configuration such a "
        "folder, on a machine without a GPU. The rest is written from the source of version "
        "0.5.23, not run.",
    ),
    LLAMA: Source("0c1e570", "llama-server of that version was run so, with the bundled pair."),
    TRANSFORMERS: Source("5.23.0", "Run."),
}
DROPPED = (
    "vLLM dropped Medusa heads in mid-2026, and SGLang, llama.cpp and transformers have none: no "
    "current engine reads these files. They have the layout that vLLM took until then."
)


def card(
    folder: Path,
    engine: str,
    asked: Asked,
    facts: Facts | None,
    start: str | None,
    notes: Sequence[str],
) -> list[str]:
    """Write `README.md`; the lines that a shell shows.

    facts, start: of a draft; None of heads.
    """
    if facts is None:
        told = [f"Medusa heads for {asked.target}, of {asked.source}.", DROPPED]
    else:
        told = [
            f"A draft for {asked.target}, of {asked.source}: {facts.architecture}, "
            f"{facts.parameters / 1e6:.3g} million parameters in {facts.precision}, "
            f"{facts.vocabulary:,} tokens, the target's tokenizer."
        ]
        told += [_rows(facts)] if facts.added else []
    if asked.quantize and engine != LLAMA:
        told.append(
            f"The profile ran the draft in {asked.quantize}; the folder has its own numbers."
        )
    told += [*asked.notes, *notes]
    lines = [f"# For {engine}", "", *told[:1]]
    if start is not None:
        lines += ["", "```sh" if engine != TRANSFORMERS else "```python", start, "```"]
    for note in told[1:]:
        lines += ["", note]
    if facts is not None:
        lines += ["", f"Read: {engine} {READ[engine].version}. {READ[engine].tried}"]
        lines += ["", "Paths are whole: write them anew where the folder is moved."]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [*told, *([start] if start is not None else [])]


def _rows(facts: Facts) -> str:
    if facts.added < 0:
        return f"{-facts.added} rows behind the target's vocabulary were cut: it writes none."
    return (
        f"{facts.added} ids of the target had no row in the draft. Each got the mean of all rows, "
        "so that its logit is the mean of the draft's: never the draft's first choice."
    )
