"""The pages that the site is made of; `make docs` builds it, and fails at a dead link."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import draftproof

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r": ([\w.]+\.md)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "pages"
    subprocess.run([sys.executable, ROOT / "scripts" / "site_pages.py", out], check=True)
    return out


def test_every_page_has_its_place(pages: Path) -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert sorted(NAMED.findall(nav)) == sorted(page.name for page in pages.glob("*.md"))


def test_links_lead_to_what_was_gathered(pages: Path) -> None:
    for page in pages.glob("*.md"):
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        assert [each for each in LINK.findall(prose) if not (pages / each).exists()] == [], page


def test_the_reference_has_all_that_is_public(pages: Path) -> None:
    told = re.findall(r"^::: draftproof\.(\w+)$", (pages / "reference.md").read_text(), re.M)
    assert told == list(draftproof.__all__)
    commands = (pages / "commands.md").read_text(encoding="utf-8")
    assert "\n## train medusa\n" in commands and "--allow-host" in commands
