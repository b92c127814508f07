"""The sources that are judged, and the settings of each that a replay can tell apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftproof.drafting.base import Proposer
from draftproof.profiles import Choice, Part
from draftproof.tuning.records import DEEP, DOUBTS, FIRST, WIDE

LONGEST = 8  # tokens of an exit head's draft
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12)
FEW = (1, 2, 3, 4, 6, 8)  # where sources are merged
LOOKED = 12  # tokens of a look-up
LOOK_UPS = ("ngram", "suffix")
MORE: dict[str, dict[str, Any]] = {"suffix": {"corpus": 0}}  # the same texts are written again
Paths = list[tuple[int, ...]]


def recorded_paths() -> Paths:
    """Of the tree that a draft model is asked for: a chain with siblings, more of them first."""
    paths: Paths = [(rank,) for rank in range(FIRST)]
    for level in range(1, DEEP):
        paths += [(*[0] * level, rank) for rank in range(WIDE)]
    return paths


@dataclass(frozen=True)
class Source:
    """Something that drafts, by the name it has in tables.

    grows: its drafts are grown level by level, so that of the recorded one any shorter is known.
    asis: else, the settings that are asked one by one; the first has the largest drafts.
    """

    name: str
    part: Part
    grows: bool = False
    asis: tuple[Part, ...] = field(default=())

    @property
    def method(self) -> str:
        return self.part.method

    def asked(self) -> list[Proposer]:
        """What is run at every position: of the first the trees are kept."""
        if self.grows:
            return [self.part.proposer()]
        return [part.proposer(**MORE.get(part.method, {})) for part in self.asis]

    def settings(self, few: bool = False) -> list[Part]:
        """That a replay of its records can tell apart. few: a part of them, to be merged."""
        if not self.grows:
            return list(self.asis[:: 2 if few else 1])
        given = dict(self.part.options)
        given.pop("tree", None)
        deep = given.pop("num_draft_tokens", DEEP)
        lengths = [length for length in (FEW if few else LENGTHS) if length <= deep]
        doubts = DOUBTS[1:2] if few else DOUBTS
        return [
            self.grown(num_draft_tokens=length, branch=branch, min_confidence=doubt)
            for length in lengths
            for branch in (1, WIDE)
            for doubt in doubts
        ]

    def grown(self, **options: Any) -> Part:
        """The same draft with other settings."""
        kept = {k: v for k, v in self.part.options if k in ("quantize", "layers")}
        return Part(self.method, tuple((kept | options).items()), self.part.model)


def look_ups() -> list[Source]:
    """What costs no model."""
    sizes = (LOOKED, 8, 6, 4, 3, 2, 1)
    ngrams = [
        Part("ngram", (("num_draft_tokens", size), ("branches", branches)))
        for branches in (2, 1)
        for size in sizes
    ]
    suffixes = [
        Part("suffix", (("num_draft_tokens", size), ("min_share", share)))
        for share in (0.1, 0.3)
        for size in (16, 10, 6, 4, 2)
    ]
    return [
        Source("ngram", ngrams[0], asis=tuple(ngrams)),
        Source("suffix", suffixes[0], asis=tuple(suffixes)),
    ]


def draft(model: str, name: str, quantize: str | None = None) -> Source:
    """A draft model, in a precision of its own where one is given."""
    options: dict[str, Any] = {"quantize": quantize} if quantize else {}
    options |= {"tree": tuple(recorded_paths())}
    told = f"{name} {quantize}" if quantize else name
    return Source(f"draft {told}", Part("draft", tuple(options.items()), model), grows=True)


def heads(folder: str, name: str, exits: bool) -> Source:
    """Medusa's heads, or an exit head."""
    if exits:
        options = (("num_draft_tokens", LONGEST), ("branch", WIDE), ("min_confidence", 0.0))
        return Source(f"exit {name}", Part("early-exit", options, folder), grows=True)
    sizes = (20, 16, 10, 6, 4, 3, 2, 1)
    parts = tuple(Part("medusa", (("nodes", size),), folder) for size in sizes)
    return Source(f"heads {name}", parts[0], asis=parts)


def owners_of(choice: Choice, sources: Iterable[Source]) -> list[Source]:
    """The source of each part of a choice."""
    known = {source.part.of: source for source in sources}
    return [known[part.of] for part in choice.parts]


def check_names(sources: Sequence[Source]) -> None:
    """Raises `ValueError` for two of one name."""
    names = [source.name for source in sources]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice} is given twice: give each source once")
