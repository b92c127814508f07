"""The examples run as they stand, and none says that its output differs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import draftproof as dp

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(path.read_text().splitlines()) <= 30
    runpy.run_path(str(path), run_name="__main__")
    out = capsys.readouterr().out
    assert out.strip() and "identical: False" not in out


METHODS = [
    name
    for name in dp.__all__
    if hasattr(getattr(dp, name), "propose") or getattr(dp, name) is dp.Typical
]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_its_example(name: str) -> None:
    assert any(f"dp.{name}(" in path.read_text() for path in EXAMPLES)


SECTIONS = re.split("\n## ", (ROOT / "docs" / "methods.md").read_text())


@pytest.mark.parametrize("section", SECTIONS[2:], ids=lambda text: text.splitlines()[0])
def test_every_method_is_described(section: str) -> None:
    """Idea, picture, when it pays, cost, options, paper."""
    for part in ("```\n", "**Pays** ", "**Not**", "**Cost.** ", "**Options.** ", "**Paper"):
        assert part in section, part
