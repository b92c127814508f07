"""No method changes a token of a GGUF file's model, whatever its blocks; K-quants have a writer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import draftproof as dp
import gguf_files
import k_quants
from draftproof import bundled, native
from draftproof.bundled import corpus

BUILD = Path(__file__).parents[1] / "build"
WIDE, PUBLISHED = BUILD / "wide", BUILD / "gguf" / "SmolLM2-135M-Instruct.Q4_1.gguf"
RUNS = 2000  # in all, shared by the cases and their methods
MIXTURES = {"Q4_K_M": "q4_k", "Q5_K_M": "q5_k", "Q6_K": "q6_k"}  # and what most of each is
FILES = {
    **{kind: bundled.TARGET for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")},
    **{kind: WIDE for kind in ("Q4_K", "Q5_K", "Q6_K")},
    **{f"llama.cpp's {name}": BUILD / "wide-gguf" / f"{name}.gguf" for name in MIXTURES},
    "published": PUBLISHED,
}
METHODS: dict[str, Any] = {
    "ngram": dp.NGram,
    "suffix": dp.SuffixAutomaton,
    "lookahead": dp.Lookahead,
    "early exit": lambda: dp.EarlyExit(layers=2),
    "draft": lambda: dp.DraftModel(bundled.folder("draft")),
    "merged": lambda: dp.Hybrid(["ngram", "suffix"]),
    "auto": lambda: "auto",
}


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_our_writer_of_k_quants_rounds_to_nearest(kind: str) -> None:
    """As the library of the format's makers reads it: no weight is further off than a step."""
    values = np.random.default_rng(0).normal(size=(6, 512)).astype(np.float32)
    values[0, :256], values[1, 7] = 0.0, 30.0
    data = k_quants.quantise(values, kind)
    read = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    steps = {"Q4_K": 15, "Q5_K": 31, "Q6_K": 31}[kind]
    width = 16 if kind == "Q6_K" else 32
    parts, off = (each.reshape(-1, width) for each in (values, np.abs(read - values)))
    span = np.abs(parts).max(1) if kind == "Q6_K" else np.ptp(np.c_[parts, np.zeros(len(parts))], 1)
    largest = np.abs(values.reshape(-1, 256)).max(1).repeat(256 // width)
    assert (off.max(1) <= 0.75 * span / steps + largest / 50).all()
    assert np.abs(read - values).mean() < {"Q4_K": 0.08, "Q5_K": 0.045, "Q6_K": 0.03}[kind]


@cache
def loaded(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(params=FILES, scope="module")
def plain(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[dp.LLM]:
    kind, source = request.param, FILES[request.param]
    if not source.exists():
        pytest.skip(f"{source} is not there: scripts/wide_model.py or real_model.py makes it")
    file, most = source, MIXTURES.get(source.stem, "q4_1")
    if source.is_dir():
        file = tmp_path_factory.mktemp("identity") / f"{kind}.gguf"
        tokenizer = AutoTokenizer.from_pretrained(source)
        gguf_files.write(file, loaded(source), kind, tokenizer)
        most = kind.lower()
    with dp.LLM(file, runner="native", speculate=None) as llm:
        assert llm.runner.precision == most
        yield llm


@pytest.mark.slow
@pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_writes_what_plain_decoding_writes(plain: dp.LLM, method: str) -> None:
    if method == "draft" and plain.runner.vocabulary != 8192:
        pytest.skip("the bundled draft has the bundled vocabulary")
    count = RUNS // (len(FILES) * len(METHODS))
    sources = [source for _, source in corpus.modules(only_held_out=True)]
    prompts = [sources[at % len(sources)][97 * at : 97 * at + 160] or "def" for at in range(count)]
    params = [
        dp.SamplingParams(max_tokens=24, seed=at, temperature=0.8 * (at % 2), ignore_eos=True)
        for at in range(count)
    ]
    with dp.LLM(plain, speculate=METHODS[method]()) as fast:
        written = fast.generate(prompts, params)
    wanted = plain.generate(prompts, params)
    assert [one.token_ids for one in written] == [one.token_ids for one in wanted]
