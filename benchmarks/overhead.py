"""What the engine costs beyond the model: `python benchmarks/overhead.py`.

Steps: the engine's time per step over a runner that computes nothing and a drafter that knows the
answer, so that every node is accepted: the dearest step there is. Native: a step of the bundled
pair over kernels that compute nothing, the least of many repetitions, which a busy machine changes
little; and over the real ones, where what they leave of the caches counts. Passes: the torch
runner's pass against the same model called by transformers with its own cache.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from draftproof import LLM, DraftModel, NGram, bundled, clock, native
from draftproof.bundled.prompts import PROMPTS
from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.runners import costs
from draftproof.runners.base import Output, Target, Work
from draftproof.runners.torch import TorchRunner
from draftproof.sampling import SamplingParams, pick
from draftproof.scheduler import Scheduler
from draftproof.tree import TokenTree
from draftproof.writing import Writing

POOL = 16  # rows of logits, given out by position
REPEATS = 60
VOCABULARY = 8192  # of the bundled pair


@dataclass
class PoolRunner:
    """A runner whose logits after position p are row p of a pool; keeps only lengths."""

    pool: torch.Tensor  # (POOL, V)
    lengths: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0  # spent in here, which is not the engine's time

    def forward(self, work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
        began, outputs = time.perf_counter(), []
        for item in work:
            base = self.cached(item.key) + len(item.new)
            self.lengths[item.key] = base
            n = len(item.tree.tokens) if item.tree is not None else 0
            rows = (base + torch.arange(n)) % POOL
            outputs.append(Output(self.pool[rows]))
        self.seconds += time.perf_counter() - began
        return outputs

    def cached(self, key: int) -> int:
        return self.lengths.get(key, 0)

    def keep(self, key: int, path: Sequence[int]) -> None:
        self.lengths[key] += len(path)

    def crop(self, key: int, length: int) -> None:
        self.lengths[key] = length

    def free(self, key: int) -> None:
        self.lengths.pop(key, None)


@dataclass
class Oracle:
    """Proposes the next `nodes` - 1 tokens of the known output."""

    answers: dict[int, list[int]]  # key -> prompt and output
    nodes: int
    taps: tuple[int, ...] = ()

    def bind(self, target: Target) -> None: ...

    def release(self, request: Request) -> None: ...

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        trees = []
        for request in requests:
            at = len(request.tokens) - 1
            trees.append(TokenTree.chain(self.answers[request.key][at : at + self.nodes]))
        return trees


def step_ms(vocabulary: int, batch: int, temperature: float, nodes: int = 8) -> float:
    """Median milliseconds of an engine step, all nodes accepted."""
    generator = torch.Generator().manual_seed(0)
    pool = 3 * torch.randn(POOL, vocabulary, generator=generator)
    steps = 24
    params = SamplingParams(temperature=temperature, max_tokens=nodes * steps, seed=1)
    answers: dict[int, list[int]] = {}
    for key in range(batch):
        known = Request(key, [7], params, seed=key)
        for position in range(nodes * (steps + 1)):
            row = pool[position % POOL]
            known.tokens.append(pick(row, params, known.history, (), known.noise, position + 1))
        answers[key] = known.tokens
    runner = PoolRunner(pool)
    engine = Engine(runner, Oracle(answers, nodes), scheduler=Scheduler(batch))
    for key in range(batch):
        engine.add(Request(key, [7], params, seed=key))
    took = []
    for _ in range(steps):
        runner.seconds, began = 0.0, time.perf_counter()
        engine.step()
        took.append(1e3 * (time.perf_counter() - began - runner.seconds))
    assert not engine.scheduler.running, "a node was not accepted"
    return statistics.median(took[4:])


def native_steps(
    llm: LLM, temperature: float, forward: Callable[..., int]
) -> list[tuple[float, float]]:
    """Of every step of 256 tokens, milliseconds in all and outside of `forward`, the kernels."""
    library: Any = native.library()
    real, spent = library.dp_forward, 0.0

    def timed(*arguments: Any) -> int:
        nonlocal spent
        began = time.perf_counter()
        code = forward(*arguments)
        spent += time.perf_counter() - began
        return code

    params = SamplingParams(temperature=temperature, max_tokens=256, seed=1, ignore_eos=True)
    (request,) = llm.submit(PROMPTS[0], params)
    took = []
    library.dp_forward = timed
    try:
        while not request.finished:
            spent, began = 0.0, time.perf_counter()
            llm.engine.step()
            whole = time.perf_counter() - began
            took.append((1e3 * whole, 1e3 * (whole - spent)))
    finally:
        library.dp_forward = real
    return took


def engine_ms(llm: LLM, temperature: float) -> float:
    """Median milliseconds of a step at batch 1 over kernels that compute nothing."""
    repeated = [native_steps(llm, temperature, _nothing) for _ in range(REPEATS)]
    least: list[float] = [min(own for _, own in step) for step in zip(*repeated, strict=True)]
    return statistics.median(least)


def native_step_ms(llm: LLM, temperature: float) -> tuple[float, float]:
    """Median ms of a step at batch 1 that are Python, and all of it, over the native runner."""
    real = native.library().dp_forward
    took = [step for _ in range(6) for step in native_steps(llm, temperature, real)]
    whole, python = (statistics.median(column) for column in zip(*took, strict=True))
    return python, whole


def _nothing(model: int, team: int, given: native.Pass) -> int:
    """Answers that token 0 follows everywhere, and that all tokens are alike."""
    if given.best:
        ctypes.memset(given.best, 0, 4 * given.wanted)
    if given.logits:
        places = ctypes.cast(given.logits_rows, ctypes.POINTER(ctypes.c_int32))
        rows = 1 + max(places[: given.wanted], default=-1)
        ctypes.memset(given.logits, 0, 4 * VOCABULARY * rows)
    return native.OK


def pass_ratio(model: PreTrainedModel, context: int, rows: int) -> tuple[float, float, float]:
    """Median ms of our pass and of transformers', and the median ratio, over `rows` tokens."""
    runner = TorchRunner(model, max_batch=1)
    ours = costs.passes(runner, context)(rows)
    ids = costs.context_ids(runner, context)
    cache = DynamicCache(config=model.config)
    fresh = torch.tensor([[1] * rows])
    with torch.inference_mode():
        model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)

    def theirs() -> None:
        with torch.inference_mode():
            model(input_ids=fresh, past_key_values=cache, use_cache=True)
            cache.crop(-rows)

    seconds = clock.interleaved({"ours": ours, "theirs": theirs}, rounds=41, warm=8)
    medians = (1e3 * statistics.median(seconds[name]) for name in ("ours", "theirs"))
    return (*medians, clock.median_ratio(seconds["ours"], seconds["theirs"]))  # type: ignore[return-value]


def main() -> None:
    console = Console()
    console.print(clock.machine(), highlight=False)
    table = Table("vocabulary", "batch", "temperature", "ms per step", title="engine, 8 nodes")
    for vocabulary, batch, temperature in (
        (8_192, 1, 0.0),
        (8_192, 1, 1.0),
        (152_000, 8, 0.0),
        (152_000, 1, 1.0),
    ):
        took = step_ms(vocabulary, batch, temperature)
        table.add_row(f"{vocabulary:,}", str(batch), str(temperature), f"{took:.2f}")
    console.print(table)
    if native.found() is not None:
        columns = "method", "temperature", "engine ms", "Python ms", "step ms"
        table = Table(*columns, title="native, bundled pair")
        plain = LLM(bundled.folder("target"), runner="native", speculate=None)
        for method, make in (
            ("none", lambda confidence: None),
            ("ngram", lambda confidence: NGram()),
            (
                "draft",
                lambda confidence: DraftModel(bundled.folder("draft"), min_confidence=confidence),
            ),
        ):
            # Where all tokens are alike, a draft is in doubt about each.
            llm, certain = (LLM(plain, speculate=make(confidence)) for confidence in (0.1, 0.0))
            for temperature in (0.0, 1.0):
                figures = engine_ms(certain, temperature), *native_step_ms(llm, temperature)
                table.add_row(method, str(temperature), *(f"{ms:.3f}" for ms in figures))
        console.print(table)
    shape = LlamaConfig(
        vocab_size=8192,
        hidden_size=320,
        intermediate_size=896,
        num_hidden_layers=12,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(shape).eval()
    table = Table("context", "tokens", "ours ms", "transformers ms", "ratio", title="pass, fp32")
    for context in (128, 1024):
        for rows in (1, 4, 8, 16):
            ours, theirs, ratio = pass_ratio(model, context, rows)
            table.add_row(str(context), str(rows), f"{ours:.2f}", f"{theirs:.2f}", f"{ratio:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
