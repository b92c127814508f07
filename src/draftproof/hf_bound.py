"""The grammars and the predictions of the drop-in's rows, in transformers' terms.

A call of `generate` brings the tokenizer and the tokens that end a text; one object may serve calls
with several of either. Knows no model.
"""

from __future__ import annotations

import copy
import numbers
import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from draftproof.grammars.store import Grammars
from draftproof.intake import Intake
from draftproof.sampling import Grammar, Guide, SamplingParams

# What cuts a row: the grammar comes before it, as transformers' other rules do.
CUTS = (
    "TopPLogitsWarper TopKLogitsWarper TopHLogitsWarper MinPLogitsWarper TypicalLogitsWarper "
    "EpsilonLogitsWarper EtaLogitsWarper"
)
STORES = 4  # of compiled grammars, the latest


class Bound:
    """What the rows of a call are bound to.

    grammar: one for all rows, or a list of one for each. prediction: text or token ids for all, or
    a list of either. None: there is none. Raises `ValueError`.
    """

    def __init__(self, grammar: Any, prediction: Any) -> None:
        several = isinstance(grammar, list | tuple)
        self._grammars: Any = tuple(grammar) if several else grammar
        listed = isinstance(prediction, list | tuple)
        many = listed and not all(isinstance(each, numbers.Integral) for each in prediction)
        for each in self._grammars if several else (grammar,):
            SamplingParams(grammar=each)
        given = [
            SamplingParams(prediction=each).prediction
            for each in (prediction if many else (prediction,))
        ]
        self._predictions: Any = tuple(given) if many else given[0]
        self._several, self._many = several, many
        self._lock = threading.Lock()
        self._stores: list[tuple[Any, Grammars]] = []

    def grammars(self, rows: int) -> list[Grammar | None]:
        """Of each row."""
        return _of_each("grammar", self._grammars, self._several, rows)

    def predictions(self, rows: int, intake: Intake, tokenizer: Any) -> list[Any]:
        """Token ids of each row."""
        own = copy.copy(intake)
        own.tokenizer = tokenizer
        given = _of_each("prediction", self._predictions, self._many, rows)
        return [None if each is None else own.predicted(each) for each in given]

    def intake(self, intake: Intake, tokenizer: Any, ends: Sequence[int]) -> Intake:
        """The same, with grammars of this tokenizer that may end with these tokens."""
        if self._grammars is None:
            return intake
        asked = (tokenizer, intake.vocabulary, [*ends])
        with self._lock:
            kept = self._stores
            found = next((store for key, store in kept if _same(key, asked)), None)
            if found is None:
                found = Grammars(tokenizer, intake.vocabulary, asked[2])
            self._stores = [(asked, found), *(s for s in kept if s[1] is not found)][:STORES]
        own = copy.copy(intake)
        own.grammars = found
        return own

    def __repr__(self) -> str:
        shown = {"grammar": self._grammars, "prediction": self._predictions}
        return "".join(f", {n}={value!r:.80}" for n, value in shown.items() if value is not None)


class Mask:
    """A grammar as one of transformers' processors.

    guide: asked about whole outputs, which begin behind `begin` tokens of a row.
    """

    def __init__(self, guide: Guide, begin: int) -> None:
        self.guide, self.begin = guide, begin

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """ids (1, n), scores (1, V)."""
        return self.guide.masked((), ids[0, self.begin :].tolist(), scores[0])[None]

    def among(self, processors: Sequence[Any]) -> list[Any]:
        """The processors with this one behind all rules, and before what cuts a row."""
        names = [type(each).__name__ for each in processors]
        at = next((i for i, name in enumerate(names) if name in CUTS.split()), len(names))
        return [*processors[:at], self, *processors[at:]]


def _of_each(name: str, given: Any, several: bool, rows: int) -> list[Any]:
    if not several:
        return [given] * rows
    if len(given) != rows:
        raise ValueError(
            f"there are {len(given)} of {name} for {rows} rows: give one for all, or as many"
        )
    return list(given)


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return one[0] is other[0] and one[1:] == other[1:]
