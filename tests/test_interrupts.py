"""An interrupt at any place of a step: the engine goes on, and nothing is wrong."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

import draftproof as dp
import tiny
from draftproof import counts, drafts, engine, request, scheduler, turns
from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.sampling import history
from draftproof.scheduler import Scheduler
from draftproof.turns import Turns
from fakes import Table, V, Wild
from fakes import request as make_request
from interrupting import places

# Python drops an interrupt that comes while it discards a generator, and warns.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FILES = [m.__file__ for m in (engine, request, scheduler, drafts, turns, history, counts)]


def requests(siblings: Sequence[int] = (1, 2, 3)) -> list[Request]:
    first = make_request(
        0,
        [1, 2, 3, 4],
        seed=1,
        max_tokens=7,
        presence_penalty=1.5,
        temperature=0.7,
        min_tokens=4,
        end_ids=(2,),
    )
    others = [
        make_request(
            key,
            [5, 6, 7, 8, 9, 3, 2, 1],
            seed=2 + key,
            max_tokens=6,
            frequency_penalty=2.0,
            temperature=0.5,
            siblings=siblings,
        )
        for key in (1, 2, 3)
    ]
    return [first, *others]


def drive(made: Engine, asked: Sequence[Request]) -> None:
    for _ in range(100):
        if all(each.finished for each in asked):
            return
        made.step()
    raise AssertionError("it never ends")


def interrupted_everywhere(every: int) -> None:
    wanted = []
    for each in requests(siblings=()):
        alone = Engine(Table(3), scheduler=Scheduler(1), vocabulary=V)
        alone.add(each)
        drive(alone, [each])
        wanted.append(each.output)

    def ready() -> tuple[Engine, list[Request]]:
        runner = Table(3)
        made = Engine(runner, Wild(5, runner), scheduler=Scheduler(2, 6), vocabulary=V)
        asked = requests()
        for each in asked:
            made.add(each)
        return made, asked

    made, asked = ready()
    total = places(FILES, lambda: drive(made, asked))
    assert total > 2500
    for stop in range(1, total, every):
        made, asked = ready()
        with suppress(KeyboardInterrupt):
            places(FILES, lambda: drive(made, asked), stop)  # noqa: B023
        drive(made, asked)
        made.check()
        for each, whole in zip(asked, wanted, strict=True):
            assert each.finish_reason in ("length", "stop", "abort"), (stop, each.error)
            assert each.output == whole[: len(each.output)], stop
            assert each.finish_reason == "abort" or each.output == whole, stop
        assert sum(each.finish_reason == "abort" for each in asked) <= 1, stop


@pytest.fixture
def collecting() -> Iterator[None]:
    """Finalizers of what was before are no part of a run: the collector waits."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def test_an_interrupt_at_many_places_of_a_run(collecting: None) -> None:
    interrupted_everywhere(23)


@pytest.mark.slow
def test_an_interrupt_at_any_place_of_a_run(collecting: None) -> None:
    interrupted_everywhere(1)


def test_interrupts_by_the_system_never_keep_the_turn(collecting: None) -> None:
    """Real signals, at whatever place they come."""
    made, stop = Turns(lambda: None, lambda: False), threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def compete() -> None:
        while not stop.is_set():
            made.alone(lambda: None)

    before = signal.signal(signal.SIGALRM, interrupt)
    thread = threading.Thread(target=compete, daemon=True)
    thread.start()
    try:
        for _ in range(300):
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0004)
                while True:
                    made.alone(lambda: None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        stop.set()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert made.alone(lambda: True)


# --- what two readers of the code found ---


class Panic(BaseException):
    """As the Rust library of tokenizers raises it."""


def test_a_tokenizer_that_panics_ends_its_request_only() -> None:
    class Panicking:
        eos_token_id = None

        def decode(self, ids: Sequence[int], **options: Any) -> str:
            if 96 in ids:
                raise Panic("slice index starts at 1 but ends at 0")
            return "".join(chr(97 + i % 26) for i in ids)

    llm = dp.LLM(tiny.model(), tokenizer=Panicking(), speculate=None)
    params = dp.SamplingParams(max_tokens=6, ignore_eos=True, stop=("zzzz",))
    bad = dp.SamplingParams(max_tokens=6, logit_bias={96: 1000.0}, stop=("zzzz",))
    (wanted,) = llm.generate([[3, 4]], params)
    right, wrong = llm.generate([[3, 4], [5, 6]], [params, bad])
    assert right.token_ids == wanted.token_ids and right.finish_reason == "length"
    assert (wrong.finish_reason, wrong.token_ids) == ("error", [96])
    assert wrong.error is not None and "the tokenizer failed: slice index" in wrong.error
    llm.engine.check()


def test_endings_are_reported_once_by_a_step() -> None:
    class Refusing(Table):
        def begin(self, key: int, tokens: Sequence[int], salt: str) -> None:
            if key == 1:
                raise RuntimeError("no place")

    made = Engine(Refusing(), scheduler=Scheduler(2), vocabulary=V)
    asked = [make_request(key, [1, 2], max_tokens=2) for key in range(4)]
    for each in asked:
        made.add(each)
    made.abort(asked[3])
    ended: list[Request] = []
    for _ in range(10):
        ended += [each for each in made.step() if each.finished]
    assert sorted(each.key for each in ended) == [0, 1, 2, 3]
    assert (asked[1].finish_reason, asked[1].error) == ("error", "RuntimeError: no place")


def test_a_request_is_run_once_at_a_time() -> None:
    made = Engine(Table(), scheduler=Scheduler(2), vocabulary=V)
    asked = make_request(0, [1, 2])
    news = made.run([asked])
    next(news)
    with pytest.raises(ValueError, match="run already"):
        next(made.run([asked]))
    list(news)
    assert asked.finish_reason == "length"


def test_completions_of_a_one_token_prompt_whose_first_is_interrupted() -> None:
    class Interrupting(Wild):
        def propose(self, requests: Sequence[Request]) -> Any:
            raise KeyboardInterrupt

    llm = dp.LLM(tiny.model(), speculate=Interrupting(0), max_batch=1)
    params = dp.SamplingParams(n=3, temperature=1.0, max_tokens=4, ignore_eos=True, seed=1)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[5]], params)
    llm.engine.check()
    llm.use(None)
    assert len({tuple(each.token_ids) for each in llm.generate([[5]], params)}) > 1


def test_with_a_prefix_cache_a_prompt_is_still_read_once_for_its_completions() -> None:
    llm = dp.LLM(tiny.model(), max_batch=4, prefix_cache=True, speculate=None)
    params = dp.SamplingParams(n=4, temperature=1.0, max_tokens=3, ignore_eos=True, seed=1)
    for at in range(5):  # rows are parked, which share their first token with what comes
        llm.generate([[1, *[3 + (7 * i + at) % 90 for i in range(60)]]], params)
    read, real = 0, llm.runner.forward

    def forward(work: Any, *rest: Any, **more: Any) -> Any:
        nonlocal read
        read += sum(len(item.new) for item in work)
        return real(work, *rest, **more)

    llm.runner.forward = forward  # type: ignore[method-assign]
    llm.generate([[1, *[4 + (5 * i) % 80 for i in range(60)]]], params)
    assert read <= 61


def test_a_close_that_failed_can_be_done_again() -> None:
    llm = dp.LLM(tiny.model(), speculate=None)
    (asked,) = llm.prepare([3, 4], dp.SamplingParams(max_tokens=3))

    def process(ids: Any, row: Any) -> Any:
        llm.close()
        raise AssertionError

    asked.history.process = process
    list(llm.engine.run([asked]))
    assert asked.finish_reason == "abort" or "in the middle of a step" in str(asked.error)
    llm.close()
    assert not llm.runner._cache._held  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="this LLM is closed"):
        dp.LLM(llm, speculate=None)
