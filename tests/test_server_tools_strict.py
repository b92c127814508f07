"""`strict` and `parallel_tool_calls: false` where the model may call tools or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel

import speaking
from draftproof.sampling import Grammar
from draftproof.server.tools.forms import Known, amid_text
from serving import NAME, Server
from speaking import Script
from toolbox import TOOLS, spoken, tokenizer

FORMS = ["hermes", "llama-3", "mistral", "named"]
STRICT = [{**one, "function": {**one["function"], "strict": True}} for one in TOOLS]
SCHEMAS = {one["function"]["name"]: one["function"]["parameters"] for one in TOOLS}
PATH = "/v1/chat/completions"
FREE = ["No tool is needed.", " a < b > c", "<tool", "Said: {}", "a\n\nb [TOOL"]
ROME = {"city": "Rome", "days": 1}


def taken(form: str, text: str, several: bool = True) -> tuple[int, int, bool]:
    """How many of its tokens the grammar takes, how many there are, and whether it may end."""
    from draftproof.grammars.store import Grammars

    made: Any = tokenizer(form)
    store = Grammars(made, len(made), [2])
    lark = amid_text(Known(made), Known(made).form, SCHEMAS, several)  # type: ignore[arg-type]
    matcher = store.compile(Grammar.lark(lark)).deep_copy()
    ids = made(text, add_special_tokens=False)["input_ids"]
    count = matcher.try_consume_tokens(ids)
    return count, len(ids), matcher.is_accepting()


@pytest.mark.parametrize("form", FORMS)
def test_text_is_free_until_a_call_begins(form: str) -> None:
    for text in FREE:
        count, size, ends = taken(form, text)
        assert (count, ends) == (size, True), text
    said = "" if form == "llama-3" else "I look it up. "
    right = said + spoken(form, ("weather", ROME))
    count, size, ends = taken(form, right)
    assert (count, ends) == (size, True)
    wrong = said + spoken(form, ("weather", {"city": "Paris", "days": 1}))
    count, size, ends = taken(form, wrong)
    assert count < size and not ends
    count, size, ends = taken(form, said + spoken(form, ("fly", {})))
    assert count < size and not ends


@pytest.mark.parametrize("form", FORMS)
def test_one_call_at_most(form: str) -> None:
    two = spoken(form, ("weather", ROME), ("stop", {}))
    count, size, ends = taken(form, two, several=False)
    assert count < size
    if form != "llama-3":  # whose template takes one in a message
        assert taken(form, two) == (size, size, True)


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(form: str, script: Script) -> Iterator[Server]:
    with speaking.server(script, form) as made:
        yield made


def ask(server: Server, script: Script, text: str | None, **body: Any) -> dict[str, Any]:
    script.text = text
    messages = [{"role": "user", "content": f"Say:\n{text}"}]
    body = {"messages": messages, "tools": STRICT, "max_tokens": 300, "seed": 3, **body}
    answer = server.post(PATH, **body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return dict(choice)


def test_what_is_said_stays_and_calls_are_valid(server: Server, script: Script, form: str) -> None:
    choice = ask(server, script, "No tool is needed.")
    assert choice["message"]["content"] == "No tool is needed."
    choice = ask(server, script, spoken(form, ("weather", ROME)))
    (made,) = choice["message"]["tool_calls"]
    jsonschema.validate(json.loads(made["function"]["arguments"]), SCHEMAS["weather"])
    assert choice["finish_reason"] == "tool_calls"


def test_a_model_that_would_call_otherwise_cannot(
    server: Server, script: Script, form: str
) -> None:
    """Where it would write what is no call, that is the request's own error: nothing is left."""
    text = spoken(form, ("weather", {"city": "Paris", "days": 1}))
    free = ask(server, script, text, tools=TOOLS)
    assert "Paris" in free["message"]["tool_calls"][0]["function"]["arguments"]
    script.text = text
    messages = [{"role": "user", "content": "Paris?"}]
    body = {"messages": messages, "tools": STRICT, "max_tokens": 300}
    answer = server.post(PATH, **body)
    assert "Paris" not in answer.text
    again = ask(server, script, "Fine.")
    assert again["message"]["content"] == "Fine."


def test_responses_are_bound_alike(server: Server, script: Script, form: str) -> None:
    script.text = spoken(form, ("weather", {"city": "Paris", "days": 1}))
    for strict in (False, True):
        tools = [{"type": "function", **one["function"], "strict": strict} for one in TOOLS]
        answer = server.post("/v1/responses", input="Paris?", tools=tools, max_output_tokens=300)
        assert ("Paris" in json.dumps(answer.json().get("output", []))) is not strict


class Weather(BaseModel):
    city: str
    days: int


def test_strict_where_the_template_has_no_form_is_refused() -> None:
    script = Script()
    with (
        speaking.server(script, "none") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        asked: Any = {"model": NAME, "messages": [{"role": "user", "content": "Rome?"}]}
        tool = openai.pydantic_function_tool(Weather)
        with pytest.raises(openai.BadRequestError, match="'Weather' is strict, and the model's"):
            client.chat.completions.create(**asked, tools=[tool])
        for strict in ("yes", 1):
            wrong: Any = {"type": "function", "function": {"name": "go", "strict": strict}}
            with pytest.raises(openai.BadRequestError, match="must be true or false"):
                client.chat.completions.create(**asked, tools=[wrong])
        done = client.chat.completions.create(
            **asked, tools=[tool], tool_choice="required", max_tokens=200
        )
        assert done.choices[0].message.tool_calls
        script.text = "Fine."
        one = client.chat.completions.create(
            **asked, tools=TOOLS, parallel_tool_calls=False, max_tokens=20
        )
        assert one.choices[0].message.content == "Fine."
