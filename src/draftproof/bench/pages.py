"""docs/benchmarks.md from result files: `python -m draftproof.bench.pages docs/benchmarks`.

Every figure of the page comes from a JSON file that `draftproof bench` wrote; the page names it.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from draftproof.bench.report import HEADINGS, cells, notes

HEAD = """# Benchmarks

Generated from the files beside it by `python -m draftproof.bench.pages docs/benchmarks`; edit
nothing here. Every table is one run of `draftproof bench`: same weights, precision, prompts and
threads on all sides, sides in turn prompt by prompt, medians of the rounds with the lowest and the
highest. `predicted`: what the formulae expect of the measured acceptance and costs.
"""


def page(results: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Markdown of several runs: (file name without ending, what `Report.as_dict` gave)."""
    return HEAD + "".join(_section(name, found) for name, found in results)


def _section(name: str, found: dict[str, Any]) -> str:
    about = found["environment"]
    lines = [
        f"\n## {name.replace('-', ' ')}\n",
        f"`{_command(found['options'])}`\n",
        f"{about['date']}. {about['machine']}, transformers {about['transformers']}; load "
        f"{about['load_before']} before, {about['load_after']} after. {found['prompts']} prompts, "
        f"{about.get('runner', 'torch')}, {about['dtype']}, "
        f"{about['parameters'] / 1e6:.0f} million parameters.\n",
        f"| {' | '.join(HEADINGS)} |",
        "|---" * len(HEADINGS) + "|",
        *(f"| {' | '.join(cells(each, found['prompts']))} |" for each in found["results"]),
        *(f"\n- {note}" for note in notes(found)),
        f"\n![{name}](benchmarks/{name}.png)\n",
    ]
    return "\n".join(lines)


def _command(options: dict[str, Any]) -> str:
    """The command that runs this again."""
    words = ["draftproof", "bench", options["model"]]
    if options["draft"]:
        words += ["--draft", options["draft"]]
    words += ["--methods", ",".join(options["methods"])]
    words += ["--against", ",".join(options["against"])]
    for path in options["prompts"]:
        words += ["--prompts", path]
    for key in ("num_prompts", "inflate"):
        if options[key]:
            words += [f"--{key.replace('_', '-')}", str(options[key])]
    words += ["--max-tokens", str(options["max_tokens"]), "--rounds", str(options["rounds"])]
    for name, values in (("temperature", "temperatures"), ("batch", "batches")):
        for value in options[values]:
            words += [f"--{name}", f"{value:g}"]
    words += ["--dtype", options["dtype"]]
    if options.get("runner", "auto") != "auto":
        words += ["--runner", options["runner"]]
    for key, value in options["draft_options"].items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    return shlex.join([*words, *(["--ignore-eos"] if options["ignore_eos"] else [])])


def main() -> None:
    folder = Path(sys.argv[1])
    files = sorted(folder.glob("*.json"))
    found = [(path.stem, json.loads(path.read_text())) for path in files]
    folder.with_suffix(".md").write_text(page(found))


if __name__ == "__main__":
    main()
