"""What heads are worth: the tree that suits them, and the tokens per step that it will give.

Everything is counted from ranks: what place a head gave to the token that came. Medusa (Cai et
al. 2024, section 2.3.3) multiplies the heads' accuracies, as if they were independent; here whole
paths are counted, of which that is an approximation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foretoken.analysis import pass_seconds

WIDTH = 10  # ranks that count
BEYOND = 1 << 30  # the rank of what is not there
Ranks = tuple[int, ...]


def paths(ranks: Tensor) -> dict[Ranks, float]:
    """How often each path of ranks was right all along, of the rows of ranks (M, K); best first.

    A path comes behind the one that it goes on from.
    """
    found: dict[Ranks, float] = {}
    rows = ranks.numpy()
    for k in range(1, rows.shape[1] + 1):
        rows = rows[rows[:, k - 1] < WIDTH]
        kinds, counts = np.unique(rows[:, :k], axis=0, return_counts=True)
        for path, count in zip(kinds.tolist(), counts.tolist(), strict=True):
            found[tuple(path)] = count / max(1, len(ranks))
    return dict(sorted(found.items(), key=lambda item: (-item[1], len(item[0]), item[0])))


def tree_of(ranks: Tensor, nodes: int) -> dict[Ranks, float]:
    """The `nodes` paths that were right most often, with their shares: the best tree so large.

    No other has a larger sum of shares, which are the tokens that it adds to a step, and it hangs
    together, since no path is right more often than its beginning.
    """
    return dict(list(paths(ranks).items())[:nodes])


@dataclass(frozen=True)
class Calibration:
    """Of heads on the target's own text."""

    tree: list[Ranks]
    expected: float  # tokens per step if steps began anywhere
    accuracies: list[list[float]]  # [head][rank]


def calibrated(
    ranks: Tensor, cost: Mapping[int, float], draft_seconds: float, most: int
) -> Calibration:
    """The tree of at most `most` nodes that takes the least time per token.

    ranks (M, K), on the target's own greedy text. cost: tokens in a pass of the target -> seconds;
    a tree of n paths is a pass of n + 1 tokens. draft_seconds: of the heads.
    """
    # Heads that were never right have a tree all the same: they are somebody's work.
    found = list(tree_of(ranks, most).items()) or [((0,), 0.0)]
    expected = 1 + np.cumsum([share for _, share in found])
    seconds = [pass_seconds(cost, n + 2) + draft_seconds for n in range(len(found))]
    best = int(np.argmin(np.array(seconds) / expected))
    hits = [(ranks == rank).float().mean(0).tolist() for rank in range(WIDTH)]
    accuracies = [[round(row[k], 4) for row in hits] for k in range(ranks.shape[1])]
    tree = sorted((path for path, _ in found[: best + 1]), key=lambda path: (len(path), path))
    return Calibration(tree, float(expected[best]), accuracies)


def replay(sequences: Sequence[Tensor], tree: Sequence[Ranks]) -> float:
    """Tokens per step of the engine if it wrote these texts greedily with that tree.

    sequences: of each text the ranks (N, K) behind its N tokens but the last, the first row that of
    the prompt's last token, which wrote the first. Steps do not begin anywhere: a long draft is
    followed by what comes after it. So this is no mean over rows.
    """
    inside, tokens, steps = {tuple(path) for path in tree}, 0, 0
    for ranks in sequences:
        rows = ranks.tolist()
        wrote, at = 1, 0  # the pass over the prompt writes a token, and drafts nothing
        steps += 1
        while wrote < len(rows):
            accepted, path = 0, tuple(rows[at])
            while accepted < len(path) and path[: accepted + 1] in inside:
                accepted += 1
            fresh = min(accepted + 1, len(rows) - wrote)
            wrote, at, steps = wrote + fresh, at + fresh, steps + 1
        tokens += len(rows)
    return tokens / steps if steps else 0.0


def whole(ranks: Tensor) -> Tensor:
    """Those rows (M, K) of ranks (..., K) that have a rank at every head."""
    rows = ranks.reshape(-1, ranks.shape[-1])
    kept: Tensor = rows[(rows < BEYOND).all(1)]
    return kept


def unranked(rows: int, heads: int) -> Tensor:
    """Ranks (rows, heads) of nothing."""
    return torch.full((rows, heads), BEYOND, dtype=torch.int32)
