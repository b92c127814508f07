"""One text's place in its grammar: what may follow, tried and taken back.

One matcher, which moves along with whoever asks: it consumes what was written once, and what is
only drafted until another path is asked about. An interrupt between any two lines is made good.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from llguidance import LLMatcher
from torch import Tensor

from draftproof.sampling import NoCandidate


class Guide:
    """A matcher that follows one text.

    start: one at the beginning, which stays there. ends: ids that end a text; marks: what the
    matcher takes for ends.

    Every question is about what follows `output` and then `path`. Between two of them `output` only
    grows, unless `rewind` is told: so a question costs by what is new, not by the text's length. An
    end may follow wherever the grammar is fulfilled. A matcher that fails, as one that grows too
    large, raises `NoCandidate`.
    """

    def __init__(self, start: LLMatcher, ends: Sequence[int], marks: Sequence[int]) -> None:
        self.ends, self._marks = ends, [mark for mark in marks if mark not in ends]
        self._start, self._matcher = start, start.deep_copy()
        self._at: list[int] = []  # what the matcher stands behind
        self._sure = 0  # of these, how many are the output's for good
        self._whole = True  # no interrupt came between the matcher and `_at`

    def fork(self) -> Guide:
        """One for a text that may go on otherwise."""
        made = copy.copy(self)
        made._matcher, made._at, made._sure = self._matcher.deep_copy(), [*self._at], 0
        return made

    def rewind(self, length: int) -> None:
        """The output is cut behind its first `length` tokens."""
        self._sure = min(self._sure, length)

    def allows(self, output: Sequence[int], path: Sequence[int], token: int) -> bool:
        """Whether `token` may follow."""
        return self._go(output, path) and self._allows(token)

    def valid(self, output: Sequence[int], path: Sequence[int]) -> int:
        """How many tokens of `path` may be written behind `output`."""
        if not self._go(output, ()):
            return 0
        count: int = self._matcher.validate_tokens(list(path))
        return count

    def masked(self, output: Sequence[int], path: Sequence[int], row: Tensor) -> Tensor:
        """The row (V,) with -inf for what may not follow, a new one.

        Raises `NoCandidate` where that leaves nothing of it.
        """
        if self._go(output, path):
            allowed = torch.from_numpy(self._allowed(len(row))).to(row.device)
            row = row.masked_fill(~allowed, -torch.inf)
            if bool((row > -torch.inf).any()):
                return row
        raise NoCandidate(
            "no token can be picked: what the grammar allows here is banned, or is no token of the "
            "model"
        )

    def complete(self, output: Sequence[int], path: Sequence[int] = ()) -> bool:
        """Whether nothing can follow but an end."""
        there = self._go(output, path)
        return there and self._matcher.is_stopped() and self._matcher.is_accepting()

    def forced(self, output: Sequence[int]) -> list[int]:
        """The tokens that follow in any case, as the tokenizer would write them."""
        found: list[int] = self._matcher.compute_ff_tokens() if self._go(output, ()) else []
        return found

    def _allows(self, token: int) -> bool:
        if token in self.ends:
            accepts: bool = self._matcher.is_accepting()
            return accepts
        return token not in self._marks and self._matcher.validate_tokens([token]) == 1

    def _allowed(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """(count,) whether each id may follow."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.zeros(count, bool)
        known = np.unpackbits(bits, count=min(count, 8 * len(bits)), bitorder="little")
        allowed[: len(known)] = known
        allowed[[mark for mark in self._marks if mark < count]] = False
        allowed[[end for end in self.ends if end < count]] = self._matcher.is_accepting()
        return allowed

    def _go(self, output: Sequence[int], path: Sequence[int]) -> bool:
        """Move behind these tokens; False: not all of them may be written."""
        if not self._whole:
            self._matcher, self._at, self._sure = self._start.deep_copy(), [], 0
        at, sure = self._at, min(self._sure, len(output))
        wanted = [*output[sure:], *path]  # behind what is sure
        pairs = enumerate(zip(at[sure:], wanted, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(at) - sure, len(wanted)))
        self._whole = False
        if sure + same < len(at):
            self._matcher.rollback(len(at) - sure - same)
            del at[sure + same :]
        if fresh := wanted[same:]:
            at += fresh[: self._matcher.try_consume_tokens(fresh)]
        self._sure = min(len(output), len(at))
        self._whole = True
        self._check()
        return len(at) == sure + len(wanted)

    def _check(self) -> None:
        if self._matcher.is_error():
            said = self._matcher.get_error().partition("\n")[0][:200]
            raise NoCandidate(f"no token can be picked: the grammar cannot be followed, {said}")
