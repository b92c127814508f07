"""The cells of `never_slower.py`: which model writes what, how many texts at once, and how."""

from __future__ import annotations

import atexit
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import draftproof as dp
from draftproof import bundled, methods, prompts
from draftproof.bench.inflation import inflate

REAL = Path("build/smollm2")  # what `make real` fetches
REAL_FILE = Path("build/gguf/SmolLM2-135M-Instruct.Q4_1.gguf")
RANDOM = 64  # tokens of a random prompt
ANSWER = 64  # tokens of a first answer, behind which a chat goes on
LONGEST = 400  # tokens of a prompt: what is measured is writing
SHOWN = 4  # questions in a prompt whose form an answer goes on with
FORM = (  # 40 tokens that stand in every question, and so are copied
    "Answer every question in your own words, name your sources at the end of the answer, do not "
    "repeat the question, and write no more than two sentences, so that everybody can follow what "
    "you mean."
)


@dataclass(frozen=True)
class Cell:
    """model: "bundled", "inflated" or "smollm2". drafts: besides the look-ups.

    precision: "q4_1" is SmolLM2's GGUF file as it lies.
    """

    model: str
    drafts: str = ""  # "", "draft", "hopeless" (random weights) or "heads"
    text: str = "humaneval"
    batch: int = 1
    temperature: float = 0.0
    precision: str = "bfloat16"
    runner: str = "native"

    @property
    def name(self) -> str:
        """What a table says of it."""
        model = f"{self.model} + {self.drafts}" if self.drafts else self.model
        runner = self.precision if self.runner == "native" else f"{self.precision} on torch"
        return f"{model}, {runner}, {self.text}, batch {self.batch}, T={self.temperature:g}"


def _cells() -> Iterator[Cell]:
    for batch in (1, 2, 4, 8, 16):
        yield Cell("smollm2", batch=batch)
        yield Cell("smollm2", text="mt-bench", batch=batch)
    for text in ("random", "chat", "repeating", "half"):
        yield Cell("smollm2", text=text)
        yield Cell("smollm2", text=text, batch=8)
    yield Cell("smollm2", text="alternating", temperature=0.7)  # greedily it copies all of it
    for temperature in (0.7, 1.0):
        yield Cell("smollm2", temperature=temperature)
        yield Cell("smollm2", text="mt-bench", temperature=temperature)
    yield Cell("smollm2", text="mt-bench", batch=8, temperature=0.7)
    yield Cell("smollm2", precision="int8")
    yield Cell("smollm2", text="mt-bench", precision="int8")
    yield Cell("smollm2", text="mt-bench", batch=8, precision="int8")
    for batch in (1, 4, 8):
        yield Cell("smollm2", batch=batch, precision="q4_1")
    yield Cell("smollm2", text="mt-bench", precision="q4_1")
    for drafts in ("", "draft", "hopeless", "heads"):
        for batch in (1, 8):
            yield Cell("bundled", drafts, batch=batch)
    yield Cell("bundled", "draft", temperature=0.7)
    yield Cell("bundled", "draft", text="random")
    yield Cell("bundled", "hopeless", text="mt-bench")
    yield Cell("bundled", "draft", precision="float32", runner="torch")
    yield Cell("bundled", precision="float32", runner="torch", batch=4)
    for drafts in ("draft", "hopeless"):
        yield Cell("inflated", drafts)
        yield Cell("inflated", drafts, batch=4)
    yield Cell("inflated", "draft", temperature=0.7)
    yield Cell("inflated", "draft", text="mt-bench", batch=8)


CELLS = tuple(_cells())


def chosen(only: Sequence[str] | None) -> list[Cell]:
    """The cell of that very name, or those whose names have all of the parts; None: all."""
    exactly = [cell for cell in CELLS if list(only or ()) == [cell.name]]
    found = exactly or [cell for cell in CELLS if all(part in cell.name for part in only or ())]
    if not found:
        raise SystemExit(f"no cell is called so: take a part of {', '.join(c.name for c in CELLS)}")
    return found


def writer(cell: Cell) -> dp.LLM:
    """An LLM that writes plainly; the weights of others share its own."""
    return _writer(cell.model, cell.precision, cell.runner)


@cache
def _writer(model: str, precision: str, runner: str) -> dp.LLM:
    given: Any = REAL if model == "smollm2" else bundled.folder("target")
    tokenizer = AutoTokenizer.from_pretrained(given)
    if model == "inflated":
        given = inflate(AutoModelForCausalLM.from_pretrained(given, dtype=torch.bfloat16))
    options: dict[str, Any] = {"runner": runner, "max_batch": 16, "speculate": None}
    if precision == "q4_1":
        return dp.LLM(REAL_FILE, tokenizer=tokenizer, **options)
    if runner == "native":
        return dp.LLM(given, tokenizer=tokenizer, dtype=precision, **options)
    return dp.LLM(given, tokenizer=tokenizer, dtype=getattr(torch, precision), **options)


def speculation(drafts: str) -> Any:
    """What `speculate="auto"` is where this is given besides."""
    given: dict[str, Any] = {}
    if drafts == "heads":
        given["heads"] = bundled.folder("heads")
    elif drafts:
        given["draft"] = draft(drafts)
    return methods.named("auto", given)


def draft(drafts: str) -> Path:
    """The folder of a cell's draft model."""
    return bundled.folder("draft") if drafts == "draft" else hopeless()


@cache
def hopeless() -> Path:
    """A folder with a draft of random weights, until the process ends."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(bundled.folder("draft"))
    above = TemporaryDirectory()
    atexit.register(above.cleanup)
    folder = Path(above.name, "hopeless")
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


def turns(cell: Cell, llm: dp.LLM) -> Iterator[tuple[list[list[int]], bool]]:
    """The prompts of turn after turn; whether any of them was there before since the last such."""
    number = 0
    while True:
        pool, used = _pool(cell.text, llm), 0
        while used + cell.batch <= len(pool):
            batch = [_last(prompt()) for prompt in pool[used : used + cell.batch]]
            yield batch, number > 0 and used == 0
            used += cell.batch
            number += 1


def _pool(text: str, llm: dp.LLM) -> Sequence[Callable[[], list[int]]]:
    """Prompts in one order, each as what makes its tokens."""
    rng, tokenizer = random.Random(0), llm.tokenizer
    if text == "random":
        seeds = [rng.random() for _ in range(160)]
        return [lambda seed=seed: _random(seed, llm) for seed in seeds]
    if text == "alternating":
        questions = [" ".join(each.turns[0].split()) for each in prompts.load("mt-bench", True)]
        some = [rng.sample(questions, SHOWN) for _ in range(160)]
        return [lambda each=each: _alternating(each, tokenizer) for each in some]
    if text == "half":
        pools = [_pool(kind, llm) for kind in ("repeating", "mt-bench")]
        return [prompt for pair in zip(*pools, strict=False) for prompt in pair]
    if text == "repeating":
        listed = prompts.load("humaneval", False)
        made = [lambda each=each: _repeating(each.turns[0], tokenizer) for each in listed]
    elif text == "chat":
        listed = prompts.load("mt-bench", True)
        made = [lambda each=each: _answered(each, llm) for each in listed]
    else:
        listed = prompts.load(text, text == "mt-bench")
        made = [lambda each=each: each.ids(tokenizer, ()) for each in listed]
    rng.shuffle(made)
    return made


def _random(seed: float, llm: dp.LLM) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(llm.runner.vocabulary) for _ in range(RANDOM)]


def _repeating(text: str, tokenizer: Any) -> list[int]:
    """A text behind which a model writes it once more."""
    once = [int(token) for token in tokenizer(text.strip() + "\n\n\n")["input_ids"]][: LONGEST // 3]
    return once + once + once[: len(once) // 3]


def _alternating(questions: Sequence[str], tokenizer: Any) -> list[int]:
    """A form behind which a model writes it again with other words in it: some 40 tokens are
    copied, some 40 are free, and so on.
    """
    filled = [f"Question {n}. {FORM}\n{each[:160]}\n\n" for n, each in enumerate(questions, 1)]
    text = "".join([*filled, f"Question {len(questions) + 1}."])
    return [int(token) for token in tokenizer(text)["input_ids"]]


def _answered(prompt: prompts.Prompt, llm: dp.LLM) -> list[int]:
    """A conversation that goes on behind a first answer."""
    first = prompt.ids(llm.tokenizer, ())
    (answer,) = llm.generate([_last(first)], dp.SamplingParams(max_tokens=ANSWER))
    return prompt.ids(llm.tokenizer, [answer.text])


def _last(tokens: list[int]) -> list[int]:
    return tokens[-LONGEST:]
