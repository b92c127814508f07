"""What a precision costs: a model in it beside a reference, over the same text and prompts.

Both read the text by the passes that their engines make. Compared are the laws of every next token,
and where greedy texts part. Does not know how a model is quantised.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from draftproof.llm import LLM
from draftproof.runners.base import KEY, EncoderInput, Work
from draftproof.runners.kv import available_bytes
from draftproof.runners.native import NativeRunner
from draftproof.sampling import SamplingParams
from draftproof.tree import TokenTree

BLOCK = 256  # tokens of the text in one pass
BIN = 16  # positions of a window that make one point of the curve
OPENING = 48  # tokens of the text that a greedy text continues
PER_PARAMETER = 8  # bytes: the reference in float32, and the largest of the others beside it

Load = Callable[[str], LLM]
Tick = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Cost:
    """A precision beside the reference. Divergences are KL(reference, precision), in nats."""

    precision: str
    runner: str
    perplexity: float
    divergence: float  # mean over the text
    divergence_p99: float
    agreement: float  # share of the positions with the same likeliest token
    # Tokens until a greedy text parts from the reference's, per prompt; None: it does not.
    parted: list[int | None]
    weight_bytes: int
    tokens_per_s: float  # of plain decoding, one prompt at a time
    by_position: list[float] = field(repr=False)  # divergence, mean over `BIN` positions each

    @property
    def same_texts(self) -> int:
        return sum(at is None for at in self.parted)

    @property
    def parts_after(self) -> float:
        """The median over the prompts; infinite where most texts are the same."""
        return statistics.median(math.inf if at is None else at for at in self.parted)


@dataclass
class Quality:
    """Costs of precisions, and what they are measured against."""

    reference: str  # precision
    perplexity: float
    weight_bytes: int
    tokens_per_s: float
    tokens: int  # positions of the text that were compared
    max_tokens: int  # of a greedy text
    costs: list[Cost] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # precision -> why
    incomplete: str = ""  # the precision at which an interrupt ended it

    def as_dict(self) -> dict[str, Any]:
        """Fit for JSON: what is not finite becomes null."""
        more = ("same_texts", "parts_after")
        costs = [asdict(each) | {name: getattr(each, name) for name in more} for each in self.costs]
        return _finite(asdict(self)) | {"costs": [_finite(each) for each in costs]}


def windows(tokenizer: Any, text: str, length: int, limit: int | None = None) -> list[list[int]]:
    """The first `limit` tokens of the text in rows of `length`; what is left over is not used.

    Each row begins as the tokenizer begins a text. Raises `ValueError` for a text that is shorter.
    """
    ids = [int(i) for i in tokenizer(text)["input_ids"]]
    bare = [int(i) for i in tokenizer(text, add_special_tokens=False)["input_ids"]]
    begin = ids[: len(ids) - len(bare)] if ids[-len(bare) :] == bare else []
    size = length - len(begin)
    bare = bare[:limit]
    if not bare:
        raise ValueError("the text is empty: give some pages of it")
    if size < 2 or len(bare) < size:
        less = f", or --window {len(bare)}" if len(bare) > 1 else ""
        raise ValueError(
            f"the text has {len(bare)} tokens, fewer than a window of {length}: give more of it"
            f"{less}"
        )
    return [begin + bare[at : at + size] for at in range(0, len(bare) - size + 1, size)]


def openings(rows: Sequence[list[int]], count: int) -> list[list[int]]:
    """At most `count` prompts, from the beginnings of rows, then from behind them."""
    each, behind = math.ceil(count / len(rows)), max(1, len(rows[0]) - OPENING)
    places = range(0, behind, max(1, behind // each))[:each]
    starts = [(row, at) for at in places for row in rows]
    return [row[: at + OPENING] if at == 0 else row[at : at + OPENING] for row, at in starts][
        :count
    ]


def reference_precision(parameters: int | None) -> str:
    """float32, or bfloat16 where that would not fit into memory."""
    free = available_bytes(torch.device("cpu"))
    fits = parameters is None or free is None or parameters * PER_PARAMETER < free
    return "float32" if fits else "bfloat16"


def compare(
    load: Load,
    reference: LLM,
    precisions: Sequence[str],
    rows: Sequence[list[int]],
    prompts: Sequence[list[int]],
    max_tokens: int,
    tick: Tick,
    reads: Sequence[EncoderInput] | None = None,
) -> Quality:
    """Costs of the precisions, one after the other.

    load: makes an LLM in a precision. rows: token ids of the text. prompts: token ids that greedy
    texts of at most `max_tokens` continue. reads: of an encoder-decoder, what was read for each
    row. A precision that is refused is left out, and named. An interrupt ends it and leaves what is
    finished.
    """
    params = SamplingParams(max_tokens=max_tokens)
    rounds = len(precisions) + 1
    told = _part(tick, 0, rounds)
    nothing: Sequence[EncoderInput | None] = [None] * len(rows)
    own, pairs = _Reading(), [*zip(rows, reads or nothing, strict=True)]
    for at, (row, read) in enumerate(pairs):
        told(f"reference: window {at + 1} of {len(rows)}", at / len(rows) / 2)
        own.add(laws_of(reference, row, read), row)
    texts, speed = _write(reference, prompts, params, "reference", told)
    made = Quality(
        reference=reference.runner.precision,
        perplexity=own.perplexity,
        weight_bytes=weight_bytes(reference),
        tokens_per_s=speed,
        tokens=sum(len(row) - 1 for row in rows),
        max_tokens=max_tokens,
    )
    for number, precision in enumerate(precisions, 1):
        told = _part(tick, number, rounds)
        try:
            told(f"{precision}: loading", 0.0)
            with load(precision) as llm:
                made.costs.append(
                    _cost(precision, llm, reference, pairs, prompts, texts, params, told)
                )
        except ValueError as error:
            made.refused[precision] = " ".join(str(error).split())
        except KeyboardInterrupt:
            made.incomplete = precision
            break
    return made


def weight_bytes(llm: LLM) -> int:
    """What the weights take in memory."""
    if isinstance(llm.runner, NativeRunner):
        return llm.runner.packed.bytes
    return sum(each.numel() * each.element_size() for each in llm.runner.model.parameters())


class _Reading:
    """Nats of the text's own tokens, of one model."""

    def __init__(self) -> None:
        self.nats: list[Tensor] = []

    def add(self, laws: Tensor, row: Sequence[int]) -> None:
        following = torch.tensor(row[1:], device=laws.device)
        self.nats.append(-laws[:-1].gather(1, following[:, None])[:, 0])

    @property
    def perplexity(self) -> float:
        return float(torch.cat(self.nats).mean().exp())


def _cost(
    precision: str,
    llm: LLM,
    reference: LLM,
    pairs: Sequence[tuple[list[int], EncoderInput | None]],
    prompts: Sequence[list[int]],
    texts: Sequence[list[int]],
    params: SamplingParams,
    told: Tick,
) -> Cost:
    read, divergences, agreed = _Reading(), [], []
    for at, (row, given) in enumerate(pairs):
        told(f"{precision}: window {at + 1} of {len(pairs)}", at / len(pairs) / 2)
        want, got = laws_of(reference, row, given), laws_of(llm, row, given)
        read.add(got, row)
        divergences.append(divergence(want, got)[:-1])
        agreed.append((want.argmax(-1) == got.argmax(-1))[:-1])
    written, speed = _write(llm, prompts, params, precision, told)
    everything = torch.cat(divergences)
    return Cost(
        precision=llm.runner.precision if precision == "auto" else precision,
        runner=llm.runner.name,
        perplexity=read.perplexity,
        divergence=float(everything.mean()),
        divergence_p99=float(everything.quantile(0.99)),
        agreement=float(torch.cat(agreed).double().mean()),
        parted=[parting(one, other) for one, other in zip(texts, written, strict=True)],
        weight_bytes=weight_bytes(llm),
        tokens_per_s=speed,
        by_position=_binned(divergences),
    )


def laws_of(llm: LLM, row: Sequence[int], given: EncoderInput | None = None) -> Tensor:
    """Log-probabilities (T, V), float32, behind every token of the row, in passes of `BLOCK`.

    given: what an encoder reads for it.
    """
    runner, parts = llm.runner, []
    try:
        for at in range(0, len(row), BLOCK):
            block = row[at : at + BLOCK]
            tree = TokenTree.chain(list(block))
            (output,) = runner.forward([Work(KEY, [], tree, encoder_input=given)])
            parts.append(output.logits.float().log_softmax(-1))
            runner.keep(KEY, range(len(block)))
    finally:
        runner.free(KEY)
    return torch.cat(parts).cpu()


def divergence(want: Tensor, got: Tensor) -> Tensor:
    """KL(want, got) of every row of log-probabilities; what is impossible in `want` adds nothing.

    Rounding may leave a sum of none a little below 0.
    """
    terms = want.exp() * (want - got)
    return torch.where(want.isneginf(), 0.0, terms).sum(-1).clamp(min=0)


def parting(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Tokens that two texts share at their beginning; None: they are the same."""
    pairs = zip(one, other, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    return None if same == len(one) == len(other) else same


def _write(
    llm: LLM, prompts: Sequence[list[int]], params: SamplingParams, name: str, told: Tick
) -> tuple[list[list[int]], float]:
    """Greedy texts one after the other, and tokens per second behind the first of each."""
    texts, tokens, seconds = [], 0, 0.0
    for at, prompt in enumerate(prompts):
        told(f"{name}: text {at + 1} of {len(prompts)}", 0.5 + at / len(prompts) / 2)
        (done,) = llm.generate([prompt], params)
        if done.error is not None:
            raise ValueError(done.error)
        texts.append(done.token_ids)
        tokens += max(0, len(done.token_ids) - 1)
        seconds += done.stats.ended - done.stats.first_token
    return texts, tokens / seconds if tokens else math.nan


def _finite(found: dict[str, Any]) -> dict[str, Any]:
    odd = [name for name, x in found.items() if isinstance(x, float) and not math.isfinite(x)]
    return found | dict.fromkeys(odd)


def _binned(divergences: Sequence[Tensor]) -> list[float]:
    longest = max(map(len, divergences))
    bins = []
    for at in range(0, longest, BIN):
        pieces = [each[at : at + BIN] for each in divergences if len(each) > at]
        bins.append(float(torch.cat(pieces).mean()))
    return bins


def _part(tick: Tick, number: int, rounds: int) -> Tick:
    """Shares of one round as shares of all."""
    return lambda text, share: tick(text, None if share is None else (number + share) / rounds)
