"""The application on Ray Serve itself: one replica is killed in mid-stream, and nobody notices."""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import draftproof as dp

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs draftproof[ray]"),
]
TEXT = "/v1/completions"
OPTIONS = {"model": "bundled", "threads": 1, "max_batch": 4, "timeout": 600}
LONG = {"prompt": "def quick", "max_tokens": 1600, "temperature": 1.0, "ignore_eos": True}
LONG |= {"stream": True}


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    from ray_serving import Replicas

    with Replicas({**OPTIONS, "replicas": 2, "draft": "bundled"}) as made:
        yield made


class Reading(threading.Thread):
    """A stream as it comes."""

    def __init__(self, replicas: Any, body: dict[str, Any]) -> None:
        super().__init__()
        self.text, self.reason, self.error = "", None, None
        self.gap = 0.0  # the longest, in seconds
        self._replicas, self._body = replicas, body
        self.start()

    def run(self) -> None:
        with self._replicas.client.stream("POST", TEXT, json=self._body) as answer:
            last = time.monotonic()
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                now = time.monotonic()
                self.gap, last = max(self.gap, now - last), now
                part = json.loads(line.removeprefix("data: "))
                self.error = part.get("error") or self.error
                for choice in part.get("choices", ()):
                    self.text += choice["text"]
                    self.reason = choice["finish_reason"]

    def until(self, characters: int) -> None:
        while len(self.text) < characters and self.is_alive():
            time.sleep(0.01)


def written(seeds: list[int], tokens: int) -> list[str]:
    """What `LLM.generate` writes for them, plainly."""
    named = {name: LONG[name] for name in ("temperature", "ignore_eos")}
    params = [dp.SamplingParams(seed=seed, max_tokens=tokens, **named) for seed in seeds]
    with dp.LLM("bundled", speculate=None, threads=1) as llm:
        return [each.text for each in llm.generate(["def quick"] * len(seeds), params)]


def test_killed_in_mid_stream(two: Any) -> None:
    """Twice: each kill takes whoever computes, so that nobody may be left until Ray has started
    another one."""
    seeds = [1, 2, 3]
    streams = [Reading(two, {**LONG, "seed": seed}) for seed in seeds]
    for characters in (300, 1200):
        for stream in streams:
            stream.until(characters)
        assert any(stream.is_alive() for stream in streams)
        two.kill(two.busiest())
    for stream in streams:
        stream.join(300)
    assert [stream.error for stream in streams] == [None] * 3
    assert [stream.reason for stream in streams] == ["length"] * 3
    assert [stream.text for stream in streams] == written(seeds, 1600)
    told = two.client.get("/metrics").text
    count = next(line for line in told.splitlines() if line.startswith("draftproof:streams_con"))
    assert float(count.split()[-1]) >= 1


def test_another_draft_is_another_text(two: Any) -> None:
    """Under the rule of rejection: the stream says so in its last chunk."""
    two.settled(2)
    there = two.engines()
    stream = Reading(two, {**LONG, "seed": 1, "rule": "rejection"})
    stream.until(100)
    for each in there:
        two.kill(each)
    stream.join(300)
    assert stream.reason is None and stream.error is not None
    assert "resume cannot go on exactly under the rule 'rejection'" in stream.error["message"]


def test_sessions_stay_together(two: Any) -> None:
    two.settled(2)

    def readers() -> list[float]:
        lines = two.client.get("/metrics").text.splitlines()
        return sorted(float(x.split()[-1]) for x in lines if x.startswith("vllm:prompt_tokens_t"))

    def asked(session: str, index: int) -> None:
        body = {"prompt": f"x = {index}", "max_tokens": 1}
        headers = {"x-session-id": session}
        assert two.client.post(TEXT, json=body, headers=headers).status_code == 200

    before = readers()
    for index in range(8):
        asked("mine", index)
    after = readers()
    assert sum(now > then for then, now in zip(before, after, strict=True)) == 1
    for index in range(24):
        asked(f"session {index}", index)
    assert sum(now > then for then, now in zip(after, readers(), strict=True)) == 2


def test_it_grows_and_shrinks() -> None:
    """One engine, two while much waits, one again; no call fails, and the texts are the same."""
    from ray_serving import Replicas

    growing = {"min_replicas": 1, "max_replicas": 2, "queued_tokens": 500}
    growing |= {"upscale_delay": 1.0, "downscale_delay": 3.0}
    with Replicas({**OPTIONS, **growing, "drain": 60}) as made:
        made.settled(1)
        seeds = list(range(24))
        streams = [Reading(made, {**LONG, "max_tokens": 800, "seed": seed}) for seed in seeds]
        made.settled(2)
        for stream in streams:
            stream.join(600)
        assert [stream.error for stream in streams] == [None] * len(seeds)
        assert [stream.text for stream in streams] == written(seeds, 800)
        made.settled(1)
        assert made.client.get("/health").status_code == 200
