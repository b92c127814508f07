"""What a controller remembers of a text from one step to the next, and when it asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, c_double
from dataclasses import dataclass, field

from draftproof.drafting.account import Account, wait
from draftproof.drafting.looks import Looks
from draftproof.drafting.sources import SOON
from draftproof.drafting.step import Step
from draftproof.tree import TokenTree
from draftproof.writing import Writing

STEP = 8  # tokens written in a step: no more than that is usual
PROBE = 8  # steps between two glances at sources that brought nothing of late
FULL = 128  # steps between two looks at whatever they offer
FADING = 3 / 4  # of what they brought, with every step in which they are asked


@dataclass(slots=True)
class Text:
    """A request, as the controller knows it."""

    request: Writing
    length: int  # of its tokens when it was last settled
    pauses: Sequence[int]  # of each source, see `pause`
    brings: float  # what asking brought of late, in passes over one row
    hopes: float = field(init=False)  # the same, less with every glance that showed nothing
    begin: int = field(init=False)  # of what it writes
    account: Account = field(default_factory=Account)
    step: Step = field(default_factory=Step)
    # Of late, in plain steps: what a step would have taken plainly, and what it took.
    plain: float = 1.0
    taken: float = 1.0
    spent: float = 0.0  # of what this step may cost more than a plain one
    deep: int = 6  # that free drafts are of use, by how deep they were right of late
    saved: float = 0.0  # plain steps, in all
    steps: int = 0
    passes: int = 0  # of its request when it was last settled, and of them
    unasked: int = 0  # those for which no source was looked at
    ask: int = 0  # the step at which sources are glanced at again,
    full: int = 0  # and the one at which they are asked whatever a glance tells
    guesses: list[tuple[int, TokenTree]] = field(default_factory=list)  # of the last glance,
    guessed: int = 0  # at a text of so many tokens,
    promising: bool = False  # and whether a draft seemed worth asking for
    glanced: float = 0.0  # what glances took since the text was settled
    due: list[int] = field(init=False)  # the step at which a dear source is tried again,
    pause: list[int] = field(init=False)  # and how many steps that was ahead
    vain: list[float] = field(init=False)  # passes that it took since it was right
    read: list[int] = field(init=False)  # tokens that each source has seen
    # How much more often than foretold each source was right of late.
    recent: Array[c_double] = field(init=False)
    looks: Looks | None = None  # at it, natively
    able: int = 0  # the step from which on a draft can be paid for
    ran: bool = False  # nodes of it, in its last step
    used: dict[int, int] = field(default_factory=dict)  # the last step that ran a source's node
    failed: set[int] = field(default_factory=set)  # sources without which it goes on
    crowded: set[int] = field(default_factory=set)  # and those whose drafts were too large

    def __post_init__(self) -> None:
        self.begin, self.hopes = self.length, self.brings
        self.passes, self.unasked = self.request.passes, self.request.decisions.unasked
        # A source that did not pay for the texts before is not tried at once.
        self.due = [0 if pause <= SOON else pause for pause in self.pauses]
        self.pause = [*self.pauses]
        self.read = [0] * len(self.pauses)
        self.recent = (c_double * len(self.pauses))()
        self.vain = [0.0] * len(self.pauses)

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
        begin, read, length = len(self.request.prompt), self.read[number], len(self.request.tokens)
        if begin <= read and length - read <= STEP:  # as nearly always
            return 0, 0
        return max(0, begin - read), max(0, length - max(begin, read) - STEP)

    def wait(self, cost: float) -> int:
        """Plain steps until so much may be lost; 0: it may be in this one."""
        return wait(cost - self.left, self.step.unit)

    def asked(self, brings: float, glance: float) -> None:
        """What asking is expected to bring in this step; a glance takes so much."""
        self.guesses.clear()  # a whole draft tells the same
        if self.looks is not None and self.step.looks is None:  # else native code did that
            self.looks.forget()
        self.brings = self.hopes = max(brings, self.brings * FADING)
        self.ask = self.steps + (1 if self.hopes > glance else PROBE)

    def passed_over(self, glance: float, step: int = 0, pause: int = 1) -> None:
        """Nothing seemed worth asking for, so many steps behind the one that was settled.

        pause: steps to the next glance, at least.
        """
        self.hopes *= FADING
        self.ask = self.steps + step + (pause if self.hopes > glance else PROBE)
