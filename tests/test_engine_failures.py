"""What fails in a step, and who survives it: drafters, runners, NaN, aborts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import draftproof as dp
from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.runners.base import Output, Work
from draftproof.scheduler import Scheduler
from draftproof.tree import TokenTree
from fakes import Table, V, Wild, request, run
from prophets import Prophet, prophecy, solo


class Failing(Prophet):
    """Raises for `victim` from its third step on, and for a batch that holds it."""

    def __init__(self, futures: dict[int, list[int]], victim: int) -> None:
        super().__init__(futures, 2)
        self.victim = victim

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        for each in requests:
            if each.key == self.victim and len(each.output) > 5:
                raise RuntimeError("the draft broke")
        return super().propose(requests)


def test_a_draft_that_fails_costs_its_request_the_drafts_and_no_token() -> None:
    pairs = [prophecy(request(key, [key], key, temperature=1.0, max_tokens=30)) for key in range(4)]
    futures = {each.key: future for each, future in pairs}
    requests = [each for each, _ in pairs]
    run(Engine(Table(), Failing(futures, 2), scheduler=Scheduler(4)), requests)
    for each in requests:
        assert each.output == futures[each.key][:30] and each.finish_reason == "length"
        if each.key == 2:
            (warning,) = each.completion().warnings
            assert "the draft broke" in warning
            assert each.stats.drafting_steps == 2
        else:
            assert each.completion().warnings == [] and each.stats.drafting_steps == 10


NONSENSE: dict[str, Callable[[Request], Any]] = {
    "nothing": lambda request: None,
    "no tree": lambda request: [1, 2, 3],
    "another root": lambda request: TokenTree.chain([(request.tokens[-1] + 1) % V, 1, 2]),
    "token beyond the vocabulary": lambda request: TokenTree.chain([request.tokens[-1], 1, V]),
    "negative token": lambda request: TokenTree.chain([request.tokens[-1], -1]),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_from_a_drafter_does_not_change_the_output(what: str) -> None:
    class Liar(Wild):
        def grow(self, request: Request) -> TokenTree:
            good = super().grow(request)
            return NONSENSE[what](request) if request.key == 1 else good

    requests = [request(key, [key + 1], key, temperature=1.0) for key in range(3)]
    engine = Engine(Table(), Liar(0, Table()), scheduler=Scheduler(3), vocabulary=V)
    run(engine, requests)
    for each in requests:
        assert each.finish_reason == "length" and each.output == solo(each)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_or_too_many_trees_do_not_change_the_output(count: int) -> None:
    class Miscount(Wild):
        def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
            return [self.grow(requests[0])] * count

    requests = [request(key, [key + 1], key, temperature=1.0) for key in range(2)]
    run(Engine(Table(), Miscount(0, Table()), scheduler=Scheduler(3)), requests)
    for each in requests:
        assert each.finish_reason == "length" and each.output == solo(each)


def test_a_proposer_needs_only_taps_and_propose() -> None:
    bare = SimpleNamespace(
        taps=(), propose=lambda requests: [TokenTree.chain([r.tokens[-1], 1]) for r in requests]
    )
    each = request(0, [1], temperature=1.0)
    run(Engine(Table(), bare, scheduler=Scheduler(1)), [each])
    assert each.output == solo(each)


def test_a_release_that_raises_is_not_swallowed_into_a_stuck_row() -> None:
    class Clumsy(Wild):
        def release(self, request: Request) -> None:
            raise RuntimeError("cannot let go")

    runner = Table()
    engine = Engine(runner, Clumsy(0), scheduler=Scheduler(1))
    first, second = request(0, [1], max_tokens=1), request(1, [2], max_tokens=1)
    for each in (first, second):
        engine.add(each)
    for _ in range(4):
        try:
            engine.step()
        except RuntimeError as error:
            assert "cannot let go" in str(error)
    assert first.finished and second.finished and runner.committed == {}


def test_nan_ends_its_own_request_only() -> None:
    runner = Table(poison=lambda key, length: key == 1 and length >= 8)
    requests = [request(key, [key + 1, 2], key, temperature=1.0) for key in range(3)]
    run(Engine(runner, Wild(1, runner), scheduler=Scheduler(3)), requests)
    bad = requests[1].completion()
    assert bad.finish_reason == "error" and bad.error
    assert bad.token_ids == solo(requests[1])[: len(bad.token_ids)]
    assert len(bad.token_ids) <= 6
    for each in (requests[0], requests[2]):
        assert each.finish_reason == "length" and each.output == solo(each)
    assert runner.committed == {}


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_under_either_rule(rule: str, temperature: float) -> None:
    runner = Table(poison=lambda key, length: key == 0 and length >= 4)
    requests = [
        Request(
            key,
            [1],
            dp.SamplingParams(temperature=temperature, max_tokens=9),
            seed=key,
            rule=rule,
        )
        for key in range(2)
    ]
    run(Engine(runner, rule=rule, scheduler=Scheduler(2)), requests)
    assert requests[0].finish_reason == "error" and len(requests[0].output) == 3
    assert requests[1].finish_reason == "length" and len(requests[1].output) == 9


def test_nan_with_logprobs() -> None:
    runner = Table(poison=lambda key, length: key == 0 and length >= 4)
    requests = [request(key, [1], key, max_tokens=9, logprobs=2) for key in range(2)]
    run(Engine(runner, scheduler=Scheduler(2)), requests)
    assert [each.finish_reason for each in requests] == ["error", "length"]
    assert len(requests[0].completion().logprobs) == len(requests[0].output)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_candidate_left_ends_its_own_request_only(temperature: float) -> None:
    every = tuple(range(V))
    requests = [
        request(0, [1], 1, temperature=temperature, bad_token_ids=every),
        request(1, [1], 1, temperature=temperature),
    ]
    run(Engine(Table(), Wild(0, Table()), scheduler=Scheduler(2)), requests)
    assert requests[0].finish_reason == "error" and requests[0].output == []
    assert requests[0].completion().error
    assert requests[1].finish_reason == "length" and requests[1].output == solo(requests[1])


def test_a_runner_that_raises_leaves_the_engine_usable() -> None:
    class Breaking(Table):
        broken = False

        def forward(self, work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
            if self.broken:
                raise MemoryError("no room")
            return super().forward(work, taps)

    runner = Breaking()
    engine = Engine(runner, Wild(0, runner), scheduler=Scheduler(2))
    each = request(0, [1, 2, 3], temperature=1.0)
    engine.add(each)
    engine.step()
    runner.broken = True
    written = each.output
    assert engine.step() == [each]
    assert (each.finish_reason, each.error, each.output) == ("error", "no room", written)
    engine.check()
    runner.broken = False
    again = request(1, [1, 2, 3], temperature=1.0)
    run(engine, [again])
    assert again.output == solo(again) and written == again.output[: len(written)]


def test_what_a_request_fails_of_is_one_line() -> None:
    class Torn:
        """Text that a tokenizer does not give to its end."""

        def flush(self) -> None:
            raise ValueError("no word\n  for 7")

    requests = [request(key, [1]) for key in range(3)]
    requests[0].text = Torn()  # type: ignore[assignment]
    requests[0].finish("length")
    requests[1].fail(RuntimeError("no\nroom"))
    requests[2].fail(StopIteration())
    said = ["ValueError: no word for 7", "RuntimeError: no room", "StopIteration"]
    assert [each.error for each in requests] == said


def test_abort_is_idempotent_and_keeps_what_was_written() -> None:
    runner = Table()
    engine = Engine(runner, scheduler=Scheduler(1))
    first, waiting = request(0, [1]), request(1, [2])
    for each in (first, waiting):
        engine.add(each)
    for _ in range(3):
        engine.step()
    for _ in range(2):
        engine.abort(first)
        engine.abort(waiting)
    assert (first.finish_reason, waiting.finish_reason) == ("abort", "abort")
    assert first.output == solo(first)[:3] and waiting.output == []
    assert runner.committed == {}
    assert engine.step() == [first, waiting] and engine.step() == []
    done = request(2, [3], max_tokens=1)
    run(engine, [done])
    engine.abort(done)
    assert done.finish_reason == "length"


@pytest.mark.parametrize("end", ["length", "abort"])
def test_a_request_that_has_ended_holds_no_noise(end: str) -> None:
    """It is megabytes, and a list of thousands of finished requests would hold it."""
    engine = Engine(Table(), scheduler=Scheduler(1))
    one = request(0, [1, 2], temperature=1.0, max_tokens=5)
    engine.add(one)
    engine.step()
    engine.step()
    one.noise.gumbel(50, V)
    assert one.noise._kept
    if end == "abort":
        engine.abort(one)
    else:
        run(engine, [one])
    assert one.finish_reason == end and not one.noise._kept


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="greedy"):
        Engine(Table(), rule="greedy", scheduler=Scheduler(1))


def test_feedback_tells_what_the_last_step_did() -> None:
    seen = []

    class Curious(Wild):
        def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
            for each in requests:
                if each.feedback is not None:
                    feedback = each.feedback
                    tail = [feedback.tree.tokens[i] for i in feedback.path]
                    seen.append(tail)
                    assert each.tokens[-1 - len(tail) : -1] == tail
                    assert feedback.tree.path(feedback.path[-1]) == list(feedback.path)
            return super().propose(requests)

    runner = Table()
    requests = [request(key, [key], max_tokens=40) for key in range(3)]
    run(Engine(runner, Curious(0, runner), scheduler=Scheduler(2)), requests)
    assert max(map(len, seen)) > 2
