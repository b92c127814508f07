"""What a source's own score is worth: the chance that its token is the one that is written.

A logistic model of the score, learnt from every token that was written beside a draft, whether the
draft was run or not: as the target's tokens do not depend on drafts, each of them tells what would
have become of it. So nothing has to be tried out in order to be known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import c_double

from draftproof.tree import TokenTree

LEAST = 1e-3  # of a score; what is surer, or less sure, is not told apart
# Variance that the weights of score, intercept, depth and recent outcomes gain with an outcome.
DRIFTS = (2e-4, 1e-3, 1e-4, 1e-3)
DEEPEST = 64  # depths that are told apart
WIDEST = 4.0  # variance of a weight, at most

_MOST = math.log((1 - LEAST) / LEAST)
_FAR = [0.0, *(math.log2(depth) for depth in range(1, DEEPEST + 1))]


class Calibration:
    """Chance of a drafted token by its score, its depth and what became of the last ones.

    start: slope and intercept on the score's odds, and what a doubling of the depth adds, before
    anything is known.
    """

    def __init__(self, start: tuple[float, float, float] = (1.0, 0.0, 0.0)) -> None:
        # Where native code learns too.
        self.weights = (c_double * 4)(*start, 3.0)
        # Of slope and intercept with their covariance, of depth, of recent outcomes.
        self.variances = (c_double * 5)(0.1, 0.5, 0.0, 0.05, 1.0)

    def chance(self, score: float, depth: int, recent: float) -> float:
        """That the token is written, given that those before it are.

        score: of the token, given those before it, in [0, 1]. recent: in [-1, 1], how much more
        often than foretold the last ones were written.
        """
        a, b, c, d = self.weights
        return _share(a * _odds(score) + b + c * _FAR[min(depth, DEEPEST)] + d * recent)

    def chances(self, tree: TokenTree, recent: float, least: float, most: int) -> list[float]:
        """Of the first `most` nodes, given their parents; 0 behind one reached with < `least`."""
        a, b, c, d = self.weights
        base, scores, parents = b + d * recent, tree.scores, tree.parents
        found, survivals, depths = [1.0], [1.0], [0]
        for node, parent in enumerate(parents[1:most], 1):
            before, depth, chance = survivals[parent], depths[parent] + 1, 0.0
            if before > least:
                odds = _odds(conditional(parents, scores, node))
                chance = _share(a * odds + base + c * _FAR[depth if depth < DEEPEST else DEEPEST])
            found.append(chance)
            survivals.append(before * chance)
            depths.append(depth)
        return found

    def learn(self, score: float, depth: int, recent: float, written: bool) -> float:
        """What became of a token: a step of Newton's; slope and intercept hang together.

        Returns the chance that it was given.
        """
        a, b, c, d = self.weights
        va, vb, vab, vc, vd = self.variances
        odds, far = _odds(score), _FAR[min(depth, DEEPEST)]
        expected = _share(a * odds + b + c * far + d * recent)
        curvature = max(expected * (1 - expected), 0.02)
        ta, tb, tc, td = va * odds + vab, vab * odds + vb, vc * far, vd * recent
        scale = 1 / (1 / curvature + ta * odds + tb + tc * far + td * recent)
        step = ((1.0 if written else 0.0) - expected) * scale / curvature
        # A higher score is never worse.
        self.weights[:] = [
            min(max(a + ta * step, 0.0), 4.0),
            b + tb * step,
            c + tc * step,
            d + td * step,
        ]
        self.variances[:] = [
            min(va - ta * ta * scale + DRIFTS[0], WIDEST),
            min(vb - tb * tb * scale + DRIFTS[1], WIDEST),
            vab - ta * tb * scale,
            min(vc - tc * tc * scale + DRIFTS[2], WIDEST),
            min(vd - td * td * scale + DRIFTS[3], WIDEST),
        ]
        return expected


def _share(odds: float) -> float:
    return 1 / (1 + math.exp(-odds)) if odds > -30 else 0.0


def _odds(score: float) -> float:
    if LEAST < score < 1 - LEAST:
        return math.log(score / (1 - score))
    return _MOST if score > LEAST else -_MOST


def conditional(parents: Sequence[int], scores: Sequence[float] | None, node: int) -> float:
    """The score of a node, given its parent; one half where none is told."""
    if scores is None:
        return 0.5
    before = scores[parents[node]]
    return scores[node] / before if before > 0 else 0.0
