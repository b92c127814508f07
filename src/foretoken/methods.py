"""Methods by name, and what `LLM(speculate=)` takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from foretoken.proposers.base import Proposer
from foretoken.proposers.draft import DraftModel
from foretoken.proposers.early_exit import EarlyExit
from foretoken.proposers.hybrid import Hybrid
from foretoken.proposers.lookahead import Lookahead
from foretoken.proposers.ngram import NGram
from foretoken.proposers.specinfer import SpecInfer
from foretoken.proposers.staged import Staged
from foretoken.proposers.suffix import SuffixAutomaton


def _staged(
    draft: Any, num_draft_tokens: int = 8, *, min_confidence: float = 0.1, branch: int = 2
) -> Staged:
    shape = {"min_confidence": min_confidence, "branch": branch}
    return Staged(draft, NGram(), num_draft_tokens, **shape)  # type: ignore[arg-type]


METHODS: dict[str, Callable[..., Proposer | None]] = {
    "none": lambda: None,
    "ngram": NGram,
    "suffix": SuffixAutomaton,
    "lookahead": Lookahead,
    "early-exit": EarlyExit,
}
WITH_DRAFT: dict[str, Callable[..., Proposer]] = {  # a model comes first
    "draft": DraftModel,
    "staged": _staged,
    "specinfer": lambda draft: SpecInfer([draft]),
}
WRITTEN = {  # how they are made in Python
    "draft": "DraftModel('name or folder')",
    "staged": "Staged('name or folder', NGram())",
    "specinfer": "SpecInfer(['name or folder', ...])",
}


def chosen(names: Iterable[str], draft: Any) -> list[str]:
    """The names, once each; a draft that no method asks for drafts itself."""
    listed = list(dict.fromkeys(names))
    if draft is not None and not {*listed} & {*WITH_DRAFT}:
        listed.append("draft")
    return listed


def takes(name: str, option: str) -> bool:
    """Whether the method of that name has the option."""
    made = METHODS.get(name) or WITH_DRAFT.get(name)
    return made is not None and option in inspect.signature(made).parameters


def named(name: str, draft: Any = None, **options: Any) -> Proposer | None:
    """A proposer by its name, with those of the options that it has.

    Raises `ValueError` for an unknown name, and for a method that needs a draft without one.
    """
    given = {key: value for key, value in options.items() if takes(name, key)}
    if name in METHODS:
        return METHODS[name](**given)
    if name == "medusa":
        raise ValueError("method 'medusa' needs heads: speculate=Medusa('folder of heads')")
    if name not in WITH_DRAFT:
        known = ", ".join([*METHODS, *WITH_DRAFT])
        raise ValueError(f"method {name!r} is unknown: use {known}")
    if draft is None:
        raise ValueError(f"method {name!r} needs a model: speculate={WRITTEN[name]}")
    return WITH_DRAFT[name](draft, **given)


def resolve(speculate: Any) -> Proposer | None:
    """A proposer from what `LLM(speculate=)` takes."""
    if speculate is None:
        return None
    if isinstance(speculate, str):
        return named(speculate)
    if isinstance(speculate, list | tuple):
        parts = [part for part in map(resolve, speculate) if part is not None]
        return Hybrid(parts) if len(parts) > 1 else (parts[0] if parts else None)
    if not hasattr(speculate, "propose") or not hasattr(speculate, "taps"):
        raise ValueError(
            f"speculate takes None, a method's name, a proposer or a list, not {type(speculate)}"
        )
    proposer: Proposer = speculate
    return proposer
