"""docs/licences.md: what draftproof installs, with its extras, and what comes along, by licence.

    .venv/bin/python scripts/licences.py [--check]

From the metadata of what is installed here, so run it where `make setup` was. `--check` writes
nothing, and fails where a dependency of pyproject.toml has no row.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "licences.md"
NOT_SHIPPED = {"dev", "docs"}  # extras of those who work on draftproof
HEAD = """# Licences

draftproof is under the [Apache License 2.0](../LICENSE). `scripts/licences.py` writes this page.

## What comes along

| what | licence | from |
|---|---|---|
| bundled models, tokenizers, heads | this project's | Python's standard library (PSF) |
| HumanEval's prompts | MIT | OpenAI's human-eval |
| MT-Bench's questions | Apache-2.0 | FastChat |
| the English text of `quality` | this project's | written for it |

Nothing of other libraries lies in the package: they are installed beside it.

## What is installed beside it

Of the plain installation and the extras `bench`, `grammar`, `serve`, `ray` and `train`, with all
that these bring along, as far as it was installed where the table was made.

| library | licence |
|---|---|
"""


def direct() -> list[Requirement]:
    """What pyproject.toml asks for, but for developers' tools."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"]]
    asked += [each for name, some in extras.items() if name not in NOT_SHIPPED for each in some]
    return [made for each in asked if (made := Requirement(each)).name != "draftproof"]


def closure(needs: list[Requirement]) -> set[str]:
    """Names of these and of what they bring along, of what is installed."""
    found: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(need.name), x) for need in needs for x in ("", *need.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        try:
            more = [Requirement(each) for each in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:
            continue
        found.add((name, extra))
        for need in more:
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(need.name), x) for x in ("", *need.extras)]
    return {name for name, _ in found}


def licence(name: str) -> str:
    """As its metadata has it: the expression, else the classifiers, else the first line."""
    about = metadata.metadata(name)
    if said := about.get("License-Expression"):
        return str(said)
    kinds = [each for each in about.get_all("Classifier") or () if each.startswith("License ::")]
    named = [kind.rpartition(" :: ")[2] for kind in kinds if kind != "License :: OSI Approved"]
    return ", ".join(named) or (about.get("License") or "not told").splitlines()[0][:60]


def rows() -> Iterator[str]:
    for name in sorted(closure(direct())):
        yield f"| {name} | {licence(name)} |\n"


def missing() -> list[str]:
    """Dependencies without a row."""
    told = re.findall(r"^\| ([\w.-]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return sorted({canonicalize_name(need.name) for need in direct()} - {*told, "ray"})


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(HEAD + "".join(rows()), encoding="utf-8")
    if left := missing():
        sys.exit(f"docs/licences.md has no row for {', '.join(left)}: run scripts/licences.py")
