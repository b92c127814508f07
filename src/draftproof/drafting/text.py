"""What a controller remembers of a text from one step to the next, and how it settles a step."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.drafting.account import LATELY, Account, wait
from draftproof.drafting.sources import Source
from draftproof.drafting.step import Step
from draftproof.tree import TokenTree
from draftproof.writing import Writing

LEAST = 4  # nodes of a draft of which nothing was right of late
STEP = 8  # tokens written in a step: no more than that is usual
PROBE = 8  # steps between two looks at sources that brought nothing of late
FADING = 3 / 4  # of what they brought, with every step in which they are asked
SOON, SHADOW = 4, 48  # steps until a dear source is tried again: behind a success, and at most


@dataclass(slots=True)
class Text:
    """A request, as the controller knows it."""

    request: Writing
    length: int  # of its tokens when it was last settled
    sources: int
    brings: float  # what asking brought of late, in passes over one row
    begin: int = field(init=False)  # of what it writes
    account: Account = field(default_factory=Account)
    step: Step = field(default_factory=Step)
    # Of late, in plain steps: what a step would have taken plainly, and what it took.
    plain: float = 1.0
    taken: float = 1.0
    spent: float = 0.0  # of what this step may cost more than a plain one
    deep: int = 6  # that free drafts are of use, by how deep they were right of late
    steps: int = 0
    probe: int = 0  # the step at which sources are asked in any case
    due: list[int] = field(init=False)  # the step at which a dear source is tried again,
    pause: list[int] = field(init=False)  # and how many steps that was ahead
    read: list[int] = field(init=False)  # tokens that each source has seen
    # How much more often than foretold each source was right of late.
    recent: list[float] = field(init=False)
    used: dict[int, int] = field(default_factory=dict)  # the last step that ran a source's node
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.begin = self.length
        self.due, self.pause = [0] * self.sources, [SOON] * self.sources
        self.read, self.recent = [0] * self.sources, [0.0] * self.sources

    def may_ask(self, number: int, name: str) -> bool:
        """Whether the request lets this source draft, and it can."""
        wanted = self.request.speculate
        return (wanted is True or wanted == name) and number not in self.failed

    @property
    def left(self) -> float:
        """What the rest of this step may cost more than a plain one."""
        return self.account.left - self.spent

    def missed(self, number: int) -> tuple[int, int]:
        """Tokens that a source has not seen: of the prompt, and of what was written behind it."""
        begin, read = len(self.request.prompt), self.read[number]
        written = len(self.request.tokens) - max(begin, read)
        return max(0, begin - read), max(0, written - STEP)

    def wait(self, bother: float, least: float) -> int:
        """Plain steps until sources are asked; 0: in this one.

        Asking costs `bother` whatever they offer, and `least` what drafting with the cheapest of
        them takes, of what may be lost. Sources that brought less are looked at now and then.
        """
        if self.request.speculate is False:
            return sys.maxsize
        probe = 0 if self.brings > bother else max(0, self.probe - self.steps)
        return max(probe, wait(bother + least - self.left, self.step.unit))

    def asked(self, brings: float) -> None:
        """What asking is expected to bring in this step."""
        self.probe = self.steps + PROBE
        self.brings = max(brings, self.brings * FADING)

    def settle(self, sources: Sequence[Source], one: float, steps: int = 1) -> float:
        """Learn from the tokens written since the last step, or since several plain ones.

        Returns what it brought forward beyond a plain one, in passes over one row.
        """
        request, step = self.request, self.step
        written = request.tokens[self.length :]
        self.length, self.spent = self.length + len(written), 0.0
        if not written:  # its step is made again
            return 0.0
        self.steps += steps
        for number, tree in step.offered if step.only < 0 else ():
            right, self.recent[number] = sources[number].learn(
                request, tree, written, self.recent[number]
            )
            self.deep = max(LEAST, 2 * right + 4, self.deep * 3 // 4)
            if right and self.due[number] > self.steps:  # it was only looked at
                self.due[number] = min(self.due[number], self.steps + SOON)
                self.pause[number] = SOON
        decisions = request.decisions
        ran = len(step.kept) > 1
        owners = step.owners(written, request.feedback) if ran else []
        names = [sources[owner].name for owner in owners]
        for owner in owners:
            decisions.sources[sources[owner].name].accepted += 1
            sources[owner].brought(step.worth)
        decisions.by_token += [*names, *[""] * (len(written) - len(names))]
        plain = steps - ran
        if plain:
            decisions.plain_steps[step.why] = decisions.plain_steps.get(step.why, 0) + plain
        won = (len(written) - steps) * step.worth
        late = 1 - (1 - LATELY) ** steps
        self.plain += (1 + won * step.texts / step.unit / steps - self.plain) * late
        self.taken += (1 + step.extra * step.texts / step.unit / steps - self.taken) * late
        self.account.step(step.extra, won, step.unit, steps)
        decisions.plain_seconds += len(written) * step.unit * one
        decisions.seconds += (steps * step.unit + step.extra) * one
        self.step = Step(unit=step.unit, texts=step.texts, worth=step.worth, why=step.why)
        return won

    def rest(self, step: Step) -> TokenTree:
        """A plain step, in which no source was asked."""
        step.why = "off" if self.request.speculate is False else self.step.why
        self.step = step
        return TokenTree.chain(self.request.tokens[-1:])

    def plan(self, step: Step, sources: Sequence[Source]) -> TokenTree:
        """Remember what is about to run, and make the tree of it."""
        self.step = step
        offer, decisions = step.offer, self.request.decisions
        for number, tree in step.offered:
            decisions.share(sources[number].name).offered += len(tree.tokens) - 1
        if offer is None or len(step.kept) == 1:
            return TokenTree.chain(self.request.tokens[-1:])
        for node in step.kept[1:]:
            decisions.share(sources[offer.owners[node]].name).used += 1
        return offer.tree(step.kept)
