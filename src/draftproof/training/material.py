"""What is learnt and what is held out: the user's texts, or what the target writes after them."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftproof.training import data as texts
from draftproof.training import files, served
from draftproof.training.prepare import EVALUATED, WRITTEN, Options, Watch
from draftproof.training.rows import Document

HELD_OUT = 0.05  # of the data, where nothing else is held out


@dataclass(frozen=True)
class Material:
    """Documents; `asked` are the held-out ones as they came, for beginnings to judge by."""

    learnt: list[Document]
    held_out: list[Document]
    asked: list[Document]


def gathered(
    options: Options, target: Any, tokenizer: Any, watch: Watch, least: int, length: int
) -> Material:
    """The documents that the options name; the target's own answers, if those are asked for.

    least: tokens without which there is nothing to learn. length: of a row.
    """
    watch.phase("reading the data")
    if tokenizer is None:
        raise ValueError(f"{options.target} comes without a tokenizer: save it beside the model")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        # Where the target writes, the limit is of what it writes: its beginnings are from anywhere.
        limit = None if options.self_distill else options.limit
        found = texts.documents(options.data, tokenizer, limit=limit)
        held_out = texts.documents(options.held_out, tokenizer) if options.held_out else []
    for warning in told:  # of what was left out
        watch.line(f"warning: {warning.message}")
    _check(options, target, [*found, *held_out])
    if sum(len(document.ids) for document in found) < least:
        raise ValueError(f"the data has less than the {least} tokens that are needed: give more")
    if not held_out:
        found, held_out = texts.split(found, HELD_OUT, options.seed, least)
    if max(len(document.ids) for document in held_out) < least:
        watch.line(
            f"warning: no held-out text has {least} tokens: nothing tells which weights are best, "
            "so the last are kept"
        )
    if not options.self_distill:
        return Material(found, held_out, held_out)
    learnt, own = _written(options, target, tokenizer, found, held_out, watch, length)
    return Material(learnt, own or held_out, held_out)


def _check(options: Options, target: Any, found: Sequence[Document]) -> None:
    size = target.get_output_embeddings().weight.shape[0]
    worst = max(max(document.ids, default=0) for document in found)
    if worst >= size:
        raise ValueError(
            f"the tokenizer makes id {worst} of the data and the target knows {size}: use the "
            "target's own tokenizer"
        )


def _written(
    options: Options,
    target: Any,
    tokenizer: Any,
    found: list[Document],
    held_out: list[Document],
    watch: Watch,
    length: int,
) -> tuple[list[Document], list[Document]]:
    """The target's own answers, to both; kept in a file, with what they are of: it takes long."""
    file = options.out / WRITTEN
    data = hashlib.sha256()
    for one in [*found, *held_out]:
        data.update(np.asarray(one.ids, dtype="<i4").tobytes())
    of = [options.target, data.hexdigest(), length, options.limit]
    if options.resume and file.exists():
        kept = json.loads(file.read_text())
        if kept["of"] == of:
            return _documents(kept["texts"]), _documents(kept["held_out"])
    judged = sum(len(one.ids) for one in held_out)
    if options.limit is not None:
        judged = min(judged, round(HELD_OUT * options.limit))
    with served.engine(target, tokenizer) as llm:
        watch.phase("the target writes")
        made = served.own_texts(llm, found, length, options.limit, watch.share)
        watch.phase("the target writes what is held out")
        own = served.own_texts(llm, held_out, length, min(judged, EVALUATED), watch.share)
    options.out.mkdir(parents=True, exist_ok=True)
    with files.replacing(file) as fresh:
        fresh.write_text(json.dumps({"of": of, "texts": _pairs(made), "held_out": _pairs(own)}))
    return made, own


def _pairs(found: Sequence[Document]) -> list[Any]:
    """Of each its tokens, and how many of them were given."""
    return [[list(one.ids), one.learnt()[0].item()] for one in found]


def _documents(pairs: Sequence[Any]) -> list[Document]:
    return [Document(ids, [i >= given for i in range(len(ids))]) for ids, given in pairs]
