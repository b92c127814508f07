"""The axes of the matrix as data, and which of their combinations are its cells.

Through Python every kind of model meets every method, rule and batch, and every extra meets every
kind and method. At each other door every pair of values of two axes meets in some cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

KINDS = ("fp32", "bf16", "int8", "int4", "GGUF", "encoder-decoder")
METHODS = (
    "none",
    "ngram",
    "suffix",
    "lookahead",
    "early-exit",
    "draft",
    "staged",
    "specinfer",
    "foreign",
    "medusa",
    "ngram+draft",
    "auto",
    "profile",
)
RULES = ("greedy", "coupled", "rejection", "typical")
BATCHES = ("1", "8", "ragged")
EXTRAS = (
    "-",
    "penalties",
    "cuts",
    "bias and bans",
    "stop strings",
    "stop tokens",
    "logprobs",
    "prompt logprobs",
    "grammar",
    "prediction",
    "n",
    "seeds",
    "resume",
    "few nodes",
    "method by request",
    "decoder prompt",
    "prefix cache",
    "kv memory",
)
PYTHON, STREAM, SHELL, SERVER = "Python", "Python stream", "shell", "server"
DROP_IN, BATCH, RAY = "custom_generate", "batch", "batch --ray"
DOORS = (PYTHON, STREAM, SHELL, DROP_IN, SERVER, BATCH, RAY)
ONE = {"batch": ("1",)}  # doors that take a prompt at a time

# What can be asked for at a door; an axis that is not named is there as a whole.
_LLM = {"prefix cache", "kv memory"}  # options of `LLM`, which other doors set by themselves
OFFERED: Mapping[str, Mapping[str, Sequence[str]]] = {
    STREAM: ONE,
    SHELL: ONE
    | {"extra": [e for e in EXTRAS if e not in {*_LLM, "resume", "method by request", "seeds"}]},
    SERVER: {"extra": [e for e in EXTRAS if e not in _LLM]},
    BATCH: {"extra": [e for e in EXTRAS if e not in _LLM]},
    # It takes a loaded model, on torch: in float32, where a token is the same in every batch.
    DROP_IN: {
        "kind": ("fp32", "encoder-decoder"),
        "extra": [
            e
            for e in EXTRAS
            if e not in {*_LLM, "prompt logprobs", "resume", "few nodes", "method by request"}
        ],
    },
}
AXES: Mapping[str, Sequence[str]] = {
    "kind": KINDS,
    "method": METHODS,
    "rule": RULES,
    "batch": BATCHES,
    "extra": EXTRAS,
}


class Cell(NamedTuple):
    """One combination."""

    door: str
    kind: str
    method: str
    rule: str
    batch: str
    extra: str

    @property
    def name(self) -> str:
        return "/".join(self)

    @classmethod
    def named(cls, name: str) -> Cell:
        return cls(*name.split("/"))


def axes_of(door: str) -> dict[str, Sequence[str]]:
    """What can be asked for at a door, by axis."""
    return {**AXES, **OFFERED.get(BATCH if door == RAY else door, {})}


def every(seed: int = 0) -> list[Cell]:
    """All cells, in the order in which the fewest models are loaded."""
    made = {Cell(PYTHON, *each, "-") for each in itertools.product(KINDS, METHODS, RULES, BATCHES)}
    rng = Random(seed)
    ways = list(itertools.product(RULES, BATCHES))
    for kind, method in itertools.product(KINDS, METHODS):
        rng.shuffle(ways)
        turns = itertools.cycle(ways)
        made |= {Cell(PYTHON, kind, method, *next(turns), extra) for extra in EXTRAS[1:]}
    for door in DOORS[1:]:
        within: Sequence[tuple[str, str]] | None = None
        if door == RAY:  # a process of actors each: every method once, every kind twice or more
            within = [(KINDS[at % len(KINDS)], method) for at, method in enumerate(METHODS)]
        made |= {Cell(door, *row) for row in pairwise(axes_of(door), seed, within)}
    order = {value: at for axis in (DOORS, *AXES.values()) for at, value in enumerate(axis)}
    return sorted(made, key=lambda cell: [order[value] for value in cell])


def pairwise(
    axes: Mapping[str, Sequence[str]],
    seed: int,
    within: Sequence[tuple[str, str]] | None = None,
    tries: int = 20,
) -> Iterator[tuple[str, ...]]:
    """Rows of values, one of each axis, in which every pair of two axes comes at least once.

    within: the pairs of the first two axes that there are; None: all of them.
    """
    rng, values = Random(seed), list(axes.values())
    numbers = range(len(values))
    left = {
        (a, x, b, y)
        for a, b in itertools.combinations(numbers, 2)
        for x, y in itertools.product(values[a], values[b])
        if (a, b) != (0, 1) or within is None or (x, y) in within
    }
    while left:
        best: tuple[str, ...] = ()
        gained: set[tuple[int, str, int, str]] = set()
        a, x, b, y = min(left) if rng.random() < 0.5 else max(left)
        for _ in range(tries):
            row = [rng.choice(each) for each in values]
            row[a], row[b] = x, y
            if within is not None and (row[0], row[1]) not in within:
                fitting = [
                    pair
                    for pair in within
                    if all(pair[axis] == v for axis, v in ((a, x), (b, y)) if axis < 2)
                ]
                row[:2] = rng.choice(fitting)
            pairs = {(c, row[c], d, row[d]) for c, d in itertools.combinations(numbers, 2)} & left
            if len(pairs) > len(gained):
                best, gained = tuple(row), pairs
        left -= gained
        yield best
