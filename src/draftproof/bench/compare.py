"""The one comparison: the same prompts, written by every side in turn.

Sides take turns prompt by prompt, in an order that rotates; the first round warms up and is not
counted; one counter counts everyone's tokens. Behind `draftproof bench` and the programs in
`benchmarks/`, whose sides may be other processes. Does not know files of results, or tables.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any

from transformers import PreTrainedModel

from draftproof import analysis, clock, interrupts
from draftproof.bench.sides import How, Side, Written
from draftproof.prompts import Prompt

Tick = Callable[[str, float | None], None]  # told who writes next, and the share that is done


@dataclass
class Answer:
    """What a side wrote to one prompt, turn by turn, in the last round."""

    prompt: Prompt
    turns: list[Written] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of the batch it was written in

    @property
    def tokens(self) -> int:
        return sum(written.tokens for written in self.turns)


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of the round-by-round ratios."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, above: Sequence[float], below: Sequence[float]) -> Spread:
        """Over the rounds that both have: one who was interrupted may have one more."""
        ratios = [a / b for a, b in zip(above, below, strict=False)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))


@dataclass
class Result:
    """One side at one temperature and batch size."""

    side: str
    temperature: float
    batch: int
    tokens_per_s: list[float] = field(default_factory=list)  # round by round
    tokens_per_step: float | None = None
    of_plain: Spread | None = None
    of_transformers: Spread | None = None
    differing: int | None = None  # prompts that differ from plain's; None: not comparable
    acceptance: analysis.Acceptance | None = None
    draft_ms: float | None = None  # of drafting, per depth of the trees
    predicted: analysis.Prediction | None = None
    why: str = ""  # where prediction and measurement part
    # What drafted the tokens of each answer of the last round, where something decides: runs of
    # tokens with one source; "": none.
    drafted_by: list[list[tuple[str, int]]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the texts, fit for JSON."""
        return asdict(replace(self, answers=[]))


@dataclass
class Comparison:
    """Some sides at one temperature and batch size; the first is what others are compared with."""

    sides: list[Side]
    prompts: Sequence[Prompt]
    tokenizer: Any
    how: How
    tick: Tick
    batch: int = 1
    longest: int | None = None  # prompt and output that the model can run
    model: PreTrainedModel | None = None  # whose passes are counted while it warms up
    reads: int | None = None  # tokens of a prompt at most, where an encoder reads it
    skipped: list[str] = field(default_factory=list)  # sides that failed, and why
    results: dict[str, Result] = field(default_factory=dict)  # by name, in the order of `sides`

    def run(self, rounds: int) -> None:
        """Warms up, then times so many rounds."""
        self.warm_up()
        for turn in range(rounds):
            self.round(turn, rounds)

    def warm_up(self, prompts: int | None = None) -> None:
        """The first `prompts` (None: all) by each side, not timed; counts passes of `model`."""
        groups = self._groups(prompts)
        self._cost: dict[str, float] = {}  # seconds of a side for a group: what a round will take
        for side in list(self.sides):
            began = time.perf_counter()
            self.tick(f"warming up: {side.name}", None)
            with _passes(self.model) as passes:
                answers = [self._try(side, group) for group in groups]
            if side not in self.sides:
                continue
            self._cost[side.name] = (time.perf_counter() - began) / len(groups)
            result = Result(side.name, self.how.temperature, self.batch)
            if self.batch == 1 and passes:
                tokens = sum(each.tokens for group in answers for each in group or ())
                result.tokens_per_step = tokens / len(passes)
            if side.drafted is not None:
                side.drafted.reset()
            self.results[side.name] = result

    def round(self, turn: int, rounds: int) -> None:
        """Timed round number `turn` of `rounds`; counts only if it comes to its end."""
        answers: dict[str, list[Answer]] = {side.name: [] for side in self.sides}
        seconds = dict.fromkeys(answers, 0.0)
        groups = self._groups()
        cost = {side.name: self._cost[side.name] for side in self.sides}
        done = 0.0
        for number, group in enumerate(groups):
            for side in clock.in_turn(list(self.sides), turn + number):
                share = (turn + done / (sum(cost.values()) * len(groups))) / rounds
                self.tick(f"round {turn + 1} of {rounds}: {side.name}", min(1.0, share))
                written = self._try(side, group)
                done += cost[side.name]
                if written is not None:
                    answers[side.name] += written
                    longest = max(written, key=lambda each: len(each.seconds))
                    seconds[side.name] += sum(longest.seconds)  # of every turn of the group
        for side in self.sides:
            result = self.results[side.name]
            result.answers = answers[side.name]
            tokens = sum(each.tokens for each in result.answers)
            result.tokens_per_s.append(tokens / seconds[side.name])

    def finished(self) -> list[Result]:
        """The results of the sides that have been through a timed round."""
        return [result for result in self.results.values() if result.tokens_per_s]

    def _groups(self, prompts: int | None = None) -> list[Sequence[Prompt]]:
        asked = self.prompts[:prompts]
        return [asked[at : at + self.batch] for at in range(0, len(asked), self.batch)]

    def _try(self, side: Side, group: Sequence[Prompt]) -> list[Answer] | None:
        """The answers; a peer that fails is out of the comparison, and has none."""
        if side not in self.sides:
            return None
        try:
            if not side.peer:
                return self._answer(side, group)
            with interrupts.kept():  # whatever the peer makes of one
                return self._answer(side, group)
        except Exception as error:  # a peer's fault is not the others'
            if not side.peer:
                raise
            self.skipped.append(f"{side.name}: {type(error).__name__}: {error}")
            self.sides.remove(side)
            self.results.pop(side.name, None)
            return None

    def _answer(self, side: Side, group: Sequence[Prompt]) -> list[Answer]:
        """All turns of a group of prompts; only the writing is on the clock."""
        answers = [Answer(prompt) for prompt in group]
        for turn in range(max(len(prompt.turns) for prompt in group)):
            active = [each for each in answers if turn < len(each.prompt.turns)]
            ids = [each.prompt.ids(self.tokenizer, each.texts) for each in active]
            for each, prompt in zip(active, ids, strict=True):
                self._check(each.prompt, len(prompt))
            began = time.perf_counter()
            everything = side.write(ids, self.how)
            took = time.perf_counter() - began
            for each, written in zip(active, everything, strict=True):
                each.turns.append(written)
                each.texts.append(self.text(written))
                each.seconds.append(took if written.seconds is None else written.seconds)
        return answers

    def text(self, written: Written) -> str:
        if written.text is not None:
            return written.text
        return str(self.tokenizer.decode(written.token_ids, skip_special_tokens=True))

    def _check(self, prompt: Prompt, length: int) -> None:
        more, longest = self.how.max_tokens, self.longest
        if self.reads is not None:
            if length > self.reads:
                raise ValueError(
                    f"prompt {prompt.id} has {length} tokens and the encoder reads at most "
                    f"{self.reads}: give shorter prompts"
                )
            if longest is not None and 1 + more > longest:
                raise ValueError(
                    f"{more} tokens and one to start from exceed the {longest} that the decoder "
                    "can run: ask for fewer tokens"
                )
        elif longest is not None and length + more > longest:
            raise ValueError(
                f"prompt {prompt.id} has {length} tokens, which with {more} more "
                f"exceed the {longest} that the model can run: ask for fewer tokens"
            )


@contextmanager
def _passes(model: PreTrainedModel | None) -> Iterator[list[int]]:
    """One entry per pass of `model` meanwhile."""
    seen: list[int] = []
    if model is None:
        yield seen
        return
    hook = model.register_forward_hook(lambda *_: seen.append(1))
    try:
        yield seen
    finally:
        hook.remove()


def fastest(
    candidates: Sequence[Side], comparison: Comparison, prompts: int = 3
) -> tuple[Side | None, dict[str, float], list[str]]:
    """Which candidate writes the first few prompts fastest: settings of one method are tried.

    Returns it (None if all failed), the tokens/s of each by name, and who was skipped.
    """
    few = replace(
        comparison,
        sides=list(candidates),
        prompts=comparison.prompts[:prompts],
        skipped=[],
        results={},
        tick=lambda text, share: comparison.tick(f"settings, {text}", None),
    )
    few.warm_up(1)
    if few.sides:
        few.round(0, 1)
    speed = {result.side: result.tokens_per_s[0] for result in few.finished()}
    for side in few.sides:
        if side.drafted is not None:
            side.drafted.reset()
    best = max(few.sides, key=lambda side: speed[side.name], default=None)
    return best, speed, few.skipped


def compare(comparison: Comparison) -> None:
    """Fills in the ratios and differences of what has been measured."""
    results = comparison.finished()
    if not results:
        return
    plain = results[0]
    base = next((each for each in results if each.side == "transformers"), None)
    sampled = comparison.how.temperature > 0
    peers = {side.name: side.peer for side in comparison.sides}
    for result in results:
        result.of_plain = Spread.of(result.tokens_per_s, plain.tokens_per_s)
        if base is not None:
            result.of_transformers = Spread.of(result.tokens_per_s, base.tokens_per_s)
        if not (sampled and peers[result.side]):  # a peer draws other noise
            pairs = zip(result.answers, plain.answers, strict=True)
            result.differing = sum(not _same(a, b, comparison) for a, b in pairs)
        stats = stats_of(result)
        result.drafted_by = [
            [(source, len(list(run))) for source, run in groupby(each.decisions.by_token)]
            for each in stats
            if each.decisions.seconds
        ]
        if stats:
            result.tokens_per_step = sum(s.tokens for s in stats) / sum(s.steps for s in stats)


def stats_of(result: Result) -> list[Any]:
    """What our own sides counted in the last round, per answer."""
    return [w.stats for each in result.answers for w in each.turns if w.stats is not None]


def _same(answer: Answer, wanted: Answer, comparison: Comparison) -> bool:
    """Whether both wrote the same tokens; of a side without ids, the same text and maybe more."""
    return all(
        a.token_ids == b.token_ids
        if a.text is None
        else a.text.startswith(comparison.text(b).removesuffix("\ufffd"))
        for a, b in zip(answer.turns, wanted.turns, strict=True)
    )
