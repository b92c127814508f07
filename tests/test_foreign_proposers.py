"""A proposer may be any object with `taps` and `propose`; whatever else it has is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import draftproof as dp
import tiny
from drafters import NATIVE
from draftproof.drafting.adopting import adopt
from draftproof.runners.base import Work
from draftproof.tree import TokenTree

IDS = [[5, 6, 7, 5, 6, 7, 5]]
PARAMS = dp.SamplingParams(max_tokens=12, ignore_eos=True)


class Two:
    """The two names, and nothing more."""

    taps: tuple[int, ...] = ()

    def propose(self, requests: Sequence[Any]) -> list[TokenTree]:
        return [TokenTree.chain([each.tokens[-1], each.tokens[-1]]) for each in requests]


class Everything(Two):
    """All that is optional too."""

    wants_best = True

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.feedback: list[Any] = []

    def propose(self, requests: Sequence[Any]) -> list[TokenTree]:
        self.feedback += [each.feedback for each in requests if each.feedback is not None]
        return super().propose(requests)

    def bind(self, target: Any) -> None:
        self.calls.append(f"bind {target.vocabulary}")

    def read_along(self, requests: Sequence[Any]) -> None:
        self.calls.append("read_along")

    def release(self, request: Any) -> None:
        self.calls.append("release")

    def close(self) -> None:
        self.calls.append("close")


def test_two_names_are_enough() -> None:
    model = tiny.model()
    (wanted,) = dp.LLM(model, speculate=None).generate(IDS, PARAMS)
    with dp.LLM(model, speculate=Two()) as llm:
        (found,) = llm.generate(IDS, PARAMS)
        assert found.token_ids == wanted.token_ids and found.stats.drafted > 0
        assert not found.warnings


class Copying(Two):
    """Drafts what was written before, in numbers of some kind."""

    def __init__(self, wanted: Sequence[int], kind: Any) -> None:
        self.wanted, self.kind = wanted, kind

    def propose(self, requests: Sequence[Any]) -> list[TokenTree]:
        found = [[one.tokens[-1], *self.wanted[len(one.output) :][:3]] for one in requests]
        return [TokenTree.chain(self.kind(ids)) for ids in found]


@pytest.mark.parametrize("wrap", [lambda made: made, lambda made: dp.Hybrid([made, "ngram"])])
@pytest.mark.parametrize("kind", [np.array, torch.tensor, lambda ids: [*map(np.int32, ids)]])
def test_the_text_is_of_pythons_own_integers(kind: Any, wrap: Any) -> None:
    with dp.LLM(tiny.model(), speculate=None) as llm:
        wanted = llm.generate(IDS, PARAMS)[0].token_ids
        llm.use(wrap(Copying(wanted, kind)))
        (found,) = llm.generate(IDS, PARAMS)
    assert found.token_ids == wanted and found.stats.accepted > 6 and not found.warnings
    assert {*map(type, found.token_ids)} == {int}


def test_what_is_no_integer_is_told() -> None:
    with dp.LLM(tiny.model(), speculate=Copying([7.0] * 12, list)) as llm:
        (found,) = llm.generate(IDS, PARAMS)
    assert not found.error and "is no integer: give ids" in found.warnings[0]


def test_what_else_it_has_is_used_also_as_a_part() -> None:
    model = tiny.model()
    for wrap in (lambda made: made, lambda made: dp.Hybrid([dp.NGram(), made])):
        made = Everything()
        long = [3 + i % 90 for i in range(700)]  # read in two steps
        room = tiny.model(max_position_embeddings=1024)
        with dp.LLM(room, speculate=wrap(made)) as llm:
            llm.generate([long], PARAMS)
        assert made.calls == [f"bind {model.config.vocab_size}", "read_along", "release", "close"]
        assert made.feedback and all(len(each.best) == len(each.tree) for each in made.feedback)


def test_feedback_has_the_price_of_the_pass() -> None:
    made = Everything()
    with dp.LLM(tiny.model(), speculate=made) as llm:
        llm.generate([IDS[0], IDS[0]], PARAMS)
    assert all(each.seconds > 0 for each in made.feedback)
    assert max(each.rows for each in made.feedback[2:]) == 4  # two texts with two nodes each


def test_the_same_object_may_be_used_again() -> None:
    """A new method is bound before the former is let go of: that would close what was bound."""
    made = Everything()
    with dp.LLM(tiny.model(), speculate=made) as llm:
        llm.use(made)
        assert made.calls == ["bind 97"] * 2
        llm.use(None)
        assert made.calls[2:] == ["close"]


def test_ours_are_taken_as_they_are() -> None:
    ours, theirs = dp.NGram(), Two()
    assert adopt(ours) is ours and adopt(theirs) is not theirs


class Observing(Everything):
    """With a copy of the target's states, as drafters with caches of their own want them."""

    taps = (2, -1)
    observes = True

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def observe(self, request: Any, position: int, hidden: Any) -> None:
        known = self.states.setdefault(request.key, [])
        assert position <= len(known), "a token was never shown"
        known[position:] = zip(hidden[2], hidden[-1], strict=True)


@pytest.mark.parametrize("runner", ["torch", pytest.param("native", marks=NATIVE)])
@pytest.mark.parametrize("options", [{}, {"n": 2, "temperature": 1.0, "seed": 1}])
def test_every_committed_token_is_observed(runner: str, options: dict[str, Any]) -> None:
    """Also with siblings and a prefix cache, which share what only one of them has read."""
    dtype = torch.bfloat16 if runner == "native" else torch.float64
    model, made = tiny.model(dtype=dtype, head_dim=16, max_position_embeddings=1024), Observing()
    params = dp.SamplingParams(max_tokens=12, ignore_eos=True, **options)
    with dp.LLM(model, speculate=made, runner=runner, prefix_cache=True) as llm:
        prompts = [[3 + i % 90 for i in range(700)], IDS[0], IDS[0]]
        for _ in range(2):
            done = llm.generate(prompts, params)
            assert not any(each.warnings for each in done)
        texts = [each.prompt_token_ids + each.token_ids for each in done]
        keys = sorted(made.states)[-len(texts) :]  # given as requests were made
        for text, key in zip(texts, keys, strict=True):
            known = made.states[key]
            assert len(known) >= len(text) - 13  # of the last step nothing is told
            if runner == "native":  # whose rows do not depend on the pass
                [output] = llm.runner.forward([Work(9999, text, None, read=True)], made.taps)
                llm.runner.free(9999)
                whole = output.read
            else:
                with torch.no_grad():
                    states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
                whole = {layer: states[layer][0] for layer in made.taps}
            for layer, at in ((2, 0), (-1, 1)):
                shown = torch.stack([states[at] for states in known])
                error = (shown - whole[layer][: len(known)]).abs().max()
                assert error <= (0 if runner == "native" else 1e-9)


class Writes(Two):
    """Takes the text for a list of its own. how: what it does to it before it drafts or fails."""

    def __init__(self, how: str, fails: bool = False) -> None:
        self.how, self.fails = how, fails

    def propose(self, requests: Sequence[Any]) -> list[TokenTree]:
        for each in requests:
            if len(each.tokens) > len(IDS[0]) + 2:
                exec(self.how, {"tokens": each.tokens})
                if self.fails:
                    raise RuntimeError("and then it fails")
        return super().propose(requests)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("how", ["tokens.append(7)", "tokens.pop()", "tokens[-1] = 9"])
def test_one_that_writes_into_the_text_changes_nothing(how: str, fails: bool) -> None:
    asked = [*IDS, [9, 8, 7]]
    with dp.LLM(tiny.model(), speculate=None, max_batch=2) as llm:
        wanted = [each.token_ids for each in llm.generate(asked, PARAMS)]
        llm.use(Writes(how, fails))
        found = llm.generate(asked, PARAMS)
        assert [each.token_ids for each in found] == wanted
        assert any(
            "it changed request.tokens, the text itself" in said for said in found[0].warnings
        )
        llm.engine.check()


def test_nor_does_one_that_writes_into_a_prompt_that_is_read() -> None:
    long = [3 + i % 90 for i in range(1500)]
    made = Two()
    made.read_along = lambda requests: requests[0].tokens.append(7)  # type: ignore[attr-defined]
    with dp.LLM(tiny.model(max_position_embeddings=2048), speculate=None) as llm:
        wanted = llm.generate([long], PARAMS)[0].token_ids
        llm.use(made)
        (found,) = llm.generate([long], PARAMS)
        assert found.token_ids == wanted and "the text itself" in found.warnings[0]


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("runner", ["torch", "native"])
@pytest.mark.parametrize("tap", [3, -4, 99, "last", 1.0])
def test_taps_that_the_model_has_not(tap: Any, runner: str, name: str) -> None:
    if runner == "native" and not NATIVE:
        pytest.skip("the kernels were not built")
    dtype = torch.bfloat16 if runner == "native" else torch.float32
    more = {"head_dim": 16} if runner == "native" else {}
    made = Two()
    made.taps = (-1, tap)
    with dp.LLM(
        tiny.model(name, num_hidden_layers=2, dtype=dtype, **more), runner=runner, speculate=None
    ) as llm:
        with pytest.raises(ValueError, match=f"taps of Two holds {tap!r}: .* to 2 .what the LM"):
            llm.use(made)
        for right in (0, 2, -3):
            made.taps = (-1, right)
            llm.use(made)
            assert not llm.generate(IDS, PARAMS)[0].error
