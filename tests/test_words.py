"""Words: no method named in the engine, no path of this machine in documents, no former name."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from sources import MODULES, REPOSITORY

METHODS = re.compile(
    r"n_?gram|suffix_?automaton|draft_?model|early[-_ ]?exit|medusa|look-?ahead|spec_?infer"
    r"|\bstaged\b",
    re.IGNORECASE,
)


def named_methods(module: str, source: str) -> list[str]:
    """Where the engine names a drafting method, or asks a proposer what it is."""
    complaints = [f"{module} names a method: {found.group()}" for found in METHODS.finditer(source)]
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"isinstance", "issubclass", "type"}
            and any("propos" in ast.unparse(argument).lower() for argument in node.args)
        ):
            complaints.append(f"{module}:{node.lineno} asks a proposer for its type")
    return complaints


def test_the_engine_names_no_method() -> None:
    for name in ("engine", "scheduler"):
        assert named_methods(name, MODULES[name][1]) == []


def test_documents_speak_to_readers() -> None:
    documents = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md"]
    documents += sorted((REPOSITORY / "docs").rglob("*.md"))
    for path in documents:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert "/work/" not in line and "session" not in line.lower(), (path.name, line)


def test_the_former_name_is_gone() -> None:
    """Only the reader of old files, its test, this line, and history still know it."""
    former = "fore" + "token"
    may = {
        "CHANGELOG.md",
        "docs/log.md",
        "src/draftproof/heads/files.py",
        "tests/test_medusa_files.py",
    }
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    paths = [Path(name) for name in listed.stdout.decode().split("\0") if name]
    if listed.returncode:  # a source distribution
        folders = ("src", "tests", "docs", "examples")
        paths = [p.relative_to(REPOSITORY) for f in folders for p in (REPOSITORY / f).rglob("*")]
    assert len(paths) > 200
    found = []
    for path in paths:
        file = REPOSITORY / path
        text = file.read_bytes().decode(errors="ignore") if file.is_file() else ""
        if former in f"{path} {text}".lower():
            found.append(str(path))
    assert [path for path in found if path not in may and "__pycache__" not in path] == []


@pytest.mark.parametrize(
    ("source", "guilty"),
    [
        ("drafted = proposer.propose(requests)", False),
        ("isinstance(params, SamplingParams)", False),
        ("isinstance(self.proposer, Fancy) or isinstance(it, Proposer)", True),
        ("def is_early_exit(): ...", True),
    ],
)
def test_a_planted_method_name_is_found(source: str, guilty: bool) -> None:
    assert bool(named_methods("engine", source)) is guilty
