"""Aborts from other threads, streams that are dropped, LLMs that are closed under a step."""

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

import draftproof as dp
import tiny
from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.scheduler import Scheduler
from draftproof.tree import TokenTree
from draftproof.turns import Turns
from fakes import Table, V, Wild, request
from sharing import PARAMS, Slow, alone, together

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
    llm = dp.LLM(tiny.model(), max_batch=1, speculate=None)
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
    llm = dp.LLM(tiny.model(), speculate=None)

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
    llm = dp.LLM(tiny.model(), speculate=None)
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
