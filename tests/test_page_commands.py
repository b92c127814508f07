"""Every command that a page shows is one: its options are there, whatever model it names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from draftproof import cli
from draftproof.cli import commands

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GROUP = cli.group()


def shown(page: Path) -> list[str]:
    """Lines of shell programs that call draftproof, those that go on joined."""
    text = "\n".join(FENCE.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.startswith("draftproof ")]


def wrong(line: str) -> str | None:
    """What the command line has against it; None: it can be called so."""
    words = shlex.split(re.sub(r"[<>|&].*$", "", line), comments=True)[1:]
    command, name = GROUP, "draftproof"
    while (inner := getattr(command, "commands", None)) and words:
        if words[0].startswith("-"):
            break  # an option of the whole program
        if words[0] not in inner:
            return f"{name} has no command {words[0]}"
        name, command, words = words[0], inner[words[0]], words[1:]
    try:
        command.make_context(name, [word.replace("$KEY", "key") for word in words])
    except commands.USAGE as error:
        return str(error.format_message())
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_commands_are_there(page: Path) -> None:
    complaints = {line: said for line in shown(page) if (said := wrong(line)) is not None}
    assert complaints == {}


def test_commands_are_seen() -> None:
    assert sum(len(shown(page)) for page in PAGES) > 40
    assert wrong("draftproof serve") is not None
    assert wrong("draftproof serve m --no-such") is not None
    assert wrong("draftproof nothing m") is not None
    assert wrong("draftproof generate bundled 'a' < file.py  # said") is None
