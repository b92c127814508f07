"""The law of every method that draws, and of typical acceptance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

import draftproof as dp
import oracles
from drafters import METHODS, check_counters, target
from draftproof.drafting import growth
from draftproof.drafting.fixed import Fixed
from draftproof.heads.module import Heads
from draftproof.proposers import specinfer
from draftproof.tree import TokenTree
from draftproof.verify import verify_typical
from laws import RUNS, WARPED, V, check_law, small
from method_prompts import GREEDY, PROMPTS, SAMPLED, plain, texts

# --- laws under the rejection rule ---


def heads() -> Heads:
    weights = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(3))
    return Heads(0.2 * weights, vocab_size=V)


DRAWN = {
    "early exit": lambda: dp.EarlyExit(1, 3, min_confidence=0.0),
    "early exit, in doubt": lambda: dp.EarlyExit(1, 3, min_confidence=0.3, branch=1),
    "fitted": lambda: dp.DraftModel(small(1), tree="auto"),
    "specinfer": lambda: dp.SpecInfer([small(1), small(2)], expansion=(2, 1)),
    "specinfer, each": lambda: dp.SpecInfer([small(1), small(2)], expansion=[(1, 2), (3,)]),
    "shaped": lambda: dp.DraftModel(small(1), tree=[(0,), (1,), (0, 0), (1, 0), (1, 1)]),
    "staged": lambda: dp.Staged(small(1), dp.NGram(min_ngram=1), 3, min_confidence=0.0),
    "staged, a draft's laws": lambda: dp.Staged(
        small(1), dp.DraftModel(small(2), 2, min_confidence=0.0), 3, min_confidence=0.0
    ),
    "staged, in doubt": lambda: dp.Staged(
        small(1), dp.DraftModel(small(2), 2, branch=1), 3, min_confidence=0.4
    ),
    "staged, heads": lambda: dp.Staged(
        small(1), dp.Medusa(heads(), nodes=4), 3, min_confidence=0.0
    ),
    "staged, three levels": lambda: dp.Staged(
        small(1), dp.Staged(small(2), dp.Medusa(heads(), nodes=4), 2), 3, min_confidence=0.0
    ),
    "staged, lookahead": lambda: dp.Staged(small(1), dp.Lookahead(3, 3, 3), 3, min_confidence=0.0),
    "staged, its exit": lambda: dp.Staged(
        small(1, layers=2), dp.EarlyExit(1, 2, min_confidence=0.0), 3, min_confidence=0.0
    ),
    "hybrid": lambda: dp.Hybrid(
        [dp.SuffixAutomaton(min_match=1), dp.DraftModel(small(1), 3, branch=3)], 4
    ),
    "lookahead": lambda: dp.Lookahead(3, 3, 3),
    "auto, copied": lambda: dp.Auto(dp.NGram(min_ngram=1)),
    "auto, drawn": lambda: dp.Auto(dp.DraftModel(small(1), 3, min_confidence=0.0)),
}


def of(method: str) -> PreTrainedModel:
    return small(0, layers=2) if "exit" in method else small(0)


# To another one of these.
ALIKE = ("early exit, in doubt", "specinfer, each", "staged, in doubt")
ALIKE += ("staged, heads", "staged, lookahead", "staged, its exit", "fitted", "auto, copied")
BOTH = ("ngram", "draft", "hybrid")  # methods that both rules are followed of; the others by one


@pytest.mark.parametrize("method", [method for method in DRAWN if method not in ALIKE])
def test_laws(method: str) -> None:
    check_law("rejection", DRAWN[method](), RUNS, max_tokens=4, target=of(method))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, WARPED], ids=["plain", "warped"])
@pytest.mark.parametrize("method", DRAWN)
def test_laws_at_length(method: str, options: dict[str, Any]) -> None:
    made = DRAWN[method]()
    check_law("rejection", made, 12000, max_tokens=5, length=4, target=of(method), **options)


def test_a_controller_that_looks_at_what_was_drawn_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same test, with a defect that tempts: drafts are run only where they seem good."""
    cut = Fixed._cut

    def choosy(self: Fixed, text: Any, *given: Any) -> TokenTree:
        tree: TokenTree = cut(self, text, *given)
        return tree.truncate(0) if len(tree) > 1 and tree.tokens[1] < V // 2 else tree

    monkeypatch.setattr(Fixed, "_cut", choosy)
    with pytest.raises(AssertionError):
        check_law("rejection", DRAWN["auto, drawn"](), RUNS, max_tokens=4)


@pytest.mark.parametrize("method", ["specinfer", "staged, a draft's laws"])
def test_a_false_law_is_found(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of laws itself: a draft that tells a flatter law than it drew from."""
    whole = growth.stacked

    def flat(laws: Sequence[Tensor]) -> Tensor | None:
        return whole([law.sqrt() / law.sqrt().sum() for law in laws])

    for module in (growth, specinfer):
        monkeypatch.setattr(module, "stacked", flat)
    with pytest.raises(AssertionError):
        check_law("rejection", DRAWN[method](), RUNS, max_tokens=4)


# --- typical acceptance ---


@given(oracles.trees(vocabulary=3), st.data())
def test_typical_acceptance_is_that_of_the_paper(tree: TokenTree, data: st.DataObject) -> None:
    rows = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3)
    p = torch.tensor([data.draw(rows) for _ in range(len(tree))], dtype=torch.float64)
    p /= p.sum(-1, keepdim=True)
    rule = dp.Typical(data.draw(st.floats(0.05, 0.9)), data.draw(st.floats(0.05, 2.0)))
    paths = []
    for node in range(len(tree)):  # every candidate whose tokens all are typical
        path = tree.path(node)
        typical, likelihood = True, 0.0
        for parent, child in itertools.pairwise(path):
            law, share = p[parent], float(p[parent, tree.tokens[child]])
            entropy = -sum(float(x) * math.log(float(x)) for x in law)
            typical &= share > min(rule.epsilon, rule.delta * math.exp(-entropy))
            likelihood += math.log(share)
        if typical:
            paths.append((len(path), likelihood, path))
    path, bonus = verify_typical(tree, p, rule)
    best = max(paths)
    assert (len(path), pytest.approx(best[1])) == (
        best[0],
        sum(math.log(float(p[a, tree.tokens[b]])) for a, b in itertools.pairwise(path)),
    )
    assert bonus == int(p[path[-1]].argmax())


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        pytest.param(
            method, rule, marks=[pytest.mark.slow] * (rule == "coupled" and method not in BOTH)
        )
        for method in METHODS
        for rule in ("coupled", "rejection")
    ],
)
def test_counters_are_those_of_the_trace(
    method: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [GREEDY, replace(SAMPLED, temperature=0.4, stop_token_ids=(30, 31, 32), seed=9)]
    some = [replace(each, max_tokens=20) for each in some]
    with dp.LLM(target("llama"), speculate=METHODS[method]("llama"), rule=rule) as llm:
        check_counters(monkeypatch, llm, PROMPTS, some)


def test_typical_acceptance_is_lossy_and_says_so() -> None:
    made = METHODS["draft"]("llama")
    with dp.LLM(target("llama"), speculate=made, rule=dp.Typical(0.01, 0.1)) as llm:
        assert texts(llm, GREEDY) == plain("llama", GREEDY)  # greedy stays greedy
        (lossy,) = llm.generate([PROMPTS[0]], replace(SAMPLED, temperature=2.0))
        assert lossy.stats.lossy and lossy.stats.accepted
    with dp.LLM(target("llama"), speculate=made) as llm:
        (exact,) = llm.generate([PROMPTS[0]], replace(SAMPLED, temperature=2.0))
        assert not exact.stats.lossy and exact.stats.accepted < lossy.stats.accepted
    for wrong in ({"epsilon": 0.0}, {"epsilon": 1.5}, {"delta": 0.0}, {"delta": math.inf}):
        with pytest.raises(ValueError, match="must be a number in"):
            dp.Typical(**wrong)
