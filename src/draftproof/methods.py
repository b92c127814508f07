"""Methods by name, and what `LLM(speculate=)` takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from draftproof.drafting.base import Proposer
from draftproof.heads.files import exit_of
from draftproof.proposers.draft import DraftModel
from draftproof.proposers.early_exit import EarlyExit
from draftproof.proposers.hybrid import Hybrid
from draftproof.proposers.lookahead import Lookahead
from draftproof.proposers.medusa import Medusa
from draftproof.proposers.ngram import NGram
from draftproof.proposers.specinfer import SpecInfer
from draftproof.proposers.staged import Staged
from draftproof.proposers.suffix import SuffixAutomaton


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
EXIT = "early-exit"  # which takes heads that read a layer in the middle, if there are any
GIVEN: dict[str, tuple[str, Callable[..., Proposer]]] = {  # what is given to it, and its maker
    "draft": ("draft", DraftModel),
    "staged": ("draft", _staged),
    "specinfer": ("draft", lambda draft: SpecInfer([draft])),
    "medusa": ("heads", Medusa),
}
WRITTEN = {  # how they are made in Python
    "draft": "DraftModel('name or folder')",
    "staged": "Staged('name or folder', NGram())",
    "specinfer": "SpecInfer(['name or folder', ...])",
    "medusa": "Medusa('folder of heads')",
}
KINDS = {  # what can be given: which method it is for if no other asks for it, and how it is named
    "draft": ("draft", "a model", "--draft MODEL"),
    "heads": ("medusa", "heads", "--heads FOLDER"),
}
Sources = Mapping[str, Any]  # kind -> model or folder, None where there is none


def exits(sources: Sources) -> bool:
    """Whether the heads that are given read a layer in the middle: they are early exit's."""
    return sources.get("heads") is not None and exit_of(sources["heads"]) is not None


def asked(names: Collection[str], sources: Sources) -> set[str]:
    """The kinds of what these methods need, and of what they take of the sources."""
    kinds = {GIVEN[name][0] for name in names if name in GIVEN}
    return kinds | {"heads"} if EXIT in names and exits(sources) else kinds


def chosen(names: Iterable[str], sources: Sources) -> list[str]:
    """The names, once each; a draft or heads that no method asks for draft by themselves."""
    listed = list(dict.fromkeys(names))
    wanted = asked(listed, sources)
    for kind, (name, *_) in KINDS.items():
        if kind == "heads" and exits(sources):
            name = EXIT
        if sources.get(kind) is not None and kind not in wanted:
            listed.append(name)
    return listed


def possible(sources: Sources) -> list[str]:
    """Every method that has what it needs."""
    with_them = [
        name
        for name, (kind, _) in GIVEN.items()
        if sources.get(kind) is not None and not (kind == "heads" and exits(sources))
    ]
    return [*METHODS, *with_them]


def check_given(names: Iterable[str], sources: Sources) -> None:
    """Refuse a command with a method that needs what it does not give."""
    for name in names:
        if name in GIVEN and not sources.get(GIVEN[name][0]):
            _, what, option = KINDS[GIVEN[name][0]]
            raise ValueError(f"method {name} needs {what}: add {option}")


def takes(name: str, option: str) -> bool:
    """Whether the method of that name has the option."""
    made = METHODS.get(name) or GIVEN.get(name, (None, None))[1]
    return made is not None and option in inspect.signature(made).parameters


def given_options(names: Collection[str], **options: Any) -> dict[str, Any]:
    """Those of a command's options that are given; refuses one that none of the methods has."""
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        flag = f"--{key.replace('_', '-')}"
        if not {*names} - {"none"}:
            raise ValueError(f"{flag} needs something that drafts: add --method or --draft")
        if not any(takes(name, key) for name in names):
            listed = ", ".join(names)
            raise ValueError(f"{flag} is no option of {listed}: drop it, or add --draft MODEL")
    return given


def named(name: str, sources: Sources | None = None, **options: Any) -> Proposer | None:
    """A proposer by its name, with those of the options that it has.

    Raises `ValueError` for an unknown name, and for a method without what it needs.
    """
    given = {key: value for key, value in options.items() if takes(name, key)}
    if name == EXIT and exits(sources or {}):
        given["heads"] = (sources or {})["heads"]
    if name in METHODS:
        return METHODS[name](**given)
    if name not in GIVEN:
        raise ValueError(f"method {name!r} is unknown: use {', '.join([*METHODS, *GIVEN])}")
    kind, made = GIVEN[name]
    source = (sources or {}).get(kind)
    if source is None:
        raise ValueError(f"method {name!r} needs {KINDS[kind][1]}: speculate={WRITTEN[name]}")
    return made(source, **given)


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
