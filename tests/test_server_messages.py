"""Messages that are mistyped are refused, and those that clients and templates know are taken."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

import spelling
from draftproof.server.bodies import ChatBody, checked
from draftproof.server.messages import conversation
from draftproof.server.refusals import Refused
from serving import Server

HI = {"role": "user", "content": "hi"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


def taken(tokenizer: Any, *messages: dict[str, Any]) -> Any:
    return conversation(checked(ChatBody, {"messages": [*messages]}), tokenizer)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "user", "contnt": "hi"}, "the key 'contnt', which is unknown: did you mean 'con"),
        ({"role": "user", "Content": "hi"}, "did you mean 'content'?"),
        ({"role": "assistant", "contents": "hi"}, "did you mean 'content'?"),
        ({"role": "assistant", "tool_call": [CALL]}, "did you mean 'tool_calls'?"),
        ({**HI, "nane": "me"}, "did you mean 'name'?"),
        ({"role": "user"}, "of the role 'user' has no content"),
        ({"role": "system", "content": None}, "of the role 'system' has no content"),
        ({"role": "developer"}, "of the role 'developer' has no content"),
        ({"role": "tool", "tool_call_id": "a"}, "of the role 'tool' has no content"),
        ({"role": "usr", "content": "hi"}, "the role 'usr', which is unknown: did you mean 'user'"),
        ({"role": "User", "content": "hi"}, "did you mean 'user'?"),
        ({"role": "asistant", "content": "hi"}, "did you mean 'assistant'?"),
        ({"role": "systen", "content": "hi"}, "did you mean 'system'?"),
    ],
)
def test_what_is_mistyped(server: Server, message: Any, said: str) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = server.post(path, messages=[HI, message])
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert said in error["message"] and error["param"] == "messages"
        assert error["message"].startswith("messages[1] ") and "\n" not in error["message"]


def test_what_clients_send(server: Server) -> None:
    """An answer of OpenAI's as its package writes it down, and what others add."""
    said = {"role": "assistant", "content": "ho", "refusal": None, "audio": None}
    said |= {"function_call": None, "tool_calls": None, "annotations": []}
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    messages = [
        {"role": "developer", "content": ""},
        {**HI, "name": "me"},
        {**said, "reasoning_content": "hm", "reasoning": "hm", "reasoning_details": []},
        HI,
        called,
        {"role": "tool", "tool_call_id": "a", "content": "4"},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": None},
        {"role": "ipython", "content": "5"},
        {"role": "observation", "metadata": "6", "contnt": None},
        {**HI, "context": "beside what it is like", "cache_control": {"type": "ephemeral"}},
    ]
    assert server.post("/v1/chat/completions", messages=messages, max_tokens=1).status_code == 200
    assert len(taken(None, *messages)) == len(messages)
    with pytest.raises(Refused, match=r"messages\[1\] has the key 'context'"):
        taken(None, messages[-1], {"role": "user", "context": "alone"})


def test_what_a_template_looks_for() -> None:
    own: Any = copy.deepcopy(spelling.tokenizer())
    own.chat_template = "{% for m in messages %}{{ m.role == 'usr' }}{{ m.context }}{% endfor %}"
    made = {"role": "usr", "context": "a"}
    assert taken(own, made) == [{"content": "", **made}]
    with pytest.raises(Refused, match="did you mean 'content'"):
        taken(own, {"role": "a", "contet": "b"})
    with pytest.raises(Refused, match="did you mean 'user'"):
        taken(spelling.tokenizer(), made)


def test_names_without_end_are_not_all_looked_at() -> None:
    """A body may have hundreds of thousands, on the loop that everybody waits for."""
    assert taken(None, *({**HI, f"key of mine {n}": n} for n in range(100)), {**HI, "nane": "me"})
    assert taken(None, {**HI, "n" * 100_000: 1}, {"role": "u" * 100_000, "content": "a"})
