"""What is measured, side after side in turn: passes, prompts, and writing.

The order turns around every round, so that a drift of the machine favours nobody. Seconds are the
workers' own; nothing here has a clock. A side that fails in one measurement is left out of it, and
`Found.skipped` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from peer_sides import Failed, Side

REFERENCE = "draftproof"
EACH = 3  # passes per turn, of which the median counts
METHODS = ("draft", "lookup", "merged")
SHORT = 16  # tokens written to get warm
TRIED = 2  # prompts on which draft lengths are tried


@dataclass
class Case:
    """One way of writing, and what it took: seconds and tokens by round, then by prompt."""

    side: str
    method: str
    length: int = 0
    tried: dict[int, float] = field(default_factory=dict)  # tokens/s by draft length
    seconds: list[list[float]] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    differing: int | None = None  # prompts whose text is not draftproof's plain one

    def rates(self) -> list[float]:
        """Tokens per second of each round."""
        rounds = zip(self.tokens, self.seconds, strict=True)
        return [sum(tokens) / sum(seconds) for tokens, seconds in rounds]


@dataclass
class Found:
    """Everything measured, as seconds."""

    passes: dict[str, dict[int, list[list[float]]]] = field(default_factory=dict)
    prompts: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # what -> why


@dataclass
class Written:
    """A prompt as every side gets it, and draftproof's plain answer to it."""

    ids: list[int]
    text: str
    answer: list[int] = field(default_factory=list)


@dataclass
class Bench:
    """The sides, and what was found so far."""

    sides: dict[str, Side]
    rounds: int
    greedy: bool
    tick: Callable[[str], None]  # told before each turn
    found: Found = field(default_factory=Found)

    def _turns(self, what: str, rounds: int) -> Iterator[tuple[int, Side]]:
        """Each side in each round, as long as it has not failed in `what`."""
        for turn in range(rounds):
            names = list(self.sides)[:: 1 if turn % 2 else -1]
            for name in names:
                if f"{name}: {what}" not in self.found.skipped:
                    yield turn, self.sides[name]

    def _ask(self, side: str, what: str, do: str, **details: Any) -> dict[str, Any] | None:
        self.tick(f"{what}: {side}")
        try:
            return self.sides[side].ask(do, **details)
        except Failed as error:
            self.found.skipped[f"{side}: {what}"] = str(error)
            return None

    def passes(self, tokens: Sequence[int], context: int) -> None:
        """Passes over so many tokens each behind `context`."""
        for name in self.sides:
            self.found.passes[name] = {size: [] for size in tokens}
        for _, side in self._turns("passes", self.rounds):
            for size in tokens:
                answer = self._ask(
                    side.name, "passes", "pass", tokens=size, context=context, rounds=EACH
                )
                if answer is None:
                    break
                self.found.passes[side.name][size].append(answer["seconds"])

    def prompts(self, lengths: Sequence[int]) -> None:
        """Prompts of so many tokens, read afresh; the first round is not counted."""
        for name in self.sides:
            self.found.prompts[name] = {length: [] for length in lengths}
        for turn, side in self._turns("prompts", self.rounds + 1):
            for length in lengths:
                answer = self._ask(side.name, "prompts", "prompt", tokens=length)
                if answer is None:
                    break
                if turn:
                    self.found.prompts[side.name][length].append(answer["seconds"])

    def writing(
        self,
        prompts: list[Written],
        max_tokens: int,
        plain: bool,
        lengths: Sequence[int],
        decode: Callable[[list[int]], str],
    ) -> None:
        """Plain decoding, and each side's methods at their best of `lengths` (none: not at all)."""
        cases = [Case(name, "none") for name in self.sides] if plain or lengths else []
        for case in cases:  # warm
            self._write(case, prompts[0], min(SHORT, max_tokens))
        for prompt in prompts:  # what everybody's text is compared with
            answer = self._write(Case(REFERENCE, "none"), prompt, max_tokens)
            prompt.answer = answer["ids"] if answer else []
        cases = cases if plain else []
        cases += [Case(name, method) for method in METHODS if lengths for name in self.sides]
        for case in cases:
            if case.method != "none":
                self._best_length(case, prompts[:TRIED], max_tokens, lengths)
        for turn in range(self.rounds):
            self._round(cases, prompts, turn, max_tokens, decode)
        self.found.cases = [case for case in cases if _what(case) not in self.found.skipped]

    def _round(
        self,
        cases: Sequence[Case],
        prompts: Sequence[Written],
        turn: int,
        max_tokens: int,
        decode: Callable[[list[int]], str],
    ) -> None:
        """Every prompt by every case; the first round's answers are compared."""
        for case in cases:
            case.seconds.append([])
            case.tokens.append([])
        for number, prompt in enumerate(prompts):
            for case in cases[:: 1 if (turn + number) % 2 else -1]:
                answer = self._write(case, prompt, max_tokens)
                if answer is None:
                    continue
                case.seconds[-1].append(answer["seconds"])
                case.tokens[-1].append(answer["tokens"])
                comparable = self.greedy or case.side == REFERENCE  # each samples by its own noise
                if turn == 0 and prompt.answer and comparable:
                    same = _same(answer, prompt.answer, decode)
                    case.differing = (case.differing or 0) + (not same)

    def _best_length(
        self, case: Case, prompts: list[Written], max_tokens: int, lengths: Sequence[int]
    ) -> None:
        for length in lengths:
            case.length, tokens, seconds = length, 0, 0.0
            self._write(case, prompts[0], min(SHORT, max_tokens))
            for prompt in prompts:
                answer = self._write(case, prompt, max_tokens)
                if answer is None:
                    return
                tokens, seconds = tokens + answer["tokens"], seconds + answer["seconds"]
            case.tried[length] = tokens / seconds
        case.length = max(case.tried, key=case.tried.__getitem__)

    def _write(self, case: Case, prompt: Written, max_tokens: int) -> dict[str, Any] | None:
        if case.side not in self.sides or _what(case) in self.found.skipped:
            return None
        details: dict[str, Any] = {"ids": prompt.ids, "text": prompt.text}
        do = "generate"
        if case.method != "none":
            do = "speculate"
            details |= {"method": case.method, "length": case.length}
        return self._ask(case.side, _method(case), do, max_tokens=max_tokens, **details)


def _method(case: Case) -> str:
    return "plain" if case.method == "none" else case.method


def _what(case: Case) -> str:
    return f"{case.side}: {_method(case)}"


def _same(answer: dict[str, Any], expected: list[int], decode: Callable[[list[int]], str]) -> bool:
    """Whether it begins as expected; of a side that tells no ids the text is compared."""
    if "ids" in answer:
        return bool(answer["ids"][: len(expected)] == expected)
    return str(answer["text"]).startswith(decode(expected).removesuffix("\ufffd"))
