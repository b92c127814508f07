"""The facade: streams, closed, interleaved, interrupted."""

from __future__ import annotations

import gc
from random import Random
from typing import Any

import pytest

import draftproof as dp
from facade import TEXT, llm, params, refused

# --- streams ---


@pytest.mark.parametrize("options", [{}, {"stop": "e"}, {"temperature": 0.0}, {"max_tokens": 1}])
@pytest.mark.parametrize("fixture", ["plain_llm", "drafted_llm"])
def test_a_stream_is_what_generate_writes(
    request: pytest.FixtureRequest, fixture: str, options: dict[str, Any]
) -> None:
    made = request.getfixturevalue(fixture)
    for seed in range(2):
        one = params(**{"seed": seed, "max_tokens": 30, **options})
        want = made.generate(TEXT, one)[0]
        chunks = list(made.stream(TEXT, one))
        assert "".join(chunk.text for chunk in chunks) == want.text
        assert [t for chunk in chunks for t in chunk.token_ids] == want.token_ids
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason == want.finish_reason
        if fixture == "plain_llm":
            assert len(chunks) >= len(want.token_ids)


def test_a_stream_of_nothing_ends_with_a_reason(plain_llm: dp.LLM) -> None:
    chunks = list(plain_llm.stream(TEXT, params(max_tokens=0)))
    assert "".join(chunk.text for chunk in chunks) == ""
    assert chunks and chunks[-1].finish_reason == "length"


def test_closing_a_stream_aborts_and_frees_its_row(drafted_llm: dp.LLM) -> None:
    for begun in (0, 1, 2):
        stream = drafted_llm.stream(TEXT, params())
        for _ in range(begun):
            next(stream)
        running = list(drafted_llm.engine.scheduler.running)
        stream.close()
        assert not drafted_llm.engine.scheduler.running and not drafted_llm.engine.scheduler.waiting
        for each in running:
            assert each.finish_reason == "abort" and drafted_llm.runner.cached(each.key) == 0
    with pytest.raises(RuntimeError, match="stop here"):
        for _ in drafted_llm.stream(TEXT, params()):
            raise RuntimeError("stop here")
    gc.collect()
    assert not drafted_llm.engine.scheduler.running
    assert len(drafted_llm.generate(TEXT, params(ignore_eos=True))[0].token_ids) == 30


def test_interleaved_streams(drafted_llm: dp.LLM, plain_llm: dp.LLM) -> None:
    rng = Random(0)
    want = {seed: plain_llm.generate(TEXT, params(seed=seed))[0] for seed in range(5)}
    streams = {seed: drafted_llm.stream(TEXT, params(seed=seed)) for seed in range(5)}
    texts, tokens = dict.fromkeys(streams, ""), {seed: [] for seed in streams}
    while streams:
        seed = rng.choice(list(streams))
        chunk = next(streams[seed], None)
        if chunk is None:
            del streams[seed]
            continue
        texts[seed] += chunk.text
        tokens[seed] += chunk.token_ids
        if rng.random() < 0.1:
            other = drafted_llm.generate(TEXT, params(seed=4))[0]  # a whole answer in between
            assert other.token_ids == want[4].token_ids
    assert texts == {seed: out.text for seed, out in want.items()}
    assert tokens == {seed: out.token_ids for seed, out in want.items()}


def test_a_stream_refuses_at_once(plain_llm: dp.LLM) -> None:
    refused(lambda: plain_llm.stream("", params()), "empty")
    refused(lambda: plain_llm.stream("x", params(n=2)), "n=2")
    refused(lambda: plain_llm.stream("x", params(prompt_logprobs=1)), "use generate")


# --- life ---


def test_close_ends_everything_and_may_be_called_twice() -> None:
    made = llm(max_batch=1)
    requests = made.submit("x", params()) + made.submit("y", params())
    made.engine.step()
    made.close()
    made.close()
    assert [each.finish_reason for each in requests] == ["abort", "abort"]


def test_an_interrupt_leaves_nothing_running() -> None:
    class Interrupting:
        taps: tuple[int, ...] = ()
        left = 3

        def bind(self, target: Any) -> None: ...
        def release(self, request: Any) -> None: ...
        def propose(self, requests: Any) -> Any:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            raise RuntimeError("no idea")

    with llm(speculate=Interrupting()) as made:
        with pytest.raises(KeyboardInterrupt):
            made.generate(["x", "y"], params())
        assert not made.engine.scheduler.running and not made.engine.scheduler.waiting
        assert len(made.generate("x", params(ignore_eos=True))[0].token_ids) == 30
