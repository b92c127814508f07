"""The one comparison: turns, counting, ratios, and sides that fail."""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import draftproof as dp
import tiny
from draftproof.bench import sides
from draftproof.bench.compare import Comparison, Spread, compare, fastest
from draftproof.bench.sides import How, Side, Written
from draftproof.prompts import Prompt
from spelling import model, tokenizer

HOW = How(temperature=0.0, max_tokens=12, seed=3, ignore_eos=True)


class Scripted:
    """Writes what it is told, and remembers in what order everyone was asked."""

    log: list[str]

    def __init__(self, name: str, tokens: int, log: list[str], peer: bool = False) -> None:
        self.name, self.tokens, self.log = name, tokens, log
        self.side = Side(name, self.write, peer=peer)

    def write(self, prompts: Sequence[list[int]], how: How) -> list[Written]:
        self.log.append(self.name)
        return [Written([7] * self.tokens) for _ in prompts]


def comparison(*everyone: Side, batch: int = 1, prompts: int = 3, **more: Any) -> Comparison:
    texts = [Prompt(str(i), ("ab" * (i + 1),)) for i in range(prompts)]
    more = {"tick": lambda text, share: None, "longest": 96} | more
    return Comparison(list(everyone), texts, tokenizer(), HOW, batch=batch, **more)


def test_sides_take_turns_and_nobody_is_always_first() -> None:
    log: list[str] = []
    names = ["a", "b", "c"]
    it = comparison(*(Scripted(name, 4, log).side for name in names))
    it.warm_up()
    log.clear()
    for turn in range(3):
        it.round(turn, 3)
    triples = [log[at : at + 3] for at in range(0, len(log), 3)]
    assert all(sorted(triple) == names for triple in triples) and len(triples) == 9
    assert {triple[0] for triple in triples[:3]} == set(names)
    assert all(len(result.tokens_per_s) == 3 for result in it.finished())


def test_a_batch_is_written_at_once() -> None:
    log: list[str] = []
    it = comparison(Scripted("a", 4, log).side, batch=2)
    it.run(1)
    assert len(log) == 4  # two groups, twice
    (result,) = it.finished()
    assert [answer.prompt.id for answer in result.answers] == ["0", "1", "2"]
    total = result.answers[0].seconds[0] + result.answers[2].seconds[0]
    assert result.tokens_per_s[0] == pytest.approx(12 / total)


def test_a_side_with_its_own_clock_and_account_is_believed() -> None:
    """Another process tells its seconds, and maybe tokens and text without ids."""

    def write(prompts: Sequence[list[int]], how: How) -> list[Written]:
        return [Written([], seconds=2.0, text="so", reported=6) for _ in prompts]

    it = comparison(Side("process", write), prompts=2)
    it.run(2)
    (result,) = it.finished()
    assert result.tokens_per_s == [3.0, 3.0] and result.answers[0].texts == ["so"]


def fail(prompts: Sequence[list[int]], how: How) -> list[Written]:
    raise RuntimeError("no kernel")


def test_a_peer_that_fails_is_skipped_and_ours_is_not() -> None:
    it = comparison(Scripted("a", 4, []).side, Side("p", fail, peer=True))
    it.run(1)
    assert [result.side for result in it.finished()] == ["a"]
    assert it.skipped == ["p: RuntimeError: no kernel"]
    with pytest.raises(RuntimeError, match="no kernel"):
        comparison(Side("ours", fail)).run(1)


def test_an_interrupt_that_a_peer_makes_an_error_of_is_one() -> None:
    def interrupted(prompts: Sequence[list[int]], how: How) -> list[Written]:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise RuntimeError("is a library missing?")

    it = comparison(Scripted("a", 4, []).side, Side("p", interrupted, peer=True))
    with pytest.raises(KeyboardInterrupt):
        it.warm_up()
    assert not it.skipped


def test_a_peer_that_fails_later_leaves_the_others_their_rounds() -> None:
    calls: list[int] = []

    def tires(prompts: Sequence[list[int]], how: How) -> list[Written]:
        calls.append(1)
        if len(calls) > 5:
            raise RuntimeError("tired")
        return [Written([7] * 4) for _ in prompts]

    it = comparison(Scripted("a", 4, []).side, Side("p", tires, peer=True))
    it.run(2)
    compare(it)
    (result,) = it.finished()
    assert result.side == "a" and len(result.tokens_per_s) == 2
    assert it.skipped == ["p: RuntimeError: tired"]


def test_an_interrupted_round_does_not_count() -> None:
    calls: list[int] = []

    def write(prompts: Sequence[list[int]], how: How) -> list[Written]:
        calls.append(1)
        if len(calls) == 8:  # in the second of the timed rounds
            raise KeyboardInterrupt
        return [Written([7] * 4) for _ in prompts]

    it = comparison(Side("a", write))
    with pytest.raises(KeyboardInterrupt):
        it.run(5)
    compare(it)
    (result,) = it.finished()
    assert len(result.tokens_per_s) == 1 and len(result.answers) == 3 and result.differing == 0


def test_a_prompt_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="prompt 1 has 4 tokens"):
        comparison(Scripted("a", 4, []).side, longest=14).run(1)


def test_the_passes_of_the_target_are_counted() -> None:
    llm = dp.LLM(model(), speculate=dp.DraftModel(tiny.relative(model(), 0.001), 3))
    peer = sides.transformers("", model(), llm.end_ids)
    it = comparison(sides.ours("draft", llm), peer, model=model())
    it.warm_up()
    assert it.results["transformers"].tokens_per_step == 1.0
    ours = it.results["draftproof draft"].tokens_per_step
    assert ours is not None and 2 < ours <= 4


def test_the_share_that_is_done_grows_from_the_first_timed_round() -> None:
    seen: list[tuple[str, float | None]] = []
    it = comparison(
        Scripted("a", 4, []).side,
        Scripted("b", 4, []).side,
        tick=lambda text, share: seen.append((text, share)),
    )
    it.run(2)
    assert seen[:2] == [("warming up: a", None), ("warming up: b", None)]
    shares = [share for _, share in seen[2:] if share is not None]
    assert len(shares) == 12 and shares == sorted(shares) and shares[0] == 0 and shares[6] == 0.5
    assert seen[2][0] == "round 1 of 2: a" and shares[-1] < 1


def test_the_fastest_settings_are_taken() -> None:
    def slow(prompts: Sequence[list[int]], how: How) -> list[Written]:
        time.sleep(0.02)
        return [Written([7] * 4) for _ in prompts]

    it = comparison(Scripted("a", 4, []).side)
    fast = Scripted("fast", 4, []).side
    best, speed, skipped = fastest([Side("slow", slow), fast, Side("x", fail, peer=True)], it)
    assert best is fast and set(speed) == {"slow", "fast"}
    assert skipped == ["x: RuntimeError: no kernel"] and it.skipped == []
    assert fastest([Side("x", fail, peer=True)], it) == (None, {}, skipped)


def test_ratios_are_those_of_the_same_round() -> None:
    spread = Spread.of([2.0, 9.0, 8.0], [1.0, 3.0, 2.0])
    assert (spread.median, spread.low, spread.high) == (3.0, 2.0, 4.0)


def saying(name: str, seconds: float, *written: Written, peer: bool = True) -> Side:
    """Writes this, prompt after prompt, in a known time."""
    answers = itertools.cycle(written)
    return Side(name, lambda *_: [replace(next(answers), seconds=seconds)], peer=peer)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_answers_unlike_plain_ones_are_counted(temperature: float) -> None:
    """Token by token, or by text where a side tells no ids and may write on."""
    decode = tokenizer().decode
    own = [Written([70, 71]), Written([72])]
    text = [Written([], text=decode([70, 71, 73]), reported=3), Written([], text="?", reported=1)]
    it = comparison(
        saying("draftproof none", 2.0, *own, peer=False),
        saying("transformers", 1.0, own[0], Written([73])),
        saying("other", 1.0, *text),
        prompts=2,
    )
    it.how = replace(HOW, temperature=temperature)
    it.run(1)
    compare(it)
    plain, base, other = it.finished()
    assert plain.differing == 0 and plain.of_transformers == Spread(0.5, 0.5, 0.5)
    assert base.of_plain == Spread(2.0, 2.0, 2.0)
    wanted = 1 if temperature == 0 else None  # peers draw other noise
    assert base.differing == wanted and other.differing == wanted
