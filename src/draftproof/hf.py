"""The drop-in for transformers: `model.generate(**inputs, custom_generate=custom_generate(...))`.

transformers prepares the inputs, the logits processors and the stopping criteria; this file writes
the tokens. Every node of a tree is processed by transformers' own processors on the history of its
own path, so their order and meaning are transformers'. Options that are not taken are refused by
name. Knows `generate`'s conventions, not how anything is drafted.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from draftproof.counts import Stats
from draftproof.foreign_names import DRAFTERS, explains, no_copy
from draftproof.hf_options import of_generate, refuse, signature_with_tokenizer
from draftproof.llm import LLM
from draftproof.methods import resolve
from draftproof.request import Request
from draftproof.sampling import SamplingParams

PAUSE = 0.02  # seconds between two looks whether another model's engine is free

# transformers' processors that treat a row alike whatever rows stand beside it. Any other is given
# the whole batch, because it may look up its row's number.
ROW_WISE = (
    "EpsilonLogitsWarper EtaLogitsWarper ExponentialDecayLengthPenalty LogitNormalization "
    "ForcedEOSTokenLogitsProcessor InfNanRemoveLogitsProcessor MinLengthLogitsProcessor "
    "MinNewTokensLengthLogitsProcessor MinPLogitsWarper NoBadWordsLogitsProcessor "
    "NoRepeatNGramLogitsProcessor SequenceBiasLogitsProcessor SuppressTokensLogitsProcessor "
    "SuppressTokensAtBeginLogitsProcessor TemperatureLogitsWarper TopKLogitsWarper "
    "TopPLogitsWarper TypicalLogitsWarper"
)


@explains("custom_generate", DRAFTERS)
def custom_generate(
    speculate: Any = "auto", *, rule: str = "coupled", seed: int | None = None, max_batch: int = 8
) -> CustomGenerate:
    """What `model.generate(custom_generate=...)` takes; keep it, it holds the caches.

    speculate, rule: as in `LLM`. seed: of sampling; None takes one from torch's global generator,
    as transformers does, so that `torch.manual_seed` repeats an output. max_batch: rows that run at
    once. Logits processors must be functions of their own row alone: ids, scores and its number.
    Stopping criteria are asked row by row and must not count how often. Raises `ValueError`.
    """
    return CustomGenerate(speculate, rule, seed, max_batch)


class CustomGenerate:
    """A decoding loop for transformers' `generate`; see `custom_generate`.

    stats: what each row of the last call took, as `Completion.stats` has it.
    """

    def __init__(self, speculate: Any, rule: str, seed: int | None, max_batch: int) -> None:
        self._options: dict[str, Any] = {"rule": rule, "max_batch": max_batch}
        self._options["speculate"] = resolve(speculate)
        self._seed = seed
        self._lock = threading.Lock()
        self._users: list[threading.Lock] = []  # each held for the length of a call
        self._llm: LLM | None = None
        self.stats: list[Stats] = []
        self._made_for: tuple[Any, ...] = ()

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: Sequence[Any],
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Sequences (rows, prompt + output), padded on the right as transformers pads them."""
        handed = of_generate(sys._getframe(1).f_locals)
        streamer = model_kwargs.pop("streamer", handed.get("streamer"))
        refuse(generation_config, logits_processor, model_kwargs, handed)
        rows = len(input_ids)
        if streamer is not None and rows > 1:
            raise ValueError("a streamer follows one sequence: generate one at a time")
        ends = [c for c in stopping_criteria if not isinstance(c, MaxLengthCriteria)]
        eos = [c.eos_token_id.tolist() for c in ends if isinstance(c, EosTokenCriteria)]
        ends = [c for c in ends if not isinstance(c, EosTokenCriteria)]
        if ends and not eos and rows > 1:
            raise ValueError(
                "without an end-of-text token transformers writes on in rows whose stopping "
                "criteria are met, which is not supported: pass eos_token_id, or one row at a time"
            )
        params: dict[str, Any] = {
            "temperature": 1.0 if generation_config.do_sample else 0.0,
            "max_tokens": int(stopping_criteria.max_length or 0) - input_ids.shape[1],
            "stop_token_ids": sorted({token for ids in eos for token in ids}),
            "ignore_eos": True,
        }
        written: list[Row] = []
        mine = threading.Lock()
        with mine:
            llm = self._engine(model, mine)
            for index, seed in enumerate(self._seeds(rows, bool(generation_config.do_sample))):
                begin = _prompt_begin(model_kwargs, index, input_ids.shape[1])
                ids = input_ids[index].tolist()
                (request,) = llm.prepare(ids[begin:], SamplingParams(seed=seed, **params))
                written.append(Row(request, ids[:begin], index, rows, logits_processor))
                scored = (
                    generation_config.return_dict_in_generate and generation_config.output_scores
                )
                written[-1].stop_at(StoppingCriteriaList(ends), bool(scored))
                if generation_config.return_dict_in_generate and (
                    generation_config.output_scores or generation_config.output_logits
                ):
                    request.kept_logits = []
            _run(llm, written, streamer)
        self.stats = [row.request.stats for row in written]
        for row in written:
            row.tell(params["max_tokens"])
        pad = getattr(generation_config, "_pad_token_tensor", None)
        sequences = _padded(input_ids, written, 0 if pad is None else int(pad))
        if not generation_config.return_dict_in_generate:
            return sequences
        config = generation_config
        return GenerateDecoderOnlyOutput(
            sequences=sequences,  # type: ignore[arg-type]
            scores=_stacked(written, Row.scores) if config.output_scores else None,
            logits=_stacked(written, Row.logits) if config.output_logits else None,
        )

    def __repr__(self) -> str:
        return (
            f"custom_generate({self._options['speculate']!r}, rule={self._options['rule']!r}, "
            f"seed={self._seed}, max_batch={self._options['max_batch']})"
        )

    def __reduce__(self) -> NoReturn:
        raise no_copy("a custom_generate", "dp.custom_generate(...)")

    if not TYPE_CHECKING:  # of objects alone: the class keeps its own

        def __getattr__(self, name: str) -> Any:
            if name == "__signature__":
                return signature_with_tokenizer(self.__call__)
            raise AttributeError(f"custom_generate has no attribute {name!r}")

    def _engine(self, model: PreTrainedModel, mine: threading.Lock) -> LLM:
        """The model's engine, that of the last call; another model waits until nobody uses it.

        mine: held as long as it is used, so that an interrupt anywhere leaves nobody waiting.
        """
        asked = (model, model.device, model.dtype)
        while True:
            with self._lock:
                self._users = [user for user in self._users if user.locked()]
                if asked != self._made_for and not self._users:
                    if self._llm is not None:
                        self._llm.close()
                        self._made_for = ()
                    self._llm, self._made_for = LLM(model, **self._options), asked
                if asked == self._made_for and self._llm is not None:
                    self._users.append(mine)
                    return self._llm
            time.sleep(PAUSE)

    def _seeds(self, rows: int, sampled: bool) -> list[int]:
        generator = None  # torch's global one: what transformers' own sampling reads
        if self._seed is not None or not sampled:
            generator = torch.Generator().manual_seed(self._seed or 0)
        seeds: list[int] = torch.randint(1 << 62, (rows,), generator=generator).tolist()
        return seeds


class Row:
    """One row of the batch: its request, and transformers' rules about it."""

    def __init__(
        self, request: Request, padding: list[int], index: int, rows: int, processors: Sequence[Any]
    ) -> None:
        self.request, self.index, self.rows = request, index, rows
        self.padding = torch.tensor(padding, dtype=torch.long)
        # Each with whether it is given this row alone.
        row_wise = ROW_WISE.split()
        self.processors = [(p, rows == 1 or type(p).__name__ in row_wise) for p in processors]
        if processors:
            request.history.process = self.process

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
            request, shown = self.request, list[Tensor]()

            def ends() -> bool:
                committed = len(request.prompt) + request.history.length
                tokens = request.history.ids(request.tokens[committed:])
                ids = self._ids(tokens, torch.device("cpu")).repeat(self.rows, 1)
                for at in range(len(shown), len(request.output) if scored else 0):
                    shown.append(self.scores(at).repeat(self.rows, 1))
                return bool(criteria(ids, tuple(shown) if scored else None)[self.index])

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


def _prompt_begin(given: dict[str, Any], index: int, length: int) -> int:
    """Where the prompt of a left-padded row begins."""
    mask, positions = given.get("attention_mask"), given.get("position_ids")
    begin = 0
    if mask is not None:
        begin = length - int(mask[index].sum())
        if begin and bool(mask[index, :begin].any()):
            raise ValueError("attention_mask has holes or padding on the right: pad on the left")
    if positions is not None:
        own = positions[min(index, len(positions) - 1), begin:].tolist()
        if own != list(range(length - begin)):
            raise ValueError("position_ids that do not count the prompt are not taken: drop them")
    return begin


def _run(llm: LLM, rows: Sequence[Row], streamer: Any) -> None:
    sent = len(rows[0].request.prompt)
    for request in llm.engine.run([row.request for row in rows]):
        if streamer is not None:
            for token in request.tokens[sent:]:
                streamer.put(torch.tensor([token]))
            sent = len(request.tokens)
    if streamer is not None:
        streamer.end()


def _padded(prompts: Tensor, rows: Sequence[Row], pad: int) -> Tensor:
    longest = max(len(row.request.output) for row in rows)
    output = [row.request.output + [pad] * (longest - len(row.request.output)) for row in rows]
    fresh = torch.tensor(output, dtype=prompts.dtype, device=prompts.device)
    return torch.cat((prompts, fresh.view(len(rows), longest)), dim=1)


def _stacked(rows: Sequence[Row], row_of: Callable[[Row, int], Tensor]) -> tuple[Any, ...]:
    """For every output position a tensor (rows, V)."""
    longest = max(len(row.request.output) for row in rows)
    return tuple(torch.stack([row_of(row, at) for row in rows]) for at in range(longest))
