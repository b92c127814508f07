"""Any number of threads, any number of LLMs over one model: what one does, no other notices."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.runners.base import Output, Work
from draftproof.scheduler import Scheduler
from draftproof.tree import TokenTree
from draftproof.turns import Turns
from fakes import Table, V, Wild, request

PARAMS = dp.SamplingParams(max_tokens=12, ignore_eos=True)


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """work(i) of `count` threads that begin at once; the first error is raised."""
    barrier = threading.Barrier(count)

    def one(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [each.result() for each in [pool.submit(one, i) for i in range(count)]]


class Slow(Table):
    """A pass takes its time, so that others come in between."""

    def forward(self, work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
        time.sleep(0.0005)
        return super().forward(work, taps)


def alone(key: int, seed: int, **options: Any) -> list[int]:
    made = request(key, [1 + seed % 7, 2], seed=seed, **options)
    list(Engine(Table(), scheduler=Scheduler(1)).run([made]))
    return made.output


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_four_threads_share_steps(batch: int) -> None:
    runner = Slow()
    engine = Engine(runner, Wild(1, Table()), scheduler=Scheduler(batch), vocabulary=V)

    def write(thread: int) -> None:
        for number in range(8):
            seed = 100 * thread + number
            made = [request(2 * seed + i, [1 + seed % 7, 2], seed=seed) for i in range(2)]
            seen = [each.key for each in engine.run(made)]
            assert set(seen) <= {each.key for each in made}
            for each in made:
                assert (each.output, each.finish_reason) == (alone(each.key, seed), "length")

    together(4, write)
    engine.check()
    assert runner.committed == {} and max(map(len, runner.passes)) == min(batch, 8)


@pytest.mark.parametrize("runner", ["torch", "native"])
def test_an_llm_in_four_threads(runner: str, tmp_path: Any) -> None:
    dtype = torch.bfloat16 if runner == "native" else torch.float32
    if runner == "native" and not dp.llm.native_runs():
        pytest.skip("the native kernels are not built")
    shape = {"head_dim": 16, "dtype": dtype}
    model, draft = tiny.model(**shape), tiny.model(seed=1, **shape)
    prompts = [[3 + i, 5, 7 * i + 1] for i in range(6)]
    with dp.LLM(model, runner=runner) as llm:
        wanted = [each.token_ids for each in llm.generate(prompts, PARAMS)]
        assert all(len(tokens) == 12 for tokens in wanted)
    before = model.config._attn_implementation
    with dp.LLM(model, runner=runner, speculate=dp.DraftModel(draft), max_batch=4) as llm:

        def write(thread: int) -> None:
            for number in range(4):
                at = (thread + number) % len(prompts)
                if number % 2:
                    chunks = [chunk.token_ids for chunk in llm.stream(prompts[at], PARAMS)]
                    assert sum(chunks, []) == wanted[at]
                else:
                    found = llm.generate([prompts[at], prompts[0]], PARAMS)
                    assert [each.token_ids for each in found] == [wanted[at], wanted[0]]

        together(4, write)
        llm.engine.check()
    assert model.config._attn_implementation == before


def test_two_llms_over_one_model_in_two_threads() -> None:
    model, prompts = tiny.model(), [[3 + i, 5, 7 * i + 1] for i in range(4)]
    with dp.LLM(model) as llm:
        wanted = [each.token_ids for each in llm.generate(prompts, PARAMS)]
    before = model.config._attn_implementation
    many = [dp.LLM(model), dp.LLM(model, speculate=dp.EarlyExit(1, min_confidence=0.0))]

    def write(thread: int) -> None:
        for _ in range(4):
            found = many[thread % 2].generate(prompts, PARAMS)
            assert [each.token_ids for each in found] == wanted

    together(4, write)
    assert model.config._attn_implementation == before and not model.training
    assert model.config.num_hidden_layers == 4


def test_keys_are_given_once() -> None:
    llm = dp.LLM(tiny.model())
    made = together(8, lambda thread: [llm.prepare([1], PARAMS)[0].key for _ in range(200)])
    assert len({key for keys in made for key in keys}) == 1600


# --- aborts ---


class Aborting(Wild):
    """Takes its time, while something is aborted."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, Table())
        self.meanwhile: Callable[[], None] = lambda: None

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        self.meanwhile()
        return super().propose(requests)


def test_an_abort_in_the_middle_of_a_step_marks_and_the_step_releases() -> None:
    runner, proposer = Table(), Aborting(0)
    engine = Engine(runner, proposer, scheduler=Scheduler(2), vocabulary=V)
    first, second, waiting = (request(key, [1, 2], seed=key) for key in range(3))
    for each in (first, second, waiting):
        engine.add(each)
    engine.step()
    written = first.output

    def abort() -> None:
        for each in (first, waiting):
            engine.abort(each)
            assert not each.finished  # somebody may be in the middle of it

    proposer.meanwhile = abort
    moved = engine.step()
    proposer.meanwhile = lambda: None
    assert sorted(each.key for each in moved) == [0, 1, 2]
    assert (first.finish_reason, first.output) == ("abort", written) and waiting.output == []
    engine.check()
    assert [each.key for each in engine.step()] == [1] and 0 not in runner.committed


def test_aborts_from_other_threads() -> None:
    runner, rng = Slow(), Random(0)
    engine = Engine(runner, Wild(1, Table()), scheduler=Scheduler(4), vocabulary=V)
    made = [request(key, [1 + key % 7, 2], seed=key, max_tokens=30) for key in range(60)]
    ends = threading.Event()

    def abort() -> None:
        while not ends.is_set():
            engine.abort(rng.choice(made))
            time.sleep(0.0003)

    thread = threading.Thread(target=abort)
    thread.start()
    try:
        together(3, lambda number: list(engine.run(made[20 * number : 20 * number + 20])))
    finally:
        ends.set()
        thread.join()
    engine.abort(made[0])
    engine.check()
    assert runner.committed == {}
    reasons = {each.finish_reason for each in made}
    assert reasons <= {"abort", "length"} and "abort" in reasons
    for each in made:
        whole = alone(each.key, each.key, max_tokens=30)
        assert each.output == whole[: len(each.output)]
        assert each.finish_reason == "abort" or each.output == whole


def test_a_dropped_stream_gives_its_row_back() -> None:
    llm = dp.LLM(tiny.model(), max_batch=1)
    long = dp.SamplingParams(max_tokens=60, ignore_eos=True)
    for _ in range(3):
        stream = llm.stream([3, 4], long)
        next(stream)
        ring: list[Any] = [stream]
        ring.append(ring)  # only the collector finds it
        del stream, ring
        gc.collect()
        llm.engine.check()
        assert not llm.engine.scheduler.running
    stream = llm.stream([3, 4], long)
    next(stream)

    class Dropping:
        taps: tuple[int, ...] = ()

        def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
            streams.clear()  # in the middle of a step of the same thread
            return [TokenTree.chain(each.tokens[-1:]) for each in requests]

    streams = [stream]
    del stream
    llm.engine.use(Dropping())
    (done,) = llm.generate([[5, 6]], PARAMS)
    assert done.finish_reason == "length"
    llm.engine.check()


def test_an_llm_that_is_called_out_of_its_own_step_says_so() -> None:
    llm = dp.LLM(tiny.model())

    class Recursive:
        taps: tuple[int, ...] = ()

        def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
            llm.generate([[1]], PARAMS)
            raise AssertionError

    llm.use(Recursive())
    (done,) = llm.generate([[5, 6]], PARAMS)
    assert "in the middle of a step" in done.warnings[0] and len(done.token_ids) == 12


# --- the end ---


def test_close_waits_for_a_step_and_ends_everything() -> None:
    for _ in range(5):
        llm = dp.LLM(tiny.model(), speculate=dp.DraftModel(tiny.model(seed=1)), max_batch=2)
        begun = threading.Event()

        def write(llm: dp.LLM = llm, begun: threading.Event = begun) -> list[str]:
            reasons = list[str]()
            try:
                for _ in llm.stream([3, 4], dp.SamplingParams(max_tokens=2)):
                    begun.set()
                for _ in range(1000):
                    out = llm.generate([[1], [2], [3]], PARAMS)
                    reasons += [each.finish_reason for each in out]
            except ValueError as error:
                assert "this LLM is closed: make a new one" in str(error)
            return reasons

        with ThreadPoolExecutor(3) as pool:
            writing = [pool.submit(write) for _ in range(3)]
            begun.wait()
            llm.close()
            for each in writing:
                assert set(each.result()) <= {"length", "abort"}
        llm.close()  # nothing happens
        llm.engine.check()
        for use, given in ((llm.generate, [[1]]), (llm.use, None), (llm.submit, [1])):
            with pytest.raises(ValueError, match="this LLM is closed: make a new one"):
                use(given)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_may_not_use_it() -> None:
    llm = dp.LLM(tiny.model())
    llm.generate([[1]], PARAMS)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            llm.generate([[1]], PARAMS)
        except ValueError as error:
            os.write(writer, str(error).encode())
        llm.close()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        assert "made in another process" in said.read()
    assert os.waitpid(child, 0)[1] == 0


def test_turns_are_given_back_whatever_happens() -> None:
    left, done = [1], []
    turns = Turns(lambda: done.extend(left), lambda: False)

    def interrupted() -> None:
        assert turns.taken
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turns.alone(interrupted)
    assert not turns.taken and done == [1]
    with pytest.raises(ValueError, match="in the middle of a step"):
        turns.alone(lambda: turns.alone(interrupted))
    assert not turns.taken
