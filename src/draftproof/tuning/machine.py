"""What a step takes on a machine: passes, the engine's own part, and asking each source.

Measured by `timing`; replays reckon with it. Knows no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.runners.costs import PassCosts
from draftproof.runners.curves import FURTHER, MOST

Array = NDArray[Any]
BUDGET = 512  # prompt tokens in a pass


@dataclass(frozen=True)
class Drafting:
    """Seconds of asking a source: of each text, of a call, of each level, and of a text on it.

    passes: what those of the model cost that grows its drafts, which reads prompts too.
    """

    text: float
    call: float = 0.0
    level: float = 0.0
    node: float = 0.0
    passes: PassCosts | None = None

    def seconds(self, levels: Array, texts: Array) -> Array:
        """levels: of the deepest of the texts that are asked."""
        once: Array = np.where(np.greater(texts, 0), self.call, 0.0)
        return once + self.text * texts + levels * (self.level + self.node * texts)


@dataclass(frozen=True)
class Machine:
    """What a step takes here.

    own: seconds of a step beyond what the table has for its pass, and of each text in it; below 0
    where the table's passes are the slower ones. trees: the same of what drafts add to that, of a
    step in which any are run, and of each text with some. token: seconds of each token that is
    accepted, which is picked by the rules of its text as every token is.
    """

    passes: PassCosts
    own: tuple[float, float]
    drafting: dict[str, Drafting] = field(default_factory=dict)
    trees: tuple[float, float] = (0.0, 0.0)
    token: float = 0.0

    def beside(self, texts: Array | int, drafted: Array | int, accepted: Array | int) -> Array:
        """Seconds of steps beside their passes.

        Of so many texts each, of them with a draft, and tokens of drafts that are accepted.
        """
        more = np.where(np.greater(drafted, 0), self.trees[0] + self.trees[1] * drafted, 0.0)
        return more + self.own[0] + self.own[1] * texts + self.token * accepted

    def seconds(self, rows: Array, reading: Array) -> Array:
        """Of passes over so many rows; reading: `attended` of all their texts, added up."""
        shares = self._shares[np.minimum(rows, len(self._shares) - 1)]
        took: Array = (shares + self.passes.attention * reading) * self.passes.one
        return took

    @cached_property
    def _shares(self) -> Array:
        more = [self.passes.seconds(rows) / self.passes.one for rows in range(MOST + 1, 1025)]
        return np.array([*self.passes.curve(), *more])

    def reading(self, lengths: Sequence[int]) -> float:
        """Of prompts of these lengths, all but the last token of each, in passes of the budget."""
        total, took = sum(lengths), 0.0
        behind = sum(length**2 for length in lengths) / max(1, total) / 2
        while total > 0:
            rows = np.array([min(total, BUDGET)])
            took += float(self.seconds(rows, FURTHER * rows * behind)[0])
            total -= BUDGET
        return took
