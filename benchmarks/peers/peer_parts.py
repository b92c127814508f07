"""What is measured of processes, side after side in turn: passes, prompts, and writing.

Writing is `draftproof.bench`'s own comparison, with processes as its sides. Seconds are the
workers' own; nothing here has a clock. A peer that fails in one measurement is left out of it, and
`Found.skipped` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from draftproof import clock
from draftproof.bench.compare import Comparison, compare, fastest
from draftproof.bench.sides import How, Side, Written
from peer_sides import Failed, Process

REFERENCE = "draftproof"
EACH = 3  # passes per turn, of which the median counts
METHODS = ("draft", "lookup", "merged")
FEW = 2  # prompts on which draft lengths are compared


@dataclass
class Case:
    """One way of writing, and how fast it was, round by round."""

    side: str
    method: str
    length: int = 0
    tried: dict[int, float] = field(default_factory=dict)  # tokens/s by draft length
    tokens_per_s: list[float] = field(default_factory=list)
    differing: int | None = None  # prompts whose text is not draftproof's plain one


@dataclass
class Found:
    """Everything measured, as seconds."""

    passes: dict[str, dict[int, list[list[float]]]] = field(default_factory=dict)
    prompts: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # what -> why


@dataclass
class Bench:
    """The processes, and what was found so far."""

    processes: dict[str, Process]
    rounds: int
    tick: Callable[[str], None]  # told before each turn
    found: Found = field(default_factory=Found)

    def _turns(self, what: str, rounds: int) -> Iterator[tuple[int, Process]]:
        """Each process in each round, as long as it has not failed in `what`."""
        for turn in range(rounds):
            for name in clock.in_turn(list(self.processes), turn):
                if f"{name}: {what}" not in self.found.skipped:
                    yield turn, self.processes[name]

    def _ask(self, side: str, what: str, do: str, **details: Any) -> dict[str, Any] | None:
        self.tick(f"{what}: {side}")
        try:
            return self.processes[side].ask(do, **details)
        except Failed as error:
            self.found.skipped[f"{side}: {what}"] = str(error)
            return None

    def passes(self, tokens: Sequence[int], context: int) -> None:
        """Passes over so many tokens each behind `context`."""
        for name in self.processes:
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
        for name in self.processes:
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
        comparison: Comparison,
        plain: bool,
        lengths: Sequence[int],
        methods: Sequence[str] = METHODS,
    ) -> None:
        """Plain decoding, and each side's methods at their best of `lengths` (none: not at all).

        comparison: without sides. draftproof's plain decoding is always there, to compare with.
        """
        decode = comparison.tokenizer.decode
        cases: dict[str, Case] = {}  # by the name of the side
        for name, process in self.processes.items():
            if plain or name == REFERENCE:
                side = writer(process, "none", 0, decode)
                cases[side.name] = Case(name, "none")
                comparison.sides.append(side)
        comparison.sides.sort(key=lambda side: side.peer)  # what others are compared with is first
        for method in methods if lengths else ():
            for name, process in self.processes.items():
                tried = {n: writer(process, method, n, decode) for n in lengths}
                best, speed, skipped = fastest(list(tried.values()), comparison, FEW)
                if best is None:
                    self.found.skipped[f"{name}: {method}"] = skipped[0].split(": ", 2)[2]
                    continue
                by_length = {n: speed[side.name] for n, side in tried.items() if side.name in speed}
                length = max(by_length, key=by_length.__getitem__)
                cases[best.name] = Case(name, method, length, by_length)
                comparison.sides.append(best)
        comparison.run(self.rounds)
        compare(comparison)
        self.found.skipped |= dict(text.split(": ", 1) for text in comparison.skipped)
        for result in comparison.finished():
            case, rates = cases[result.side], result.tokens_per_s
            self.found.cases.append(replace(case, tokens_per_s=rates, differing=result.differing))


def writer(process: Process, method: str, length: int, decode: Callable[..., str]) -> Side:
    """A process, writing plainly (`none`) or by one of its methods, as a side of a comparison."""

    def write(prompts: Sequence[list[int]], how: How) -> list[Written]:
        (ids,) = prompts
        text = decode(ids, skip_special_tokens=True)
        details: dict[str, Any] = {"ids": ids, "text": text, "max_tokens": how.max_tokens}
        do = "generate"
        if method != "none":
            do = "speculate"
            details |= {"method": method, "length": length}
        answer = process.ask(do, **details)
        seconds, tokens = answer["seconds"], answer["tokens"]
        if "ids" in answer:
            return [Written(answer["ids"], seconds=seconds)]
        return [Written([], seconds=seconds, text=answer["text"], reported=tokens)]

    name = f"{process.name} {'plain' if method == 'none' else f'{method} ({length})'}"
    return Side(name, write, peer=process.name != REFERENCE, batches=False)
