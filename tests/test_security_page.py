"""Limits in docs/security.md are those of the code; licences are told of all dependencies."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from draftproof.server.settings import Limits

PAGE = Path(__file__).resolve().parent.parent / "docs" / "security.md"
ROW = re.compile(r"^\| (?P<what>.+?) \| (?P<value>[\d,]+) \| .+? \| `(?P<place>[\w.]+)` \|$", re.M)
ROWS = {row["place"]: row["value"] for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))}


def value(place: str) -> Any:
    """Of a module's constant, or of a field of `Limits`."""
    above, _, name = place.rpartition(".")
    if above == "server.settings.Limits":
        (found,) = (each.default for each in fields(Limits) if each.name == name)
        assert found is not MISSING
        return found
    return getattr(import_module(f"draftproof.{above}"), name)


@pytest.mark.parametrize("place", ROWS)
def test_a_limit_is_as_told(place: str) -> None:
    assert ROWS[place] == f"{value(place):,g}" or ROWS[place] == f"{value(place):,}"


def test_every_limit_of_a_client_is_told() -> None:
    told = {place.rpartition(".")[2] for place in ROWS if ".Limits." in place}
    assert told == {each.name for each in fields(Limits)}
    assert len(ROWS) > len(told) + 5


def test_another_number_is_found() -> None:
    assert ROWS["templates.SECONDS"] != f"{value('templates.SECONDS') + 1:,g}"
    assert not ROW.search("| a limit | many | 400 | `templates.SECONDS` |")


def test_every_dependency_has_its_licence() -> None:
    script = PAGE.parent.parent / "scripts" / "licences.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
