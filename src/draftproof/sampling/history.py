"""What a request's history does to a row of logits: penalties, bias, bans, rules from outside.

Each node of a tree has a history of its own: prompt, committed output, and the path to it. Does
not know trees or requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from draftproof.sampling.params import SamplingParams


class Guide(Protocol):
    """A grammar that one output follows; asked about what comes behind `output` and `path`.

    The output only grows from one question to the next, unless `rewind` is told.
    """

    def fork(self) -> Guide:
        """One for a text that may go on otherwise."""
        ...

    def rewind(self, length: int) -> None:
        """The output is cut behind its first `length` tokens."""
        ...

    def allows(self, output: Sequence[int], path: Sequence[int], token: int) -> bool: ...
    def valid(self, output: Sequence[int], path: Sequence[int]) -> int:
        """How many tokens of `path` may be written."""
        ...

    def masked(self, output: Sequence[int], path: Sequence[int], row: Tensor) -> Tensor:
        """The row (V,) with -inf for what may not follow. Raises where that leaves nothing."""
        ...

    def complete(self, output: Sequence[int], path: Sequence[int] = ()) -> bool:
        """Whether nothing can follow but an end."""
        ...

    def forced(self, output: Sequence[int]) -> list[int]:
        """The tokens that follow in any case."""
        ...


class History:
    """What penalties look at: the ids of the prompt and the counts of the output's ids.

    `end_ids` (end-of-text and stop ids) are banned until `min_tokens` are out. `process`, if set,
    is a further rule: (ids, row (V,)) -> row (V,), a function of its arguments alone; ids (n,) is
    the text that the row follows, and stays as it is for the length of the call only. `guide` is
    the grammar that the output is bound to; it has its say behind all of these. Whatever is asked
    for costs by what is new since it was asked for last, not by the length of the text.
    """

    def __init__(self, prompt: Sequence[int], end_ids: Sequence[int] = ()) -> None:
        self.end_ids = tuple(end_ids)
        self.process: Callable[[Tensor, Tensor], Tensor] | None = None
        self.guide: Guide | None = None
        self._origin: Guide | None = None  # of which the guide is a fork
        self._given: Sequence[int] = prompt
        self._output: list[int] = []
        self._prompt: Tensor | None = None  # its ids, once each
        self._text = Growing()
        self._distinct: dict[int, int] = {}  # id of the counted output -> its place below
        self._ids, self._counts = Growing(), Growing()
        self._counted = 0  # tokens of the output
        self._whole = True  # no interrupt has left these three half changed

    @property
    def length(self) -> int:
        """Output tokens."""
        return len(self._output)

    @property
    def output(self) -> Sequence[int]:
        return self._output

    @property
    def ruled(self) -> bool:
        """Whether a rule from outside may leave nothing of a healthy row."""
        return self.process is not None or self.guide is not None

    def append(self, tokens: Sequence[int]) -> None:
        """Commit `tokens` to the output."""
        self._output += tokens

    def rewind(self, length: int) -> None:
        """Take back the output behind its first `length` tokens."""
        if self.guide is not None:
            self.guide.rewind(length)
        whole, self._whole = self._whole, False
        for token in self._output[length : self._counted] if whole else ():
            self._counts.array[self._distinct[token]] -= 1
        self._counted = min(self._counted, length)
        self._whole = whole
        self._text.size = min(self._text.size, len(self._given) + length)
        del self._output[length:]

    def ruled_as(self, other: History) -> None:
        """Take over the rules of another text, with a guide that stays where this one is."""
        self.process = other.process
        if self._origin is not other.guide:
            self.guide = None if other.guide is None else other.guide.fork()
            self._origin = other.guide

    def forget(self) -> None:
        """Let go of everything: no row will be asked about any more."""
        self.process, self.guide, self._prompt, self._origin = None, None, None, None
        self._text, self._ids, self._counts = Growing(), Growing(), Growing()
        self._distinct.clear()
        self._counted = 0

    def prompt(self) -> Tensor:
        """The ids that the prompt holds, once each, (P,)."""
        if self._prompt is None:
            self._prompt = _long(set(self._given))
        return self._prompt

    def ids(self, path: Sequence[int]) -> Tensor:
        """Prompt, output and `path`, (n,); what is given before is overwritten."""
        text, prompt = self._text, len(self._given)
        if text.size < prompt:
            text.extend(self._given[text.size :])
        text.extend(self._output[text.size - prompt :])
        committed = text.size
        text.extend(path)
        whole = text.tensor
        text.size = committed
        return whole

    def totals(self, path: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The ids that output and `path` hold, once each, and their counts, (U,) and (U,).

        A token that was taken back may be among them, with a count of 0.
        """
        if self._counted < len(self._output) or not self._whole:
            self._count()
        ids, counts = self._ids.tensor, self._counts.tensor
        if not path:
            return ids, counts
        counts, fresh = counts.clone(), Counter[int]()
        for token in path:
            if (at := self._distinct.get(token)) is None:
                fresh[token] += 1
            else:
                counts[at] += 1
        if not fresh:
            return ids, counts
        return torch.cat((ids, _long(fresh))), torch.cat((counts, _long(fresh.values())))

    def _count(self) -> None:
        """Count the output as far as it is new; all of it where an interrupt was in the way."""
        if not self._whole:
            self._distinct.clear()
            self._ids, self._counts, self._counted = Growing(), Growing(), 0
        self._whole = False
        new = Counter(self._output[self._counted :])
        fresh = [token for token in new if token not in self._distinct]
        for at, token in enumerate(fresh, self._ids.size):
            self._distinct[token] = at
        self._ids.extend(fresh)
        self._counts.extend([0] * len(fresh))
        self._counts.array[[self._distinct[token] for token in new]] += [*new.values()]
        self._counted = len(self._output)
        self._whole = True


class Growing:
    """Integers that grow at their end.

    numpy's: a tensor that was made in inference mode could not grow outside of it.
    """

    def __init__(self) -> None:
        self.size = 0
        self._room = np.empty(0, np.int64)

    @property
    def array(self) -> np.typing.NDArray[np.int64]:
        """(size,), a view."""
        return self._room[: self.size]

    @property
    def tensor(self) -> Tensor:
        """(size,), a view."""
        return torch.from_numpy(self.array)

    def extend(self, values: Sequence[int]) -> None:
        end = self.size + len(values)
        if end > len(self._room):
            room = np.empty(max(end, 2 * len(self._room), 64), np.int64)
            room[: self.size] = self.array
            self._room = room
        self._room[self.size : end] = values
        self.size = end


def _long(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.long)


def adjust(logits: Tensor, params: SamplingParams, history: History, path: Sequence[int]) -> Tensor:
    """Penalties, bias, bans of one row (V,); `path`: output tokens after the committed ones.

    Repetition (prompt, output and path; Keskar et al. 2019, CTRL, section 4.1), then frequency and
    presence (output and path), then logit_bias, then bans to -inf, then the history's `process`. A
    new float32 or float64 row, or the given one when nothing applies. Ids outside the row, as a
    draft with a smaller vocabulary meets them, have no logit to adjust.
    """
    banned: Sequence[int] = params.bad_token_ids
    if history.length + len(path) < params.min_tokens:
        banned = (*banned, *history.end_ids)
    row = logits
    if params.penalises or params.logit_bias or banned:
        row = _adjusted(logits, params, history, path, banned)
    return row if history.process is None else history.process(history.ids(path), row)


def allowed(
    logits: Tensor, params: SamplingParams, history: History, path: Sequence[int]
) -> Tensor:
    """The adjusted row (V,) without what the grammar forbids, where there is one."""
    row, guide = adjust(logits, params, history, path), history.guide
    return row if guide is None else guide.masked(history.output, path, row)


def _adjusted(
    logits: Tensor,
    params: SamplingParams,
    history: History,
    path: Sequence[int],
    banned: Sequence[int],
) -> Tensor:
    work = torch.float64 if logits.dtype == torch.float64 else torch.float32
    row = logits.to(work, copy=True)
    if params.penalises:
        _penalise(row, params, history, path)
    if params.logit_bias:
        bias = {token: b for token, b in params.logit_bias.items() if token < len(row)}
        row[_long(bias).to(row.device)] += row.new_tensor(list(bias.values()))
    if banned:
        ids = _long(token for token in banned if token < len(row))
        row[ids.to(row.device)] = -math.inf
    return row


def _penalise(row: Tensor, params: SamplingParams, history: History, path: Sequence[int]) -> None:
    ids, counts = history.totals(path)
    if params.repetition_penalty != 1:
        # What is in both gets the same value twice.
        seen = torch.cat((history.prompt(), ids[counts > 0]))
        seen = seen[seen < len(row)].to(row.device)
        x = row[seen]
        row[seen] = torch.where(x > 0, x / params.repetition_penalty, x * params.repetition_penalty)
    fits = ids < len(row)
    counts = counts[fits]
    loss = counts.to(row.dtype) * params.frequency_penalty
    loss += (counts > 0).to(row.dtype) * params.presence_penalty
    row[ids[fits].to(row.device)] -= loss.to(row.device)
