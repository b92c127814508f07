"""Any body gets an answer, and none is a defect of the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import serving
from serving import Server, events


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
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
        found = [*events(answer.text)]
        assert found and all("choices" in event or "error" in event for event in found)


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
