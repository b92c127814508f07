"""A draft that any method drafts for: what it drafts, in how many passes, and at what price."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from drafters import draft, lm_heads, target
from draftproof.drafting import stage
from draftproof.drafting.base import Drafter, Partial
from draftproof.drafting.growth import levels
from draftproof.drafting.sources import Source
from draftproof.heads.module import Heads
from draftproof.tree import TokenTree
from draftproof.writing import Writing
from laws import V, check_law, small
from method_prompts import PROMPTS, SAMPLED, plain, told, written

NAME, SOME = "llama", (0, 3)


class Silent(Drafter):
    """Guesses nothing: a pass of the draft that it drafts for writes one token."""

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return [TokenTree.chain(request.tokens[-1:]) for request in requests]


INNER: dict[str, Callable[[], Any]] = {
    "look-up": lambda: dp.NGram(min_ngram=1),
    "heads": lambda: dp.Medusa(lm_heads(NAME), nodes=6),
    "exit": lambda: dp.EarlyExit(1, 3, min_confidence=0.0),
    "lookahead": lambda: dp.Lookahead(4, 3, 3),
    "draft": lambda: dp.DraftModel(draft(NAME, 0.15), 3, min_confidence=0.0),
    "fitted draft": lambda: dp.DraftModel(draft(NAME, 0.15), tree="auto"),
    "drafts": lambda: dp.SpecInfer([draft(NAME, 0.15)], expansion=(1, 2)),
    "hybrid": lambda: dp.Hybrid([dp.NGram(min_ngram=1), INNER["heads"]()], 9),
    "three levels": lambda: dp.Staged(draft(NAME, 0.15), INNER["heads"](), 4, min_confidence=0.0),
}


def staged(inner: Any, length: int = 6) -> dp.Staged:
    return dp.Staged(draft(NAME), inner, length, min_confidence=0.0)


def of(llm: dp.LLM) -> dp.Staged:
    made = llm.engine.proposer
    assert isinstance(made, dp.Staged)
    return made


def watched(made: dp.Staged) -> list[int]:
    """Of each whole pass of the draft the nodes that it ran, over all texts together."""
    passes: list[int] = []
    forward = made.beside.runner.forward

    def counting(work: Any, taps: Any = (), layers: int = 0, **options: Any) -> Any:
        if not layers and any(each.tree is not None for each in work):
            passes.append(sum(len(each.tree) - each.first for each in work))
        return forward(work, taps, layers, **options)

    made.beside.runner.forward = counting  # type: ignore[method-assign]
    return passes


@cache
def drafts(inner: str) -> tuple[list[Any], int]:
    """What the target was given in every step, and passes of the draft."""
    made, trees = staged(INNER[inner]() if inner else Silent()), list[Any]()
    propose = made.propose

    def kept(requests: Sequence[Writing]) -> list[TokenTree]:
        found = propose(requests)
        trees.append([(tree.tokens, tree.parents) for tree in found])
        return found

    made.propose = kept  # type: ignore[method-assign]
    with dp.LLM(target(NAME), speculate=made) as llm:
        passes = watched(made)
        for number in SOME:
            (one,) = llm.generate([PROMPTS[number]], SAMPLED)
            assert one.token_ids == plain(NAME, SAMPLED)[number][0] and not one.warnings
    return trees, len(passes)


# They ask for what look-ups and drafts do not: states, first layers, best tokens.
OFTEN = ("heads", "exit", "lookahead", "three levels")


@pytest.mark.parametrize(
    "inner", [pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN)) for name in INNER]
)
def test_whatever_drafts_for_it_a_draft_writes_what_it_would_alone_in_fewer_passes(
    inner: str,
) -> None:
    alone, most = drafts("")
    trees, passes = drafts(inner)
    assert trees == alone
    assert passes < most


def heads_of(d: int) -> Heads:
    weights = torch.randn(2, 1, d, d, generator=torch.Generator().manual_seed(3))
    return Heads(0.2 * weights, vocab_size=V)


def test_a_draft_that_takes_what_is_guessed_for_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test of laws itself: guesses of heads are written unverified, with the draft's laws."""
    honest = stage.verify_rejection

    def trusting(tree: TokenTree, laws: Any, rng: torch.Generator) -> Any:
        if len(tree) == 1:
            return honest(tree, laws, rng)
        assert float(laws[0].sum()) > 0
        return [0], tree.tokens[1]

    monkeypatch.setattr(stage, "verify_rejection", trusting)
    made = dp.Staged(small(1), dp.Medusa(heads_of(16), nodes=4), 3, min_confidence=0.0)
    with pytest.raises(AssertionError):
        check_law("rejection", made, 900, max_tokens=4)


def test_it_costs_by_the_level_what_its_passes_take() -> None:
    """Told by a clock that stands still but for the draft's passes."""
    made, asked, begun = staged(INNER["draft"](), 8), list[list[int]](), list[int]()

    def goes_on(growths: Sequence[Partial]) -> list[bool]:
        asked.append([levels(growth) for growth in growths])
        begun.append(len(passes))
        return [max(asked[-1]) < 6] * len(growths)

    with dp.LLM(target(NAME), speculate=made, max_batch=2) as llm:
        requests = [one for prompt in PROMPTS[:2] for one in llm.submit(prompt, SAMPLED)]
        llm.engine.step()
        passes = watched(made)
        source = Source(made, "staged", clock=lambda: float(len(passes)))
        before = source.cost
        trees, took = source.propose(requests, goes_on, 1.0, [(0, 0), (0, 0)])
    depth = max(max(tree.depths) for tree in trees)
    assert asked[0] == [0, 0] and len(asked) == len(passes) + 1
    assert len(passes) < 6 <= depth  # several levels a pass
    first, most = max(asked[1]), 4 * before + 1e-3
    each = min(begun[1] / first, most), min((len(passes) - begun[1]) / (depth - first), most)
    known = before + (each[0] - before) / 8, each[1]  # the first time that drafts went further
    assert [source.cost, source.further] == pytest.approx(known, rel=1e-6)
    assert took == pytest.approx(source.cost + (depth - 1) * source.further)


def test_under_auto_it_is_one_source() -> None:
    made = dp.Auto(dp.NGram(min_ngram=1), staged(INNER["heads"]()))
    with dp.LLM(target(NAME), speculate=made) as llm:
        assert llm.engine.drafts.names == ["prediction", "ngram", "staged", "forced"]
        done = written(llm, SAMPLED)
        assert told(done) == plain(NAME, SAMPLED)
        assert any(one.stats.decisions.share("staged").offered for one in done)


@pytest.mark.parametrize("inner", ["silent", "draft"])
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_where_no_token_of_the_draft_may_stand_its_draft_ends(rule: str, inner: str) -> None:
    """As of a draft alone, and no fault of it."""
    small, own = tiny.model(vocab_size=97), {"silent": Silent, "draft": None}[inner]
    of_draft = own() if own else dp.DraftModel(tiny.model(vocab_size=97), 2, min_confidence=0.0)

    def rows(ids: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """Each third token is one that the draft has no row for."""
        kept = torch.full_like(row, -torch.inf)
        allowed = slice(98, 99) if len(ids) % 3 == 0 else slice(0, 97)
        kept[allowed] = row[allowed]
        return kept

    made = dp.Staged(small, of_draft, 4, min_confidence=0.0)
    with dp.LLM(tiny.model(vocab_size=100), speculate=made, rule=rule) as llm:
        params = dp.SamplingParams(temperature=0.9, max_tokens=12, seed=1, ignore_eos=True)
        (request,) = llm.submit([5, 6, 7, 8], params)
        request.history.process = rows
        while not request.finished:
            llm.engine.step()
    assert len(request.output) == 12 and request.stats.drafted > 0
    (warning,) = request.warnings
    assert "drafts no further: it has no row for token id 98" in warning


class Remembering(Silent):
    """Keeps what it is released with."""

    def __init__(self) -> None:
        self.kept: list[list[int]] = []

    def release(self, request: Writing) -> None:
        self.kept.append(request.output)


def test_a_drafter_is_released_with_the_text_that_was_written() -> None:
    """Not with what the draft wrote last, of which the target took a part."""
    made = Remembering()
    with dp.LLM(target(NAME), speculate=staged(made)) as llm:
        outputs = [done.token_ids for done in llm.generate(PROMPTS, SAMPLED)]
        stream = llm.stream(PROMPTS[1], SAMPLED)
        begun = [token for _ in range(3) for token in next(stream).token_ids]
        stream.close()
    assert sorted(made.kept[:-1]) == sorted(outputs)
    assert made.kept[-1][: len(begun)] == begun and made.kept[-1] in [
        output[: len(made.kept[-1])] for output in outputs
    ]


class Observer(Silent):
    name = "an observer"
    observes, taps = True, (-1,)


def test_what_cannot_draft_for_a_draft() -> None:
    with pytest.raises(ValueError, match="a draft does not show an observer prompts: use another"):
        staged(Observer())
    with pytest.raises(ValueError, match="auto decides for a model, not for its draft"):
        dp.LLM(target(NAME), speculate=staged(dp.Auto(dp.NGram())))
    other = Heads(torch.zeros(1, 1, 32, 32), vocab_size=97)
    with pytest.raises(ValueError, match="use heads of this target"):
        dp.LLM(target(NAME), speculate=staged(dp.Medusa(other)))


def test_ngrams_of_a_text_that_was_rolled_back_are_read_again() -> None:
    made = dp.Lookahead(2, 3, 3)
    request = Writing(0, [1, 2, 3, 4], SAMPLED, seed=0, rule=dp.LLM(target(NAME)).engine.rule)
    shadow = request.shadow()
    shadow.tokens += [5, 6]
    shadow.history.append([5, 6])
    made.propose([shadow])
    request.tokens += [7, 8, 9]
    shadow.follow(request)
    made.propose([shadow])
    pool = made._states[shadow].pool
    assert (7, 8) in pool[4] and (8, 9) in pool[7] and (5, 6) in pool[4]


def test_taps_of_what_drafts_for_a_draft_are_those_of_the_draft() -> None:
    inner = Silent()
    inner.taps = (24,)
    with pytest.raises(ValueError, match="holds 24: of this model they are 0"):
        dp.LLM(target(NAME), speculate=dp.Staged(draft(NAME), inner))
