"""The pages of the site, gathered in a folder for mkdocs: README.md, docs/, and a reference.

    python scripts/site_pages.py build/pages

Files outside of docs/ that a page links to are copied beside the pages. The reference lists what
`draftproof.__all__` names, and the help of each command; mkdocstrings reads the docstrings.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import typer

import draftproof
from draftproof import cli

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()(?!https?:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
PAGES = {ROOT / "README.md": "index.md"}
PAGES |= {ROOT / f"{name}.md": f"{name.lower()}.md" for name in ("CONTRIBUTING", "CHANGELOG")}
PAGES |= {page: page.name for page in sorted((ROOT / "docs").glob("*.md"))}
HEAD = "# Python\n\nWhat `import draftproof as dp` has, by name.\n\n"


def gathered(page: Path, out: Path) -> str:
    """The text of a page, its links as they are in `out`; what they lead to is copied there."""

    def led(match: re.Match[str]) -> str:
        target = (page.parent / match[2]).resolve()
        if target in PAGES:
            return f"{match[1]}{PAGES[target]}{match[3]}"
        if target.is_dir():  # the site has no page of a folder
            return f"{match[1]}architecture.md#the-layout)"
        inside = target.is_relative_to(ROOT / "docs")
        place = target.relative_to(ROOT / "docs") if inside else "files" / target.relative_to(ROOT)
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(target, out / place)
        return f"{match[1]}{place.as_posix()}{match[3]}"

    parts = FENCE.split(page.read_text(encoding="utf-8"))
    return "".join(part if part.startswith("```") else LINK.sub(led, part) for part in parts)


def reference() -> str:
    return HEAD + "".join(f"::: draftproof.{name}\n\n" for name in draftproof.__all__)


def commands() -> str:
    """Every command's help, as a terminal without colours shows it."""
    group = cli.group()
    made = ["# Commands\n\nAs `--help` tells them. Every option has one name and one meaning.\n"]
    waiting = [(name, group.commands[name]) for name in group.commands]
    while waiting:
        name, command = waiting.pop(0)
        if subs := getattr(command, "commands", None):
            waiting[:0] = [(f"{name} {sub}", subs[sub]) for sub in subs]
            continue
        made.append(f"\n## {name}\n\n```text\n{plain(name, command)}\n```\n")
    return "".join(made)


def plain(name: str, command: typer.core.TyperCommand) -> str:
    with command.make_context(name, [], resilient_parsing=True) as context:
        usage = " ".join(["draftproof", name, *command.collect_usage_pieces(context)])
        rows = [usage, "", (command.help or "").strip(), ""]
        for each in command.get_params(context):
            if (record := each.get_help_record(context)) is not None:
                rows.append(f"{record[0]}\n    {record[1]}")
    return "\n".join(row.rstrip() for row in rows)


def main(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for page, name in PAGES.items():
        (out / name).write_text(gathered(page, out), encoding="utf-8")
    (out / "reference.md").write_text(reference(), encoding="utf-8")
    (out / "commands.md").write_text(commands(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
