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
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two engines; the last tests make them one that grows: Ray's start is most of the time."""
    from ray_serving import Replicas

    template = tmp_path_factory.mktemp("ray") / "template.jinja"
    template.write_text("{% for each in messages %}{{ each.content }}{% endfor %}")
    with Replicas({**OPTIONS, "replicas": 2, "chat_template": str(template)}) as made:
        yield made


class Reading(threading.Thread):
    """A stream as it comes."""

    def __init__(self, replicas: Any, body: dict[str, Any]) -> None:
        super().__init__()
        self.text, self.reason, self.error = "", None, None
        self.gap = 0.0  # the longest, in seconds
        self._replicas, self.body = replicas, body
        self.start()

    def run(self) -> None:
        with self._replicas.client.stream("POST", TEXT, json=self.body) as answer:
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


def check(streams: list[Reading]) -> None:
    """Each ends, with what `LLM.generate` writes, plainly."""
    for stream in streams:
        stream.join(600)
    assert [stream.error for stream in streams] == [None] * len(streams)
    assert [stream.reason for stream in streams] == ["length"] * len(streams)
    asked = [stream.body for stream in streams]
    named = ("temperature", "ignore_eos", "seed", "max_tokens")
    params = [dp.SamplingParams(**{name: body[name] for name in named}) for body in asked]
    with dp.LLM("bundled", speculate=None, threads=1) as llm:
        plain = [each.text for each in llm.generate([body["prompt"] for body in asked], params)]
    assert [stream.text for stream in streams] == plain


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


def test_killed_in_mid_stream(two: Any) -> None:
    """Twice: each kill takes whoever computes, so that nobody may be left until Ray has started
    another one."""
    streams = [Reading(two, {**LONG, "seed": seed}) for seed in (1, 2, 3)]
    for characters in (300, 1200):
        for stream in streams:
            stream.until(characters)
        assert any(stream.is_alive() for stream in streams)
        two.kill(two.busiest())
    check(streams)
    told = two.client.get("/metrics").text
    count = next(line for line in told.splitlines() if line.startswith("draftproof:streams_con"))
    assert float(count.split()[-1]) >= 1


def test_items_killed_in_mid_stream(two: Any) -> None:
    """`/v1/responses`: one answer, whose events are numbered on; the text of the same chat."""
    two.settled(2)
    same = {"temperature": 1.0, "ignore_eos": True, "seed": 4}
    body = {**same, "input": "def quick", "max_output_tokens": 1200, "stream": True}
    events, elsewhere, characters = list[Any](), False, 0
    with two.client.stream("POST", "/v1/responses", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            elsewhere = elsewhere or line.startswith(": goes on")
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                before, characters = characters, characters + len(events[-1].get("delta", ""))
                if before < 300 <= characters:
                    two.kill(two.busiest())
    assert elsewhere and events[-1]["type"] == "response.incomplete", events[-1]
    assert [each["sequence_number"] for each in events] == [*range(len(events))]
    message = {"role": "user", "content": "def quick"}
    chat = {**same, "messages": [message], "max_tokens": 1200}
    whole = two.client.post("/v1/chat/completions", json=chat).json()
    text = whole["choices"][0]["message"]["content"]
    deltas = "".join(each["delta"] for each in events if each["type"].endswith("text.delta"))
    assert deltas == text == events[-1]["response"]["output"][0]["content"][0]["text"]


GROWING = {"min_replicas": 1, "max_replicas": 2, "queued_tokens": 500}
GROWING |= {"upscale_delay": 1.0, "downscale_delay": 3.0}


def test_an_update_under_load(two: Any) -> None:
    """To another draft, on as many cores: one engine after the other ends, and no stream does."""
    before = {each.pid for each in two.engines()}
    seeds = list(range(2))  # few: the new engines need the cores to start
    streams = [Reading(two, {**LONG, "prompt": f"x = {seed}", "seed": seed}) for seed in seeds]
    two.update({**OPTIONS, **GROWING, "draft": "bundled", "drain": 1})
    while any(each.pid in before for each in two.engines()):
        for at, stream in enumerate(streams):
            if not stream.is_alive():  # there is always something to be written
                check([stream])
                seed = seeds[at] = max(seeds) + 1
                streams[at] = Reading(two, {**LONG, "prompt": f"x = {seed}", "seed": seed})
        time.sleep(0.1)
    two.wait()
    check(streams)


def test_it_grows_and_shrinks(two: Any) -> None:
    """One engine, two while much waits, one again; no call fails, and the texts are the same."""
    two.settled(1)
    short = LONG | {"max_tokens": 200}
    over = threading.Event()
    read: list[Reading] = []

    def keep_asking(first: int) -> None:
        for seed in range(first, 10_000, 16):
            if over.is_set():
                return
            read.append(Reading(two, {**short, "seed": seed}))
            read[-1].join(600)

    asking = [threading.Thread(target=keep_asking, args=(first,)) for first in range(16)]
    for each in asking:
        each.start()
    try:
        two.settled(2)
    finally:
        over.set()
    for each in asking:
        each.join()
    check(read)
    two.settled(1)
    assert two.client.get("/health").status_code == 200


def test_another_draft_is_another_text(two: Any) -> None:
    """Under the rule of rejection: the stream says so in its last chunk."""
    there = two.engines()
    stream = Reading(two, {**LONG, "seed": 1, "rule": "rejection"})
    stream.until(100)
    for each in there:
        two.kill(each)
    stream.join(300)
    assert stream.reason is None and stream.error is not None
    assert "resume cannot go on exactly under the rule 'rejection'" in stream.error["message"]
