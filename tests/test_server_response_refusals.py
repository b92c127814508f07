"""What `/v1/responses` cannot follow, texts that fail, and clients that leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

import speaking
from serving import NAME, Server
from speaking import Script
from toolbox import tool

PATH = "/v1/responses"
TOOLS: list[Any] = [{"type": "function", **tool("stop")["function"]}]


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


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({}, "input", "empty"),
    ({"input": []}, "input", "empty"),
    ({"input": 5}, "input", "str"),
    ({"input": "?", "text": {"verbosity": "low"}}, "text", "ask for short answers in a message"),
    ({"input": [5]}, "input", "object"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input", "no role"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "item_reference"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "input_image"),
    ({"input": [{"role": "user", "content": 5}]}, "input", "int"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input", "call_id"),
    ({"input": [{"type": "function_call_output", "output": "f"}]}, "input", "call_id"),
    (
        {"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": "{"}]},
        "input",
        "no JSON object",
    ),
    ({"input": "?", "previous_response_id": "resp_1"}, "previous_response_id", "remembered"),
    ({"input": "?", "conversation": "c"}, "conversation", "remembered"),
    ({"input": "?", "background": True}, "background", "drop it"),
    ({"input": "?", "truncation": "auto"}, "truncation", "shorten"),
    ({"input": "?", "reasoning": {"effort": "low"}}, "reasoning", "chat_template_kwargs"),
    ({"input": "?", "include": ["file_search_call.results"]}, "include", "drop it"),
    ({"input": "?", "max_tokens": 5}, "max_tokens", "max_output_tokens"),
    ({"input": "?", "messages": []}, "messages", "input"),
    ({"input": "?", "max_output_tokens": -1}, "max_output_tokens", "-1"),
    ({"input": "?", "temperature": -1}, "temperature", "temperature"),
    ({"input": "?", "n": 2}, "n", "unknown"),
    ({"input": "?", "tools": [{"type": "web_search"}]}, "tools", "web_search"),
    ({"input": "?", "tools": [{"type": "function"}]}, "tools", "no name"),
    ({"input": "?", "tools": TOOLS * 2}, "tools", "another name"),
    (
        {"input": "?", "tools": TOOLS, "tool_choice": {"type": "function", "name": "fly"}},
        "tool_choice",
        "no such tool",
    ),
    ({"input": "?", "tool_choice": "required"}, "tool_choice", "no tools"),
    ({"input": "?", "text": {"format": {"type": "yaml"}}}, "text", "yaml"),
    ({"input": "?", "text": {"format": {"type": "json_schema"}}}, "text", "json_schema"),
    ({"input": "?", "text": {"format": "json"}}, "text", "text"),
    ({"input": "?", "text": {"style": "x"}}, "text", "style"),
    (
        {"input": "?", "text": {"format": {"type": "json_schema", "schema": {"type": "thing"}}}},
        "text",
        "thing",
    ),
]


@pytest.mark.parametrize(("body", "param", "said"), BAD)
def test_what_cannot_be_followed(
    server: Server, script: Script, body: Any, param: str, said: str
) -> None:
    script.text = "Yes."
    for more in ({}, {"stream": True}):
        refused = server.post(PATH, **body, **more)
        assert refused.status_code == 400, refused.text
        error = refused.json()["error"]
        assert error["param"] == param and said in error["message"], error
        assert error["type"] == "invalid_request_error" and "\n" not in error["message"]
    assert server.post(PATH, input="?").json()["output"][0]["content"][0]["text"] == "Yes."


def test_a_text_that_fails(client: openai.OpenAI, server: Server, script: Script) -> None:
    """Whole it is a refusal, in a stream the last event; the next one is answered."""
    script.text = None
    bans: Any = {"bad_token_ids": list(range(server.front.llm.intake.vocabulary))}
    with pytest.raises(openai.BadRequestError, match="no token"):
        client.responses.create(model=NAME, input="?", extra_body=bans)
    stream = client.responses.create(model=NAME, input="?", extra_body=bans, stream=True)
    last = list(stream)[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None and "no token" in last.response.error.message
    assert client.responses.create(model=NAME, input="?", max_output_tokens=2).output


def test_leaving_a_stream(client: openai.OpenAI, server: Server, script: Script) -> None:
    script.text = None
    stream = client.responses.create(
        model=NAME, input="?", stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert server.idle()
