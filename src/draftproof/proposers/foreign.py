"""A draft model with another tokenizer: what it shares with the target is text.

Greedily, the target's tokenizer encodes what it wrote (transformers' universal assisted decoding);
under sampling, strings that are one token to both race its noise (Timor et al. 2025, 2502.05202).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftproof import sampling
from draftproof.drafting.growing import Growing, grow, stop
from draftproof.drafting.growth import Growth
from draftproof.drafting.script import BROKEN, Script
from draftproof.drafting.translated import Translated
from draftproof.runners.base import Load, Output, Target, Work
from draftproof.tree import TokenTree, merge
from draftproof.writing import Children, Writing


class ForeignDraft(Growing):
    """Drafts with a model of another vocabulary: hub id, folder or loaded; see `DraftModel`.

    Tokenizers: transformers' own, or alike. lookbehind: the target's last tokens, which are encoded
    anew in every step, as what follows may change that, and which a text is encoded behind.
    """

    name = "foreign"
    drafting_cost = 1.0

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any,
        target_tokenizer: Any,
        num_draft_tokens: int = 5,
        lookbehind: int = 4,
        min_confidence: float = 0.1,
        branch: int = 2,
    ) -> None:
        super().__init__(num_draft_tokens, min_confidence, branch, usual=5)
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

    def bind(self, target: Target, load: Load) -> None:
        if target.encodes:
            raise ValueError("an encoder-decoder takes only drafts with its own tokenizer: use one")
        self.runner, self.size = load(target, self.model), target.vocabulary
        self.beside = Translated(self.runner, self.own, self.other, self.bos, self.lookbehind)
        shared = {self.other.piece(i): i for i in range(self.size)}
        own = reversed(range(self.runner.vocabulary))  # "e" comes late, the byte of an e early
        self.ids = {shared.pop(self.own.piece(i), self.size + i): i for i in own}
        self.tips = torch.tensor([*reversed(self.ids)], device=self.runner.device)
        self.vocabulary = self.size + len(self.ids)

    def read_along(self, requests: Sequence[Writing]) -> None:
        self.beside.catch_up(requests, ahead=True)

    def release(self, request: Writing) -> None:
        self.beside.release(request)

    def close(self) -> None:
        self.beside.close()

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        ready = self.beside.catch_up(requests)
        growths = [self._start(request, request.key in ready) for request in requests]
        grow(growths, self._run, self.draw)
        return [self._drafted(growth) for growth in growths]

    def _start(self, request: Writing, ready: bool) -> Growth:
        room = 0
        if ready and (text := self.beside.texts[request.key]).ready and text.tail:
            places = self.runner.max_length - len(text.settled) - len(text.tail)
            room = min(request.room - 1, places)
        return Growth(request, self.chain, room)

    def _run(self, growing: Sequence[Growth]) -> list[Output]:
        """A node is the target's id, or the draft's that shares no string, plus V."""
        work = []
        for growth in growing:
            text = self.beside.texts[key := growth.request.key]
            tips = growth.run_tree().tokens[1:]
            tree = TokenTree.chain(text.tail + [self.ids.get(tip, 0) for tip in tips])
            new = text.settled[self.runner.cached(key) : -1]
            ran = len(tree) - 1 if growth.ran else 0
            work.append(Work(key, new, tree, ran))
        return self.runner.forward(work)

    def draw(self, growth: Growth, path: Sequence[int], row: Tensor, count: int) -> Children:
        """See `Growing`: over the target's ids, and behind them the draft's that share none."""
        request, part = growth.request, 1.0  # of the mass: what can be proposed at all
        every = row.new_full((self.vocabulary,), -torch.inf)
        row = every.scatter_(0, self.tips, row)  # indexing takes 100 times as long
        if sampled := request.params.temperature > 0 and request.races:
            part = float(row.softmax(0)[: self.size].sum())
        if sampled or request.history.ruled:  # which knows the target's ids alone
            row = row[: self.size]
        if not request.races:
            # Greedily and alone, which under this rule has to be said.
            try:
                best = sampling.allowed(row, request.params, request.history, path)
            except sampling.NoCandidate:  # the grammar allows no string that both have
                return [], [], []
            row = row.masked_fill(best < best.max(), -torch.inf)
            part *= float(row.softmax(0).max())
        ids, shares, laws = request.rule.children(request, path, row, count, len(row))
        return ids, [share * part for share in shares], laws

    def _drafted(self, growth: Growth) -> TokenTree:
        """What each branch says in the target's ids, the longest first, without laws."""
        drafted, chains = TokenTree(growth.tokens, growth.parents), [growth.tokens[:1]]
        leaves = [i for i in range(1, len(drafted)) if not drafted.children(i)]
        try:
            for leaf in sorted(leaves, key=lambda i: -drafted.depths[i]):
                ids = self._proposed(growth, drafted.path_tokens(leaf), first=len(chains) == 1)
                chains.append([growth.tokens[0], *ids])
        except Exception as error:  # of a tokenizer, which is foreign code
            stop(growth, error)
        return merge([TokenTree.chain(chain) for chain in chains])

    def _proposed(self, growth: Growth, ids: list[int], first: bool) -> list[int]:
        """The target's ids; the last may be half a word, which costs only a row."""
        request = growth.request
        wrote, behind = [self.ids.get(i, 0) for i in ids], self.beside.texts[request.key].tail
        text = kept = self.own.text(wrote, behind)
        if request.params.temperature == 0 or not request.races:
            kept, known = text.partition(BROKEN)[0], request.tokens[-self.lookbehind :]
            ids = self.other.ids(kept, self.other.text(known)) or []
        ids, whole = (ids, len(wrote)) if ids and max(ids) < self.size else ([], 0)
        while kept != text and whole and len(self.own.text(wrote[:whole], behind)) > len(kept):
            whole -= 1
        if first:  # siblings were never expected to be right
            self.written, self.survived = self.written + len(wrote), self.survived + whole
        return ids
