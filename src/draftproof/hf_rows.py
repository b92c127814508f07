"""One row of transformers' batch while the drop-in writes it, and the batch's tensors afterwards.

transformers' own processors and stopping criteria are asked about each node's path. Does not know
how a row came to be, nor how anything is drafted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import StoppingCriteriaList

from draftproof.hf_bound import Mask
from draftproof.request import Request

# transformers' processors that treat a row alike whatever rows stand beside it. Any other is given
# the whole batch, because it may look up its row's number.
ROW_WISE = (
    "EpsilonLogitsWarper EtaLogitsWarper ExponentialDecayLengthPenalty LogitNormalization Mask "
    "ForcedBOSTokenLogitsProcessor ForcedEOSTokenLogitsProcessor InfNanRemoveLogitsProcessor "
    "MinLengthLogitsProcessor MinNewTokensLengthLogitsProcessor MinPLogitsWarper "
    "NoBadWordsLogitsProcessor "
    "NoRepeatNGramLogitsProcessor SequenceBiasLogitsProcessor SuppressTokensLogitsProcessor "
    "SuppressTokensAtBeginLogitsProcessor TemperatureLogitsWarper TopKLogitsWarper "
    "TopPLogitsWarper TypicalLogitsWarper WhisperTimeStampLogitsProcessor"
)


class Row:
    """One row of the batch: its request, and transformers' rules about it."""

    def __init__(
        self, request: Request, padding: list[int], index: int, rows: int, processors: Sequence[Any]
    ) -> None:
        self.request, self.index, self.rows = request, index, rows
        self.padding = torch.tensor(padding, dtype=torch.long)
        guide = request.history.guide
        if processors:
            request.history.process = self.process
        rules: Sequence[Any] = processors
        if guide is not None:
            # With a place of its own: scores are asked for when the text has ended.
            mask = Mask(guide.fork(), len(padding) + len(request.prompt))
            rules = mask.among(processors)
        # Each with whether it is given this row alone.
        row_wise = ROW_WISE.split()
        self.processors = [(p, rows == 1 or type(p).__name__ in row_wise) for p in rules]

    def process(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Scores (V,) of what follows `tokens` (n,), from the model's logits (V,); float32."""
        ids = self._ids(tokens, logits.device)
        scores = logits.to(torch.float32, copy=True)[None]
        for processor, alone in self.processors:
            if alone:
                scores = processor(ids, scores)
            else:
                many = processor(ids.repeat(self.rows, 1), scores.repeat(self.rows, 1))
                scores = many[self.index : self.index + 1]
        return scores[0]

    def stop_at(self, criteria: StoppingCriteriaList, scored: bool) -> None:
        """Ask `criteria` after every token, with all scores up to it where those are kept."""
        if criteria:
            request, shown, before = self.request, list[Tensor](), self.request.ends

            def ends() -> bool:
                committed = len(request.prompt) + request.history.length
                tokens = request.history.ids(request.tokens[committed:])
                ids = self._ids(tokens, torch.device("cpu")).repeat(self.rows, 1)
                for at in range(len(shown), len(request.output) if scored else 0):
                    shown.append(self.scores(at).repeat(self.rows, 1))
                met = bool(criteria(ids, tuple(shown) if scored else None)[self.index])
                return met or (before is not None and before())

            request.ends = ends

    def tell(self, max_tokens: int) -> None:
        """Raise or warn about what the caller could not see in the tokens."""
        request = self.request
        if request.fault is not None:
            raise request.fault
        if request.finish_reason == "abort":
            raise RuntimeError("the output was aborted: its engine was closed meanwhile")
        for warning in request.warnings:
            warnings.warn(warning, stacklevel=3)
        if request.finish_reason == "length" and len(request.output) < max_tokens:
            warnings.warn(
                f"the output ends at the model's longest context, {request.max_length} tokens, "
                f"before max_new_tokens={max_tokens}",
                stacklevel=3,
            )

    def logits(self, at: int) -> Tensor:
        """The model's own row (V,) that output token `at` was picked from; zeros after the end."""
        rows = self.request.kept_logits or []
        return rows[at].float() if at < len(rows) else torch.zeros_like(rows[0].float())

    def scores(self, at: int) -> Tensor:
        """The same row after the processors."""
        logits = self.logits(at)
        if not self.processors or at >= len(self.request.output):
            return logits
        before = self.request.tokens[: len(self.request.prompt) + at]
        return self.process(torch.tensor(before), logits)

    def _ids(self, tokens: Tensor, device: torch.device) -> Tensor:
        """(1, n), a copy: whoever is given it may keep it."""
        return torch.cat((self.padding, tokens))[None].to(device)


def padded(prompts: Tensor, rows: Sequence[Row], pad: int) -> Tensor:
    longest = max(len(row.request.output) for row in rows)
    output = [row.request.output + [pad] * (longest - len(row.request.output)) for row in rows]
    fresh = torch.tensor(output, dtype=prompts.dtype, device=prompts.device)
    return torch.cat((prompts, fresh.view(len(rows), longest)), dim=1)


def stacked(rows: Sequence[Row], row_of: Callable[[Row, int], Tensor]) -> tuple[Any, ...]:
    """For every output position a tensor (rows, V)."""
    longest = max(len(row.request.output) for row in rows)
    return tuple(torch.stack([row_of(row, at) for row in rows]) for at in range(longest))
