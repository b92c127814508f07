"""An encoder-decoder's step, taken apart: its rules, and a pass of its decoder.

Rules: the same texts with and without the rules of a generation config, in turn. A pass: products
of its matrices, attention, and the rest, which is transformers' and our Python. Beside it what the
native runner takes for as many products: a pass over a Llama of the same width and depth, by
weight. Weights are random: none of this depends on what they say.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import (
    AttentionInterface,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import draftproof as dp
from draftproof import clock
from draftproof.runners import crossing
from draftproof.runners.base import Work
from draftproof.tree import TokenTree

BEHIND = 32  # tokens of a text before the pass
# Of each: hidden size, inner size, layers of the decoder, heads.
SHAPES = {
    "T5-small": (512, 2048, 6, 8),
    "T5-base": (768, 3072, 12, 12),
    "Whisper-tiny": (384, 1536, 4, 6),
    "Whisper-base": (512, 2048, 6, 8),
}
TINY = {"T5-small": (32, 64, 2, 2), "Whisper-tiny": (32, 64, 2, 2)}
WHISPER = 51_865  # words of its vocabulary
RULES: dict[str, dict[str, Any]] = {
    "T5-small": {
        "no_repeat_ngram_size": 3,
        "min_length": 8,
        "bad_words_ids": [[5], [7, 9]],
        "suppress_tokens": [*range(100, 190)],
    },
    "Whisper-tiny": {  # as many as its published configuration has
        "suppress_tokens": [*range(1, 89)],
        "begin_suppress_tokens": [220, 50_257],
    },
}


def made(name: str, shapes: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    """A model of that shape with random weights."""
    width, inner, layers, heads = shapes[name]
    torch.manual_seed(0)
    if name.startswith("T5"):
        config: Any = T5Config(
            d_model=width,
            d_ff=inner,
            num_layers=layers,
            num_heads=heads,
            d_kv=width // heads,
            decoder_start_token_id=0,
        )
        return T5ForConditionalGeneration(config).to(dtype).eval()
    config = WhisperConfig(
        d_model=width,
        decoder_ffn_dim=inner,
        encoder_ffn_dim=inner,
        decoder_layers=layers,
        encoder_layers=layers,
        decoder_attention_heads=heads,
        encoder_attention_heads=heads,
        vocab_size=WHISPER,
    )
    return WhisperForConditionalGeneration(config).to(dtype).eval()


def inputs(llm: dp.LLM, count: int) -> dict[str, Any]:
    """What `generate` reads: so many texts of 32 tokens, or silences of half a minute."""
    runner: Any = llm.runner
    if runner.ear is None:
        return {"prompts": [[3 + (7 * i + n) % 9000 for i in range(BEHIND)] for n in range(count)]}
    model = runner.model
    frames = 2 * int(model.config.max_source_positions)
    shape = count, int(model.config.num_mel_bins), frames
    return {"inputs": {"input_features": torch.zeros(shape, dtype=model.dtype)}}


def rules(
    name: str, shapes: dict[str, Any], batch: int, tokens: int, rounds: int
) -> dict[str, Any]:
    """Seconds a step of plain decoding at T=0, with the rules and without, in turn."""
    sides: dict[str, Callable[[], object]] = {}
    for side in ("without", "with"):
        model = made(name, shapes, torch.float32)
        for rule, value in RULES[name].items() if side == "with" else ():
            setattr(model.generation_config, rule, value)
        llm = dp.LLM(model, speculate=None, max_batch=batch)
        given = inputs(llm, batch)
        params = dp.SamplingParams(max_tokens=tokens, ignore_eos=True)

        def write(llm: dp.LLM = llm, given: Any = given, params: Any = params) -> None:
            done = llm.generate(**given, params=params)
            assert all(len(one.token_ids) == tokens for one in done), done[0].error

        sides[side] = write
    took = clock.interleaved(sides, rounds)
    pairs = zip(took["without"], took["with"], strict=True)
    return {
        "model": name,
        "batch": batch,
        "rules": sorted(RULES[name]),
        "ms_a_step": statistics.median(took["with"]) / tokens * 1e3,
        "share": [1 - without / with_them for without, with_them in pairs],
    }


def one_row_each(runner: Any, texts: int) -> Callable[[], float]:
    """A pass over the next token of so many texts; returns its seconds."""
    given = [runner.example(BEHIND, lambda at, n=n: 3 + at + n) for n in range(texts)]
    prefix = [3 + at for at in range(BEHIND)]
    read = [Work(n, prefix, None, encoder_input=one) for n, one in enumerate(given)]
    runner.forward(read)
    work = [Work(n, [], TokenTree([5], [-1]), encoder_input=one) for n, one in enumerate(given)]

    def run() -> float:
        began = time.perf_counter()
        runner.forward(work)
        return time.perf_counter() - began

    return run


def taken_apart(
    name: str, shapes: dict[str, Any], texts: int, dtype: torch.dtype, repeats: int
) -> dict[str, Any]:
    """Milliseconds of a pass over one row of each text, by part."""
    model = made(name, shapes, dtype)
    runner: Any = dp.LLM(model, speculate=None, max_batch=texts).runner
    run = one_row_each(runner, texts)
    calls: list[tuple[nn.Module, torch.Tensor]] = []
    handles = [
        part.register_forward_hook(lambda part, args, _: calls.append((part, args[0])))
        for part in model.modules()
        if isinstance(part, nn.Linear)
    ]
    run()
    for handle in handles:
        handle.remove()
    spent = 0.0

    def timed(*args: Any, **options: Any) -> Any:
        nonlocal spent
        began = time.perf_counter()
        found = crossing.attend(*args, **options)
        spent += time.perf_counter() - began
        return found

    whole, products, attention = [], [], []
    with torch.inference_mode():
        for turn in range(repeats + 1):  # the first one warms up
            spent = 0.0
            AttentionInterface.register(crossing.NAME, timed)
            try:
                run()
            finally:
                AttentionInterface.register(crossing.NAME, crossing.attend)
            began = time.perf_counter()
            for part, given in calls:
                part(given)
            took = time.perf_counter() - began
            seconds = run()
            if turn:
                whole.append(seconds)
                products.append(took)
                attention.append(spent)
    weights = sum(part.weight.numel() for part, _ in calls)
    native = native_seconds(shapes[name], model.config.vocab_size, texts, repeats) * weights
    found = {
        "whole": statistics.median(whole) * 1e3,
        "products": statistics.median(products) * 1e3,
        "attention": statistics.median(attention) * 1e3,
        "native_products": native * 1e3,
    }
    rest = found["whole"] - found["products"] - found["attention"]
    saved = 1 - (found["native_products"] + found["attention"]) / found["whole"]
    about = {"model": name, "texts": texts, "dtype": str(dtype).removeprefix("torch.")}
    return {**about, **found, "rest": rest, "saved": saved}


@functools.cache
def _llama(shape: tuple[int, ...], vocabulary: int, texts: int) -> tuple[Any, int]:
    """A native runner of that width and depth in bfloat16, and the weights of its products."""
    width, inner, layers, heads = shape
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).bfloat16().eval()
    weights = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    options: dict[str, Any] = {"runner": "native", "max_batch": texts}
    return dp.LLM(model, speculate=None, **options), weights


def native_seconds(shape: tuple[int, ...], vocabulary: int, texts: int, repeats: int) -> float:
    """Of one weight in a pass of the native runner over one row of each text, all else included."""
    llm, weights = _llama(shape, vocabulary, texts)
    runner: Any = llm.runner
    prefix = [3 + at for at in range(BEHIND)]
    runner.forward([Work(n, prefix, None) for n in range(texts)])
    work = [Work(n, [], TokenTree([5], [-1])) for n in range(texts)]
    took = clock.interleaved({"native": lambda: runner.forward(work)}, repeats, warm=3)
    return statistics.median(took["native"]) / weights


def measured(quick: bool, rounds: int, batches: Sequence[int], told: Any) -> dict[str, Any]:
    """Both parts, for every shape and number of texts."""
    shapes, load = (TINY if quick else SHAPES), clock.load()
    tokens, repeats = (4, 3) if quick else (32, 60)
    ruled, apart = [], []
    for batch in batches:
        for name in RULES:
            told(f"rules of {name}, batch {batch}", None)
            ruled.append(rules(name, shapes, batch, tokens, rounds))
        for name in shapes:
            for dtype in (torch.float32, torch.bfloat16):
                told(f"a pass of {name}, {batch} texts", None)
                apart.append(taken_apart(name, shapes, batch, dtype, repeats))
    return {
        "shapes": shapes,
        "rules": ruled,
        "passes": apart,
        "tokens": tokens,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "machine": clock.machine(),
        "processor": clock.processor(),
        "load_before": load,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
