"""Who writes in a comparison: draftproof by each method, and transformers in its own ways.

A side takes token ids and gives token ids; prompts, clocks and reports are other files' business.
All sides share one loaded target, so weights, precision and threads are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftproof.counts import Stats
from draftproof.drafts import Drafted
from draftproof.llm import LLM
from draftproof.sampling import SamplingParams


@dataclass(frozen=True)
class How:
    """What every side is asked for."""

    temperature: float
    max_tokens: int
    seed: int
    ignore_eos: bool


@dataclass(frozen=True)
class Written:
    """The answer to one prompt, up to and with the first end-of-text token."""

    token_ids: list[int]
    per_step: list[int] | None = None  # tokens of each pass of the target, where a side tells
    stats: Stats | None = None
    # Of a side in another process:
    seconds: float | None = None  # by its own clock
    text: str | None = None  # where it gives no token ids
    reported: int | None = None  # tokens by its own account, where it gives no ids

    @property
    def tokens(self) -> int:
        """The one counter of a comparison."""
        return len(self.token_ids) if self.reported is None else self.reported


@dataclass
class Side:
    """One way of writing; may run in another process, and then has its own clock."""

    name: str
    write: Callable[[Sequence[list[int]], How], list[Written]]
    peer: bool = False  # another program: skipped where it fails
    batches: bool = True  # takes several prompts at once
    drafted: Drafted | None = None  # of ours


def ours(name: str, llm: LLM) -> Side:
    """draftproof with whatever `llm` drafts with, and what that costs."""
    llm.engine.drafts.drafted = Drafted()

    def write(prompts: Sequence[list[int]], how: How) -> list[Written]:
        params = SamplingParams(
            temperature=how.temperature,
            max_tokens=how.max_tokens,
            seed=how.seed,
            ignore_eos=how.ignore_eos,
        )
        done = llm.generate(prompts, params)
        for one in done:
            if one.error is not None:
                raise ValueError(one.error)
        return [Written(one.token_ids, _per_step(one.from_draft), one.stats) for one in done]

    return Side(f"draftproof {name}", write, drafted=llm.engine.drafts.drafted)


def _per_step(from_draft: Sequence[bool]) -> list[int]:
    """Tokens of each step: a step's drafted tokens and the target's own that ends it."""
    sizes, size = [], 0
    for drafted in from_draft:
        size += 1
        if not drafted:
            sizes.append(size)
            size = 0
    return [*sizes, size] if size else sizes


def transformers(
    name: str, model: PreTrainedModel, end_ids: Sequence[int], batches: bool = True, **options: Any
) -> Side:
    """transformers' own `generate`; `options` are its keywords."""
    pad = end_ids[0] if end_ids else 0

    def write(prompts: Sequence[list[int]], how: How) -> list[Written]:
        encodes = bool(getattr(model.config, "is_encoder_decoder", False))
        longest = max(map(len, prompts))

        def filled(row: list[int], filler: int) -> list[int]:
            """An encoder's positions are counted from the first token, padding or not."""
            more = [filler] * (longest - len(row))
            return row + more if encodes else more + row

        rows = [filled(p, pad) for p in prompts]
        seen = [filled([1] * len(p), 0) for p in prompts]
        ids, mask = torch.tensor(rows, device=model.device), torch.tensor(seen)
        sampling: dict[str, Any] = {"do_sample": False, "repetition_penalty": 1.0}
        beams = {"num_beams": 1} if encodes else {}  # configs of these ask for several
        if how.temperature > 0:  # a model's own defaults would be another distribution than ours
            neutral = {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
            sampling = {"do_sample": True, "temperature": how.temperature, **neutral}
        with torch.random.fork_rng(enabled=how.temperature > 0), _ends(model, end_ids, how):
            torch.manual_seed(how.seed)
            out = model.generate(  # type: ignore[operator]
                ids,
                attention_mask=mask.to(model.device),
                max_new_tokens=how.max_tokens,
                pad_token_id=pad,
                **sampling,
                **beams,
                **options,
            )
        assert isinstance(out, Tensor)
        # An encoder-decoder's output begins with the decoder's start token.
        begin = 1 if encodes else longest
        cut = [_cut(row, end_ids, how) for row in out[:, begin:].tolist()]
        return [Written(row, None if options else [1] * len(row)) for row in cut]

    return Side(f"transformers {name}".strip(), write, peer=True, batches=batches)


@contextmanager
def _ends(model: PreTrainedModel, end_ids: Sequence[int], how: How) -> Iterator[None]:
    """The model's own end-of-text ids for the length of a call, or none at all."""
    config: Any = model.generation_config
    before = config.eos_token_id
    config.eos_token_id = None if how.ignore_eos or not end_ids else list(end_ids)
    try:
        yield
    finally:
        config.eos_token_id = before


def _cut(row: list[int], end_ids: Sequence[int], how: How) -> list[int]:
    """Without what pads a row behind its end."""
    ends = () if how.ignore_eos else end_ids
    return row[: next((i + 1 for i, token in enumerate(row) if token in ends), len(row))]


@contextmanager
def assistant_length(assistant: PreTrainedModel, length: int | None) -> Iterator[None]:
    """transformers' assistant drafts `length` tokens, always; None: as it likes by default."""
    config: Any = assistant.generation_config
    names = (
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
    )
    before = [getattr(config, name, None) for name in names]
    after = before if length is None else [length, "constant", 0.0]
    for name, value in zip(names, after, strict=True):
        setattr(config, name, value)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(config, name, value)


def assisted(
    model: PreTrainedModel, assistant: PreTrainedModel, end_ids: Sequence[int], length: int | None
) -> Side:
    """transformers' assisted generation with a fixed draft length, or with its own schedule."""
    name = "assistant" if length is None else f"assistant ({length})"
    side = transformers(name, model, end_ids, batches=False, assistant_model=assistant)
    plain_write = side.write

    def write(prompts: Sequence[list[int]], how: How) -> list[Written]:
        with assistant_length(assistant, length):
            return plain_write(prompts, how)

    side.write = write
    return side
