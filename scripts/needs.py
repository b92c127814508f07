"""What the package needs, one requirement a line, as `pip install -r` reads it.

    python scripts/needs.py [EXTRA ...]

pip compiles the kernels and fetches what they stand beside one after the other; with this list
both run at once. Only the standard library: it runs before anything is installed.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def needs(listed: Sequence[str], extras: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The requirements, those of the package's own extras in place of their names."""
    for each in listed:
        name, _, rest = each.partition("[")
        if name == "draftproof":
            for extra in rest.rstrip("]").split(","):
                yield from needs(extras[extra], extras)
        else:
            yield each


def main(*asked: str) -> None:
    """Print them: the package's own, and those of the extras."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *(f"draftproof[{extra}]" for extra in asked)]
    print(*needs(listed, project["optional-dependencies"]), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
