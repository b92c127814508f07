"""Calls of tools over HTTP: whole, streamed, required, and in a conversation that goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel

import speaking
import toolbox
from serving import NAME, Server, events
from speaking import Script
from toolbox import TOOLS, call, spoken

FORMS = ["hermes", "llama-3", "mistral", "named"]
ROME = {"city": "Rome", "days": 1}
SAID = "I look it up."
PATH = "/v1/chat/completions"
MARKS = {"hermes": "", "llama-3": "", "mistral": "[TOOL_CALLS] ", "named": "[TOOL_CALLS]"}


def user(text: str) -> list[Any]:
    """The text is in the prompt, so that look-up drafts it."""
    return [{"role": "user", "content": f"Say:\n{text}"}]


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def server(form: str, script: Script) -> Iterator[Server]:
    with speaking.server(script, form) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def ask(server: Server, script: Script, text: str | None, **body: Any) -> dict[str, Any]:
    """The one choice of an answer; asked for as a stream it says the same."""
    script.text = text
    body = {"messages": user(text or ""), "tools": TOOLS, "max_tokens": 600, "seed": 3, **body}
    answer = server.post(PATH, **body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    chunks = list(events(server.post(PATH, stream=True, **body).text))
    streamed = together(chunks)
    for each in (choice, streamed):
        ids = [made.pop("id") for made in each["message"].get("tool_calls", ())]
        assert len({*ids}) == len(ids) and all(ids)
    assert streamed == {name: choice[name] for name in streamed}
    return streamed


def together(chunks: list[Any]) -> dict[str, Any]:
    """The choice that chunks make, with the rules of OpenAI's own clients."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: list[dict[str, Any]] = []
    reason = None
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert reason is None, "behind the end"
        delta, reason = choice["delta"], choice["finish_reason"]
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                message[name] = (message.get(name) or "") + delta[name]
        for each in delta.get("tool_calls", ()):
            if each["index"] == len(calls):
                assert each["type"] == "function" and each["function"]["arguments"] == ""
                calls.append({"id": each["id"], "type": "function", "function": {}})
                calls[-1]["function"] |= each["function"]
            else:
                assert each.keys() == {"index", "function"} and each["index"] == len(calls) - 1
                calls[-1]["function"]["arguments"] += each["function"]["arguments"]
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None:
        message["content"] = ""
    return {"index": 0, "message": message, "finish_reason": reason}


def named(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (each["function"]["name"], json.loads(each["function"]["arguments"]))
        for each in choice["message"].get("tool_calls", ())
    ]


def test_content_and_then_calls(server: Server, script: Script, form: str) -> None:
    calls = [("weather", ROME)] if form == "llama-3" else [("weather", ROME), ("stop", {})]
    text = spoken(form, *calls)
    choice = ask(server, script, text)
    assert named(choice) == calls and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    if form != "llama-3":
        choice = ask(server, script, SAID + " " + text)
        assert named(choice) == calls and choice["message"]["content"] == SAID


def test_many_tokens_a_step_change_nothing(server: Server, script: Script, form: str) -> None:
    """The drafts are accepted, and the same is told without them and token by token."""
    text = spoken(form, ("weather", {"city": "Rome " * 30, "days": 1}))
    found = [ask(server, script, text, speculative=on) for on in (True, False, {"max_nodes": 3})]
    assert found[0] == found[1] == found[2] and named(found[0])
    body = {"messages": user(text), "tools": TOOLS, "max_tokens": 600, "metrics": True}
    answer = server.post(PATH, **body).json()
    drafts = answer["metrics"]["speculative_decoding"]
    special = len(toolbox.SPECIAL.get(form, ())) > 0
    assert drafts["mean_acceptance_length"] > (1 if special else 4)


def test_text_without_calls(server: Server, script: Script) -> None:
    for text in ("No tool is needed.\n\n", call("fly", to="Rome"), "", "{}"):
        choice = ask(server, script, text)
        assert choice["message"] == {"role": "assistant", "content": text}
        assert choice["finish_reason"] == "stop"


def test_a_call_that_the_length_cuts(server: Server, script: Script, form: str) -> None:
    text = spoken(form, ("weather", {"city": "Rome " * 30, "days": 1}))
    choice = ask(server, script, text, max_tokens=100)
    (made,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "length" and made["function"]["name"] == "weather"
    assert made["function"]["arguments"].startswith('{"city": "Rome Rome')
    assert not made["function"]["arguments"].endswith("}")


def test_no_tool_is_called_where_none_may_be(server: Server, script: Script, form: str) -> None:
    text = spoken(form, ("weather", ROME))
    choice = ask(server, script, text, tool_choice="none")
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
    assert '"city": "Rome"' in choice["message"]["content"]


@pytest.mark.parametrize("temperature", [pytest.param(0, marks=pytest.mark.slow), 1.0])
def test_what_has_to_be_called_is(
    server: Server, script: Script, form: str, temperature: float
) -> None:
    """By a model of noise; arguments are valid under the tool's schema."""
    by_name = {"type": "function", "function": {"name": "weather"}}
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}
    for choice in ("required", by_name):
        for several in (True, False):
            more = {"tool_choice": choice, "parallel_tool_calls": several, "max_tokens": 2000}
            found = ask(server, script, None, temperature=temperature, **more)
            plain = ask(server, script, None, temperature=temperature, speculative=False, **more)
            assert found == plain
            assert found["message"]["content"] is None
            whole = found["finish_reason"] == "tool_calls"  # else cut in the middle of one
            calls = found["message"]["tool_calls"]
            assert whole or several
            assert len(calls) == 1 or (several and choice == "required")
            for name, given in named({"message": {"tool_calls": calls[: None if whole else -1]}}):
                jsonschema.validate(given, schemas[name])
                assert choice == "required" or name == "weather"


def test_a_conversation_goes_on(server: Server, script: Script, form: str) -> None:
    """The template is told of calls and of what they gave, as OpenAI's clients send it."""
    made = {"name": "weather", "arguments": json.dumps(ROME)}
    messages = [
        {"role": "user", "content": "Rome?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "abcdefghi", "type": "function", "function": made}],
        },
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "Rain."},
    ]
    choice = ask(server, script, SAID, messages=messages)
    assert choice["message"]["content"] == SAID
    ids = server.post("/tokenize", messages=messages).json()["tokens"]
    text = server.front.llm.tokenizer.decode(ids)
    assert '{"city": "Rome", "days": 1}' in text and "Rain." in text


class Weather(BaseModel):
    city: str
    days: int


def test_helpers_of_the_package(client: openai.OpenAI, script: Script, form: str) -> None:
    """`parse` and the stream of events make objects of a model's calls."""
    script.text = spoken(form, ("Weather", ROME))
    offered = openai.pydantic_function_tool(Weather)
    asked: Any = {"model": NAME, "messages": user(script.text), "tools": [offered]}
    done = client.chat.completions.parse(**asked)
    (made,) = done.choices[0].message.tool_calls or ()
    assert made.function.parsed_arguments == Weather(**ROME)
    with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.done") == 1
    assert "tool_calls.function.arguments.delta" in kinds
    (again,) = final.choices[0].message.tool_calls or ()
    assert again.function.parsed_arguments == Weather(**ROME)
    assert final.choices[0].finish_reason == "tool_calls"
    if form in ("mistral", "named"):
        assert len(made.id) == 9 and made.id.isalnum()
    else:
        assert made.id.startswith("call_")


def test_what_else_a_stream_tells(server: Server, script: Script, form: str) -> None:
    """Every token has its log-probability, and what it takes to go on; which is then done."""
    text = spoken(form, ("weather", ROME))
    script.text = text
    body = {"messages": user(text), "tools": TOOLS, "logprobs": True, "seed": 5}
    stream = server.client.post(
        PATH, json={**body, "stream": True}, headers={"x-draftproof-resume": "1"}
    )
    chunks = list(events(stream.text))
    choices = [chunk["choices"][0] for chunk in chunks]
    ids = [id for each in choices for id in each.get("resume", {}).get("token_ids", ())]
    scores = [
        entry for each in choices if each["logprobs"] for entry in each["logprobs"]["content"]
    ]
    assert len(ids) == len(scores) > len(ROME)
    whole = together(chunks)
    for cut in (5, len(ids) // 2, len(ids)):
        rest = list(
            events(server.post(PATH, **body, stream=True, resume={"token_ids": ids[:cut]}).text)
        )
        made = [
            each["function"]["arguments"]
            for chunk in rest
            for each in chunk["choices"][0]["delta"].get("tool_calls", ())
        ]
        arguments = whole["message"]["tool_calls"][0]["function"]["arguments"]
        assert arguments.endswith("".join(made))
        assert rest[-1]["choices"][0]["finish_reason"] == "tool_calls"
