"""A rule of acceptance is asked for its properties, never for its name or its type.

Only rules.py, which holds the rules, and verify.py, which does what they say, know them apart.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from draftproof import rules

SOURCE = Path(rules.__file__).parent
KNOW_THEM = {"rules.py", "verify.py"}
TYPES = {type(rule).__name__ for rule in rules.RULES.values()} | {"Typical"}


def told_apart(source: str) -> list[str]:
    """Where a source compares with a rule's name, or tests for its type: line and which."""
    complaints = []
    for node in ast.walk(ast.parse(source)):
        compared: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            compared = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            compared = [node.value]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"isinstance", "issubclass"}:
            tested = {ast.unparse(part).split(".")[-1] for part in ast.walk(node.args[-1])}
            complaints += [f"{node.lineno}: tests for {name}" for name in sorted(tested & TYPES)]
        parts = [part for one in compared for part in ast.walk(one)]
        values = [part.value for part in parts if isinstance(part, ast.Constant)]
        complaints += [f"{node.lineno}: names {value}" for value in values if value in rules.RULES]
    return complaints


@pytest.mark.parametrize(
    ("source", "guilty"),
    [
        ("rule = named('rejection')", False),
        ("def write(rule: str | Typical = 'coupled'): ...", False),
        ("rule.wants_laws(params) and not rule.lossy", False),
        ("isinstance(rule, str)", False),
        ("drawn = case.rule == 'rejection'", True),
        ("drawn = case.rule in ('typical', 'rejection')", True),
        ("match rule:\n    case 'coupled': ...", True),
        ("isinstance(rule, verify.Typical)", True),
        ("isinstance(rule, (str, Rejection))", True),
    ],
)
def test_a_planted_test_of_a_rule_is_found(source: str, guilty: bool) -> None:
    assert bool(told_apart(source)) is guilty


def test_nothing_else_tells_rules_apart() -> None:
    found = {
        str(path.relative_to(SOURCE)): complaints
        for path in SOURCE.rglob("*.py")
        if path.name not in KNOW_THEM and (complaints := told_apart(path.read_text("utf-8")))
    }
    assert found == {}
