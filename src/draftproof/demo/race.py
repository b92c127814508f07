"""The measurement behind the demo: the same prompts, written plainly and by drafting methods.

Every way of writing has its own clock, which runs from a prompt's submission to its last token and
stands still while another one writes or the screen is drawn. Does not know what is displayed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from draftproof import LLM, SamplingParams, bundled
from draftproof.methods import listed, named, needed, split
from draftproof.text import TextStream

PLAIN = "plain"
WARM_UP_TOKENS = 24
HOW = {  # who guesses, of every method
    "draft": "a small draft model",
    "ngram": "a look-up in the text so far",
    "suffix": "a look-up of the longest repetition",
    "lookahead": "the target itself, with n-grams of its own guesses,",
    "early-exit": "the target's first layers",
    "staged": "a small draft model, itself sped up by a look-up,",
    "specinfer": "a token tree of a small draft model",
    "medusa": "a set of heads on the target's last layer",
}


class Writer:
    """One prompt being written in one way, on its own clock."""

    def __init__(self, method: str, llm: LLM, prompt: str, params: SamplingParams) -> None:
        self.method, self.llm = method, llm
        began = time.perf_counter()
        (self.request,) = llm.prepare(prompt, params)
        self._news = llm.engine.run([self.request])
        self.seconds = time.perf_counter() - began
        self.pieces: list[str] = []  # the text of each token
        self._stream = TextStream(llm.tokenizer, self.request.prompt)

    def step(self) -> None:
        """Up to the next tokens: one pass of the target, or several over a long prompt."""
        began = time.perf_counter()
        next(self._news, None)
        self.seconds += time.perf_counter() - began
        self._spell()

    def stop(self) -> None:
        self._news.close()

    @property
    def finished(self) -> bool:
        return self.request.finished

    @property
    def token_ids(self) -> list[int]:
        return self.request.output

    @property
    def text(self) -> str:
        return self.request.completion().text

    @property
    def tokens_per_s(self) -> float:
        return len(self.pieces) / self.seconds

    @property
    def tokens_per_step(self) -> float:
        return self.request.stats.tokens_per_step

    def _spell(self) -> None:
        """A token that ends inside a character has no text; the next one brings the whole."""
        for token in self.token_ids[len(self.pieces) :]:
            self._stream.push([token])
            self.pieces.append(self._stream.take())


@dataclass
class Race:
    """One prompt and everyone who writes it, the plain one first."""

    prompt: str
    writers: list[Writer]

    def run(self, together: bool, order: int, each_step: Callable[[], None]) -> None:
        """Write to the end; one after another, or together: whose clock is behind moves next.

        order: how many places the list of writers is turned, so that nobody is always first.
        """
        turned = (
            self.writers[order % len(self.writers) :] + self.writers[: order % len(self.writers)]
        )
        try:
            while running := [writer for writer in turned if not writer.finished]:
                behind = min(running, key=lambda writer: writer.seconds)
                (behind if together else running[0]).step()
                each_step()
        finally:  # an interrupt leaves nothing running
            for writer in self.writers:
                writer.stop()
        for writer in self.writers:
            if writer.request.error is not None:
                raise ValueError(f"{writer.method} ended with an error: {writer.request.error}")

    @property
    def finished(self) -> bool:
        return all(writer.request.finish_reason in ("stop", "length") for writer in self.writers)

    def warnings(self) -> list[str]:
        return [f"{w.method}: {text}" for w in self.writers for text in w.request.warnings]

    def parts_at(self, writer: Writer) -> int | None:
        """The first output token on which `writer` differs from plain; None: identical."""
        ours, plain = writer.token_ids, self.writers[0].token_ids
        if ours == plain:
            return None
        pairs = enumerate(zip(ours, plain, strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(len(ours), len(plain)))


@dataclass
class Score:
    """One way of writing, over all prompts that were written to the end."""

    method: str
    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    identical: list[bool] = field(default_factory=list)  # per prompt

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None


def scores(races: Iterable[Race]) -> list[Score]:
    """The scores of every way of writing, plain first."""
    found: dict[str, Score] = {}
    for race in races:
        for writer in race.writers:
            score = found.setdefault(writer.method, Score(writer.method))
            stats = writer.request.stats
            score.tokens += stats.tokens
            score.seconds += writer.seconds
            score.steps += stats.steps
            score.drafted += stats.drafted
            score.accepted += stats.accepted
            score.identical.append(race.parts_at(writer) is None)
    return list(found.values())


def check(names: Sequence[str], prompts: int, available: int, max_tokens: int) -> list[str]:
    """The methods to race; refuses what cannot be raced, before anything is loaded."""
    methods = listed(names, _sources(), idle=True)
    for method in split(methods):
        if method == "none":
            raise ValueError("method 'none' is what the others are compared with: name another one")
        if method not in HOW:
            raise ValueError(f"method {method!r} is unknown: use {', '.join(HOW)}")
    if not 1 <= prompts <= available:
        raise ValueError(f"--num-prompts is {prompts}, but must be from 1 to {available}")
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}, but a comparison needs 1 or more")
    return methods


def _sources() -> dict[str, Any]:
    return {kind: bundled.MODELS / kind for kind in ("draft", "heads")}


@contextmanager
def runners(
    methods: Sequence[str], params: SamplingParams, prompt: str, **options: Any
) -> Iterator[dict[str, LLM]]:
    """A warm LLM for plain decoding and one per method; all of them share the bundled target."""
    given = {kind: bundled.folder(kind) for kind in needed(methods, {})}
    llms = {PLAIN: LLM(str(bundled.folder("target")), speculate=None, **options)}
    for method in methods:
        llms[method] = LLM(llms[PLAIN], speculate=named(method, given))
    try:
        short = SamplingParams(
            temperature=params.temperature, seed=params.seed, max_tokens=WARM_UP_TOKENS
        )
        for llm in llms.values():
            llm.generate(prompt, short)
        yield llms
    finally:
        for llm in llms.values():
            llm.close()
