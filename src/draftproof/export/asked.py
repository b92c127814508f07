"""What is to be exported: a draft or heads with settings, from a profile or named by hand.

Knows profiles and methods, and neither weights nor other engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof import profiles
from draftproof.heads.files import exit_of
from draftproof.methods import EXIT

DRAFT, MEDUSA = "draft", "medusa"  # the methods that another engine may have a file of
LENGTH, CONFIDENCE = 5, 0.1  # of a draft whose settings say nothing, as `DraftModel`'s
TREE_LENGTH = 8  # the deepest that a fitted tree grows


@dataclass(frozen=True)
class Asked:
    """A target, and what drafts for it.

    source: the draft's or the heads' place. notes: what other engines do not do of it.
    """

    target: str
    method: str
    source: str
    shape: str | None = None  # of the target that a profile was made for
    length: int = LENGTH
    confidence: float = CONFIDENCE
    quantize: str | None = None
    notes: Sequence[str] = ()
    options: dict[str, Any] = field(default_factory=dict)  # of loading: revision, trust

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"drafts of {self.length} tokens are none: use 1 or more")
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"min_confidence is {self.confidence}, but must be between 0 and 1")
        if self.method == MEDUSA and exit_of(self.source) is not None:
            raise ValueError(
                f"the heads in {self.source} read a layer in the middle, which no other engine "
                "does: give a draft model"
            )


def by_hand(
    target: str,
    draft: str | None = None,
    heads: str | None = None,
    *,
    length: int | None = None,
    confidence: float | None = None,
    **options: Any,
) -> Asked:
    """Of a target and a draft or heads; `ValueError` unless it is one of them."""
    if (draft is None) == (heads is None):
        raise ValueError(
            "what is exported is missing, or said twice: give a profile, --draft or --heads"
        )
    if heads is not None and (length is not None or confidence is not None):
        raise ValueError("--num-draft-tokens and --min-confidence are of a draft: drop them")
    return Asked(
        target,
        DRAFT if draft is not None else MEDUSA,
        str(draft if draft is not None else heads),
        length=LENGTH if length is None else length,
        confidence=CONFIDENCE if confidence is None else confidence,
        options=options,
    )


def of_profile(path: str | Path, target: str | None = None, **options: Any) -> Asked:
    """Of what `draftproof tune` found. target: where the model lies, unless the profile knows.

    Raises `ValueError`, in one sentence, where its choice holds nothing that others could load.
    """
    profile = profiles.read(path)
    choice = profiles.choice_of(profile, str(path))
    target = target or _place(profile, path)
    usable = [part for part in choice.parts if part.method in (DRAFT, MEDUSA) and part.model]
    usable.sort(key=lambda part: part.method != DRAFT)  # engines dropped heads
    if not usable:
        foreign = next((part.name for part in choice.parts if part.method == EXIT), None)
        what = f"{foreign}, which no other engine does" if foreign else f"{choice.name} alone"
        raise ValueError(
            f"the profile {path} chose {what}: there is no draft in it to export; name one with "
            "--draft"
        )
    part, given = usable[0], dict(usable[0].options)
    notes = []
    if choice.decides:
        notes.append(
            "The controller, which decides in every step whether and how far to draft, stays here: "
            "others draft equally far in every step."
        )
    if rest := [each.name for each in choice.parts if each is not part]:
        notes.append(f"Of several sources one is exported; left out: {', '.join(rest)}.")
    if (given.get("tree") or given.get("branch", 2) > 1) and part.method == DRAFT:
        notes.append("Side branches of drafts stay here: others get a chain.")
    return Asked(
        target,
        part.method,
        str(part.model),
        profile.get("model", {}).get("fingerprint", {}).get("shape"),
        _length(given),
        given.get("min_confidence", CONFIDENCE),
        given.get("quantize"),
        notes,
        options,
    )


def _length(given: dict[str, Any]) -> int:
    """Tokens of the longest path."""
    tree = given.get("tree")
    if isinstance(tree, str):
        return TREE_LENGTH
    if tree:
        return max(map(len, tree))
    return int(given.get("num_draft_tokens") or LENGTH)


def _place(profile: dict[str, Any], path: str | Path) -> str:
    place = profile.get("model", {}).get("place")
    if not isinstance(place, str) or not place:
        raise ValueError(
            f"the profile {path} does not say where its model lies: write draftproof export MODEL "
            f"--profile {path}"
        )
    if Path(place).is_absolute() and not Path(place).exists():
        raise ValueError(
            f"the profile {path} was made for the model in {place}, where nothing lies any more: "
            f"write draftproof export MODEL --profile {path}"
        )
    return place
