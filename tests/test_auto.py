"""The default: sources that misbehave, what a request may ask for, and what it tells."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import draftproof as dp
from drafters import Eager
from draftproof.drafting.base import Drafter
from draftproof.tree import TokenTree
from draftproof.writing import Writing
from facade import llm as made
from facade import model, params

PROMPTS = ["def f(x):\n    return x\n", "import os\nimport os\n", "a = 1\nb = 2\na = 1\n"]


@pytest.fixture(scope="module")
def plain() -> Iterator[dp.LLM]:
    with made() as llm:
        yield llm


def tokens(llm: dp.LLM, **options: Any) -> list[list[int]]:
    return [done.token_ids for done in llm.generate(PROMPTS, params(max_tokens=40, **options))]


class Wrong(Drafter):
    """Offers what nothing can be made of. how: in which way."""

    name = "wrong"

    def __init__(self, how: str) -> None:
        self.how = how

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        if self.how == "raises":
            raise RuntimeError("lost\nits mind")
        if self.how == "nothing":
            return []
        roots = [request.tokens[-1] for request in requests]
        if self.how == "another root":
            return [TokenTree.chain([root + 1, 5]) for root in roots]
        if self.how == "no numbers":
            return [TokenTree.chain([root, 5], scores=[1.0, math.nan]) for root in roots]
        if self.how == "other laws":
            laws = torch.full((2, 5), 0.2)
            return [TokenTree.chain([root, 5], laws) for root in roots]
        if self.how == "wide":
            return [TokenTree([root] + [5] * 3000, [-1] + [0] * 3000) for root in roots]
        if self.how == "outside":
            return [TokenTree.chain([root, 10**6]) for root in roots]
        return [TokenTree.chain([root, *[5] * 3000]) for root in roots]  # long


@pytest.mark.parametrize(
    "how",
    ["raises", "nothing", "another root", "no numbers", "other laws", "outside", "long", "wide"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_source_that_misbehaves_is_left_out(plain: dp.LLM, how: str, temperature: float) -> None:
    auto = Eager(Wrong(how), dp.NGram(min_ngram=1))
    with made(speculate=auto) as llm:
        done = llm.generate(PROMPTS, params(max_tokens=40, temperature=temperature))
        assert [one.token_ids for one in done] == tokens(plain, temperature=temperature)
        for one in done:
            warned = [text for text in one.warnings if "wrong" in text]
            assert len(warned) == 1, one.warnings
            assert one.stats.decisions.share("wrong").failed > 0
            assert max(nodes for nodes, _ in one.stats.by_step) <= 256 + 24
            assert all("\n" not in text for text in warned)
        assert sum(one.stats.decisions.share("ngram").offered for one in done) > 0  # goes on


class Falling(Drafter):
    """Drafts nothing, and a hook of it fails. hook: which."""

    name, taps, observes = "falling", (-1,), True

    def __init__(self, hook: str) -> None:
        def fails(*given: Any) -> None:
            raise RuntimeError("it fell")

        setattr(self, hook, fails)

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return [TokenTree.chain(request.tokens[-1:]) for request in requests]


@pytest.mark.parametrize("hook", ["observe", "read_along", "release"])
def test_a_hook_that_fails_takes_no_other_source_along(plain: dp.LLM, hook: str) -> None:
    last = dp.NGram(min_ngram=1)
    released: list[int] = []
    last.release = lambda request: released.append(request.key)
    with made(speculate=Eager(Falling(hook), last)) as llm:
        llm.engine.scheduler.prompt_budget = 8  # a prompt is read in slices
        done = llm.generate(PROMPTS, params(max_tokens=40, temperature=0.0))
        assert [one.token_ids for one in done] == tokens(plain, temperature=0.0)
        for one in done:
            assert len(one.warnings) == 1 and "falling" in one.warnings[0]
            assert one.stats.decisions.share("ngram").used > 0
    assert len(released) == len(PROMPTS)


class Stopping(Falling):
    """Says of every text that it drafts no further, and cannot let go of it either."""

    name, taps, observes = "stopping", (), False

    def __init__(self) -> None:
        super().__init__("release")

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        for request in requests:
            request.stop_drafting(RuntimeError("it is tired"))
        return super().propose(requests)


def test_a_source_that_stops_by_itself_takes_no_other_source_along(plain: dp.LLM) -> None:
    with made(speculate=Eager(Stopping(), dp.NGram(min_ngram=1))) as llm:
        done = llm.generate(PROMPTS, params(max_tokens=40))
        assert [one.token_ids for one in done] == tokens(plain)
        for one in done:
            assert "it is tired" in one.warnings[0] and "stopping failed" in one.warnings[1]
            assert one.stats.decisions.share("ngram").used > 0


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_request_may_say_what_drafts_for_it(rule: str) -> None:
    auto = Eager(dp.NGram(min_ngram=1), dp.SuffixAutomaton(min_match=1))
    with made(speculate=auto, rule=rule) as llm:
        off, only, bounded = (
            llm.generate(PROMPTS[2], params(max_tokens=40, temperature=0.0, **options))[0]
            for options in (
                {"speculate": False},
                {"speculate": "ngram"},
                {"max_draft_nodes": 1},
            )
        )
        assert off.stats.drafted == 0 and {*off.stats.decisions.plain_steps} <= {"off"}
        assert only.stats.drafted > 0 and {*only.stats.decisions.sources} == {"ngram"}
        assert 0 < bounded.stats.drafted <= bounded.stats.drafting_steps
        assert off.token_ids == only.token_ids == bounded.token_ids
        there = "prediction or ngram or suffix or forced"
        with pytest.raises(ValueError, match=f"'draft', but here drafts {there}"):
            llm.generate("x", params(speculate="draft"))


def test_a_fixed_method_can_be_turned_off_too() -> None:
    with made(speculate="ngram") as llm:
        (done,) = llm.generate(PROMPTS[2], params(temperature=0.0, speculate=False))
        assert done.stats.drafted == 0
        with pytest.raises(ValueError, match="here drafts ngram"):
            llm.generate("x", params(speculate="suffix"))
    with made() as llm, pytest.raises(ValueError, match="here drafts nothing"):
        llm.generate("x", params(speculate="ngram"))


def test_it_can_be_changed_between_two_steps(plain: dp.LLM) -> None:
    with made(speculate=Eager(dp.DraftModel(model()))) as llm:
        (request,) = llm.submit(PROMPTS[2], params(max_tokens=60, temperature=0.0))
        drafted = []
        while not request.finished:
            request.speculate = len(request.output) % 20 < 10
            before = request.stats.drafted
            llm.engine.step()
            drafted.append((request.speculate, request.stats.drafted > before))
        assert (False, True) not in drafted and (True, True) in drafted
    assert request.output == plain.generate(PROMPTS[2], request.params)[0].token_ids


def test_a_bound_may_change_between_two_steps_and_holds_for_any_method(plain: dp.LLM) -> None:
    want = tokens(plain, temperature=0.0)[2]
    for auto in (Eager(dp.DraftModel(model())), dp.DraftModel(model(), 7, branch=3)):
        with made(speculate=auto) as llm:
            (request,) = llm.submit(PROMPTS[2], params(max_tokens=40, temperature=0.0))
            bounds = []
            while not request.finished:
                bounds.append(len(bounds) % 3)
                request.params = replace(request.params, max_draft_nodes=bounds[-1])
                llm.engine.step()
        drafted = [nodes for nodes, _ in request.stats.by_step]
        bounds = bounds[-len(drafted) :]  # of steps that wrote
        assert all(nodes <= most for nodes, most in zip(drafted, bounds, strict=True))
        assert max(drafted) == 2 and request.output == want


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_steps_that_nobody_is_asked_for_are_counted_and_save_nothing(rule: str) -> None:
    """Drafts that are never right, for a text that is turned off in between."""
    with made(speculate=Eager(Watching()), rule=rule) as llm:
        (request,) = llm.submit(PROMPTS[0], params(max_tokens=60, temperature=0.0))
        (other,) = llm.submit(PROMPTS[1], params(max_tokens=50, temperature=0.0))
        while not request.finished:
            request.speculate = not 10 <= len(request.output) < 40
            llm.engine.step()
        for one in (request, other):
            decisions, stats = one.stats.decisions, one.stats
            assert sum(decisions.plain_steps.values()) + stats.drafting_steps == stats.steps
            assert decisions.plain_steps["last token"] == 1
            assert decisions.saved <= 1e-9 and len(decisions.by_token) == stats.tokens
        assert request.stats.decisions.plain_steps["off"] == 30


@pytest.mark.parametrize(("rule", "temperature"), [("coupled", 0.0), ("rejection", 0.7)])
def test_what_is_counted_adds_up(rule: str, temperature: float) -> None:
    free = ("ngram",) if rule == "coupled" else ()
    auto = Eager(*free, dp.DraftModel(model()))
    with made(speculate=auto, rule=rule) as llm:
        asked = params(max_tokens=60, temperature=temperature, ignore_eos=True)
        for one in llm.generate(PROMPTS, asked):
            decisions, stats = one.stats.decisions, one.stats
            shares = decisions.sources.values()
            assert sum(share.used for share in shares) == stats.drafted > 0
            assert sum(share.accepted for share in shares) == stats.accepted > 0
            assert len(decisions.by_token) == stats.tokens == 60
            assert [bool(name) for name in decisions.by_token] == one.from_draft
            decided = sum(decisions.plain_steps.values()) + stats.drafting_steps
            assert decided == stats.steps
            if rule == "coupled":  # the draft is the target
                assert decisions.plain_seconds >= decisions.seconds - 1e-9


def test_the_same_seed_gives_the_same_text_whoever_else_writes() -> None:
    """Where another tree is another text neither clocks nor neighbours may have a say."""
    for rule in ("rejection", dp.Typical()):
        auto = dp.Auto(dp.NGram(min_ngram=1), dp.DraftModel(model()))
        with made(speculate=auto, rule=rule, max_batch=3) as llm:
            together = tokens(llm, temperature=1.0)
            alone = [
                llm.generate(prompt, params(max_tokens=40, temperature=1.0))[0].token_ids
                for prompt in PROMPTS
            ]
            assert together == alone


def test_a_source_drafts_as_ever_behind_it() -> None:
    one = dp.NGram(min_ngram=1)
    with made(speculate=dp.Auto(one)) as llm:
        llm.generate(PROMPTS, params(max_tokens=2))
        one.useful = 1  # as a glance leaves it
        llm.use(one)
        (done,) = llm.generate([[5, 6, 7] * 6], params(max_tokens=20, ignore_eos=True))
        assert max(nodes for nodes, _ in done.stats.by_step) > 1


def test_it_is_the_default() -> None:
    with dp.LLM("bundled") as llm:
        auto = llm.engine.proposer
        assert isinstance(auto, dp.Auto)
        assert [source.name for source in auto.sources] == [
            "prediction",
            "ngram",
            "suffix",
            "forced",
        ]
    with pytest.raises(ValueError, match="objective 'speed' is unknown: use throughput or latency"):
        dp.Auto(objective="speed")
    with pytest.raises(ValueError, match="itl_target is 0 ms: give more than 0"):
        dp.LLM("bundled", itl_target=0.0)
    with pytest.raises(ValueError, match="one pass of this model takes"):
        dp.LLM("bundled", itl_target=0.01)


class Watching(Drafter):
    """Drafts what is never written, and wants hidden states for it."""

    name, taps = "watching", (-1,)

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return [TokenTree.chain([request.tokens[-1], 3]) for request in requests]


def test_states_are_asked_for_where_somebody_may_draft_next(
    plain: dp.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a step that is plain, with more of them to come, nor where a request is written so."""
    asked: list[bool] = []
    want = tokens(plain)
    forward = type(plain.runner).forward

    def watched(runner: Any, work: Any, taps: Any = (), **more: Any) -> Any:
        asked.append(bool(taps))
        return forward(runner, work, taps, **more)

    with dp.LLM(plain, speculate=dp.Auto(Watching())) as llm:
        monkeypatch.setattr(type(llm.runner), "forward", watched)
        assert tokens(llm) == want
        assert 0 < sum(asked) < len(asked)  # how many is a matter of time, which is the real one
        asked.clear()
        tokens(llm, speculate=False)
        assert asked and not any(asked)
