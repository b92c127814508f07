"""What holds on an accelerator: `pytest -m gpu`. In float64, where the CPU is the oracle."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import draftproof as dp
from draftproof.bundled.prompts import PROMPTS as CODE
from draftproof.runners.base import Work

CUDA = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]


def tokens(llm: dp.LLM, given: Any, params: Any) -> list[list[int]]:
    done = llm.generate(given, params)
    assert [one.error for one in done] == [None] * len(done)
    return [one.token_ids for one in done]


# --- the bundled models: every method is plain decoding, and the CPU's tokens are the GPU's ---

TEXTS = [CODE[number % len(CODE)][: 80 + 40 * number] for number in range(8)]
METHODS: dict[str, Callable[[], Any]] = {
    "ngram": dp.NGram,
    "automaton": dp.SuffixAutomaton,
    "draft": lambda: dp.DraftModel("bundled"),
    "branches": lambda: dp.DraftModel("bundled", branch=3),
    "medusa": lambda: dp.Medusa("bundled"),
    "tree": lambda: dp.SpecInfer(["bundled"]),
    "staged": lambda: dp.Staged("bundled", dp.NGram()),
    "exit": lambda: dp.EarlyExit(2),
    "lookahead": dp.Lookahead,
    "auto": dp.Auto,
}


def asked(temperature: float) -> list[dp.SamplingParams]:
    return [
        dp.SamplingParams(temperature=temperature, seed=number, max_tokens=40 - number)
        for number in range(len(TEXTS))
    ]


@pytest.fixture(scope="module", params=["float64", "float32"])
def plain(request: Any) -> Iterator[tuple[dp.LLM, dict[float, list[list[int]]]]]:
    """The bundled target on the GPU and what it writes without drafts: in float64 as on the CPU."""
    with dp.LLM("bundled", dtype=request.param, device=CUDA, speculate=None) as llm:
        assert llm.runner.device.type == CUDA
        want = {heat: tokens(llm, TEXTS, asked(heat)) for heat in (0.0, 0.8)}
        if request.param == "float64":
            with dp.LLM("bundled", dtype="float64", device="cpu", speculate=None) as on_cpu:
                assert want == {heat: tokens(on_cpu, TEXTS, asked(heat)) for heat in want}
        yield llm, want


@pytest.mark.parametrize("name", METHODS)
def test_every_method_writes_what_plain_decoding_writes(plain: Any, name: str) -> None:
    base, want = plain
    drafted = 0
    with dp.LLM(base, speculate=METHODS[name](), max_batch=8) as llm:
        for heat, batch in ((heat, batch) for heat in want for batch in (1, 3, 8)):
            given = TEXTS if batch > 1 else TEXTS[:2]
            for at in range(0, len(given), batch):
                some = slice(at, at + batch)
                done = llm.generate(given[some], asked(heat)[some])
                own = want[heat][some]
                assert [one.token_ids for one in done] == own[: len(done)], (heat, batch)
                drafted += sum(one.stats.drafted for one in done)
    assert drafted or name == "auto"


@pytest.mark.parametrize("method", [None, "ngram", "draft"])
def test_the_bundled_encoder_decoder(method: str | None) -> None:
    texts = ["def f(x)\n    retrun x", "Their is a eror in this sentense.", "import os, sys"] * 2
    speculate = {None: None, "ngram": dp.NGram(), "draft": dp.DraftModel("bundled-mender")}[method]
    params = dp.SamplingParams(max_tokens=24)
    with dp.LLM("bundled-mender", dtype="float64", device="cpu", speculate=None) as llm:
        want = tokens(llm, texts, params)
    with dp.LLM("bundled-mender", dtype="float64", device=CUDA, speculate=speculate) as llm:
        assert tokens(llm, texts, params) == want


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precisions_write_text(dtype: str) -> None:
    """Near-ties may fall otherwise there, so the tokens are compared with themselves."""
    params = dp.SamplingParams(max_tokens=24)
    with dp.LLM("bundled", dtype=dtype, device=CUDA, speculate=None) as llm:
        assert llm.runner.name == "torch"
        first = tokens(llm, TEXTS[:1], params)
        assert tokens(llm, TEXTS[:1], params) == first


def test_certify_finds_nothing(run: Any) -> None:
    words = "--num-prompts", "2", "--method", "draft", "--draft", "bundled", "--runs", "200"
    done = run("certify", "bundled", "--device", CUDA, "--dtype", "float32", *words, "--json")
    assert done.code == 0, done.err


def test_costs_are_those_of_the_card(run: Any) -> None:
    done = run("info", "T", "--device", CUDA, "--measure", "--json")
    assert done.code == 0, done.err
    assert torch.cuda.get_device_name() in done.out


def test_a_comparison_names_the_card(run: Any, tmp_path: Path) -> None:
    words = "--num-prompts", "1", "--max-tokens", "8", "--rounds", "1", "--out", str(tmp_path)
    done = run("bench", "T", "--device", CUDA, "--method", "ngram", *words)
    assert done.code == 0 and torch.cuda.get_device_name() in " ".join(done.out.split())


def test_refusals_are_one_sentence(run: Any) -> None:
    for words, reason in [
        (("--device", "cuda:7"), "cuda:7"),
        (("--device", CUDA, "--dtype", "int8"), "int8"),
        (("--device", CUDA, "--runner", "native"), "native"),
    ]:
        done = run("generate", "T", "a", *words)
        assert done.code == 2 and reason in done.err and "Traceback" not in done.err, words


def test_a_pass_has_ended_when_it_is_given_back() -> None:
    """Or what passes cost, and all that is decided by it, would be the time of their launch."""
    with dp.LLM("bundled", device=CUDA, speculate=None) as llm:
        llm.runner.forward([Work(1, list(range(5, 205)), None)])
        assert torch.cuda.current_stream().query()


# --- memory ---


def held() -> int:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def test_memory_is_given_back() -> None:
    before = held()
    for _ in range(2):
        with dp.LLM("bundled", device=CUDA, speculate=dp.DraftModel("bundled")) as llm:
            llm.generate(TEXTS, dp.SamplingParams(max_tokens=16))
            assert torch.cuda.memory_allocated() > before
        del llm
        assert held() - before < 1 << 20


def test_a_card_that_is_full_is_said() -> None:
    with dp.LLM("bundled", device=CUDA, speculate=None) as llm:
        want = tokens(llm, TEXTS[:1], dp.SamplingParams(max_tokens=8))
        torch.cuda.set_per_process_memory_fraction(1e-6)
        try:
            with pytest.raises((MemoryError, torch.OutOfMemoryError)):
                llm.generate(TEXTS, dp.SamplingParams(max_tokens=400))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert tokens(llm, TEXTS[:1], dp.SamplingParams(max_tokens=8)) == want
