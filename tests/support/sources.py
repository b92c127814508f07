"""The sources of the package, read as text."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src" / "draftproof"


def modules() -> dict[str, tuple[Path, str]]:
    """Module name -> (path, source), for every file of the package."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "draftproof"
        found[name] = (path, path.read_text(encoding="utf-8"))
    return found


MODULES = modules()


@cache
def matches(name: str, patterns: str) -> bool:
    """Whether a pattern of the list fits and none with "!" does; the same names come often."""
    wanted = [p for p in patterns.split() if not p.startswith("!")]
    unwanted = [p[1:] for p in patterns.split() if p.startswith("!")]
    return any(fnmatchcase(name, p) for p in wanted) and not any(
        fnmatchcase(name, p) for p in unwanted
    )
