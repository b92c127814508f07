"""The figures of README.md and docs are those of the measurement files; none is typed by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "figures.py"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"<!-- figures: [\w-]+ -->\n.*?<!-- end -->", re.DOTALL)
FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)  # programs and their output
FIGURE = re.compile(
    r"\d\*{0,2}x(?!\w)|\d\.\d+ times|\d ?ms\b|\d (?:micro|milli)seconds|\d\*{0,2} tokens/s|\d ?%"
    r"|\d tokens per (?:step|second)|tokens/step \d"
)


def by_hand(page: str) -> list[str]:
    """Figures outside of generated blocks and of fences."""
    prose = FENCE.sub("", BLOCK.sub("", page))
    return [prose[max(0, m.start() - 30) : m.end()] for m in FIGURE.finditer(prose)]


def test_every_block_is_as_measured() -> None:
    checked = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_figure_is_typed_by_hand(path: Path) -> None:
    if path.name != "log.md":  # dated measurements, written where they were made
        assert by_hand(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it is 2.1x as fast", 1),
        ("**2.45x** and 1.63 times plain", 2),
        ("0.3 ms, 30 tokens/s, 90%", 3),
        ("10 microseconds, 2.14 tokens per step", 2),
        ("twice as fast, 512 tokens a step, 4 x max(blocks, rounding), AVX512, 0x41", 0),
        ("<!-- figures: readme -->\n2.1x\n<!-- end -->\n", 0),
        ("<!-- figures: readme -->\n2.1x\n<!-- end -->\n3.1x\n", 1),
        ("```\n12% accepted\n```\n", 0),
    ],
)
def test_a_planted_figure_is_found(text: str, found: int) -> None:
    assert len(by_hand(text)) == found


def test_a_changed_block_is_found(tmp_path: Path) -> None:
    """A copy of the checkout in which one digit was edited."""
    for path in (ROOT / "docs").glob("*/*.json"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    for path in (*PAGES, *SCRIPT.parent.glob("*.py")):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    page = tmp_path / "README.md"
    said = page.read_text(encoding="utf-8")
    ratio = re.search(r"\| (\d\.\d\dx) \|", said)
    assert ratio is not None
    page.write_text(said.replace(ratio[1], f"9{ratio[1]}"))
    command = [sys.executable, tmp_path / "scripts" / "figures.py"]
    assert (
        "README.md" in subprocess.run([*command, "--check"], capture_output=True, text=True).stdout
    )
    assert subprocess.run(command).returncode == 0
    assert page.read_bytes() == (ROOT / "README.md").read_bytes()
