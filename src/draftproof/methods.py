"""Methods by name, and what `LLM(speculate=)` takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from draftproof.drafting.adopting import refuse_untapped
from draftproof.drafting.base import Proposer
from draftproof.heads.files import exit_of
from draftproof.proposers.auto import Auto
from draftproof.proposers.draft import DraftModel
from draftproof.proposers.early_exit import EarlyExit
from draftproof.proposers.forced import Forced
from draftproof.proposers.foreign import ForeignDraft
from draftproof.proposers.hybrid import Hybrid
from draftproof.proposers.lookahead import Lookahead
from draftproof.proposers.medusa import Medusa
from draftproof.proposers.ngram import NGram
from draftproof.proposers.predicted import Predicted
from draftproof.proposers.specinfer import SpecInfer
from draftproof.proposers.staged import Staged
from draftproof.proposers.suffix import SuffixAutomaton

# "draft": a model; "foreign": a model, its tokenizer and the target's; "heads": a folder.
Sources = Mapping[str, Any]
AUTO = "auto"  # decides for itself among what is there
LOOK_UPS = ("ngram", "suffix")  # cost no pass
LOOK_UP = 24  # tokens that they offer where each of them must pay
ASKED = Predicted, Forced  # the first one first: a token that others draft too is its own
ALL = "all"  # every method that needs nothing more than was given


def _staged(
    draft: Any, num_draft_tokens: int | None = None, *, min_confidence: float = 0.1, branch: int = 2
) -> Staged:
    return Staged(draft, NGram(), num_draft_tokens, min_confidence=min_confidence, branch=branch)


def _foreign(
    given: tuple[Any, Any, Any],
    num_draft_tokens: int = 5,
    *,
    min_confidence: float = 0.1,
    branch: int = 2,
) -> ForeignDraft:
    model, tokenizer, target_tokenizer = given
    texts = {"tokenizer": tokenizer, "target_tokenizer": target_tokenizer}
    options: dict[str, Any] = {"min_confidence": min_confidence, "branch": branch}
    return ForeignDraft(model, num_draft_tokens=num_draft_tokens, **texts, **options)


def _auto(
    sources: Sources,
    num_draft_tokens: int | None = None,
    *,
    min_confidence: float | None = None,
    branch: int | None = None,
    corpus: int | None = None,
) -> Auto:
    """Over what costs no pass, and over whatever is given."""
    options = {"num_draft_tokens": num_draft_tokens, "min_confidence": min_confidence}
    options |= {"branch": branch, "corpus": corpus}
    given = {name: value for name, value in options.items() if value is not None}
    parts = [*(_made(name, {}, {"num_draft_tokens": LOOK_UP} | given) for name in LOOK_UPS)]
    parts += [_made(name, sources, given) for name in _of_sources(sources).values()]
    return Auto(*_asked([part for part in parts if part is not None]))


def _asked(parts: Sequence[Proposer]) -> list[Proposer]:
    """With what drafts from a prediction or a grammar; idle for requests that bring none."""
    first, last = ([] if any(isinstance(p, k) for p in parts) else [k()] for k in ASKED)
    return [*first, *parts, *last]


@dataclass(frozen=True)
class Method:
    """A method that has a name. make: takes the source that it needs, if any, and its options."""

    make: Callable[..., Proposer | None]
    python: str  # how it is written in Python
    needs: str | None = None  # the source without which it cannot draft


@dataclass(frozen=True)
class Source:
    """What a user may give for methods to draft with."""

    what: str
    option: str
    method: str  # which drafts with it where no method asks for it


METHODS = {
    "none": Method(lambda: None, "None"),
    AUTO: Method(_auto, 'dp.Auto("ngram", "suffix")'),
    "ngram": Method(NGram, "dp.NGram()"),
    "suffix": Method(SuffixAutomaton, "dp.SuffixAutomaton()"),
    "lookahead": Method(Lookahead, "dp.Lookahead()"),
    "early-exit": Method(EarlyExit, "dp.EarlyExit()"),
    "draft": Method(DraftModel, "dp.DraftModel('name or folder')", "draft"),
    "staged": Method(_staged, "dp.Staged('name or folder', dp.NGram())", "draft"),
    "specinfer": Method(
        lambda draft: SpecInfer([draft]), "dp.SpecInfer(['name or folder', ...])", "draft"
    ),
    "foreign": Method(
        _foreign, "dp.ForeignDraft('name', tokenizer=..., target_tokenizer=...)", "foreign"
    ),
    "medusa": Method(Medusa, "dp.Medusa('folder of heads')", "heads"),
}
ELSEWHERE = {  # methods of other libraries, and the one that is nearest
    **dict.fromkeys(("assisted", "draft-model", "model"), "draft"),
    **dict.fromkeys(("prompt-lookup", "lookup", "pld"), "ngram"),
    "suffix-decoding": "suffix",
    **dict.fromkeys(("eagle", "eagle2", "eagle3", "mtp", "mlp-speculator"), "medusa"),
}
EXIT = "early-exit"  # needs nothing, but takes heads that read a layer in the middle
SOURCES = {
    "draft": Source("a model", "--draft MODEL", "draft"),
    "foreign": Source("a model", "--draft MODEL --any-tokenizer", "foreign"),
    "heads": Source("heads", "--heads FOLDER", "medusa"),
}


def exits(sources: Sources) -> bool:
    """Whether the heads that are given read a layer in the middle: they are early exit's."""
    return sources.get("heads") is not None and exit_of(sources["heads"]) is not None


def _of_sources(sources: Sources) -> dict[str, str]:
    """The method that drafts with each kind of source that is given, where nothing else does."""
    return {
        kind: EXIT if kind == "heads" and exits(sources) else source.method
        for kind, source in SOURCES.items()
        if sources.get(kind) is not None
    }


def split(names: Iterable[str]) -> list[str]:
    """The single methods in `names`, of which some may be merged ones ("a+b"); once each."""
    return list(dict.fromkeys(part for name in names for part in name.split("+")))


def needed(names: Collection[str], sources: Sources) -> set[str]:
    """The kinds of sources that these methods draft with."""
    parts = split(names)
    if AUTO in parts:
        return {*SOURCES}
    kinds = {kind for part in parts if (kind := METHODS[part].needs) is not None}
    return kinds | {"heads"} if EXIT in parts and exits(sources) else kinds


def possible(sources: Sources) -> list[str]:
    """Every method that drafts and has what it needs, by name."""
    given = {kind for kind, source in sources.items() if source is not None}
    given -= {"heads"} if exits(sources) else set()
    return [
        name for name, each in METHODS.items() if name != "none" and each.needs in {None, *given}
    ]


def listed(values: Sequence[str], sources: Sources, *, idle: bool = False) -> list[str]:
    """The methods that a user listed: "ngram", "ngram+suffix" (merged); in order, once each.

    values: names, several with commas between them, or "all". A draft or heads that none of them
    takes draft by themselves, unless idle. Raises `ValueError`: an unknown name, or a method
    without its source.
    """
    written = [name.strip() for value in values for name in value.split(",")]
    names: list[str] = []
    for name in filter(None, written):
        names += possible(sources) if name == ALL else ["+".join(_parts(name))]
    if written and not names:
        raise ValueError(f"no method is named: use {', '.join(METHODS)} or {ALL}")
    taken = {*SOURCES} if idle else needed(names, sources)
    names += [name for kind, name in _of_sources(sources).items() if kind not in taken]
    for part in split(names):
        need = METHODS[part].needs
        if need is not None and sources.get(need) is None:
            wanted = SOURCES[need]
            lacks = ", which this command does not have" if need not in sources else ""
            raise ValueError(f"method {part} needs {wanted.what}: add {wanted.option}{lacks}")
    once: dict[frozenset[str], str] = {}
    for name in names:
        once.setdefault(frozenset(name.split("+")), name)
    return list(once.values())


def merged(values: Sequence[str], sources: Sources, **options: Any) -> Proposer | None:
    """What drafts where all that a user listed are merged; see `listed` and `given_options`.

    Nothing listed is "auto", over whatever is given.
    """
    names = listed(values, sources) if values else [AUTO]
    parts = [*LOOK_UPS, *_of_sources(sources).values()] if names == [AUTO] else names
    given = given_options(parts, **options)
    return named("+".join(names), sources, **given)


def takes(name: str, option: str) -> bool:
    """Whether a method, or a part of a merged one, has the option."""
    return any(option in inspect.signature(METHODS[part].make).parameters for part in split([name]))


def given_options(names: Collection[str], **options: Any) -> dict[str, Any]:
    """Those of a command's options that are given; refuses one that none of the methods has."""
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        flag = f"--{key.replace('_', '-')}"
        if not {*names} - {"none"}:
            raise ValueError(f"{flag} needs something that drafts: add --method or --draft")
        if not any(takes(name, key) for name in names):
            raise ValueError(
                f"{flag} is no option of {', '.join(names)}: drop it, or add --draft MODEL"
            )
    return given


def named(name: str, sources: Sources | None = None, **options: Any) -> Proposer | None:
    """A proposer by its name, "ngram" or "ngram+suffix", with those of the options that it has.

    Raises `ValueError` for an unknown name, and for a method without what it needs.
    """
    return _together(_made(part, sources or {}, options) for part in _parts(name))


def resolve(speculate: Any) -> Proposer | None:
    """A proposer from what `LLM(speculate=)` takes."""
    if speculate is None:
        return None
    if isinstance(speculate, str):
        return named(speculate)
    if isinstance(speculate, list | tuple):
        return _together(map(resolve, speculate))
    if isinstance(speculate, type):
        written = {each.make: each.python for each in METHODS.values()}
        call = written.get(speculate, f"{speculate.__name__}(...)")
        raise ValueError(f"speculate={speculate.__name__} is a class: write speculate={call}")
    refuse_untapped(speculate)  # before a model is loaded; `adopt` sees those in methods
    if not hasattr(speculate, "propose"):
        raise ValueError(
            "speculate takes None, a method's name, a proposer or a list, and for a draft "
            f"dp.DraftModel(model), not {type(speculate).__name__}"
        )
    if isinstance(speculate, Hybrid | Auto):
        parts = [part for part in map(resolve, speculate.given) if part is not None]
        speculate.merge(_asked(parts) if isinstance(speculate, Auto) else parts)
    proposer: Proposer = speculate
    return proposer


def _together(parts: Iterable[Proposer | None]) -> Proposer | None:
    drafters = [part for part in parts if part is not None]
    return Hybrid(drafters) if len(drafters) > 1 else (drafters[0] if drafters else None)


def _parts(name: str) -> list[str]:
    """The methods that a name merges; refuses what is none, with the closest that there is."""
    parts = list(dict.fromkeys(part.strip() for part in name.split("+")))
    for part in parts:
        if "/" in part:
            raise ValueError(
                f"{part!r} names no method: a model that drafts is dp.DraftModel({part!r}), in the "
                f"shell --draft {part}"
            )
        if part not in METHODS:
            if part == ALL:
                raise ValueError(f"{ALL} lists methods to be compared: name one, or merge them a+b")
            plain = part.lower().replace("_", "-")
            close = (
                [ELSEWHERE[plain]]
                if plain in ELSEWHERE
                else get_close_matches(plain, METHODS, 1, 0.5)
            )
            hint = f"did you mean {close[0]}? There are" if close else "use"
            raise ValueError(f"method {part!r} is unknown: {hint} {', '.join(METHODS)}")
    for name in ("none", AUTO):
        if name in parts and len(parts) > 1:
            others = ", ".join(part for part in parts if part != name)
            raise ValueError(f"method {name} contradicts {others}: drop one")
    return parts


def _made(name: str, sources: Sources, options: Mapping[str, Any]) -> Proposer | None:
    method = METHODS[name]
    if name == AUTO:
        return _auto(sources, **options)
    given = {key: value for key, value in options.items() if takes(name, key)}
    if name == EXIT and exits(sources):
        given["heads"] = sources["heads"]
    if method.needs is None:
        return method.make(**given)
    if sources.get(method.needs) is None:
        what = SOURCES[method.needs].what
        raise ValueError(f"method {name!r} needs {what}: speculate={method.python}")
    return method.make(sources[method.needs], **given)
