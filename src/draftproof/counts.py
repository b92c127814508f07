"""What one request took: passes, drafted and accepted tokens, seconds.

Counted after stop rules cut the output. Knows no request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.tree import TokenTree


@dataclass(slots=True)
class Share:
    """What one drafting method had of a text."""

    # Of drafting; its part where several drafted at once, which counts each of their drafts alike.
    seconds: float = 0.0
    offered: int = 0  # nodes
    used: int = 0  # of them, run by the target
    accepted: int = 0
    failed: int = 0  # failures, and trees of which nothing or only a part can be used


# Why no source was looked at in a step: the request wants none, has room for no draft, lost its
# drafter, or makes a pass again whose drafts were to blame.
OFF, LAST, FAILED, AGAIN = UNASKED = ("off", "last token", "failed", "again")


@dataclass(slots=True)
class Decisions:
    """What was decided for a text while it was written, where something decides.

    Seconds are those of the table of costs.
    """

    sources: dict[str, Share] = field(default_factory=dict)
    plain_steps: dict[str, int] = field(default_factory=dict)  # by the reason for drafting nothing
    plain_seconds: float = 0.0  # that plain decoding would have taken
    seconds: float = 0.0  # that it took
    by_token: list[str] = field(default_factory=list)  # what drafted each token; "": nothing
    changes: list[str] = field(default_factory=list)  # a line for each decision that turned
    unasked: int = 0  # steps in which no source was looked at, so that nothing knows of them

    def share(self, source: str) -> Share:
        """What a drafting method had of it so far."""
        if (found := self.sources.get(source)) is None:
            found = self.sources[source] = Share()
        return found

    def plainly(self, why: str, steps: int = 1) -> None:
        """So many steps are written plainly."""
        self.plain_steps[why] = self.plain_steps.get(why, 0) + steps
        if why in UNASKED:
            self.unasked += steps

    @property
    def saved(self) -> float:
        return self.plain_seconds - self.seconds


@dataclass(frozen=True, slots=True)
class Watched:
    """A step, for whoever looks on: what was drafted, and what became of it.

    sources: of each node but node 0; () where nothing tells. path: the accepted nodes, node 0
    first. why: nothing was drafted.
    """

    tree: TokenTree
    sources: Sequence[str]
    path: Sequence[int]
    written: int
    why: str

    def source(self, node: int, drafter: str) -> str:
        """Who drafted a node; `drafter` where nothing chose among several."""
        return self.sources[node - 1] if self.sources else drafter

    def writer(self, at: int, drafter: str) -> str:
        """Who drafted token number `at` of those that the step wrote; "": the model wrote it."""
        return self.source(self.path[at + 1], drafter) if at + 1 < len(self.path) else ""


@dataclass(slots=True)
class Stats:
    """Counts of one request, after stop rules cut the output."""

    lossy: bool = False  # the rule of acceptance changes the law of the output

    steps: int = 0  # target passes that emitted
    drafting_steps: int = 0  # those that had something to verify
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    # How often the walk came to a depth where there was a draft to accept.
    offered_per_position: list[int] = field(default_factory=list)
    # Of each pass that emitted: nodes drafted, and of them accepted.
    by_step: list[tuple[int, int]] = field(default_factory=list)
    cached: int = 0  # tokens of the prompt that need not be read: other texts had them in the cache
    began: float = 0.0  # monotonic seconds: made, had a place, first token, end
    placed: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0
    decisions: Decisions = field(default_factory=Decisions)

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def acceptance_length(self) -> float:
        """1 + accepted / steps that drafted: vLLM's definition."""
        return 1 + self.accepted / self.drafting_steps if self.drafting_steps else 1.0

    def count(self, tree: TokenTree, asked: Sequence[int], accepted: int, written: int) -> None:
        """One pass that wrote; `asked`: the nodes whose following token was decided and written."""
        if not self.tokens:
            self.first_token = time.monotonic()
        self.steps += 1
        self.tokens += written
        self.by_step.append((len(tree.tokens) - 1, accepted))
        if len(tree.tokens) == 1:
            return
        self.drafting_steps += 1
        self.drafted += len(tree.tokens) - 1
        self.accepted += accepted
        parents = set(tree.parents)
        for depth, node in enumerate(asked):
            if node in parents:  # else there was nothing left to accept
                _bump(self.offered_per_position, depth)
        for depth in range(accepted):
            _bump(self.accepted_per_position, depth)


def _bump(counts: list[int], at: int) -> None:
    counts += [0] * (at + 1 - len(counts))
    counts[at] += 1
