"""Neither clocks nor neighbours nor faults change a text, and nothing is held of what has ended."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import draftproof as dp
import tiny
from beside import SLOW, draft, drafted, guarded, models_of, run, some
from drafters import METHODS
from draftproof.drafting import fitting
from draftproof.drafting.adopting import adopt
from draftproof.request import Request
from draftproof.tree import TokenTree

# --- the same seed, the same text ---


class Clock:
    """Says of every pass that it took as long as is planted."""

    def __init__(self, costs: Callable[[int], float]) -> None:
        self.costs = costs

    def seconds(
        self, runner: Any, context: int, sizes: Sequence[int], **rounds: int
    ) -> dict[int, float]:
        return {n: self.costs(n) for n in sizes}


CLOCKS = [lambda n: 1.0 + 0.01 * n, lambda n: float(n)]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("fitted", "rejection"),
        pytest.param("fitted", "typical", marks=SLOW),
        ("suffix", "rejection"),
        ("hybrid", "rejection"),
        ("staged", "rejection"),
        ("early exit", "rejection"),
    ],
)
def test_neither_clocks_nor_neighbours_change_a_text(
    name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [7, 8, 9, 7, 8, 9, 7, 8]
    most = 100 if name == "fitted" else 30  # fitted after 32 steps for the first time
    params = dp.SamplingParams(temperature=0.9, max_tokens=most, seed=5, ignore_eos=True)
    model = tiny.model("llama", dtype=torch.float64, max_position_embeddings=600)
    texts = []
    for clock, others in zip(CLOCKS, (0, 3), strict=True):
        monkeypatch.setattr(fitting, "pass_seconds", Clock(clock).seconds)
        made = {
            "fitted": lambda: dp.DraftModel(tiny.relative(model), tree="auto"),
            "suffix": lambda: dp.SuffixAutomaton(min_match=1),
            "hybrid": lambda: dp.Hybrid(
                [dp.SuffixAutomaton(min_match=1), dp.DraftModel(tiny.relative(model), 3)], 6
            ),
            "staged": lambda: dp.Staged(
                tiny.relative(model), dp.SuffixAutomaton(min_match=1), min_confidence=0.0
            ),
            "early exit": lambda: dp.EarlyExit(2, 4, min_confidence=0.0),
        }[name]()
        with dp.LLM(model, speculate=made, rule=rule, prefix_cache=bool(others)) as llm:
            if others:
                # The same text, which a look-up finds; or a prompt that a cache still holds.
                before = 3 if name == "early exit" else 30
                llm.generate([prompt] * 2, replace(params, max_tokens=before))
            more = [llm.submit(some(k, 5 + 40 * k), params)[0] for k in range(others)]
            (one,) = llm.submit(prompt, params)
            run(llm, [one, *more])
            assert not one.warnings and one.stats.drafted
            texts.append(one.output)
    assert texts[0] == texts[1]


FAULTY = ("draft", "specinfer", "staged", "hybrid", "early exit")


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_of_one_requests_draft_changes_no_others_draws(name: str) -> None:
    """A rule from outside raises, but only where a draft asks it."""
    params = dp.SamplingParams(temperature=0.9, max_tokens=20, seed=5, ignore_eos=True)
    prompts = [some(seed, 9) for seed in range(3)]
    texts = []
    for faulty in (False, True):
        made, drafting = METHODS[name]("llama"), [False]

        def propose(
            requests: Sequence[Request],
            inner: Any = made.propose,
            drafting: list[bool] = drafting,
        ) -> Any:
            drafting[0] = True
            try:
                return inner(requests)
            finally:
                drafting[0] = False

        def fails(ids: Tensor, row: Tensor, drafting: list[bool] = drafting) -> Tensor:
            if drafting[0] and len(ids) >= 9 + 6:
                raise RuntimeError("out of luck")
            return row

        made.propose = propose
        model = tiny.model("llama", max_position_embeddings=600)
        with dp.LLM(model, speculate=made, rule="rejection") as llm:
            requests = [llm.submit(prompt, params)[0] for prompt in prompts]
            if faulty:
                requests[1].history.process = fails
            run(llm, requests)
            texts.append([requests[0].output, requests[2].output])
    assert texts[0] == texts[1] and "out of luck" in requests[1].warnings[0]
    assert all(request.finish_reason == "length" for request in requests)


# --- the end ---


@pytest.mark.parametrize("rule", ["rejection", pytest.param("coupled", marks=SLOW)])
@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_held_of_a_request_that_has_ended(name: str, rule: str) -> None:
    model = tiny.model("llama", max_position_embeddings=600)
    params = dp.SamplingParams(temperature=0.9, max_tokens=10, seed=5)
    made = METHODS[name]("llama")
    held: list[Any] = []
    propose = made.propose

    def watched(requests: Sequence[Request]) -> list[TokenTree]:
        trees: list[TokenTree] = propose(requests)
        held.extend(map(weakref.ref, trees))
        held.extend(weakref.ref(tree.laws) for tree in trees if tree.laws is not None)
        return trees

    made.propose = watched
    with dp.LLM(model, speculate=made, rule=rule) as llm:
        requests = [llm.submit([7, 8, 9] * 4 + [k], params)[0] for k in range(2)]
        run(llm, requests)
        held += [weakref.ref(request) for request in requests]
        del requests
        gc.collect()
        assert held and not any(one() is not None for one in held)


@pytest.mark.parametrize("name", ["draft", "specinfer", "staged twice", "hybrid"])
def test_close_lets_go_of_the_drafts_cache(name: str) -> None:
    model = tiny.model("llama", max_position_embeddings=600)
    made = METHODS[name]("llama")
    with dp.LLM(model, speculate=made) as llm:
        params = dp.SamplingParams(max_tokens=9)
        llm.generate([[7, 8, 9] * 4], params)
        runners = list(models_of(made))
        assert runners and all(runner._cache._held for runner in runners)
        adopt(made).close()
        assert not any(runner._cache._held for runner in runners)
        (again,) = llm.generate([[7, 8, 9] * 4], params)  # and it drafts on, should it be asked to
        assert again.stats.drafted and not again.warnings


def test_a_drafts_cache_takes_over_what_an_earlier_request_read() -> None:
    made = dp.DraftModel(draft(), min_confidence=0.0)
    prompt = some(1, 60)
    with drafted(made, prefix_cache=True) as llm:
        seen: list[int] = []
        llm.generate(prompt, dp.SamplingParams(max_tokens=4))
        guarded(made.beside.runner, seen)
        llm.generate(prompt, dp.SamplingParams(max_tokens=4))
    assert len(seen) < 40
