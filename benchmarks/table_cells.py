"""A file of measurements that grows cell by cell, and goes on where a run was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from draftproof import clock
from draftproof.out_folders import whole


def kept(path: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """What an earlier run left, if it was asked for the same here; else nothing but the asking."""
    before: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    alike = all(before.get(name) == value for name, value in asked.items())
    if alike and before.get("processor") == clock.processor():
        return before
    if before.get("rows"):
        raise typer.BadParameter(f"{path} holds rows of other settings or another machine: move it")
    return {**asked, "rows": []}


def write(path: Path, found: dict[str, Any]) -> None:
    """Whole or not at all: a run may be killed."""
    with whole(path) as part:
        part.write_text(json.dumps(found, indent=1) + "\n")
    print("written:", path)
