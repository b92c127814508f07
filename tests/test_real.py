"""A published model, SmolLM2-135M-Instruct, which `make real` fetches: what random weights hide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer

import draftproof as dp
from draftproof import native, quality
from draftproof.bundled import ENGLISH

FOLDER = Path(__file__).parents[1] / "build" / "smollm2"
IDS = Path(__file__).parent / "support" / "smollm2_ids.jsonl"
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="make real fetches it"),
    pytest.mark.skipif(native.found() is None, reason="the kernels were not built"),
]

QUESTIONS = [
    "What is 2 + 2?",
    "Write a limerick about a cat that counts to 1234567890.",
    "Repeat after me: the quick brown fox jumps over the lazy dog.",
    "List the first ten prime numbers.",
    "def fibonacci(n): complete this function in Python.",
    "Explain in two sentences why the sky is blue.",
    "Translate to German: good morning, my friend! \N{GRINNING FACE}",
    "Give me a recipe for pancakes.",
]
GREEDY = dp.SamplingParams(max_tokens=64)
SAMPLED = dp.SamplingParams(max_tokens=64, temperature=0.8, top_p=0.95, seed=7)
METHODS: dict[str, Any] = {
    "ngram": dp.NGram,
    "suffix": dp.SuffixAutomaton,
    "lookahead": dp.Lookahead,
    "early exit": dp.EarlyExit,
    "draft in int8": lambda: dp.DraftModel(FOLDER, quantize="int8"),
    "merged": lambda: dp.Hybrid(["ngram", "suffix"]),
}


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(params=["bfloat16", "int8"], scope="module")
def llm(request: pytest.FixtureRequest) -> Iterator[dp.LLM]:
    with dp.LLM(FOLDER, runner="native", dtype=request.param, speculate=None) as made:
        yield made


def answers(llm: dp.LLM, questions: list[str], params: dp.SamplingParams) -> list[list[int]]:
    prompts = [[{"role": "user", "content": question}] for question in questions]
    return [done.token_ids for done in llm.chat(prompts, params)]


@pytest.mark.parametrize("line", IDS.read_text(encoding="utf-8").splitlines())
def test_the_tokenizer_gives_the_ids_of_llama_cpp(line: str) -> None:
    """Those of llama-tokenize (llama.cpp in llama-cpp-python 0.3.36) on the published GGUF file."""
    each = json.loads(line)
    assert tokenizer()(each["text"])["input_ids"] == each["ids"]


def test_a_tokenizer_that_forgets_the_digits_is_noticed() -> None:
    """As transformers makes it of the file."""
    forgetful = AutoTokenizer.from_pretrained(FOLDER)
    forgetful.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    lines = map(json.loads, IDS.read_text(encoding="utf-8").splitlines())
    assert any(forgetful(each["text"])["input_ids"] != each["ids"] for each in lines)


def test_it_answers_and_drafting_changes_nothing(llm: dp.LLM) -> None:
    (done,) = llm.chat(QUESTIONS[0], dp.SamplingParams(max_tokens=24))
    assert "4" in done.text
    with dp.LLM(llm, speculate="ngram") as fast:
        assert fast.chat(QUESTIONS[0], dp.SamplingParams(max_tokens=24))[0].token_ids == (
            done.token_ids
        )


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_writes_what_plain_decoding_writes(
    llm: dp.LLM, method: str, batch: int
) -> None:
    questions = QUESTIONS[:4] if batch == 1 else QUESTIONS
    with dp.LLM(llm, max_batch=batch, speculate=METHODS[method]()) as fast:
        for params in (GREEDY, SAMPLED):
            assert answers(fast, questions, params) == answers(llm, questions, params)


@pytest.mark.slow
def test_in_full_precision_on_torch() -> None:
    with dp.LLM(FOLDER, runner="torch", dtype="float32", speculate=None) as plain:
        for method in ("ngram", "lookahead"):
            with dp.LLM(plain, speculate=method) as fast:
                for params in (GREEDY, SAMPLED):
                    wanted = answers(plain, QUESTIONS[:3], params)
                    assert answers(fast, QUESTIONS[:3], params) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "divergence", "agreement"), [("bfloat16", 0.0005, 0.985), ("int8", 0.010, 0.94)]
)
def test_what_a_precision_costs(dtype: str, divergence: float, agreement: float) -> None:
    """The bars of the bundled English text: a precision that misses one is not to be used."""
    with dp.LLM(FOLDER, runner="torch", dtype="float32", speculate=None) as exact:
        rows = quality.windows(exact.tokenizer, ENGLISH.read_text(encoding="utf-8"), 512)
        found = quality.compare(
            lambda name: dp.LLM(FOLDER, runner="native", dtype=name, speculate=None),
            exact,
            [dtype],
            rows,
            quality.openings(rows, 2),
            16,
            lambda text, share: None,
        )
    (cost,) = found.costs
    assert cost.divergence <= divergence and cost.agreement >= agreement
    assert abs(cost.perplexity / found.perplexity - 1) < 0.01
