"""What is learnt and what is held out: the user's texts, or what the target writes after them."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from draftproof.runners import encoders
from draftproof.training import checkpoint
from draftproof.training.data import sources
from draftproof.training.data.pairs import split
from draftproof.training.data.rows import Document
from draftproof.training.jobs import served
from draftproof.training.jobs.answers import Answers, check_same
from draftproof.training.jobs.setup import ANSWERS, EVALUATED, PARTS
from draftproof.training.watch import Watch

if TYPE_CHECKING:
    from draftproof.training.jobs.job import Options

HELD_OUT = 0.05  # of the data, where nothing else is held out
FEWEST = round(1 / HELD_OUT)  # tokens to learn, of which that share is one token
SAID = "the target writes", "the target writes what is held out"


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
    own, start = bool(options.self_distill), served.start_of(target, tokenizer)
    with warnings.catch_warnings(record=True) as omissions:
        warnings.simplefilter("always", UserWarning)
        # Where the target writes, the limit is of what it writes: its beginnings are from anywhere.
        limit = None if own else options.limit
        learnt = sources.documents(
            options.data, tokenizer, limit=limit, unanswered=own, start=start, told=watch.share
        )
        held_out = []
        if options.held_out:
            held_out = sources.documents(options.held_out, tokenizer, unanswered=own, start=start)
    for warning in omissions:
        watch.line(f"warning: {warning.message}")
    if start is not None:
        learnt, held_out = (_readable(target, each, watch) for each in (learnt, held_out))
    _check(options, target, [*learnt, *held_out])
    if start is None:
        _check_amount(learnt, least, own, options.limit)
    if not held_out:
        learnt, held_out = split(learnt, HELD_OUT, options.seed, least)
    if (start is None or not own) and max(len(each.ids) for each in held_out) < least:
        watch.line(
            f"warning: no held-out text has {least} tokens: nothing tells which weights are best, "
            "so the last are kept"
        )
    if not own:
        return Material(learnt, held_out, held_out)
    given = learnt, held_out
    answers, judged = _own_answers(options, target, tokenizer, given, watch, length)
    if not answers:
        raise ValueError("the target answers none of the prompts: give others, or texts to learn")
    return Material(answers, judged or held_out, held_out)


def _readable(target: Any, pairs: list[Document], watch: Watch) -> list[Document]:
    """Those that the encoder has positions and rows for."""
    most, known = encoders.longest_input(target.config), encoders.input_vocabulary(target)
    fit = [each for each in pairs if len(each.read or ()) <= most]
    if len(fit) < len(pairs):
        left = f"{len(pairs) - len(fit)} of {len(pairs)} pairs"
        if not fit:
            raise ValueError(f"all pairs read more than the encoder's {most} tokens: shorten them")
        watch.line(f"warning: {left} read more than the encoder's {most} tokens and were left out")
    worst = max((max(each.read or (0,)) for each in fit), default=0)
    if worst >= known:
        raise ValueError(
            f"the tokenizer makes id {worst} of the data and the encoder knows {known}: use the "
            "target's own tokenizer"
        )
    return fit


def _check(options: Options, target: Any, documents: Sequence[Document]) -> None:
    size = target.get_output_embeddings().weight.shape[0]
    worst = max(max(document.ids, default=0) for document in documents)
    if worst >= size:
        raise ValueError(
            f"the tokenizer makes id {worst} of the data and the target knows {size}: use the "
            "target's own tokenizer"
        )


def _check_amount(documents: Sequence[Document], least: int, own: bool, limit: int | None) -> None:
    """Refuse a letter or a word: it makes a draft worse, and no score would tell that.

    own: the target writes behind these, as much as it likes.
    """
    if sum(len(document.ids) for document in documents) < least:
        raise ValueError(f"the data has less than the {least} tokens that are needed: give more")
    count = sum(len(document.learnt()) for document in documents)
    if not own and count < FEWEST:
        way = "give more" if limit is None else "give more, or a larger --limit"
        raise ValueError(f"the data has {count} tokens to learn and needs {FEWEST} at least: {way}")


def _own_answers(
    options: Options,
    target: Any,
    tokenizer: Any,
    given: tuple[list[Document], list[Document]],
    watch: Watch,
    length: int,
) -> tuple[list[Document], list[Document]]:
    """The target's own answers to both, which are kept in a file with what they are of."""
    file = options.out / ANSWERS
    data = hashlib.sha256()
    learnt, held_out = given
    for one in [*learnt, *held_out]:
        data.update(np.asarray([*one.ids, *(one.read or ())], dtype="<i4").tobytes())
    of = [options.target, data.hexdigest(), length, options.limit]
    if options.resume and file.exists():
        kept = json.loads(file.read_text())
        check_same(file, kept["of"], of)
        return _documents(kept["texts"]), _documents(kept["held_out"])
    tokens = sum(len(one.ids if one.read is None else one.read) for one in held_out)
    if options.limit is not None:
        tokens = min(tokens, round(HELD_OUT * options.limit))
    limits = options.limit, min(tokens, EVALUATED)
    parts = [options.out / name for name in PARTS]
    found: list[list[Document]] = []
    with served.engine(target, tokenizer) as llm:
        for name, part, documents, limit in zip(SAID, parts, given, limits, strict=True):
            watch.phase(name)
            with Answers(part, of, options.resume) as answers:
                found.append(served.own_texts(llm, documents, length, limit, watch.share, answers))
    with checkpoint.replacing(file) as fresh:
        pairs = {"texts": _pairs(found[0]), "held_out": _pairs(found[1])}
        fresh.write_text(json.dumps({"of": of} | pairs))
    for part in parts:
        part.unlink(missing_ok=True)  # another process of the same training did it
    return found[0], found[1]


def _pairs(documents: Sequence[Document]) -> list[Any]:
    """Of each its tokens, how many of them were given, and what was read if an encoder did."""
    return [
        [list(one.ids), one.learnt()[0].item(), *([] if one.read is None else [list(one.read)])]
        for one in documents
    ]


def _documents(pairs: Sequence[Any]) -> list[Document]:
    return [
        Document(ids, [i >= given for i in range(len(ids))], *read) for ids, given, *read in pairs
    ]
