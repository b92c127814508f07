"""`/v1/responses` with the `openai` package: text, objects and calls, whole and as events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel, TypeAdapter

import speaking
from draftproof.server.responses.body import ResponsesBody, messages_of
from serving import NAME, Server
from speaking import Script
from toolbox import call, tool

PATH = "/v1/responses"
ROME = {"city": "Rome", "days": 1}


def flat(made: dict[str, Any]) -> dict[str, Any]:
    """A tool in this endpoint's form."""
    return {"type": "function", **made["function"]}


TOOLS: list[Any] = [
    flat(tool("weather", city={"enum": ["Rome", "Oslo"]}, days={"enum": [1, 2]})),
    flat(tool("stop")),
]


class Thing(BaseModel):
    kind: Literal["cat", "dog"]
    tame: bool


class Weather(BaseModel):
    city: str
    days: int


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def server(script: Script) -> Iterator[Server]:
    with speaking.server(script, "hermes") as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def spoken(*calls: tuple[str, Any]) -> str:
    each = (f"<tool_call>\n{call(name, **given)}\n</tool_call>" for name, given in calls)
    return "\n".join(each)


def same(one: Any, other: Any) -> bool:
    """All but what is an answer's own."""
    own = ("id", "call_id", "created_at", "input_tokens_details", "output_tokens_details")

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: bare(each) for name, each in value.items() if name not in own}
        return [bare(each) for each in value] if isinstance(value, list) else value

    return bool(bare(one) == bare(other))


def test_text(client: openai.OpenAI, script: Script) -> None:
    script.text = "Tea is a drink.\n"
    made = client.responses.create(model=NAME, input="What is tea?", instructions="Be brief.")
    assert made.output_text == script.text and made.status == "completed"
    assert made.usage is not None
    assert made.usage.output_tokens == len(script.text) + 1
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    assert made.instructions == "Be brief." and made.store is False  # type: ignore[attr-defined]
    TypeAdapter(Response).validate_python(made.model_dump(exclude_unset=True))
    cut = client.responses.create(model=NAME, input="What is tea?", max_output_tokens=5)
    assert cut.output_text == script.text[:5] and cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    script.text = ""
    assert client.responses.create(model=NAME, input="?").output[0].type == "message"


def test_events_make_the_answer(server: Server, script: Script) -> None:
    """In OpenAI's order, numbered from 0; the last one has the whole answer."""
    for text in ("Tea.", "", "I look.\n" + spoken(("weather", ROME), ("stop", {})) + "\nDone"):
        script.text = text
        body = {"input": text or "?", "tools": TOOLS, "seed": 3}
        whole = server.post(PATH, **body).json()
        raw = server.post(PATH, **body, stream=True).text
        events = []
        for block in raw.strip().split("\n\n"):
            kind, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert kind == f"event: {events[-1]['type']}"
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        kinds = [event["type"].removeprefix("response.") for event in events]
        assert kinds[:2] == ["created", "in_progress"] and kinds[-1] == "completed"
        assert same(events[-1]["response"], whole)
        open_, made = None, []
        for event, kind in zip(events[2:-1], kinds[2:-1], strict=True):
            assert event["output_index"] == len(made)
            if kind == "output_item.added":
                assert open_ is None
                open_ = event["item"]
                assert open_["status"] == "in_progress"
            elif kind.endswith(".delta"):
                assert event["item_id"] == open_["id"]
                field = "arguments" if "arguments" in kind else "text"
                open_[field] = open_.get(field, "") + event["delta"]
            elif kind == "output_item.done":
                item = event["item"]
                inner = item["content"][0]["text"] if item["type"] == "message" else None
                assert open_.get("text", "") == inner or open_["arguments"] == item["arguments"]
                assert item["id"] == open_["id"] and item["status"] == "completed"
                made.append(item)
                open_ = None
        assert made == events[-1]["response"]["output"]
        types = [item["type"] for item in made]
        assert types == (
            ["message", "function_call", "function_call", "message"]
            if "tool_call" in text
            else ["message"]
        )


def test_objects(client: openai.OpenAI, script: Script) -> None:
    """`parse`, and the helper for streams, of what a schema binds."""
    script.text = None
    asked: Any = {"model": NAME, "input": "A pet?", "text_format": Thing, "temperature": 0}
    made = client.responses.parse(**asked, max_output_tokens=300)
    assert isinstance(made.output_parsed, Thing)
    with client.responses.stream(**asked) as stream:
        done = [event for event in stream if event.type == "response.output_text.done"]
        assert done[0].parsed == made.output_parsed  # type: ignore[union-attr]
        assert stream.get_final_response().output_parsed == made.output_parsed
    text: Any = {"format": {"type": "json_object"}}
    start = client.responses.create(model=NAME, input="?", text=text, max_output_tokens=9)
    assert start.output_text.startswith("{")


def test_calls(client: openai.OpenAI, script: Script) -> None:
    script.text = spoken(("Weather", ROME))
    offered = openai.pydantic_function_tool(Weather)
    asked: Any = {"model": NAME, "input": script.text, "tools": [offered]}
    made = client.responses.parse(**asked)
    (first,) = made.output
    assert first.type == "function_call" and first.parsed_arguments == Weather(**ROME)
    with client.responses.stream(**asked) as stream:
        deltas = [e for e in stream if e.type == "response.function_call_arguments.delta"]
        (again,) = stream.get_final_response().output
    assert deltas and again.type == "function_call"
    assert again.parsed_arguments == Weather(**ROME)
    assert deltas[-1].snapshot == first.arguments  # type: ignore[union-attr]


def test_what_has_to_be_called_is(client: openai.OpenAI, script: Script) -> None:
    script.text = None
    choice: Any = {"type": "function", "name": "weather"}
    asked: Any = {"model": NAME, "input": "?", "tools": TOOLS, "max_output_tokens": 900}
    made = client.responses.create(**asked, tool_choice=choice, temperature=1)
    (item,) = made.output
    assert item.type == "function_call" and item.name == "weather"
    assert json.loads(item.arguments)["city"] in ("Rome", "Oslo")


def test_a_conversation_goes_on(client: openai.OpenAI, server: Server, script: Script) -> None:
    """What came out goes in again, with what the calls gave."""
    script.text = "I look.\n" + spoken(("weather", ROME), ("stop", {}))
    given: list[Any] = [{"role": "user", "content": script.text}]
    made = client.responses.create(model=NAME, input=given, tools=TOOLS)
    given += [item.model_dump(exclude_unset=True) for item in made.output]
    calls = [item for item in made.output if item.type == "function_call"]
    assert len(calls) == 2
    given += [
        {"type": "function_call_output", "call_id": each.call_id, "output": "Rain."}
        for each in calls
    ]
    script.text = "It rains."
    again = client.responses.create(model=NAME, input=given, tools=TOOLS)
    assert again.output_text == "It rains."
    messages = list(messages_of(ResponsesBody(input=given)))
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[1]["content"] == "I look." and len(messages[1]["tool_calls"]) == 2
    ids = server.post("/tokenize", messages=messages).json()["tokens"]
    text = server.front.llm.tokenizer.decode(ids)
    assert '"arguments": {"city": "Rome", "days": 1}' in text and text.count("Rain.") == 2


def test_thoughts(script: Script) -> None:
    with speaking.server(script, "thinking") as made:
        script.text = "I think.</think>Yes."
        answer = made.post(PATH, input="?").json()
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
        assert answer["output"][0]["content"] == [{"type": "reasoning_text", "text": "I think."}]
        assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == len("I think.")
        with openai.OpenAI(base_url=f"{made.url}/v1", api_key="any") as client:
            with client.responses.stream(model=NAME, input="?") as stream:
                kinds = [event.type for event in stream]
                final = stream.get_final_response()
            assert "response.reasoning_text.delta" in kinds and final.output_text == "Yes."
            sent: Any = [item.model_dump(exclude_unset=True) for item in final.output]
            asked: Any = [{"role": "user", "content": "?"}, *sent]
            assert client.responses.create(model=NAME, input=asked).output_text == "Yes."


def test_the_asynchronous_client(server: Server, script: Script) -> None:
    script.text = "Tea."

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:

            async def ask() -> str:
                async with client.responses.stream(model=NAME, input="?") as stream:
                    return (await stream.get_final_response()).output_text

            return await asyncio.gather(*(ask() for _ in range(6)))

    assert asyncio.run(main()) == ["Tea."] * 6


def test_values_that_ask_for_nothing(client: openai.OpenAI, script: Script) -> None:
    """As the package's other users send them."""
    script.text = "Yes."
    none: Any = {"reasoning": {"effort": None}, "include": [], "metadata": {"a": "b"}}
    none |= {"store": True, "truncation": "disabled", "user": "me", "service_tier": "auto"}
    none |= {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "tools": []}
    made = client.responses.create(model=NAME, input="?", **none)
    assert made.output_text == "Yes." and made.metadata == {"a": "b"}
