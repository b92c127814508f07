"""No module reads the environment or draws from a generator that was not passed to it.

The check is a function from a source to complaints, and is itself tested on planted sources.
"""

from __future__ import annotations

import ast

import pytest

from sources import MODULES, matches

# Scripts, which own their process; what gives the generator back; what checks Ray's address; what
# takes a terminal's size of 0 away.
MAY_TOUCH_GLOBALS = (
    "bench bench.* training.trainer training.recipes.student training.recipes.joint ray.batch "
    "cli.streams"
)
ENVIRONMENT = "os.environ os.environb os.getenv os.getenvb os.putenv os.unsetenv"
GLOBAL_GENERATORS = (
    "random.* !random.Random !random.SystemRandom "
    "numpy.random.* !numpy.random.Generator !numpy.random.default_rng !numpy.random.SeedSequence "
    "torch.manual_seed torch.seed torch.initial_seed torch.default_generator torch.random.* "
    "torch.set_rng_state torch.get_rng_state torch.*.manual_seed torch.*.manual_seed_all"
)
TAKES_GENERATOR = "torch.rand* torch.normal torch.bernoulli torch.poisson torch.multinomial"
DRAWING_METHODS = (
    "multinomial bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_"
)


def imported_names(tree: ast.AST) -> dict[str, str]:
    """Local name -> the dotted name that it was imported as."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """`np.random.seed` -> "numpy.random.seed"; "" for what does not start at an import."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def draws_unasked(node: ast.AST, names: dict[str, str]) -> bool:
    """A call that takes random numbers from torch's global generator."""
    if not isinstance(node, ast.Call) or any(k.arg == "generator" for k in node.keywords):
        return False
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return matches(dotted(node.func, names), TAKES_GENERATOR) or matches(method, DRAWING_METHODS)


def forbidden_globals(module: str, source: str) -> list[str]:
    """Uses of environment variables and of generators that were not passed in."""
    if matches(module, MAY_TOUCH_GLOBALS):
        return []
    tree = ast.parse(source)
    names = imported_names(tree)
    complaints = []
    for node in ast.walk(tree):
        name = dotted(node, names)
        if matches(name, ENVIRONMENT):
            complaints.append(f"{module}:{node.lineno} reads the environment: {name}")
        if matches(name, GLOBAL_GENERATORS):
            complaints.append(f"{module}:{node.lineno} uses a global generator: {name}")
        if draws_unasked(node, names):
            complaints.append(f"{module}:{node.lineno} draws without generator=")
    return complaints


def test_nothing_global() -> None:
    assert [c for name, (_, text) in MODULES.items() for c in forbidden_globals(name, text)] == []


@pytest.mark.parametrize(
    ("source", "guilty"),
    [
        ("import torch\ntorch.manual_seed(1)", True),
        ("import torch as t\nt.cuda.manual_seed_all(1)", True),
        ("import torch\ng = torch.Generator().manual_seed(1)\ntorch.rand(2, generator=g)", False),
        ("import torch\ntorch.rand(2)", True),
        ("def draw(p):\n    return p.multinomial(1)", True),
        ("from random import shuffle\nshuffle([])", True),
        ("import random\nr = random.Random(1)\nr.shuffle([])", False),
        ("import numpy as np\nnp.random.seed(1)", True),
        ("import numpy as np\nnp.random.default_rng(1).normal()", False),
        ("from os import environ as e\ne.get('A')", True),
    ],
)
def test_a_planted_global_is_found(source: str, guilty: bool) -> None:
    assert bool(forbidden_globals("sampling", source)) is guilty
    assert forbidden_globals("training.trainer", source) == []
