"""docs/cpu_peers.md from result files: `python benchmarks/peers/peer_pages.py docs/cpu_peers`.

Every figure of the page comes from a JSON file that `cpu_peers.py` wrote; the page names it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.table import Table

from peer_parts import Case, Found
from peer_report import tables

HEAD = """# The native CPU runner beside its peers

Generated from the files beside it by `python benchmarks/peers/peer_pages.py docs/cpu_peers`; edit
nothing here. Every section is one run of `cpu_peers.py` beside that (`make bench-peers` makes the
peers' environment): the same weights, precision, threads and prompts, each side in a process of its
own that sleeps while another is measured, sides in turn, medians of the rounds. A pass gives the
logits of all its tokens, behind 128 tokens of context. `x`: that pass in passes over one token.
`length`: the draft length at which a side was fastest on two prompts. `differ`: prompts on
which a side's text is not draftproof's plain one (in bf16 engines round differently, so near-ties
fall differently). What the machine can do at best is measured in the same run by the same kernels.
"""


def markdown(table: Table) -> list[str]:
    """A rich table as lines of markdown."""
    columns = [[str(cell).replace("\n", "<br>") for cell in each.cells] for each in table.columns]
    lines = [f"\n**{table.title}**\n", f"| {' | '.join(str(c.header) for c in table.columns)} |"]
    lines.append("|---" * len(columns) + "|")
    return lines + [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]


def load(path: Path) -> tuple[Found, dict[str, Any]]:
    """What a run found, and everything that it wrote down."""
    content = json.loads(path.read_text())
    names = [each.name for each in fields(Case)]
    passes, prompts = (
        {side: {int(size): took for size, took in sizes.items()} for side, sizes in part.items()}
        for part in (content["passes"], content["prompts"])
    )
    cases = [Case(**{name: each[name] for name in names}) for each in content["cases"]]
    return Found(passes, prompts, cases, content["skipped"]), content


def section(path: Path, folder: str) -> str:
    """One run: what ran where, its tables, its pictures."""
    found, content = load(path)
    about, options = content["environment"], content["options"]
    versions = [
        f"{name} {version}"
        for side in about["versions"].values()
        for name, version in side.items()
        if name not in ("limits", "runner")
    ]
    lines = [
        f"\n## {options['target']}, {options['precision']}\n",
        f"`{about['command']}`\n",
        f"{about['date']}. {about['machine'].split(', load')[0]}; "
        f"load {about['load_before']} before, {about['cores_busy_with_others']} "
        "cores busy with other programs meanwhile. "
        f"{', '.join(dict.fromkeys(versions))}. "
        f"The machine: {about['versions']['draftproof']['limits']}.",
    ]
    for table in tables(found, options["prompts"]):
        lines += markdown(table)
    lines += [f"\n- skipped {what}: {reason}" for what, reason in found.skipped.items()]
    for picture in sorted(path.parent.glob(f"{path.stem}-*.png")):
        lines.append(f"\n![{picture.stem}]({folder}/{picture.name})")
    return "\n".join(lines) + "\n"


def main() -> None:
    folder = Path(sys.argv[1])
    parts = [section(path, folder.name) for path in sorted(folder.glob("*.json"))]
    folder.with_suffix(".md").write_text(HEAD + "".join(parts))


if __name__ == "__main__":
    main()
