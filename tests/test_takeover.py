"""One model, several runners in several threads: everybody's own outputs, the owner's own model."""

from __future__ import annotations

import copy
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.llama import LlamaForCausalLM

import draftproof as dp
import tiny
from draftproof.runners import choice, takeover
from draftproof.runners.base import Work
from interrupting import places
from kin import TREE, fresh, native_is_there

WORK = [Work(0, [9, 10, 11], TREE)]


def kin() -> tuple[PreTrainedModel, PreTrainedModel]:
    """Two models with weights of their own and one configuration."""
    one = fresh()
    other = LlamaForCausalLM(one.config).double().eval()
    other.load_state_dict(one.state_dict())
    assert other.config is one.config
    return one, other


def siblings() -> tuple[PreTrainedModel, PreTrainedModel]:
    """Two models with configurations of their own and one decoder."""
    one = fresh()
    other = LlamaForCausalLM(copy.deepcopy(one.config)).double().eval()
    other.model, other.lm_head = one.model, one.lm_head
    return one, other


def twins() -> tuple[PreTrainedModel, PreTrainedModel]:
    one = fresh()
    return one, one


def state(model: PreTrainedModel) -> tuple[Any, ...]:
    config = model.config
    modes = [part.training for part in model.modules()]
    return config._attn_implementation, config.num_hidden_layers, modes


def in_thread(call: Callable[[], Any], outcome: list[Any]) -> threading.Thread:
    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@contextmanager
def meeting(first: PreTrainedModel, second: PreTrainedModel) -> Iterator[dict[str, bool]]:
    """The pass of thread A waits for one of thread B inside the model, B's until A's has ended.

    Where both may be inside at once they are; else A gives up waiting after a moment.
    """
    inside, ended, seen = threading.Event(), threading.Event(), {"together": False}
    begun = threading.Event()

    def wait(*_: Any) -> None:
        if threading.current_thread().name == "A":
            begun.set()
            seen["together"] |= inside.wait(0.2)
        elif begun.is_set() and not ended.is_set() and not inside.is_set():
            inside.set()
            ended.wait(2)

    layers = [model.model.layers[0] for model in {id(m): m for m in (first, second)}.values()]
    hooks = [layer.register_forward_pre_hook(wait) for layer in {id(x): x for x in layers}.values()]
    seen["begun"], seen["ended"] = begun, ended  # type: ignore[assignment]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def beside(
    first: PreTrainedModel,
    second: PreTrainedModel,
    one: Callable[[], Any],
    other: Callable[[], Any],
) -> tuple[Any, Any, bool]:
    """What both calls give when the second begins in the middle of the first one's pass."""
    left: list[Any] = []
    right: list[Any] = []
    with meeting(first, second) as seen:

        def named() -> Any:
            threading.current_thread().name = "A"
            try:
                return one()
            finally:
                seen["ended"].set()  # type: ignore[attr-defined]

        threads = [in_thread(named, left)]
        assert seen["begun"].wait(5)  # type: ignore[attr-defined]
        threads.append(in_thread(other, right))
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    return left[0], right[0], seen["together"]


@pytest.mark.parametrize("pair", [twins, kin, siblings])
@pytest.mark.parametrize("layers", [0, 2])
def test_passes_over_what_two_models_share_come_one_after_another(
    pair: Callable[[], tuple[PreTrainedModel, PreTrainedModel]], layers: int
) -> None:
    first, second = pair()
    runners = choice.on_torch(first), choice.on_torch(second)
    (wanted,) = runners[0].forward(WORK)
    wanted_logits = wanted.logits.clone()
    before = state(first), state(second)
    depths: list[int] = []
    hook = first.model.layers[0].register_forward_hook(
        lambda *_: depths.extend(runner.layers for runner in runners)
    )
    (early,) = runners[0].forward([Work(1, [], TREE)], (), layers)
    early_logits = early.logits.clone()
    hook.remove()
    assert depths == [4, 4]  # also in the middle of a pass that ends early
    got = beside(
        first,
        second,
        lambda: runners[0].forward([Work(2, [], TREE)], (), layers)[0].logits,
        lambda: runners[1].forward(WORK)[0].logits,
    )
    assert torch.equal(got[0], early_logits)
    torch.testing.assert_close(got[1], wanted_logits, rtol=0, atol=0)
    assert (state(first), state(second)) == before and not got[2]


def test_models_that_share_nothing_run_at_once() -> None:
    first, second = fresh(), fresh()
    runners = choice.on_torch(first), choice.on_torch(second)
    got = beside(first, second, lambda: runners[0].forward(WORK), lambda: runners[1].forward(WORK))
    assert got[2]


def made_natively(model: PreTrainedModel) -> Any:
    return dp.LLM(model, runner="native", speculate=None)


@pytest.mark.parametrize("make", [choice.on_torch, made_natively])
def test_a_runner_is_made_while_another_runs(make: Callable[[PreTrainedModel], Any]) -> None:
    """What looks at the model itself waits for its turn too."""
    model = fresh()
    if make is made_natively:
        if not native_is_there():
            pytest.skip("no native library")
        model = tiny.model(dtype=torch.bfloat16, head_dim=16)
    runner = choice.on_torch(model)
    before = state(model)
    got = beside(model, model, lambda: runner.forward(WORK, (), 2), lambda: make(model))
    assert not isinstance(got[0], BaseException) and not isinstance(got[1], BaseException), got
    made = getattr(got[1], "runner", got[1])
    assert made.layers == 4 and state(model) == before


def test_several_threads_generate_over_one_model() -> None:
    model = fresh()
    params = [
        dp.SamplingParams(temperature=float(i % 2), seed=i, max_tokens=12, ignore_eos=True)
        for i in range(4)
    ]
    with dp.LLM(model, speculate=None) as llm:
        wanted = [llm.generate([5, 6, 7 + i], params[i])[0].token_ids for i in range(4)]
    before, outcomes = state(model), [[] for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:

        def write(i: int) -> list[list[int]]:
            speculate = dp.DraftModel(model, 3) if i % 2 else dp.EarlyExit(2)
            with dp.LLM(model, speculate=speculate) as own:
                return [own.generate([5, 6, 7 + i], params[i])[0].token_ids for _ in range(2)]

        threads = [in_thread(lambda i=i: write(i), outcomes[i]) for i in range(4)]
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(interval)
    assert outcomes == [[[each, each]] for each in wanted]
    assert state(model) == before


def test_locks_live_as_long_as_somebody_may_lock() -> None:
    gc.collect()
    before = len(takeover._LOCKS)
    model = fresh()
    runners = [choice.on_torch(model), choice.on_torch(model)]
    assert len(takeover._LOCKS) == before + 1
    del runners, model
    gc.collect()
    assert len(takeover._LOCKS) == before


def test_an_interrupt_before_or_in_a_pass_gives_the_model_back() -> None:
    """At every place of the takeover up to the pass itself, with the traceback still held."""
    model = fresh()
    model.model.layers[1].train()
    runner = choice.on_torch(model)
    before, called = state(model), [0]

    def forward() -> None:
        called[0] += 1
        raise RuntimeError("the pass")

    def run(stop: int) -> BaseException:
        files, until = [takeover.__file__], lambda: bool(called[0])
        try:
            places(files, lambda: runner.takeover.run("ours", forward, 2), stop, until)
        except BaseException as error:
            return error
        raise AssertionError

    errors = []
    while not called[0]:
        errors.append(run(len(errors) + 1))
        assert state(model) == before
        assert all(lock.lock.acquire(blocking=False) for lock in runner.takeover._locks)
        other: list[Any] = []
        for lock in runner.takeover._locks:
            lock.lock.release()
        in_thread(lambda: runner.takeover.alone(lambda: "free"), other).join(5)
        assert other == ["free"]
    assert len(errors) > 30
