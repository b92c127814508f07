"""The shapes of token trees: where to draft how many siblings, for most tokens in least time.

A shape is `parents` as a `TokenTree` has them: parents[0] == -1, parents[i] < i, and node 0 the
last committed token. Siblings stand in the order of drawing: the rank of a node is its index among
them, 0 first. A node's path is the ranks from node 0 down to it; Medusa calls paths choices. Shapes
are made level by level, which is the order of their paths by length, then rank by rank.

Sequoia (Chen et al. 2024, arXiv 2402.12374v3) describes a draft by its positional acceptances:
p_k = the chance that the k-th child of an accepted node is accepted and the ones before it were
not, the same at every node (p_k is positional[k - 1] here). These are chances of events of which
at most one occurs, so a measured vector sums to at most 1, but for noise. Depth is counted as
`analysis` counts length, in tokens drafted one after another: a tree of node 0 alone has depth 0
(1 in the paper).

Pure functions of plain numbers. Knows no model, no token and no clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.analysis import pass_seconds

Path = tuple[int, ...]


def expected(parents: Sequence[int], positional: Sequence[float]) -> float:
    """Tokens per step of a tree, bonus included: F = sum over nodes of the product over its path.

    1 for node 0 (Sequoia, arXiv 2402.12374v3, section 3: the score of a node is the product over
    its path). Raises `ValueError` unless `parents` is a tree, rates are in [0, 1] and no node has
    more children than there are rates.
    """
    _refuse_rates("positional", positional)
    paths = parents_to_choices(parents)
    widest = max((path[-1] + 1 for path in paths), default=0)
    if widest > len(positional):
        raise ValueError(
            f"parents must have at most {len(positional)} children a node, as many as positional "
            f"has rates, but one has {widest}"
        )
    return 1 + math.fsum(math.prod(positional[rank] for rank in path) for path in paths)


def sequoia(
    positional: Sequence[float], nodes: int, depth: int | None = None
) -> tuple[list[int], float]:
    """The tree of the most tokens per step among those of `nodes` nodes, and these tokens.

    Exactly `nodes`, node 0 included, and at most `depth` tokens drafted one after another (None:
    any number). Optimal by a dynamic programme over T[n, b], the best tree of n nodes with b
    children of its root, or T[n, d, b] where it is at most d deep (Sequoia, arXiv 2402.12374v3,
    section 3); the rates need not fall. Takes time and memory in nodes^2: 128 nodes are ready in
    10 to 130 ms. Raises `ValueError` unless rates are in [0, 1], nodes >= 1, depth >= 0 and a tree
    so large exists.
    """
    depth = max(nodes - 1, 0) if depth is None else depth
    levels = _programme(positional, nodes, depth)
    tokens = float(levels[-1].best[nodes])
    if tokens < 0:
        raise ValueError(
            f"nodes is {nodes}, but no tree of depth {depth} with {len(positional)} children a "
            "node is so large"
        )
    return _grown(levels, nodes, len(levels) - 1), tokens


@dataclass(frozen=True)
class Best:
    """The shape that `best_shape` chose."""

    parents: list[int]
    depth: int  # tokens drafted one after another
    tokens_per_step: float  # bonus included
    seconds_per_token: float


def best_shape(
    positional: Sequence[float],
    cost: Mapping[int, float],
    draft_cost: float,
    nodes: int,
    depth: int,
) -> Best:
    """The tree of the least time per token: (depth x draft_cost + cost(nodes)) / F.

    Of all trees of 1 to `nodes` nodes and at most `depth` deep; the smallest among equals, then the
    shallowest. `cost` maps tokens in a target pass to measured seconds (see `pass_seconds`) and
    `draft_cost` is the seconds of drafting one depth of a tree, however wide.

    Sequoia's hardware-aware optimizer (arXiv 2402.12374v2, section 3), over every budget; its
    release charges one depth of drafting more, for node 0. Raises `ValueError` as `sequoia` (but
    where no tree has `nodes` nodes the largest will do) and `pass_seconds` do, and unless
    draft_cost is finite and >= 0.
    """
    _refuse_seconds("draft_cost", draft_cost)
    levels = _programme(positional, nodes, depth)
    least, chosen = math.inf, (1, 0)
    for n in range(1, nodes + 1):
        seconds = pass_seconds(cost, n)
        for d, level in enumerate(levels):
            tokens = float(level.best[n])
            if tokens > 0 and (time := (d * draft_cost + seconds) / tokens) < least:
                least, chosen = time, (n, d)
    n, d = chosen
    return Best(_grown(levels, n, d), d, float(levels[d].best[n]), least)


def calibrated(accuracies: Sequence[Sequence[float]], nodes: int) -> tuple[list[Path], float]:
    """Medusa's tree of `nodes` nodes, as `medusa_choices`, and its tokens per step.

    accuracies[k][i] = how often guess i of head k + 1 is right, wherever it stands. Node 0 is one
    of `nodes` and no choice: 64 nodes are 63 choices. No connected tree surpasses it: products only
    fall along a path (Medusa, arXiv 2401.10774v3, section 2.3.3). A guess can be in it without the
    likelier ranks before it, where these were measured to be worse.

    Returns paths by length, then rank by rank, and the expected accepted length + 1. Raises
    `ValueError` unless accuracies are in [0, 1], nodes >= 1 and there are guesses enough.
    """
    for k, row in enumerate(accuracies):
        _refuse_rates(f"accuracies[{k}]", row)
    _refuse_count("nodes", nodes, 1)
    found = best_first(accuracies, nodes)
    if len(found) < nodes:
        raise ValueError(f"nodes is {nodes}, but the heads' guesses make only {len(found)}")
    return sorted((path for path, _ in found[1:]), key=_order), math.fsum(p for _, p in found)


def best_first(shares: Sequence[Sequence[float]], nodes: int) -> list[tuple[Path, float]]:
    """At most `nodes` paths and their products of shares[depth][rank] <= 1, the largest first.

    Node 0, (), is the first of them; among equals parents, and then in the order of paths.
    """
    found: list[tuple[Path, float]] = []
    front: list[tuple[float, int, Path]] = [(-1.0, 0, ())]
    while front and len(found) < nodes:
        loss, depth, path = heapq.heappop(front)
        found.append((path, -loss))
        for rank, share in enumerate(shares[depth] if depth < len(shares) else ()):
            heapq.heappush(front, (loss * share, depth + 1, (*path, rank)))
    return found


def choices_to_parents(choices: Iterable[Sequence[int]]) -> list[int]:
    """The shape of paths of ranks (`medusa_choices`): node i + 1 is the i-th path in their order.

    By length, then rank by rank, whatever the order they are given in (Medusa, arXiv 2401.10774v3:
    the released code sorts likewise). Where a path is there without the ranks before it, the shape
    does not show that: a drafter takes its guesses by path. Raises `ValueError` for ranks below 0,
    an empty path (node 0 is no choice), one that is there twice, or one without its parent.
    """
    nodes: dict[Path, int] = {(): 0}
    parents = [-1]
    for path in sorted((tuple(choice) for choice in choices), key=_order):
        if not path or min(path) < 0:
            raise ValueError(f"choice {path} is wrong, it must hold one rank or more, all >= 0")
        if path in nodes:
            raise ValueError(f"choice {path} is there twice, but must be there once")
        if path[:-1] not in nodes:
            raise ValueError(f"choice {path} must come with its parent {path[:-1]}")
        nodes[path] = len(parents)
        parents.append(nodes[path[:-1]])
    return parents


def parents_to_choices(parents: Sequence[int]) -> list[Path]:
    """The paths of nodes 1, 2, ... of a shape, in the order of its nodes.

    The inverse of `choices_to_parents` for shapes made level by level and for choices without
    gaps. Raises `ValueError` unless parents[0] == -1 and every other node comes after its parent.
    """
    if not parents or parents[0] != -1:
        raise ValueError("parents must begin with -1: node 0 has no parent")
    paths, children = [Path()], [0] * len(parents)
    for i, parent in enumerate(parents[1:], 1):
        if not 0 <= parent < i:
            raise ValueError(f"parents[{i}] is {parent}, but must be in [0, {i}): it comes before")
        paths.append((*paths[parent], children[parent]))
        children[parent] += 1
    return paths[1:]


def positional(accepted: Sequence[int], offered: Sequence[int]) -> list[float]:
    """Positional acceptances from counts by rank: accepted / offered, 0 where none was offered.

    offered[k] = accepted nodes (node 0 is one) that had a child of rank k, whether or not an
    earlier sibling was taken; accepted[k] = how many of these children were accepted. This is
    Sequoia's p of rank k (arXiv 2402.12374v3, section 3), which is not the rate given that the
    earlier siblings were rejected. Raises `ValueError` unless there are as many counts of either,
    and 0 <= accepted <= offered.
    """
    if len(accepted) != len(offered):
        raise ValueError(f"accepted must have {len(offered)} ranks, not {len(accepted)}")
    for rank, (part, whole) in enumerate(zip(accepted, offered, strict=True)):
        if not 0 <= part <= whole:
            raise ValueError(f"accepted[{rank}] is {part}, but must be in [0, {whole}], as offered")
    return [a / o if o else 0.0 for a, o in zip(accepted, offered, strict=True)]


@dataclass(frozen=True)
class _Level:
    """The best trees that are at most so deep, by their nodes n; N = the most nodes asked for."""

    best: NDArray[np.float64]  # (N + 1,) max over b of T[n, d, b]; -inf where there is no such tree
    children: NDArray[np.intp]  # (N + 1,) the least b, the root's children, that attains it
    last: NDArray[np.intp]  # (B, N + 1) row b - 1: nodes under the last child in T[n, d, b]


def _programme(positional: Sequence[float], nodes: int, depth: int) -> list[_Level]:
    """Levels of depth 0 to `depth`; fewer where the deeper ones would only repeat the last."""
    _refuse_rates("positional", positional)
    _refuse_count("nodes", nodes, 1)
    _refuse_count("depth", depth, 0)
    sizes = np.arange(nodes + 1)
    rest = np.maximum(sizes[:, None] - sizes, 0)  # (N + 1, N + 1) of n nodes, those not under m
    alone = np.where(sizes == 1, 1.0, -np.inf)  # T[n, d, 0]
    levels = [_Level(alone, np.zeros(nodes + 1, np.intp), np.zeros((0, nodes + 1), np.intp))]
    while len(levels) <= depth:
        below = levels[-1].best
        table, last = [alone], []
        for p in positional[: nodes - 1]:
            gain = np.where(below > 0, p * np.maximum(below, 0.0), -np.inf)  # (N + 1,) of m
            sums = table[-1][rest] + gain  # (N + 1, N + 1) of n, m: T[n - m, d, b - 1] + p_b best
            table.append(sums.max(axis=1))
            last.append(sums.argmax(axis=1))
        values = np.stack(table)
        best = values.max(axis=0)
        if np.array_equal(best, below):
            break
        levels.append(_Level(best, values.argmax(axis=0), np.stack(last)))
    return levels


def _grown(levels: Sequence[_Level], nodes: int, depth: int) -> list[int]:
    """The parents of the best tree of `nodes` nodes at `depth`, level by level."""
    parents, trees = [-1], [(nodes, depth)]  # trees[i] = nodes and depth of what hangs at node i
    for node, (n, d) in enumerate(trees):  # which grows
        below = []
        for b in range(int(levels[d].children[n]), 0, -1):
            below.append(int(levels[d].last[b - 1, n]))
            n -= below[-1]
        parents += [node] * len(below)
        trees += [(m, d - 1) for m in reversed(below)]
    assert len(parents) == nodes
    return parents


def _order(path: Path) -> tuple[int, Path]:
    return len(path), path


def _refuse_rates(name: str, rates: Sequence[float]) -> None:
    for k, rate in enumerate(rates):
        if not 0 <= rate <= 1:  # nan too
            raise ValueError(f"{name}[{k}] is {rate}, but must be in [0, 1]: it is a probability")


def _refuse_count(name: str, count: int, least: int) -> None:
    if count < least:
        raise ValueError(f"{name} is {count}, but must be >= {least}")


def _refuse_seconds(name: str, seconds: float) -> None:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name} is {seconds}, but must be finite and >= 0")
