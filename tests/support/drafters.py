"""Every method over random models, and what its counters must say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from draftproof import native
from draftproof.heads.module import Heads
from draftproof.request import Request
from draftproof.runners.costs import PassCosts
from draftproof.tree import TokenTree

NATIVE = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")


@cache
def target(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    untied = {"tie_word_embeddings": False} if name == "gemma3" else {}  # else it repeats itself
    return tiny.model(name, dtype=dtype, layers=2, max_position_embeddings=600, **untied)


@cache
def draft(name: str, share: float = 0.1, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return tiny.relative(target(name, dtype), share)


@cache
def exit_head(name: str) -> Heads:
    width = target(name).config.hidden_size
    weights = torch.randn(1, 2, width, width, generator=torch.Generator().manual_seed(0))
    return Heads(0.02 * weights, vocab_size=tiny.VOCABULARY, exit=1)


@cache
def lm_heads(name: str) -> Heads:
    """Each says nearly what the LM head says, which is right where the text repeats a token."""
    width = target(name).config.hidden_size
    weights = torch.randn(3, 1, width, width, generator=torch.Generator().manual_seed(1))
    return Heads(0.02 * weights, vocab_size=tiny.VOCABULARY)


class Eager(dp.Auto):
    """Drafts wherever it may: by its books neither time nor rows cost anything.

    Passes of these models take less than drafting for them does.
    """

    def __init__(self, *sources: Any) -> None:
        super().__init__(*sources, clock=lambda: 0.0)

    def bind(self, target: Any, load: Any) -> None:
        super().bind(target, load)
        self.control.costs = PassCosts(knee=1e9)
        self.control.costs.observe(1, 0, 0.01)
        self.control.rests.bother.each = 0.0


METHODS: dict[str, Callable[..., Any]] = {
    "ngram": lambda name, **_: dp.NGram(min_ngram=1),
    "suffix": lambda name, **_: dp.SuffixAutomaton(min_match=1),
    "lookahead": lambda name, **_: dp.Lookahead(4, 3, 3),
    "early exit": lambda name, **_: dp.EarlyExit(1, 4, min_confidence=0.0),
    "exit head": lambda name, **_: dp.EarlyExit(
        num_draft_tokens=4, min_confidence=0.0, heads=exit_head(name)
    ),
    "draft": lambda name, **o: dp.DraftModel(draft(name, **o), 5, min_confidence=0.0),
    "shaped draft": lambda name, **o: dp.DraftModel(
        draft(name, **o), tree=[(0,), (1,), (2,), (0, 0), (1, 0), (1, 1), (1, 1, 0)]
    ),
    "fitted draft": lambda name, **o: dp.DraftModel(draft(name, **o), tree="auto"),
    "specinfer": lambda name, **o: dp.SpecInfer(
        [draft(name, **o), draft(name, 0.2, **o)], expansion=(1, 3, 1, 1)
    ),
    "staged": lambda name, **o: dp.Staged(
        draft(name, **o), dp.NGram(min_ngram=1), 6, min_confidence=0.0
    ),
    "staged twice": lambda name, **o: dp.Staged(
        draft(name, **o),
        dp.Staged(draft(name, 0.15, **o), dp.Medusa(lm_heads(name), nodes=6), 4),
        6,
        min_confidence=0.0,
    ),
    "hybrid": lambda name, **o: dp.Hybrid(
        [dp.NGram(min_ngram=1), dp.Lookahead(3, 3, 3), dp.DraftModel(draft(name, **o), 4)], 9
    ),
    "medusa": lambda name, **_: dp.Medusa(lm_heads(name), nodes=12),
    "auto": lambda name, **o: Eager(
        dp.NGram(min_ngram=1),
        dp.DraftModel(draft(name, **o), min_confidence=0.0),
        dp.Medusa(lm_heads(name), nodes=12),
    ),
}


def check_counters(
    monkeypatch: pytest.MonkeyPatch,
    llm: dp.LLM,
    prompts: Sequence[Any],
    params: Sequence[dp.SamplingParams],
) -> None:
    """That the stats of requests are what can be counted in what each step verified and wrote."""
    traces: dict[int, list[Any]] = {}
    honest = Request.commit

    def watched(self: Request, tree: TokenTree, path: Any, written: int) -> None:
        tokens = self.tokens[len(self.tokens) - written :]
        traces.setdefault(self.key, []).append((tree, list(path), tokens))
        honest(self, tree, path, written)

    monkeypatch.setattr(Request, "commit", watched)
    requests = [one for each in params for ids in prompts for one in llm.submit(ids, each)]
    while not all(request.finished for request in requests):
        llm.engine.step()
    assert sum(request.stats.accepted for request in requests) > 0
    for request in requests:
        offered, accepted = Counter[int](), Counter[int]()
        drafting = drafted = 0
        for tree, path, written in traces[request.key]:
            drafting += len(tree) > 1
            drafted += len(tree) - 1
            for depth in range(len(written)):  # token `depth` was decided at path[depth]
                offered[depth] += bool(tree.children(path[depth]))
                accepted[depth] += depth + 1 < len(path)
        stats = request.stats
        steps = traces[request.key]
        assert (stats.steps, stats.drafting_steps, stats.drafted) == (len(steps), drafting, drafted)
        assert stats.tokens == len(request.output) == sum(len(written) for *_, written in steps)
        assert stats.accepted == accepted.total() == sum(request.from_draft)
        for counts, said in (
            (offered, stats.offered_per_position),
            (accepted, stats.accepted_per_position),
        ):
            assert [counts[depth] for depth in range(len(said))] == said
            assert counts.total() == sum(said)
