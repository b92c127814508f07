"""Streams of `/v1/responses` whose engine is lost: the events are those of one that was not.

Without Ray: the engines are of this process, and a fake handle loses them after so many parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

import draftproof as dp
import serving
from draftproof.ray import engine, surviving
from draftproof.server.settings import digest
from replicas import CHAT, PAIR, Lossy, ask, engines, front, run
from speaking import Script
from toolbox import call, tool

PATH = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USUAL: dict[str, Any] = {"stream": True, "seed": 11}
TOOLS = [{"type": "function", **tool(name, city={"type": "string"})["function"]} for name in "fg"]
SPOKEN = "\n".join(
    f"<tool_call>\n{call(name, city='Rome, the old one')}\n</tool_call>" for name in "fg"
)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surviving, "SOONEST", 0.001)
    monkeypatch.setattr(engine, "GAP", 0.0)  # as many parts as there are steps, so cuts anywhere


def events(text: str) -> list[dict[str, Any]]:
    """Those of a stream, each as OpenAI's package reads it, numbered from 0."""
    found = []
    for block in text.strip().split("\n\n"):
        if block.startswith(":"):
            continue
        kind, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['type']}"
        EVENT.validate_python(found[-1])
    assert [each["sequence_number"] for each in found] == [*range(len(found))]
    return found


def told(text: str) -> list[dict[str, Any]]:
    """What a client knows in the end, however it was cut into deltas; ids are an answer's own."""
    found = events(text)
    names: dict[str, str] = {}

    def bare(value: Any) -> Any:
        if isinstance(value, list):
            return [bare(each) for each in value]
        if not isinstance(value, dict):
            return value
        skipped = ("sequence_number", "created_at", "input_tokens_details")
        made = {name: bare(each) for name, each in value.items() if name not in skipped}
        for name in ("id", "item_id", "call_id"):
            if name in made:
                made[name] = names.setdefault(made[name], str(len(names)))
        return made

    joined: list[dict[str, Any]] = []
    for each in map(bare, found):
        last = joined[-1] if joined else {}
        if each["type"].endswith(".delta") and last.get("type") == each["type"]:
            last["delta"] += each["delta"]
        else:
            joined.append(each)
    return joined


async def each_cut(opens: list[Callable[[], dp.LLM]], body: dict[str, Any]) -> list[str]:
    """Compares with an unbroken answer for many places of the cut; the types of its items."""
    body = USUAL | body
    async with engines(*opens) as pair:
        whole = Lossy(pair[:1])
        answer = await ask(front(whole).app(), PATH, body)
        assert answer.status == 200, answer.text
        expected, broken = told(answer.text), 0
        for cut in (*range(0, whole.came - 1, 1 + whole.came // 8), whole.came - 1):
            lossy = Lossy(pair, [cut, 1 + cut % 3])
            again = await ask(front(lossy).app(), PATH, body)
            assert told(again.text) == expected, cut
            broken += ": goes on at another engine" in again.text
        assert broken > 2
        return [item["type"] for item in expected[-1]["response"]["output"]]


def test_it_goes_on_from_any_part() -> None:
    body = {"input": "hello", "temperature": 1.0, "max_output_tokens": 24, "ignore_eos": True}
    assert run(each_cut([*PAIR], body)) == ["message"]


@pytest.mark.parametrize(
    ("form", "text", "more", "items"),
    [
        ("hermes", f"I look.\n{SPOKEN}", {"tools": TOOLS}, ["message", *["function_call"] * 2]),
        ("hermes", SPOKEN, {"tools": TOOLS}, ["function_call"] * 2),
        ("thinking", "I think so.</think>Yes, it is.", {}, ["reasoning", "message"]),
    ],
)
def test_items_go_on(form: str, text: str, more: dict[str, Any], items: list[str]) -> None:
    """In the middle of a call's arguments, of thoughts, between two items."""
    script = Script()
    script.text = text
    opens = [lambda: script.open(form), lambda: script.open(form, speculate=None)]
    assert run(each_cut(opens, {"input": "?"} | more)) == items


def test_the_text_is_that_of_a_chat() -> None:
    async def main() -> None:
        same = USUAL | {"temperature": 1.0, "ignore_eos": True}
        async with engines(*PAIR) as pair:
            said = {"input": "hello", "max_output_tokens": 24}
            broken = await ask(front(Lossy(pair, [3, 2])).app(), PATH, same | said)
            said = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 24}
            chat = await ask(front(Lossy(pair)).app(), CHAT, same | said)
        final = events(broken.text)[-1]["response"]
        texts = [each["choices"][0]["delta"]["content"] for each in serving.events(chat.text)]
        assert final["output"][0]["content"][0]["text"] == "".join(texts)
        assert final["usage"]["output_tokens"] == 24

    run(main())


@pytest.mark.parametrize("lost", ["model", "all"])
def test_a_stream_that_cannot_go_on_ends_with_its_sentence(lost: str) -> None:
    """As an event of OpenAI's: another model, or no engine at all."""

    async def main() -> None:
        said = {"input": "hello", "max_output_tokens": 200, "ignore_eos": True}
        async with engines(serving.llm, lambda: serving.llm(max_length=300)) as pair:
            parts = [4, *([0] * 99 if lost == "all" else [])]
            answer = await ask(front(Lossy(pair, parts)).app(), PATH, USUAL | said)
        error = events(answer.text)[-1]
        assert error["type"] == "error" and error["sequence_number"] > 1
        words = "no engine could be reached" if lost == "all" else "other weights"
        assert words in error["message"]
        assert (error["code"], error["param"]) == (
            ("503", None) if lost == "all" else ("400", "resume")
        )
        assert "[DONE]" not in answer.text

    run(main())


def test_a_defect_of_the_front_is_told_as_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        said = {"input": "hello", "max_output_tokens": 20}
        async with engines(serving.llm) as one:
            answer = await ask(front(Broken(one)).app(), PATH, USUAL | said)
        assert "a defect of the server" in events(answer.text)[-1]["message"]

    class Broken(Lossy):
        async def stream(self, call: Any, key: str) -> Any:
            count = 0
            async for part in super().stream(call, key):
                yield part
                count += 1
                if count == 3:
                    raise TypeError("planted")

    run(main())


def test_refusals_have_the_names_of_this_endpoint() -> None:
    """By the front where it can know, by an engine where it has to."""

    async def main() -> None:
        async with engines(serving.llm) as one:
            app = front(Lossy(one), keys=(digest("k"),)).app()
            allowed = {"authorization": "Bearer k"}
            assert (await ask(app, PATH, {"input": "?", **USUAL})).status == 401
            for body, param, words in (
                ({"input": "?", "max_output_tokens": 9999}, "max_output_tokens", "context ends"),
                ({"input": []}, "input", "empty"),
                ({"input": "?", "text": {"format": {"type": "odd"}}}, "text", "odd"),
                ({"input": "?", "conversation": "c"}, "conversation", "nothing is remembered"),
            ):
                for more in ({}, USUAL):
                    answer = await ask(app, PATH, body | more, allowed)
                    error = answer.json()["error"]
                    assert (answer.status, error["param"]) == (400, param), answer.text
                    assert words in error["message"]

    run(main())
