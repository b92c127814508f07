"""A draft that writes what it is told, to look at the books of a foreign draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from draftproof.proposers.foreign import ForeignDraft
from draftproof.request import Request
from draftproof.runners.base import Output, Work
from draftproof.tree import TokenTree
from foreign_pairs import bytewise, params


class Scribe:
    """A draft's runner that knows what text comes: `says(ids so far)` is the next id.

    Keeps what is committed and what is scratch, and refuses what a runner would.
    """

    device, max_length = torch.device("cpu"), 1 << 20

    def __init__(
        self,
        vocabulary: int,
        says: Callable[[list[int]], int],
        sure: float = 9.0,
        rival: int | None = None,  # what always comes second
    ) -> None:
        self.vocabulary, self.says, self.sure, self.rival = vocabulary, says, sure, rival
        self.committed: dict[int, list[int]] = {}
        self.scratch: dict[int, list[int]] = {}
        self.contexts: list[list[int]] = []
        self.passes: list[list[int]] = []
        self.rows: list[int] = []

    def cached(self, key: int) -> int:
        return len(self.committed.get(key, ()))

    def free(self, key: int) -> None:
        self.committed.pop(key, None)

    def forward(self, work: Sequence[Work], taps: Any = ()) -> list[Output]:
        self.passes.append([item.key for item in work])
        outputs = []
        for item in work:
            self.committed.setdefault(item.key, []).extend(item.new)
            if item.tree is None:
                outputs.append(Output(torch.empty(0, self.vocabulary)))
                continue
            tokens = list(item.tree.tokens)
            if item.first:
                assert not item.new and self.scratch[item.key] == tokens[: item.first]
            self.scratch[item.key] = tokens
            context = self.committed[item.key] + tokens
            assert all(0 <= i < self.vocabulary for i in context)
            self.contexts.append(context)
            self.rows.append(len(tokens) - item.first)
            logits = torch.zeros(self.rows[-1], self.vocabulary)
            if self.rival is not None:
                logits[-1, self.rival] = self.sure / 2
            logits[-1, self.says(context)] = self.sure
            outputs.append(Output(logits))
        return outputs


def bound(scribe: Scribe, tokenizer: Any, vocabulary: int = 259, **options: Any) -> ForeignDraft:
    made = ForeignDraft(
        scribe,
        tokenizer=tokenizer,
        target_tokenizer=bytewise(),
        **{"min_confidence": 0.0, "branch": 1, **options},
    )
    target = SimpleNamespace(encodes=False, vocabulary=vocabulary)
    made.bind(target, lambda target, model: model)  # type: ignore[arg-type]
    return made


def request(text: str | Sequence[int], key: int = 0, **options: Any) -> Request:
    ids = bytewise().encode(text, add_special_tokens=False) if isinstance(text, str) else text
    rule = options.pop("rule", "coupled")
    return Request(key, ids, params(**{"max_tokens": 500, **options}), seed=1, rule=rule)


def follows(tokenizer: Any, text: str) -> Callable[[list[int]], int]:
    """Says the tokens of `text`, whatever came before."""
    ids = tokenizer.encode(text, add_special_tokens=False)

    def says(context: list[int]) -> int:
        for size in range(min(len(ids) - 1, len(context)), 0, -1):
            if context[-size:] == ids[:size]:
                return int(ids[size])
        return int(ids[0])

    return says


def drafted(tree: TokenTree) -> str:
    return str(bytewise().decode(list(tree.tokens[1:])))
