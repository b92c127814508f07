"""What a request's history does to a row of logits: penalties, bias, bans, rules from outside.

Each node of a tree has a history of its own: prompt, committed output, and the path to it. Does
not know trees or requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from draftproof.params import SamplingParams


class History:
    """What penalties look at: the ids of the prompt and the counts of the output's ids.

    `end_ids` (end-of-text and stop ids) are banned until `min_tokens` are out. `process`, if set,
    is a further rule: (ids (n,), row (V,)) -> row (V,), a function of the text that is asked about
    (prompt, output, path) and of the row alone.
    """

    def __init__(self, prompt: Sequence[int], end_ids: Sequence[int] = ()) -> None:
        self.end_ids = tuple(end_ids)
        self.counts: Counter[int] = Counter()
        self.length = 0  # output tokens
        self.process: Callable[[Tensor, Tensor], Tensor] | None = None
        self._prompt: Sequence[int] | Tensor = list(prompt)
        self._text = list(prompt)  # and the output
        self._totals: tuple[Tensor, Tensor] | None = None

    def append(self, tokens: Sequence[int]) -> None:
        """Commit `tokens` to the output."""
        self.counts.update(tokens)
        self.length += len(tokens)
        self._text += tokens
        self._totals = None

    def remove(self, tokens: Sequence[int]) -> None:
        """Take back the last tokens of the output."""
        self.counts -= Counter(tokens)
        self.length -= len(tokens)
        del self._text[len(self._text) - len(tokens) :]
        self._totals = None

    def ids(self, path: Sequence[int]) -> Tensor:
        """Prompt, output and `path`, (n,)."""
        return _long([*self._text, *path])

    def prompt(self) -> Tensor:
        """The ids that the prompt holds, once each, (P,)."""
        if not isinstance(self._prompt, Tensor):
            self._prompt = _long(set(self._prompt))
        return self._prompt

    def totals(self, path: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The ids that output and `path` hold, once each, and their counts, (U,) and (U,)."""
        if self._totals is None:
            self._totals = _long(self.counts), _long(self.counts.values())
        if not path:
            return self._totals
        (ids, counts), here = self._totals, Counter(path)
        there = _long(here)
        fresh = ~torch.isin(ids, there)
        both = _long(self.counts[token] + count for token, count in here.items())
        return torch.cat((ids[fresh], there)), torch.cat((counts[fresh], both))


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
        seen = torch.cat((history.prompt(), ids))  # what is in both gets the same value twice
        seen = seen[seen < len(row)].to(row.device)
        x = row[seen]
        row[seen] = torch.where(x > 0, x / params.repetition_penalty, x * params.repetition_penalty)
    fits = ids < len(row)
    loss = counts[fits].to(row.dtype) * params.frequency_penalty + params.presence_penalty
    row[ids[fits].to(row.device)] -= loss.to(row.device)
