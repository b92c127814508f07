"""Each refusal names the field that the client wrote, and what asks for nothing is taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from serving import CONTEXT, Server, events

HI = [{"role": "user", "content": "hi"}]
TEXT: dict[str, Any] = {"prompt": "a", "max_tokens": 2, "temperature": 0}
CHAT: dict[str, Any] = {"messages": HI, "max_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


@pytest.mark.parametrize(
    ("more", "field", "said"),
    [
        ({"rule": "guess"}, "rule", "rule 'guess'"),
        ({"resume": {"token_ids": [[1], [2]]}}, "resume", "resume has the tokens of 2"),
        ({"resume": {"token_ids": [10**6]}}, "resume", "resume holds token id 1000000"),
        ({"speculative": "psychic"}, "speculative", "speculative is 'psychic'"),
        (
            {"speculative": False, "prediction": {"type": "content", "content": "a"}},
            "prediction",
            "which speculative=False rules out",
        ),
        ({"logit_bias": {"1_0": 1}}, "logit_bias", "must map token ids"),
        ({"logit_bias": {" 1": 1}}, "logit_bias", "must map token ids"),
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias", "must map token ids"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "must map token ids"),
        ({"skip_special_tokens": False}, "skip_special_tokens", "only true can: drop it"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids", "only [] can: drop it"),
    ],
)
def test_of_texts(server: Server, more: Any, field: str, said: str) -> None:
    refused(server.post("/v1/completions", **TEXT, **more), field, said)


@pytest.mark.parametrize(
    ("more", "field", "said"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs is 21"),
        ({"top_logprobs": 1}, "top_logprobs", "needs logprobs"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "max_completion_tokens is -1"),
        ({"messages": [{"role": "user", "content": []}]}, "messages", "no content"),
        ({"messages": [{"role": "user", "content": "a" * 500}]}, "messages", "tokens"),
        *(
            ({"chat_template_kwargs": {name: 1}}, "chat_template_kwargs", f"hold {name!r}")
            for name in ("self", "messages", "conversations", "tools")
        ),
    ],
)
def test_of_chats(server: Server, more: Any, field: str, said: str) -> None:
    refused(server.post("/v1/chat/completions", **CHAT | more), field, said)


def test_of_responses(server: Server) -> None:
    answer = server.post("/v1/responses", input="a" * 500)
    refused(answer, "input", "tokens")
    answer = server.post("/v1/responses", input="a", max_output_tokens=-1)
    refused(answer, "max_output_tokens", "max_output_tokens is -1")


def refused(answer: Any, field: str, said: str) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == field and said in error["message"]


@pytest.mark.parametrize("more", [{"repeat_penalty": 1}, {"return_token_ids": False}])
def test_what_asks_for_nothing(server: Server, more: Any) -> None:
    assert server.post("/v1/completions", **TEXT, **more).status_code == 200
    assert server.post("/v1/chat/completions", **CHAT, top_logprobs=0, **more).status_code == 200


def test_tokens_are_counted_of_one_text(server: Server) -> None:
    """However long it is: to be told is why they are counted."""
    answer = server.post("/tokenize", prompt="a", messages=HI)
    refused(answer, "messages", "prompt and messages are there: send one of them")
    refused(server.post("/tokenize", prompt="a", content="b"), "content", "send one")
    long = [{"role": "user", "content": "a" * 2 * CONTEXT}]
    for body in ({"prompt": "a" * 2 * CONTEXT}, {"messages": long}):
        found = server.post("/tokenize", **body).json()
        assert found["count"] == len(found["tokens"]) >= 2 * CONTEXT


def test_tokens_and_back(server: Server) -> None:
    told = server.post("/tokenize", prompt="abc", return_token_strs=True).json()
    assert "".join(told["token_strs"]) == "abc" and told["count"] == 3
    back = server.post("/detokenize", tokens=told["tokens"]).json()
    assert back["prompt"] == "abc"
    refused(server.post("/detokenize", tokens=[10**6]), "tokens", "1000000")
    assert server.client.get("/tokenizer_info").json()["model_max_length"] == CONTEXT


def test_every_chunk_has_timings(server: Server) -> None:
    body = TEXT | {"max_tokens": 5, "ignore_eos": True, "stream": True, "timings_per_token": True}
    answer = server.post("/v1/completions", **body)
    found = [event["timings"]["predicted_n"] for event in events(answer.text)]
    assert found == sorted(found) and found[-1] == 5
