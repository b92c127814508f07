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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteriaList,
)
from transformers.generation.utils import (
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)

from draftproof import rules
from draftproof.counts import Stats
from draftproof.foreign_names import DRAFTERS, explains, no_copy
from draftproof.hf_bound import Bound
from draftproof.hf_inputs import of_rows
from draftproof.hf_options import OF_GENERATE, of_generate, refuse, signature_with_tokenizer
from draftproof.hf_rows import Row, padded, stacked
from draftproof.kinds import check_batch, numbers_checked
from draftproof.llm import LLM
from draftproof.profiles import is_profile, resolve
from draftproof.sampling import SamplingParams

Written = GenerateDecoderOnlyOutput | GenerateEncoderDecoderOutput
PAUSE = 0.02  # seconds between two looks whether another model's engine is free


@explains("custom_generate", DRAFTERS | OF_GENERATE)
@numbers_checked
def custom_generate(
    speculate: Any = "auto",
    *,
    rule: str = "coupled",
    seed: int | None = None,
    max_batch: int = 8,
    grammar: Any = None,
    prediction: Any = None,
) -> CustomGenerate:
    """What `model.generate(custom_generate=...)` takes; keep it, it holds the caches.

    speculate, rule: as in `LLM`. seed: of sampling; None takes one from torch's global generator,
    as transformers does, so that `torch.manual_seed` repeats an output. max_batch: rows that run at
    once. grammar: what the outputs have to match, a `Grammar` for all rows or a list of one for
    each; `generate` then needs `tokenizer=`. prediction: what they are thought to be like, text or
    token ids, or a list of one for each row. Logits processors must be functions of their own row
    alone: ids, scores and its number. Stopping criteria are asked row by row and must not count
    how often. Raises `ValueError`.
    """
    return CustomGenerate(speculate, rule, seed, max_batch, Bound(grammar, prediction))


class CustomGenerate:
    """A decoding loop for transformers' `generate`; see `custom_generate`.

    stats: what each row of the last call took, as `Completion.stats` has it.
    """

    def __init__(
        self, speculate: Any, rule: str, seed: int | None, max_batch: int, bound: Bound
    ) -> None:
        self._options: dict[str, Any] = {"rule": rule, "max_batch": max_batch}
        made = resolve(speculate)  # what is wrong is told here
        rules.named(rule)
        check_batch(max_batch)
        self._options["speculate"] = speculate if is_profile(speculate) else made
        self._seed, self._bound = seed, bound
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
        inputs_tensor: Tensor | None = None,
        **model_kwargs: Any,
    ) -> Tensor | Written:
        """Sequences (rows, prompt + output), padded on the right as transformers pads them.

        input_ids: what they start with. inputs_tensor: what a prompt is, for an encoder or not.
        """
        handed, config = of_generate(sys._getframe(1).f_locals), generation_config
        streamer = model_kwargs.pop("streamer", handed.get("streamer"))
        encodes = bool(getattr(model.config, "is_encoder_decoder", False))
        refuse(config, logits_processor, model_kwargs, handed, encodes)
        rows, grammars = len(input_ids), self._bound.grammars(len(input_ids))
        tokenizer = model_kwargs.get("tokenizer")
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
            "temperature": 1.0 if config.do_sample else 0.0,
            "max_tokens": int(stopping_criteria.max_length or 0) - input_ids.shape[1],
            "stop_token_ids": sorted({token for ids in eos for token in ids if token >= 0}),
            "ignore_eos": True,
        }
        detailed = config.return_dict_in_generate
        scored = bool(detailed and config.output_scores)
        written: list[Row] = []
        mine = threading.Lock()
        with mine:
            llm = self._engine(model, mine)
            asked = of_rows(input_ids, inputs_tensor, model_kwargs, llm.runner)
            intake = self._bound.intake(llm.intake, tokenizer, params["stop_token_ids"])
            predicted = self._bound.predictions(rows, llm.intake, tokenizer)
            seeds = self._seeds(rows, bool(config.do_sample))
            for index, (padding, ids, read) in enumerate(asked):
                more = {"grammar": grammars[index], "prediction": predicted[index]}
                one = SamplingParams(seed=seeds[index], **params, **more)
                (request,) = (
                    llm.prepare(ids, one, intake=intake)
                    if read is None
                    else llm.prepare(read, one, decoder_prompt=ids, intake=intake)
                )
                written.append(Row(request, padding, index, rows, logits_processor))
                written[-1].stop_at(StoppingCriteriaList(ends), scored)
                if scored or (detailed and config.output_logits):
                    request.kept_logits = []
            _run(llm, written, streamer)
        self.stats = [row.request.stats for row in written]
        for row in written:
            row.tell(params["max_tokens"])
        pad = getattr(config, "_pad_token_tensor", None)
        sequences = padded(input_ids, written, 0 if pad is None else int(pad))
        if not detailed:
            return sequences
        return (GenerateEncoderDecoderOutput if encodes else GenerateDecoderOnlyOutput)(
            sequences=sequences,  # type: ignore[arg-type]
            scores=stacked(written, Row.scores) if config.output_scores else None,
            logits=stacked(written, Row.logits) if config.output_logits else None,
        )

    def __repr__(self) -> str:
        return (
            f"custom_generate({self._options['speculate']!r}, rule={self._options['rule']!r}, "
            f"seed={self._seed}, max_batch={self._options['max_batch']}{self._bound!r})"
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


def _run(llm: LLM, rows: Sequence[Row], streamer: Any) -> None:
    sent = len(rows[0].request.prompt)
    for request in llm.engine.run([row.request for row in rows]):
        if streamer is not None:
            for token in request.tokens[sent:]:
                streamer.put(torch.tensor([token]))
            sent = len(request.tokens)
    if streamer is not None:
        streamer.end()
