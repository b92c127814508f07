"""The comparison behind `draftproof bench`: the same prompts, written by every side in turn.

Sides take turns prompt by prompt, in an order that rotates; the first round warms up and is not
counted; one counter counts everyone's tokens. Does not know files of results, or tables.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from transformers import PreTrainedModel

from draftproof import analysis, clock
from draftproof.bench.sides import How, Side, Written
from draftproof.prompts import Prompt
from draftproof.runners.base import Target

CURVE = (1, 2, 4, 6, 8, 12, 16)  # tokens in a pass at which the cost of a pass is measured


@dataclass
class Answer:
    """What a side wrote to one prompt, turn by turn, in the last round."""

    prompt: Prompt
    turns: list[Written] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of the batch it was written in


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
    answers: list[Answer] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the texts, fit for JSON."""
        return asdict(replace(self, answers=[]))


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of the round-by-round ratios."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, above: Sequence[float], below: Sequence[float]) -> Spread:
        ratios = [a / b for a, b in zip(above, below, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))


@dataclass
class Comparison:
    """Some sides at one temperature and batch size. `results` come in the order of `sides`."""

    sides: list[Side]  # the first one is what the others are compared with
    prompts: Sequence[Prompt]
    tokenizer: Any
    how: How
    batch: int
    longest: int  # prompt and output that the model can run
    tick: Callable[[], None]  # called whenever a side has answered a group of prompts
    skipped: list[str] = field(default_factory=list)  # sides that failed, and why

    def warm_up(self, model: PreTrainedModel) -> dict[str, Result]:
        """A round that is not timed: drops the peers that fail, counts the passes of the others."""
        results = {}
        for side in list(self.sides):
            with _passes(model) as passes:
                try:
                    answers = [a for group in self._groups() for a in self._answer(side, group)]
                except Exception as error:  # a peer's fault is not the others'
                    if not side.peer:
                        raise
                    self.skipped.append(f"{side.name}: {type(error).__name__}: {error}")
                    self.sides.remove(side)
                    continue
            result = Result(side.name, self.how.temperature, self.batch)
            if self.batch == 1 and passes:
                result.tokens_per_step = tokens_of(answers) / len(passes)
            if side.drafted is not None:
                side.drafted.reset()
            results[side.name] = result
        return results

    def run(self, results: dict[str, Result], turn: int) -> None:
        """One timed round, whose place in a rotation is `turn`."""
        seconds = dict.fromkeys(results, 0.0)
        for result in results.values():
            result.answers = []
        for number, group in enumerate(self._groups()):
            shift = (turn + number) % len(self.sides)
            for side in [*self.sides[shift:], *self.sides[:shift]]:
                answers = self._answer(side, group)
                results[side.name].answers += answers
                longest = max(answers, key=lambda each: len(each.seconds))
                seconds[side.name] += sum(longest.seconds)  # of every turn of the group
        for name, result in results.items():
            result.tokens_per_s.append(tokens_of(result.answers) / seconds[name])

    def _groups(self) -> list[Sequence[Prompt]]:
        return [
            self.prompts[at : at + self.batch] for at in range(0, len(self.prompts), self.batch)
        ]

    def _answer(self, side: Side, group: Sequence[Prompt]) -> list[Answer]:
        """All turns of a group of prompts; only the writing is on the clock."""
        answers = [Answer(prompt) for prompt in group]
        for turn in range(max(len(prompt.turns) for prompt in group)):
            active = [each for each in answers if turn < len(each.prompt.turns)]
            ids = [each.prompt.ids(self.tokenizer, each.texts) for each in active]
            for each, one in zip(active, ids, strict=True):
                self._check(each.prompt, len(one))
            began = time.perf_counter()
            written = side.write(ids, self.how)
            took = time.perf_counter() - began
            for each, words in zip(active, written, strict=True):
                each.turns.append(words)
                each.texts.append(self.tokenizer.decode(words.token_ids, skip_special_tokens=True))
                each.seconds.append(took)
        self.tick()
        return answers

    def _check(self, prompt: Prompt, length: int) -> None:
        if length + self.how.max_tokens > self.longest:
            raise ValueError(
                f"prompt {prompt.id} has {length} tokens, which with {self.how.max_tokens} more "
                f"exceed the {self.longest} that the model can run: ask for fewer tokens"
            )


def tokens_of(answers: Sequence[Answer]) -> int:
    """The one counter: tokens up to and with the first end-of-text token."""
    return sum(len(words.token_ids) for each in answers for words in each.turns)


@contextmanager
def _passes(model: PreTrainedModel) -> Iterator[list[int]]:
    """One entry per pass of `model` meanwhile."""
    seen: list[int] = []
    hook = model.register_forward_hook(lambda *_: seen.append(1))
    try:
        yield seen
    finally:
        hook.remove()


def best_assistant(
    candidates: Sequence[Side], comparison: Comparison, turns: int = 2
) -> tuple[Side | None, list[str]]:
    """The fastest of transformers' assisted sides over a few prompts, and who was skipped."""
    few = Comparison(
        list(candidates),
        comparison.prompts[:3],
        comparison.tokenizer,
        comparison.how,
        comparison.batch,
        comparison.longest,
        comparison.tick,
    )
    results = {side.name: Result(side.name, comparison.how.temperature, 1) for side in few.sides}
    try:
        for turn in range(turns):
            few.run(results, turn)
    except Exception as error:
        return None, [f"transformers assistant: {type(error).__name__}: {error}"]
    speed = {name: max(result.tokens_per_s) for name, result in results.items()}
    return max(few.sides, key=lambda side: speed[side.name]), []


def judge(results: Sequence[Result], sides: Sequence[Side], cost: Mapping[int, float]) -> None:
    """Ratios, differences, and predictions from the measured costs `cost`: tokens -> seconds."""
    plain = results[0]
    base = next((each for each in results if each.side == "transformers"), None)
    sampled = plain.temperature > 0
    for side, result in zip(sides, results, strict=True):
        result.of_plain = Spread.of(result.tokens_per_s, plain.tokens_per_s)
        if base is not None:
            result.of_transformers = Spread.of(result.tokens_per_s, base.tokens_per_s)
        if not (sampled and side.peer):  # transformers draws other noise
            pairs = zip(result.answers, plain.answers, strict=True)
            result.differing = sum(_ids(a) != _ids(b) for a, b in pairs)
        stats = [w.stats for a in result.answers for w in a.turns if w.stats is not None]
        if stats:
            result.tokens_per_step = sum(s.tokens for s in stats) / sum(s.steps for s in stats)
        drafted = side.drafted
        if drafted is None or not drafted.depth:
            continue
        result.acceptance = analysis.acceptance(stats)
        per_depth = drafted.seconds / drafted.depth
        result.draft_ms = 1e3 * per_depth
        if plain.batch == 1:
            length = round(drafted.depth / drafted.trees)
            result.predicted = analysis.predict(
                result.acceptance.alpha,
                length,
                per_depth / cost[1],
                cost,
                max(length + 1, round(drafted.nodes / drafted.trees)),
            )
            result.why = analysis.explain(
                result.predicted, result.tokens_per_step or 1.0, result.of_plain.median
            )


def _ids(answer: Answer) -> list[list[int]]:
    return [words.token_ids for words in answer.turns]


def pass_seconds(runner: Target, context: int, rounds: int = 15) -> dict[int, float]:
    """Median seconds of a pass over each number of tokens in `CURVE`, behind `context` tokens."""
    passes = clock.passes(runner, context)
    took = clock.interleaved({str(t): passes(t) for t in CURVE}, rounds, warm=3)
    runner.free(clock.KEY)
    return {int(tokens): statistics.median(seconds) for tokens, seconds in took.items()}
