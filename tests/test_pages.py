"""What README.md and docs/ show runs, and what they link to is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import draftproof
from draftproof import cli
from draftproof.cli import commands

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHERS = re.compile(r"\b(?:client|model)\.|\b(?:Qwen|openai|google|facebook)/")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def fences(page: str, language: str) -> list[str]:
    """What a page shows in this language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The headings of a page as GitHub links to them."""
    prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def broken_links(path: Path, text: str) -> list[str]:
    broken = []
    for target, anchor in LINK.findall(text):
        page = path.parent / target if target else path
        if not page.exists() or (anchor and anchor not in anchors(page)):
            broken.append(f"{target}#{anchor}" if anchor else target)
    return broken


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


def unknown_options(text: str) -> list[str]:
    """Options that a command shown as `draftproof COMMAND ...` does not have."""
    every = commands.every(cli.group())
    shown = re.compile(rf"draftproof ({'|'.join(sorted(every, reverse=True))})\b([^\n`|#]*)")
    found = []
    for name, words in shown.findall(re.sub(r"\\\n\s*", " ", text)):
        has = {"--help"}.union(*(each.opts + each.secondary_opts for each in every[name].params))
        found += [
            f"{name} {each}"
            for each in re.findall(r"(?<!\w)--[a-z][\w-]*", words)
            if each not in has
        ]
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_option_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    recorded = re.compile(r"<!-- figures: .*?<!-- end -->", re.DOTALL)  # as it was run then
    assert path.name == "log.md" or unknown_options(recorded.sub("", text)) == []


def test_an_unknown_option_is_found() -> None:
    text = (
        "`draftproof load URL --rate 2` and draftproof generate M \\n  --max-tokens 2 --maxtokens 3"
    )
    assert unknown_options(text) == ["load --rate", "generate --maxtokens"]


def test_a_broken_link_is_found() -> None:
    text = "[a](docs/methods.md#measured) [b](docs/none.md) [c](docs/methods.md#none) [d](#use)"
    broken = ["docs/none.md", "docs/methods.md#none", "#use"]
    assert broken_links(ROOT / "README.md", text) == broken


def test_the_first_example_prints_what_the_readme_shows(capsys: Any) -> None:
    example, output = fences("README.md", "python")[0], fences("README.md", "text")[0]
    exec(example, {"__name__": "readme"})
    assert capsys.readouterr().out == output


def test_the_programs_of_the_quickstart_run(capsys: Any) -> None:
    space: dict[str, Any] = {"__name__": "quickstart"}
    for program in fences("docs/quickstart.md", "python"):
        exec(program, space)
    assert "import argparse" in capsys.readouterr().out
    assert len(space["out"][0]) > 64  # prompt and output of the drop-in


@pytest.mark.parametrize(
    "page",
    ["control", "encoder_decoder", "structured", pytest.param("tuning", marks=pytest.mark.slow)],
)
def test_the_programs_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turn, as they stand; those that call a server or name somebody's model are left out."""
    monkeypatch.chdir(tmp_path)  # what they write is not written into the checkout
    programs = [p for p in fences(f"docs/{page}.md", "python") if not OTHERS.search(p)]
    assert programs
    space: dict[str, Any] = {"__name__": page, "dp": draftproof}
    for program in programs:
        exec(program, space)


# Commands that name `bundled`; the others need a network, or install something.
RUNNABLE = [each for each in fences("docs/quickstart.md", "sh") if "bundled" in each]


def test_the_quickstart_has_commands_to_run() -> None:
    assert len(RUNNABLE) > 2


def test_every_program_can_be_read() -> None:
    for page in PAGES:
        for program in fences(str(page.relative_to(ROOT)), "python"):
            compile(program, page.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(RUNNABLE)))
def test_the_commands_of_the_quickstart_run(number: int, tmp_path: Path) -> None:
    commands = RUNNABLE[number]
    programs = f"PATH={Path(sys.executable).parent}:$PATH\n"
    done = subprocess.run(
        ["bash", "-euc", programs + commands],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_calls_of_the_batch_page_are_answered(tmp_path: Path) -> None:
    """Those that name `bundled`, as they stand: a reader's first try has no line with an error."""
    (tmp_path / "input.jsonl").write_text(fences("docs/batch.md", "json")[0], encoding="utf-8")
    batch = [sys.executable, "-m", "draftproof", "batch", "input.jsonl", "--out", "output.jsonl"]
    done = subprocess.run(batch, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


INSTALLED = re.compile(r"pip install 'draftproof\[\w+\]'(?! +# to an installed draftproof)")


def bare_installs(text: str) -> list[str]:
    """Commands that would look for draftproof on the index, where it is not."""
    return [
        each
        for block in re.findall(r"```sh\n.*?```", text, re.S)
        for each in INSTALLED.findall(block)
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_an_extra_is_added_to_what_is_installed(path: Path) -> None:
    assert bare_installs(path.read_text(encoding="utf-8")) == []


def test_the_unit_of_systemd_is_installed_from_a_checkout() -> None:
    assert "pip install 'draftproof" not in (ROOT / "docs/serving/draftproof.service").read_text()


def test_a_bare_install_is_found() -> None:
    assert bare_installs("```sh\npip install 'draftproof[serve]'\n```")
    assert not bare_installs(
        "```sh\npip install 'draftproof[ray]'   # to an installed draftproof\n```"
    )


def test_the_layout_names_every_module_and_no_other() -> None:
    """Of the package's own folder: its modules by file, its packages by folder."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layout = page[page.index("## The layout") : page.index("**Who may import whom:**")]
    cells = " ".join(line.split("|")[1] for line in layout.splitlines() if line.startswith("|"))
    named = set(re.findall(r"`([\w*/.]+)`", cells)) - {"benchmarks/", "scripts/"}
    source = ROOT / "src" / "draftproof"
    there = {path.name for path in source.glob("*.py")} - {"__init__.py"}
    there |= {f"{path.parent.name}/" for path in source.glob("*/__init__.py")}
    hf = {name for name in there if name.startswith("hf")}
    assert named - {"hf*.py"} == there - hf
