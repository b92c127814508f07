"""docs/benchmarks.md from result files: `python benchmarks/pages.py docs/benchmarks`.

Every figure of the page comes from a JSON file that `draftproof bench` wrote; the page names it.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from draftproof.bench.report import HEADINGS, cells, notes, skipped

HEAD = """# Benchmarks

Generated from the files beside it by `python benchmarks/pages.py docs/benchmarks`; edit
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
        *(f"\n- {note}" for note in [*notes(found), *skipped(found)]),
        f"\n![{name}](benchmarks/{name}.png)\n",
    ]
    return "\n".join(lines)


def _command(options: dict[str, Any]) -> str:
    """The command that runs this again; older files lack the newer options."""
    values = {
        **{key: options.get(key) for key in ("draft", "heads")},
        "methods": ",".join(options["methods"]),
        "against": ",".join(options["against"]),
        **{key: options.get(key) for key in ("prompts", "num_prompts", "inflate", "system")},
        **{key: options.get(key) for key in ("max_tokens", "rounds")},
        "temperature": options["temperatures"],
        "batch": options["batches"],
        "dtype": options["dtype"],
        "runner": None if options.get("runner") == "auto" else options.get("runner"),
        **options["draft_options"],
        **{key: options.get(key) or None for key in ("chat", "ignore_eos")},
    }
    words = ["draftproof", "bench", options["model"]]
    for key, value in values.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                words.append(f"--{key.replace('_', '-')}")
                if each is not True:
                    words.append(f"{each:g}" if isinstance(each, float) else str(each))
    return shlex.join(words)


def main() -> None:
    folder = Path(sys.argv[1])
    files = sorted(folder.glob("*.json"))
    found = [(path.stem, json.loads(path.read_text())) for path in files]
    folder.with_suffix(".md").write_text(page(found))


if __name__ == "__main__":
    main()
