"""The drop-in for transformers: `model.generate(**inputs, custom_generate=custom_generate(...))`.

transformers prepares the inputs, the logits processors and the stopping criteria; this file writes
the tokens. Every node of a tree is processed by transformers' own processors on the history of its
own path, so their order and meaning are transformers'. Options that are not taken are refused by
name. Knows `generate`'s conventions, not how anything is drafted.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from draftproof.llm import LLM
from draftproof.methods import resolve
from draftproof.request import Request
from draftproof.sampling import SamplingParams

# Keywords that reach every decoding loop; "cache_position" does in older versions.
TAKEN = "attention_mask position_ids past_key_values use_cache logits_to_keep cache_position"
# Options of a generation config that only another decoding loop could follow.
OTHER_LOOPS = (
    "num_beams num_beam_groups penalty_alpha dola_layers constraints force_words_ids use_mtp "
    "prompt_lookup_num_tokens assistant_early_exit guidance_scale cache_implementation "
    "prefill_chunk_size compile_config is_assistant low_memory output_attentions "
    "output_hidden_states"
)
INSTEAD = {
    "assistant_model": "use speculate=dp.DraftModel(...)",
    "prompt_lookup_num_tokens": "use speculate=dp.NGram()",
}
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
# Processors whose state follows one sequence of calls, where a tree asks in another order.
STATEFUL = "UnbatchedClassifierFreeGuidanceLogitsProcessor SynthIDTextWatermarkLogitsProcessor"


def custom_generate(
    speculate: Any = None, *, rule: str = "coupled", seed: int | None = None, max_batch: int = 8
) -> CustomGenerate:
    """What `model.generate(custom_generate=...)` takes; keep it, it holds the caches.

    speculate, rule: as in `LLM`. seed: of sampling; None takes one from torch's global generator,
    as transformers does, so that `torch.manual_seed` repeats an output. max_batch: rows that run at
    once. Logits processors must be functions of their own row alone: ids, scores and its number.
    Raises `ValueError`.
    """
    return CustomGenerate(speculate, rule, seed, max_batch)


class CustomGenerate:
    """A decoding loop for transformers' `generate`; see `custom_generate`."""

    def __init__(self, speculate: Any, rule: str, seed: int | None, max_batch: int) -> None:
        self._options: dict[str, Any] = {"rule": rule, "max_batch": max_batch}
        self._options["speculate"] = resolve(speculate)
        self._seed = seed
        self._llm: LLM | None = None
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
        frame = inspect.currentframe()
        handed = _of_generate(frame.f_back.f_locals if frame and frame.f_back else {})
        del frame
        streamer = model_kwargs.pop("streamer", handed.get("streamer"))
        _refuse(generation_config, logits_processor, model_kwargs, handed)
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
        llm = self._for(model)
        written: list[Row] = []
        try:
            for index, seed in enumerate(self._seeds(rows, bool(generation_config.do_sample))):
                begin = _prompt_begin(model_kwargs, index, input_ids.shape[1])
                ids = input_ids[index].tolist()
                (request,) = llm.submit(ids[begin:], SamplingParams(seed=seed, **params))
                written.append(Row(request, ids[:begin], index, rows, logits_processor))
                written[-1].stop_at(StoppingCriteriaList(ends))
                if generation_config.return_dict_in_generate and (
                    generation_config.output_scores or generation_config.output_logits
                ):
                    request.rows = []
            _run(llm, written, streamer)
        finally:  # an error or an interrupt leaves nothing running
            for row in written:
                llm.engine.abort(row.request)
        for row in written:
            row.tell(params["max_tokens"])
        pad = getattr(generation_config, "_pad_token_tensor", None)
        sequences = _padded(input_ids, written, 0 if pad is None else int(pad))
        if not generation_config.return_dict_in_generate:
            return sequences
        scores, logits = generation_config.output_scores, generation_config.output_logits
        return GenerateDecoderOnlyOutput(
            sequences=sequences,  # type: ignore[arg-type]
            scores=_stacked(written, Row.scores) if scores else None,
            logits=_stacked(written, Row.logits) if logits else None,
        )

    def _for(self, model: PreTrainedModel) -> LLM:
        """The engine of the last call, unless the model is another one, or has moved."""
        asked = (id(model), model.device, model.dtype)
        if self._llm is None or asked != self._made_for:
            if self._llm is not None:
                self._llm.close()
            self._llm, self._made_for = LLM(model, **self._options), asked
        return self._llm

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
        self.request, self.padding, self.index, self.rows = request, padding, index, rows
        # Each with whether it is given this row alone.
        row_wise = ROW_WISE.split()
        self.processors = [(p, rows == 1 or type(p).__name__ in row_wise) for p in processors]
        if processors:
            request.history.process = self.process

    def process(self, tokens: Sequence[int] | Tensor, logits: Tensor) -> Tensor:
        """Scores (V,) of what follows `tokens`, from the model's logits (V,); float32."""
        ids = self._ids(tokens, logits.device)
        scores = logits.to(torch.float32, copy=True)[None]
        for processor, alone in self.processors:
            if alone:
                scores = processor(ids, scores)
            else:
                many = processor(ids.repeat(self.rows, 1), scores.repeat(self.rows, 1))
                scores = many[self.index : self.index + 1]
        return scores[0]

    def stop_at(self, criteria: StoppingCriteriaList) -> None:
        """Ask `criteria` after every token; nothing to ask, nothing done."""
        if criteria:
            request = self.request

            def ends() -> bool:
                ids = self._ids(request.tokens, torch.device("cpu")).repeat(self.rows, 1)
                return bool(criteria(ids, None)[self.index])

            request.ends = ends

    def tell(self, max_tokens: int) -> None:
        """Raise or warn about what the caller could not see in the tokens."""
        request = self.request
        if request.finish_reason == "error":
            raise ValueError(request.error)
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
        rows = self.request.rows or []
        return rows[at].float() if at < len(rows) else torch.zeros_like(rows[0].float())

    def scores(self, at: int) -> Tensor:
        """The same row after the processors."""
        logits = self.logits(at)
        if not self.processors or at >= len(self.request.output):
            return logits
        return self.process([*self.request.prompt, *self.request.output[:at]], logits)

    def _ids(self, tokens: Sequence[int] | Tensor, device: torch.device) -> Tensor:
        written = torch.as_tensor(tokens, dtype=torch.long)
        padding = torch.tensor(self.padding, dtype=torch.long)
        return torch.cat((padding, written))[None].to(device)


def _of_generate(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the calling `generate` that it keeps from a callable (seen in 5.23).

    Without them a streamer would stay silent and an assistant model be ignored.
    """
    names = ("streamer", "assistant_model", "synced_gpus")
    found = {name: arguments.get(name) for name in names}
    found["past_key_values"] = (arguments.get("kwargs") or {}).get("past_key_values")
    return {n: value for n, value in found.items() if value is not None and value is not False}


def _refuse(
    config: GenerationConfig,
    processors: Sequence[Any],
    given: dict[str, Any],
    handed: dict[str, Any],
) -> None:
    """Refuse by name what would otherwise be ignored."""
    asked = [name for name in OTHER_LOOPS.split() if _is_on(getattr(config, name, None))]
    asked += ["use_cache"] if config.use_cache is False else []
    asked += [n for n, value in given.items() if n not in TAKEN.split() and _is_on(value)]
    asked += [name for name in handed if name != "streamer"]
    asked += [name for p in processors if (name := type(p).__name__) in STATEFUL.split()]
    if asked:
        way = INSTEAD.get(asked[0], "drop it, or use generate without custom_generate")
        raise ValueError(f"generate's {asked[0]} is not taken by draftproof: {way}")


def _is_on(option: Any) -> bool:
    """Whether an option asks for something; 0 and 1 are the neutral numbers."""
    neutral = isinstance(option, bool | int | float) and option in (0, 1) and option is not True
    return option is not None and not neutral


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
    while not all(row.request.finished for row in rows):
        llm.engine.step()
        if streamer is not None:
            for token in rows[0].request.tokens[sent:]:
                streamer.put(torch.tensor([token]))
            sent = len(rows[0].request.tokens)
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
