"""What has to be the same for a text to go on elsewhere token for token, as a short name.

The bits of one pass tell weights, precision and the arithmetic of kernels at once; beside them go
the name of the kernels, the tokenizer and the length of the context. Knows no request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from draftproof.runners.base import KEY, Target, Work
from draftproof.sampling import Grammar, SamplingParams
from draftproof.tree import TokenTree

ASKED = 64  # tokens of the pass: each is told by a row over the whole vocabulary
LETTERS = 24  # of a name


def of(runner: Target, tokenizer: Any) -> str:
    """The name; one pass, so nobody else may be in a step.

    Two that differ may still write the same: it is never the other way round, but for a change of
    weights that no bit of the pass shows.
    """
    found = hashlib.sha256()
    for part in (runner.name, runner.precision, str(runner.max_length), _read(tokenizer)):
        found.update(part.encode("utf-8", "replace") + b"\0")
    size, count = runner.vocabulary, min(ASKED, runner.max_length - 1)
    ids = [at * size // count for at in range(count)]  # from all over the vocabulary
    try:
        with torch.inference_mode():
            (output,) = runner.forward([Work(KEY, [], TokenTree.chain(ids))])
            found.update(output.logits.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    finally:
        runner.free(KEY)
    return found.hexdigest()[:LETTERS]


def of_call(prompts: Sequence[Sequence[int]], params: SamplingParams, rule: str) -> str:
    """The name of what is asked: prompts, rule and parameters, but for the seed and what drafts."""
    named = {field.name: getattr(params, field.name) for field in fields(params)}
    for name in ("seed", "resume", "speculate", "max_draft_nodes", "prediction"):
        del named[name]
    asked = [[list(ids) for ids in prompts], named, rule]
    told = json.dumps(asked, sort_keys=True, default=_plain)
    return hashlib.sha256(told.encode()).hexdigest()[:LETTERS]


def _plain(value: Any) -> Any:
    """A mapping or a grammar, or what else JSON does not know, by its text."""
    if isinstance(value, Grammar):  # whose repr is cut
        return [value.kind, value.source]
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _read(tokenizer: Any) -> str:
    """All that makes text of tokens, "" where nothing does."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        parts = json.loads(backend.to_str())
        for name in ("padding", "truncation"):  # of the last call, not of the tokenizer
            parts.pop(name, None)
        return json.dumps(parts, sort_keys=True)
    vocabulary: Any = getattr(tokenizer, "get_vocab", dict)
    return json.dumps(sorted(map(str, vocabulary().items())))
