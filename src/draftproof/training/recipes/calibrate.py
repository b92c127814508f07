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

from draftproof.analysis import pass_seconds

WIDTH = 10  # ranks that count
ROUNDS = 6  # in which paths are counted
BEYOND = 1 << 30  # the rank of what is not there
Ranks = tuple[int, ...]


def paths(ranks: Tensor) -> dict[Ranks, float]:
    """How often each path of ranks was right all along, of the rows of ranks (M, K); best first.

    A path comes behind the one that it goes on from.
    """
    shares: dict[Ranks, float] = {}
    rows = ranks.numpy()
    for k in range(1, rows.shape[1] + 1):
        rows = rows[rows[:, k - 1] < WIDTH]
        kinds, counts = np.unique(rows[:, :k], axis=0, return_counts=True)
        for path, count in zip(kinds.tolist(), counts.tolist(), strict=True):
            shares[tuple(path)] = count / max(1, len(ranks))
    return dict(sorted(shares.items(), key=lambda item: (-item[1], len(item[0]), item[0])))


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
    expected: float  # tokens per step on the texts that it was made from
    accuracies: list[list[float]]  # [head][rank]


def calibrated(
    sequences: Sequence[Tensor], cost: Mapping[int, float], draft_seconds: float, most: int
) -> Calibration:
    """The tree of at most `most` nodes that takes the least time per token on these texts.

    sequences: as in `replay`, of the target's own greedy texts. cost: tokens in a pass of the
    target -> seconds; a tree of n paths is a pass of n + 1 tokens. draft_seconds: of the heads.

    Long drafts skip most positions. So the tree is refitted a few times, counting only positions
    where steps with the previous tree began; the best is returned.
    """
    seconds = [pass_seconds(cost, n + 2) + draft_seconds for n in range(most)]
    rows = starts = complete(torch.cat(list(sequences)))
    least = float("inf")
    best: tuple[list[Ranks], float] = [(0,)], 1.0
    for _ in range(ROUNDS):
        # Heads that were never right have a tree all the same: they are somebody's work.
        branches = list(tree_of(starts, most).items()) or [((0,), 0.0)]
        expected = 1 + np.cumsum([share for _, share in branches])
        size = int(np.argmin(seconds[: len(branches)] / expected))
        tree: list[Ranks] = [path for path, _ in branches[: size + 1]]
        tokens, starts = replay(sequences, tree)
        if tokens and seconds[size] / tokens < least:
            least, best = seconds[size] / tokens, (tree, tokens)
    count = max(1, len(rows))  # texts may be too short for the last heads: then nothing was right
    hits = [((rows == rank).sum(0) / count).tolist() for rank in range(WIDTH)]
    accuracies = [[round(hit[k], 4) for hit in hits] for k in range(rows.shape[1])]
    return Calibration(sorted(best[0], key=lambda path: (len(path), path)), best[1], accuracies)


def replay(sequences: Sequence[Tensor], tree: Sequence[Ranks]) -> tuple[float, Tensor]:
    """Tokens per step of the engine if it wrote these texts greedily with that tree.

    sequences: of each text the ranks (N, K), row j of the state that wrote its j-th token. Returns
    the rows (M, K) that steps began with, too.
    """
    inside, tokens, steps = {tuple(path) for path in tree}, 0, 0
    begun: list[Tensor] = []
    for ranks in sequences:
        rows, starts = ranks.tolist(), []
        wrote, at = 1, 0  # the pass over the prompt writes a token, and drafts nothing
        while wrote < len(rows):
            starts.append(at)
            accepted, path = 0, tuple(rows[at])
            while accepted < len(path) and path[: accepted + 1] in inside:
                accepted += 1
            fresh = min(accepted + 1, len(rows) - wrote)
            wrote, at = wrote + fresh, at + fresh
        tokens += len(rows)
        steps += 1 + len(starts)
        begun.append(ranks[starts])
    return tokens / max(1, steps), torch.cat(begun) if begun else torch.empty(0, 0)


def complete(ranks: Tensor) -> Tensor:
    """Those rows (M, K) of ranks (..., K) that have a rank at every head."""
    rows = ranks.reshape(-1, ranks.shape[-1])
    kept: Tensor = rows[(rows < BEYOND).all(1)]
    return kept


def unranked(rows: int, heads: int) -> Tensor:
    """Ranks (rows, heads) of nothing."""
    return torch.full((rows, heads), BEYOND, dtype=torch.int32)
