"""What a front of replicas does with clients that leave, whole answers, and counts of pauses."""

from __future__ import annotations

import asyncio

import pytest

import serving
from draftproof.ray import surviving
from draftproof.ray.engine import Engine
from replicas import PAIR, TEXT, USUAL, Lossy, ask, engines, front, run


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surviving, "SOONEST", 0.001)


def test_a_client_that_leaves_ends_its_text() -> None:
    async def main(stream: bool) -> None:
        body = {**USUAL, "prompt": "the quick", "max_tokens": 300, "stream": stream}
        if not stream:
            del body["stream_options"]
        leaves = asyncio.Event()
        async with engines(serving.llm) as one:
            asking = asyncio.ensure_future(ask(front(Lossy(one)).app(), TEXT, body, left=leaves))
            while not one[0].front.admission.load:
                await asyncio.sleep(0.001)
            leaves.set()
            await asking
            await idle(one[0])
            wrote = one[0].front.llm.engine
            assert not (wrote.scheduler.running or wrote.scheduler.waiting)

    run(main(True))
    run(main(False))


async def idle(engine: Engine) -> None:
    async with asyncio.timeout(30):
        while engine.front.admission.load:
            await asyncio.sleep(0.001)


def test_a_whole_answer_is_asked_for_again() -> None:
    async def main() -> None:
        body = {"prompt": "the quick", "max_tokens": 20, "seed": 3, "temperature": 1.0}
        async with engines(*PAIR) as pair:
            lossy = Lossy(pair, [1, 1])
            broken = await ask(front(lossy).app(), TEXT, body)
            whole = await ask(front(Lossy(pair)).app(), TEXT, body)
        assert len(lossy.calls) == 3
        assert broken.json()["choices"] == whole.json()["choices"]

    run(main())
