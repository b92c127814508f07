"""Answers bound to schemas and grammars, as clients of OpenAI, vLLM and llama.cpp ask for them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import httpx2 as httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

from draftproof.batch.calls import Calls
from draftproof.batch.lines import Line
from draftproof.batch.run import Batch
from draftproof.grammars import compiling
from draftproof.sampling import Grammar
from serving import NAME, Server, events

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy", 3]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
NAMED = {"name": "thing", "strict": True, "schema": SCHEMA}
HI: list[Any] = [{"role": "user", "content": "hi"}]
OBJECT = {"type": "object"}


class Thing(BaseModel):
    kind: Literal["cat", "dog"]
    tame: bool


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


def fits_schema(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


ASKED: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, fits_schema),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, fits_schema),
    ({"response_format": {"type": "text"}, "guided_json": SCHEMA}, fits_schema),
    ({"guided_json": json.dumps(SCHEMA)}, fits_schema),
    ({"json_schema": SCHEMA}, fits_schema),
    ({"structured_outputs": {"json": SCHEMA}}, fits_schema),
    ({"structured_outputs": {"regex": "[ab]{5}", "json_object": False}}, "[ab]{5}"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ({"structured_outputs": {"grammar": 'root ::= "o" [a-c]'}}, "o[a-c]"),
    ({"guided_regex": "[ab]{2}"}, "[ab]{2}"),
    ({"guided_choice": ["one", "two"]}, "one|two"),
    ({"guided_grammar": 'start: "x" | "y"'}, "x|y"),
    ({"grammar": 'root ::= ("p" | "q")\n'}, "p|q"),
]


@pytest.mark.parametrize(("asked", "fits"), ASKED)
def test_an_answer_is_what_it_is_bound_to(server: Server, asked: Any, fits: Any) -> None:
    """The same with drafts and without."""
    for temperature in (0, 1):
        texts = []
        for more in ({}, {"speculative": False}):
            body = {"max_tokens": 300, "temperature": temperature, "seed": 4, **asked, **more}
            (choice,) = server.completion("ab", **body)["choices"]
            texts.append(choice["text"])
            if choice["finish_reason"] == "length":  # of white space a model of noise writes much
                assert len(texts[-1]) > 200
            else:
                assert fits(texts[-1]) if callable(fits) else re.fullmatch(fits, texts[-1])
        assert texts[0] == texts[1]


def test_any_object(server: Server) -> None:
    body = {"max_tokens": 40, "logit_bias": {}, "response_format": {"type": "json_object"}}
    answer = server.post("/v1/chat/completions", messages=HI, **body)
    assert answer.json()["choices"][0]["message"]["content"].startswith("{")


def test_a_stream_says_the_same(server: Server) -> None:
    asked = {"prompt": "ab", "guided_regex": "[a-f]{30}", "stream": True, "max_tokens": 60}
    chunks = list(events(server.post("/v1/completions", **asked).text))
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert re.fullmatch("[a-f]{30}", text)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_the_package_parses_what_it_asked_for(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        asked: Any = {"model": NAME, "messages": HI, "max_tokens": 300, "seed": 2}
        done = client.chat.completions.parse(response_format=Thing, **asked)
        found = done.choices[0].message.parsed
        assert isinstance(found, Thing)
        with client.chat.completions.stream(response_format=Thing, **asked) as stream:
            stream.until_done()
            assert stream.get_final_completion().choices[0].message.parsed == found


def test_what_leaves_nothing_is_the_clients_own_error(server: Server) -> None:
    bans = {"bad_token_ids": list(range(3, 259)), "guided_regex": "[ab]+"}
    answer = server.post("/v1/completions", prompt="ab", max_tokens=5, **bans)
    assert answer.status_code == 400 and "the grammar allows" in answer.json()["error"]["message"]
    assert server.completion("ab", max_tokens=1)["choices"]


def test_others_are_answered_while_a_schema_is_compiled(server: Server) -> None:
    slow = {"allOf": [{"type": "string", "pattern": f"a{i}"} for i in range(900)]}
    assert server.completion("ab", max_tokens=2, guided_regex="ab")["choices"]

    async def ask() -> tuple[Any, int]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            body = {"prompt": "ab", "max_tokens": 5, "guided_json": slow}
            refused = asyncio.ensure_future(client.post("/v1/completions", json=body))
            done = 0
            while not refused.done():
                answer = await client.post("/v1/completions", json={"prompt": "b", "max_tokens": 1})
                assert answer.status_code == 200
                done += not refused.done()
            return refused.result(), done

    refused, done = asyncio.run(ask())
    assert refused.status_code == 400
    assert "to compile" in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == "guided_json"
    assert done > 1


def test_who_comes_while_others_take_long_may_come_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no fault of the grammar's: 429, which clients try again by themselves."""
    grammars = server.front.llm.intake.grammars
    grammars.compile(Grammar.regex("a"))
    monkeypatch.setattr(compiling, "SECONDS", 0.05)
    with grammars._compiler._judge._lock:
        answer = server.post("/v1/completions", prompt="a", guided_regex="[ab]c")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert "of others are being compiled" in answer.json()["error"]["message"]
        body = {"prompt": "a", "guided_regex": "[ab]c", "max_tokens": 4}
        line = Line(1, "batch_req_1", "1", 1, "/v1/completions", body)
        batch = Batch(Calls(server.front.llm, NAME, {}))
        (done,) = batch.write([line])
        assert done.answer is None and "of others are being compiled" in str(done.wrong)
    text = server.completion("a", guided_regex="[ab]c")["choices"][0]["text"]
    assert re.fullmatch("[ab]c", text)
