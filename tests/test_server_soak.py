"""Any body gets an answer, and thousands of mixed requests leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import draftproof as dp
import serving
from serving import Server, events

PROMPTS = ["abc", "hello there, ", "def f(x):\n    return x\n", "aaaa" * 20, "The sky. " * 8]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


@pytest.fixture(scope="module")
def plain() -> Iterator[dp.LLM]:
    with serving.llm(speculate=None, prefix_cache=False) as made:
        yield made


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.floats(), st.text(max_size=5),
    st.integers(-(2**70), 2**70), st.just("abc"),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=5,
)
KNOWN = [*serving.bodies.TextBody.model_fields, *serving.bodies.ChatBody.model_fields]
KNOWN += [*serving.bodies.IDLE, "nonsense"]
fuzzed = st.dictionaries(st.sampled_from(KNOWN), values, max_size=4)
likely = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "top_k": st.integers(-1, 5),
        "min_p": st.floats(0, 1),
        "n": st.integers(0, 3),
        "logprobs": st.integers(-1, 21) | st.booleans(),
        "echo": st.booleans(),
        "stream": st.booleans(),
        "stop": st.text(max_size=2) | st.lists(st.text(max_size=2), max_size=3),
        "logit_bias": st.dictionaries(
            st.integers(0, 300).map(str), st.floats(-101, 101), max_size=3
        ),
        "bad_token_ids": st.lists(st.integers(-1, 300), max_size=4),
        "presence_penalty": st.floats(-3, 3),
        "speculative": st.booleans() | st.sampled_from(["draft", "suffix"]),
        "rule": st.sampled_from(["coupled", "rejection", "typical", "none"]),
        "min_tokens": st.integers(-1, 9),
        "speculative_details": st.booleans(),
        "timings_per_token": st.booleans(),
    },
)


def check_body(server: Server, path: str, body: dict[str, Any]) -> None:
    answer = server.client.post(path, content=serving.dumps(body))
    assert answer.status_code in (200, 400, 404), (answer.status_code, answer.text)
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]
    elif body.get("stream") is True:
        assert all("choices" in event or "error" in event for event in events(answer.text))


def check_fuzz(server: Server, some: dict[str, Any], more: dict[str, Any]) -> None:
    check_body(server, "/v1/completions", {"prompt": "abc", "max_tokens": 3, **more, **some})
    messages = [{"role": "user", "content": "hi"}]
    more.pop("echo", None)
    check_body(
        server, "/v1/chat/completions", {"messages": messages, "max_tokens": 3, **more, **some}
    )


@given(fuzzed, likely)
@settings(max_examples=25)
def test_no_body_is_a_defect(server: Server, some: dict[str, Any], more: dict[str, Any]) -> None:
    check_fuzz(server, some, more)


@pytest.mark.slow
@given(fuzzed, likely)
@settings(max_examples=2000)
def test_no_body_is_a_defect_at_length(
    server: Server, some: dict[str, Any], more: dict[str, Any]
) -> None:
    check_fuzz(server, some, more)


def mixed(rng: Random) -> dict[str, Any]:
    """A request with a seed, whose text is that of generate whatever else runs."""
    body: dict[str, Any] = {"prompt": rng.choice(PROMPTS), "seed": rng.randrange(8)}
    body["temperature"] = rng.choice([0.0, 0.7, 1.0])
    body["max_tokens"] = rng.choice([1, 2, 6, 16])
    body["n"] = rng.choice([1, 1, 1, 1, 3])
    if rng.random() < 0.3:
        body["stop"] = rng.choice(["e", ["a", "b"], "zz"])
    if rng.random() < 0.3:
        body["ignore_eos"] = True
    return body


def asked(rng: Random, body: dict[str, Any]) -> dict[str, Any]:
    """The same with what must not change its text."""
    more: dict[str, Any] = {"stream": rng.random() < 0.5}
    more["speculative"] = rng.choice([True, False, "draft", {"max_nodes": 2}])
    if rng.random() < 0.2:
        more["cache_salt"] = str(rng.randrange(5))
    return {**body, **more}


async def one(client: httpx.AsyncClient, rng: Random, body: dict[str, Any]) -> list[str] | None:
    """Its texts; None where the client left."""
    sent = asked(rng, body)
    if rng.random() < 0.2:
        try:
            async with asyncio.timeout(rng.random() * 0.1):
                await client.post("/v1/completions", json=sent)
        except TimeoutError:
            pass
        return None
    answer = await client.post("/v1/completions", json=sent)
    assert answer.status_code == 200, answer.text
    texts = [""] * body["n"]
    choices = (event["choices"][0] for event in events(answer.text)) if sent["stream"] else None
    for choice in choices if choices is not None else answer.json()["choices"]:
        texts[choice["index"]] += choice["text"]
    return texts


def crowd(server: Server, plain: dp.LLM, count: int, seed: int) -> int:
    """So many requests, 16 at a time; how many were answered, each as `generate` would."""
    rng = Random(seed)
    kinds = [mixed(rng) for _ in range(40)]
    bodies = [rng.choice(kinds) for _ in range(count)]

    async def main() -> list[list[str] | None]:
        gate = asyncio.Semaphore(16)
        async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:

            async def within(number: int, body: dict[str, Any]) -> list[str] | None:
                async with gate:
                    return await one(client, Random(seed * 100_003 + number), body)

            return await asyncio.gather(*(within(*each) for each in enumerate(bodies)))

    found = asyncio.run(main())
    known: dict[str, list[str]] = {}
    for body, texts in zip(bodies, found, strict=True):
        name = serving.dumps(body).decode()
        if texts is not None and name not in known:
            prompt, params = body["prompt"], {k: v for k, v in body.items() if k != "prompt"}
            known[name] = [o.text for o in plain.generate(prompt, dp.SamplingParams(**params))]
        assert texts is None or texts == known[name], body
    assert server.idle(30)
    server.front.llm.engine.turns.alone(lambda: None)
    return sum(texts is not None for texts in found)


def test_300_mixed_requests(plain: dp.LLM) -> None:
    with Server() as server:
        assert 200 < crowd(server, plain, 300, 1) < 280
        server.front.llm.engine.check()
        assert not server.front._jobs and not server.front.admission.load


@pytest.mark.slow
def test_10_000_mixed_requests_leave_nothing_behind(plain: dp.LLM) -> None:
    with Server() as server:
        sizes = []
        for part in range(10):
            crowd(server, plain, 1000, part)
            gc.collect()
            held = len(os.listdir("/proc/self/fd")), threading.active_count()
            sizes.append((resident(), *held))
        server.front.llm.engine.check()
    assert sizes[-1][0] <= 1.02 * sizes[1][0] and sizes[-1][1:] <= sizes[1][1:], sizes


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])
