"""A draft model with another tokenizer: what it shares with the target is text.

Greedily, the target's tokenizer encodes what it wrote (transformers' universal assisted decoding);
under sampling, strings that are one token to both race its noise (Timor et al. 2025, 2502.05202).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftproof import sampling
from draftproof.proposers.beside import SLICE
from draftproof.proposers.growing import Growing, Growth
from draftproof.proposers.script import BROKEN, Script
from draftproof.request import Request
from draftproof.runners.base import Output, Target, Work, begin
from draftproof.tree import TokenTree


class ForeignDraft(Growing):
    """Drafts with a model of another vocabulary: hub id, folder or loaded; see `DraftModel`.

    Tokenizers: transformers' own, or alike. lookbehind: the target's last tokens, which are encoded
    anew in every step, as what follows may change that, and which a text is encoded behind.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any,
        target_tokenizer: Any,
        num_draft_tokens: int = 5,
        lookbehind: int = 4,
        min_confidence: float = 0.1,
    ) -> None:
        super().__init__(num_draft_tokens, min_confidence, branch=1)
        if lookbehind < 1 or tokenizer is None or target_tokenizer is None:
            raise ValueError("both tokenizers are needed, and a lookbehind of 1 or more")
        self.own = Script(tokenizer, target_tokenizer.get_vocab())
        self.other = Script(target_tokenizer, tokenizer.get_vocab())
        self.bos: Any = tokenizer.bos_token_id
        self.model, self.lookbehind, self.written, self.survived = model, lookbehind, 0, 0

    @property
    def survival(self) -> float:
        """The share of the tokens drafted whose text could be proposed; 1 before the first."""
        return self.survived / self.written if self.written else 1.0

    def bind(self, target: Target) -> None:
        self.runner, self.size = target.load(self.model), target.vocabulary
        self._places: dict[int, tuple[list[int], int, list[int]]] = {}  # settled, read, tail
        shared = {self.other.piece(i): i for i in range(self.size)}
        own = reversed(range(self.runner.vocabulary))  # "e" comes late, the byte of an e early
        self.ids = {shared.pop(self.own.piece(i), self.size + i): i for i in own}
        self.tips = torch.tensor([*reversed(self.ids)], device=self.runner.device)
        self.vocabulary = self.size + len(self.ids)

    def release(self, request: Request) -> None:
        self.runner.free(request.key)
        self._places.pop(request.key, None)

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        self.grow(grown := [self._start(request) for request in requests])
        return [TokenTree.chain([g.tips[0], *self._proposed(g)]) for g in grown]

    def _start(self, request: Request) -> Growth:
        """Settle the text up to where both tokenizers end a token; the rest is the tail."""
        tokens, back, own, runner = request.tokens, self.lookbehind, self.own, self.runner
        settled, read, _ = self._places.get(key := request.key, ([], 0, []))
        before, after = tokens[max(0, read - back) : read], tokens[read:]
        known, text = self.other.text(before), self.other.text(after, before)
        part, end = self.other.text(after[:-back], before), max(0, len(after) - back)
        ids, head = (own.ids(t, known) or own.ids(t, "\n") or own.encode(t) for t in (text, part))
        ready = not text.endswith(BROKEN) and max(ids, default=0) < runner.vocabulary
        if not ready or part.endswith(BROKEN) or head != ids[: len(head)]:  # a token spans it
            end, head = (len(after), ids) if ready and len(after) > 4 * back else (0, [])
        settled = (settled or [self.bos] * (self.bos not in (None, *ids[:1]))) + head
        if key not in self._places:
            begin(runner, key, settled)
        self._places[key] = settled, read + end, (tail := [*settled[-1:], *ids[len(head) :]])
        room = min(self.num_draft_tokens, request.room - 1, runner.max_length - len(settled + tail))
        while ready and room > 0 and len(settled) - (at := runner.cached(key)) > SLICE:
            runner.forward([Work(key, settled[at : at + SLICE], None)])
        return Growth(request, room if ready and tail else 0, tokens[-1:])

    def run(self, growing: Sequence[Growth]) -> list[Output]:
        """See `Growing`; a tip is the target's id, or the draft's that shares no string, plus V."""
        work, outputs = [], []
        for growth in growing:
            settled, _, tail = self._places[key := growth.request.key]
            tree = TokenTree.chain(tail + [self.ids.get(tip, 0) for tip in growth.tips[1:]])
            new, ran = settled[self.runner.cached(key) : -1], len(tree) - 1 if growth.ran else 0
            work.append(Work(key, new, tree, ran))
        for growth, output in zip(growing, self.runner.forward(work), strict=True):
            row = output.logits.new_full((self.vocabulary,), float("-inf"))
            kept = row.scatter_(0, self.tips, output.logits[-1])  # indexing takes 100 times as long
            request = growth.request
            if request.params.temperature > 0 and request.rule == "coupled":
                kept = row[: self.size]
                growth.chance *= float(row.softmax(0)[: self.size].sum())
            elif request.params.temperature > 0:  # greedily, which under this rule has to be said
                best = sampling.adjust(row, request.params, request.history, growth.tips[1:])
                kept = row.masked_fill(best < best.max(), float("-inf"))
                growth.chance *= float(row.softmax(0).max())
            outputs.append(Output(kept[None]))
        return outputs

    def _proposed(self, growth: Growth) -> list[int]:
        """The target's ids, without laws; the last may be half a word, which costs only a row."""
        request, ids = growth.request, growth.tips[1:]
        wrote, behind = [self.ids.get(i, 0) for i in ids], self._places[request.key][2]
        text = kept = self.own.text(wrote, behind)
        if request.params.temperature == 0 or request.rule != "coupled":
            kept, known = text.partition(BROKEN)[0], request.tokens[-self.lookbehind :]
            ids = self.other.ids(kept, self.other.text(known)) or []
        ids = ids if max(ids, default=0) < self.size else []
        whole = len(wrote) if ids else 0
        while kept != text and whole and len(self.own.text(wrote[:whole], behind)) > len(kept):
            whole -= 1
        self.written, self.survived = self.written + len(wrote), self.survived + whole
        return ids
