"""Profiles: what `draftproof tune` found to pay for one model on one machine, as a file.

A profile names its sources and their settings, and carries the costs of passes that were measured
with it. Knows neither how they were found nor any engine.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftproof import methods
from draftproof.drafting.base import Proposer
from draftproof.proposers.auto import Auto
from draftproof.runners import costs, kept
from draftproof.runners.base import KEY, Target, Work
from draftproof.runners.measuring import measure
from draftproof.tree import TokenTree

FORMAT = 1
SUFFIX = ".json"
ASKED = 64  # tokens whose followers tell a model
SAME = 0.9  # of them alike in one model, whatever the precision
ON = ("processor", "threads", "runner", "precision")  # what passes cost hangs on
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Part:
    """A drafting method with its settings. model: the draft or the heads that it needs."""

    method: str
    options: Options = ()
    model: str | None = None

    @property
    def name(self) -> str:
        """Short, for tables."""
        given = dict(self.options)
        tree = given.pop("tree", None)
        size = f"{len(tree)} nodes" if tree else str(given.get("num_draft_tokens", ""))
        size = size or str(given.get("nodes", ""))
        wide = given.get("branch", given.get("branches", 1))
        told = [self.method, *([Path(self.model).name] if self.model else [])]
        told += [given["quantize"]] if given.get("quantize") else []
        told += [f"{size}x{wide}" if wide != 1 else size] if size else []
        told += [f"p>{given['min_confidence']:g}"] if given.get("min_confidence") else []
        told += [f"share>{given['min_share']:g}"] if "min_share" in given else []
        return " ".join(told)

    @property
    def of(self) -> tuple[str, str | None, str | None]:
        """Method, model and its precision: the same in all settings of one source."""
        return self.method, self.model, dict(self.options).get("quantize")

    def proposer(self, **more: Any) -> Proposer:
        """Raises `ValueError` for settings that the method refuses."""
        known = methods.METHODS.get(self.method)
        if known is None:
            raise ValueError(f"method {self.method!r} is unknown: use {', '.join(methods.METHODS)}")
        given = dict(self.options) | more
        if self.method == methods.EXIT and self.model is not None:
            given["heads"] = self.model
        made = known.make(*([self.model] if known.needs else []), **given)
        assert made is not None
        return made

    def as_dict(self) -> dict[str, Any]:
        return {"method": self.method, "options": dict(self.options), "model": self.model}


@dataclass(frozen=True)
class Choice:
    """Parts whose trees are merged, or, where it decides, the sources of `Auto`. None: plain."""

    parts: tuple[Part, ...] = ()
    decides: bool = False

    @property
    def name(self) -> str:
        joined = " + ".join(part.name for part in self.parts)
        return f"auto over {joined}" if self.decides else joined or "plain"

    def proposer(self, more: Mapping[str, Mapping[str, Any]] | None = None) -> Proposer | None:
        """What drafts so. more: further options by method."""
        made = [part.proposer(**(more or {}).get(part.method, {})) for part in self.parts]
        return methods.resolve(Auto(*made) if self.decides else made)

    def as_dict(self) -> dict[str, Any]:
        return {"decides": self.decides, "parts": [part.as_dict() for part in self.parts]}


def is_profile(speculate: Any) -> bool:
    """Whether what `LLM(speculate=)` was given is the name of such a file."""
    return isinstance(speculate, str | Path) and Path(speculate).suffix == SUFFIX


def resolve(speculate: Any) -> Proposer | None:
    """What `methods.resolve` takes, or a profile's file."""
    if not is_profile(speculate):
        return methods.resolve(speculate)
    return choice_of(read(speculate), str(speculate)).proposer()


def read(path: str | Path) -> dict[str, Any]:
    """A profile. Raises `ValueError`, in one sentence, for what is none."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"cannot read the profile {path}: {error.strerror}; draftproof tune MODEL makes one"
        ) from error
    except ValueError as error:
        raise ValueError(f"the profile {path} is damaged: run draftproof tune again") from error
    if not isinstance(found, dict) or found.get("draftproof_profile") != FORMAT:
        raise ValueError(
            f"{path} is no profile of draftproof tune, or of another version: run it again"
        )
    return found


def choice_of(profile: Mapping[str, Any], path: str) -> Choice:
    """What it says drafts. Raises `ValueError` where a folder has moved, or a field is missing."""
    try:
        chosen = profile["choice"]
        parts = tuple(
            Part(each["method"], tuple(each["options"].items()), each["model"])
            for each in chosen["parts"]
        )
        made = Choice(parts, bool(chosen["decides"]))
        made.proposer()
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the profile {path} is damaged: run draftproof tune again") from error
    except ValueError as error:
        gone = [part.model for part in parts if part.model and _moved(part.model)]
        raise ValueError(_gone(path, gone[0]) if gone else f"{path}: {error}") from error
    for part in parts:
        if part.model is not None and _moved(part.model):
            raise ValueError(_gone(path, part.model))
    return made


def check(speculate: Any, runner: Target) -> None:
    """Refuse a profile of another model; its costs are taken over, or measured anew elsewhere.

    Does nothing unless a profile is given. Raises `ValueError`.
    """
    if not is_profile(speculate):
        return
    profile = read(speculate)
    try:
        model, machine, learnt = profile["model"], profile["machine"], profile["costs"]
        same = alike(model["fingerprint"], fingerprint(runner))
        there = {name: machine[name] for name in ON}
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"the profile {speculate} is damaged: run draftproof tune again"
        ) from error
    if not same:
        raise ValueError(
            f"the profile {speculate} was made for {model.get('name', 'another model')}, and this "
            "is another model: run draftproof tune on this one"
        )
    known, here = costs.of(runner), kept.description(runner)
    if all(there[name] == here[name] for name in ON):
        if not known.passes:
            with suppress(ValueError, KeyError, TypeError):
                known.restore(learnt)
        return
    which = next(name for name in ON if there[name] != here[name])
    warnings.warn(
        f"the profile {speculate} was made with {which} {there[which]}, here it is {here[which]}: "
        "what passes cost is measured anew, its settings stay",
        stacklevel=3,
    )
    measure(runner, known)


def fingerprint(runner: Target) -> dict[str, Any]:
    """What tells a model: its configuration, and what it says behind a row of tokens."""
    ids = costs.context_ids(runner, min(ASKED, runner.max_length - 1))
    try:
        with torch.inference_mode():
            (output,) = runner.forward([Work(KEY, [], TokenTree.chain(ids))])
            said = output.logits.float().argmax(-1).tolist()
    finally:
        runner.free(KEY)
    return {"shape": shape_of(getattr(runner, "config", None)), "says": said}


def shape_of(config: Any) -> str:
    """What a configuration says of a model's shape, as a hash: the same in every precision."""
    shape = {} if config is None else kept.shape_of(config)
    return kept.digest({n: shape[n] for n in shape if n not in ("dtype", "torch_dtype")})


def alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are of one model, in whatever precision."""
    first: Sequence[int] = one["says"]
    pairs = zip(first, other["says"], strict=False)
    right = sum(a == b for a, b in pairs)
    return bool(one["shape"] == other["shape"] and right >= SAME * len(first))


def _moved(model: str) -> bool:
    """Profiles name what lies on this machine by its whole path."""
    return Path(model).is_absolute() and not Path(model).exists()


def _gone(path: str, model: str) -> str:
    return (
        f"the profile {path} names {model}, where nothing lies any more: put it back, or run "
        "draftproof tune again"
    )
