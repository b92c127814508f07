"""Tools that cannot be followed, models without a form of calls, and models that think."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import speaking
import toolbox
from draftproof.batch.calls import Calls, answer
from draftproof.batch.lines import Input
from draftproof.sampling.grammars import MOST
from draftproof.server.bodies import ChatBody, checked
from draftproof.server.refusals import Refused
from draftproof.server.settings import Limits
from draftproof.server.tools.chat import Chat
from draftproof.server.tools.forms import Known
from serving import Server, events
from speaking import Script
from toolbox import TOOLS, call, tool

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
ROME = {"city": "Rome", "days": 1}


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def server(script: Script) -> Iterator[Server]:
    with speaking.server(script, "none") as made:
        yield made


def function(**fields: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


def by_name(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def called(**function: Any) -> list[Any]:
    made = {"id": "a", "type": "function", "function": function}
    return [*HI, {"role": "assistant", "tool_calls": [made]}]


SLOW = {"allOf": [{"type": "string", "pattern": f"a{i}"} for i in range(900)]}
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": "f"}, "tools", "list"),
    ({"tools": ["f"]}, "tools", "type"),
    ({"tools": [{"type": "function"}]}, "tools", "type"),
    ({"tools": [{"type": "retrieval", "function": {"name": "f"}}]}, "tools", "one kind"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools", "no name"),
    ({"tools": function(name="")}, "tools", "no name"),
    ({"tools": function(name="a b")}, "tools", "no name"),
    ({"tools": function(name="a" * 65)}, "tools", "no name"),
    ({"tools": function() * 2}, "tools", "another name"),
    ({"tools": function() * 129}, "tools", "128"),
    ({"tools": function(description=5)}, "tools", "description"),
    ({"tools": function(parameters=[1])}, "tools", "schema"),
    ({"tools": function(parameters={"type": "string"})}, "tools", "type object"),
    ({"tools": function(parameters={"type": ["object"]})}, "tools", "type object"),
    ({"tools": function(parameters={"description": "x" * MOST})}, "tools", "bytes"),
    (
        {"tools": [tool(f"f{i}", a={"const": "x" * MOST}) for i in range(1)],
         "tool_choice": "required"}, "tools", "bytes",
    ),
    (
        {"tools": [tool(f"f{i}", a={"const": "x" * (MOST // 2)}) for i in range(3)],
         "tool_choice": "required"}, "tools", "bytes",
    ),
    ({"tools": [tool("f", a={"type": "thing"})], "tool_choice": "required"}, "tools", "thing"),
    ({"tools": [tool("f", a={"not": {}})], "tool_choice": by_name("f")}, "tools", "not"),
    ({"tools": [tool("f", a=SLOW)], "tool_choice": "required"}, "tools", "to compile"),
    ({"tools": [tool("f", a={"$ref": "#/$defs/x"})], "tool_choice": "required"}, "tools", "x"),
    ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice", "always"),
    ({"tools": TOOLS, "tool_choice": 5}, "tool_choice", "names a function"),
    ({"tools": TOOLS, "tool_choice": by_name("fly")}, "tool_choice", "no such tool"),
    ({"tools": TOOLS, "tool_choice": by_name(None)}, "tool_choice", "function"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "function"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tool_choice": by_name("f"), "tools": []}, "tool_choice", "no such tool"),
    ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format", "drop one"),
    ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls", "bool"),
    ({"functions": [{"name": "f"}]}, "functions", "write tools"),
    ({"function_call": {"name": "f"}}, "function_call", "write tool_choice"),
    ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs", "tokenize"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", "chat_template"),
    ({"messages": called(name="f", arguments="{")}, "messages", "no JSON object"),
    ({"messages": called(name="f", arguments="[1]")}, "messages", "no JSON object"),
    ({"messages": called(arguments="{}")}, "messages", "must be"),
    ({"messages": [*HI, {"role": "assistant", "tool_calls": 5}]}, "messages", "list"),
    ({"messages": [*HI, {"role": "assistant", "tool_calls": [5]}]}, "messages", "must be"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "said"), BAD)
def test_what_cannot_be_followed(
    server: Server, script: Script, body: Any, param: str, said: str
) -> None:
    script.text = "Yes."
    for more in ({}, {"stream": True}):
        refused = server.post(PATH, **{"messages": HI, **body, **more})
        assert refused.status_code == 400, refused.text
        error = refused.json()["error"]
        assert error["param"] == param and error["type"] == "invalid_request_error"
        assert said in error["message"] and "\n" not in error["message"]
        assert len(error["message"]) < 500
    choice = server.post(PATH, messages=HI, tools=TOOLS).json()["choices"][0]
    assert choice["message"]["content"] == "Yes."


def test_nothing_is_asked_for(server: Server, script: Script) -> None:
    script.text = "Yes."
    for more in (
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tools": None, "tool_choice": None},
        {"tool_choice": "none", "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [*HI, {"role": "assistant", "content": "Ho", "tool_calls": []}, *HI]},
    ):
        (choice,) = server.post(PATH, **{"messages": HI, **more}).json()["choices"]
        assert choice["message"] == {"role": "assistant", "content": "Yes."}


def test_a_form_that_is_not_known_comes_as_text(
    server: Server, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so, and the answer."""
    script.text = call("weather", **ROME)
    with caplog.at_level(logging.WARNING, "draftproof.server"):
        answer = server.post(PATH, messages=HI, tools=TOOLS).json()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": script.text}
    assert any("calls come as text" in record.message for record in caplog.records)
    assert any("calls come as text" in line for line in answer["warnings"])


def test_what_is_required_is_called_in_any_model(server: Server, script: Script) -> None:
    script.text = None
    body = {"messages": HI, "tools": TOOLS, "tool_choice": by_name("weather"), "max_tokens": 1000}
    answer = server.post(PATH, **body).json()
    (made,) = answer["choices"][0]["message"]["tool_calls"]
    assert made["function"]["name"] == "weather" and "warnings" not in answer
    given = json.loads(made["function"]["arguments"])
    assert given["city"] in ("Rome", "Oslo") and given["days"] in (1, 2)
    body["parallel_tool_calls"], body["tool_choice"], body["max_tokens"] = True, "required", 400
    (choice,) = server.post(PATH, **body, temperature=1, seed=1).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 1 and choice["message"]["content"] is None


UNTOLD, UNSEEN = "does not show tools to the model", "does not show calls of tools to the model"
ANSWERED = [*called(name="stop", arguments="{}"), {"role": "tool", "content": "4"}]


@pytest.mark.parametrize(
    ("form", "body", "wanted"),
    [
        ("blind", {"tools": TOOLS}, [UNTOLD, "calls come as text"]),
        ("blind", {"tools": TOOLS, "tool_choice": "required"}, [UNTOLD]),
        ("blind", {"tools": TOOLS, "tool_choice": by_name("stop")}, [UNTOLD]),
        ("blind", {"tools": TOOLS, "tool_choice": "none", "messages": ANSWERED}, [UNSEEN]),
        ("blind", {"messages": ANSWERED}, [UNSEEN]),
        ("blind", {"tool_choice": "auto", "tools": []}, []),
        ("none", {"messages": ANSWERED}, [UNSEEN]),
        ("hermes", {"tools": TOOLS, "messages": ANSWERED}, []),
    ],
)
def test_a_template_that_shows_no_tools(
    form: str, body: Any, wanted: list[str], script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the model can know of them is said wherever it would be thought to."""
    script.text = call("stop")
    with script.open(form) as llm, caplog.at_level(logging.WARNING, "draftproof.server"):
        known = Known(llm.tokenizer)
        made = Chat(checked(ChatBody, {"messages": HI, **body}), known, {}, Limits())
        shown = llm.intake.chat_ids(made.messages, made.template)
        assert ("stop" in llm.tokenizer.decode(shown)) is (form == "hermes")
    for said in (made.warnings, [record.message for record in caplog.records]):
        assert len(said) == len(wanted)
        assert all(words in line for words, line in zip(wanted, said, strict=True))


def test_what_the_model_is_not_told_is_told_in_every_answer(script: Script) -> None:
    script.text = call("stop")
    with speaking.server(script, "blind") as made:
        body = {"messages": ANSWERED, "tools": TOOLS, "tool_choice": "required"}
        whole = made.post(PATH, **body).json()
        (last,) = [e for e in events(made.post(PATH, **body, stream=True).text) if "warnings" in e]
        flat = {"tools": [{"type": "function", "name": "stop"}], "tool_choice": "required"}
        other = made.post("/v1/responses", input="hi", **flat).json()
    assert UNTOLD in whole["warnings"][0] and UNSEEN in whole["warnings"][1]
    assert last["warnings"] == whole["warnings"] and UNTOLD in other["warnings"][0]


def test_what_the_server_forgot_is_not_what_comes_next(server: Server, script: Script) -> None:
    """Two calls in one answer of several choices have ids of their own."""
    script.text = None
    body = {"messages": HI, "tools": TOOLS, "tool_choice": "required", "max_tokens": 600, "n": 3}
    choices = server.post(PATH, **body, temperature=1, seed=1).json()["choices"]
    ids = [each["id"] for choice in choices for each in choice["message"]["tool_calls"]]
    assert len(ids) >= 3 and len({*ids}) == len(ids)


THOUGHT = "\nI think of \n\nthis.\n"


@pytest.mark.parametrize("form", ["thinking", "may think"])
def test_thoughts_come_by_themselves(form: str) -> None:
    script = Script()
    with speaking.server(script, form) as made:
        opened = "" if form == "thinking" else "<think>"
        script.text = f"{opened}{THOUGHT}</think>\n\nYes.\n"
        body = {"messages": [{"role": "user", "content": script.text}]}
        (choice,) = made.post(PATH, **body).json()["choices"]
        wanted = {"role": "assistant", "content": "Yes.\n"}
        wanted["reasoning_content"] = THOUGHT.strip()
        assert choice["message"] == wanted
        deltas = [
            chunk["choices"][0]["delta"]
            for chunk in events(made.post(PATH, **body, stream=True).text)
        ]
        thought = [at for at, delta in enumerate(deltas) if delta.get("reasoning_content")]
        said = [at for at, delta in enumerate(deltas) if delta.get("content")]
        assert thought and said and max(thought) < min(said)
        assert "".join(deltas[at]["reasoning_content"] for at in thought) == THOUGHT.strip()
        assert "".join(deltas[at]["content"] for at in said) == "Yes.\n"
        script.text = None  # a text that is bound to a grammar is all answer
        (choice,) = made.post(PATH, messages=HI, guided_regex="[ab]{4}").json()["choices"]
        assert len(choice["message"]["content"]) == 4
        assert "reasoning_content" not in choice["message"]


def test_a_model_that_thinks_and_calls() -> None:
    script = Script()
    tokenizer = toolbox.tokenizer("hermes")
    template = tokenizer.chat_template
    tokenizer.chat_template = template + "{# <think> #}"
    try:
        with speaking.server(script, "hermes") as made:
            text = (
                f"<think>It is <tool_call> here.</think>\n\n<tool_call>{call('stop')}</tool_call>"
            )
            script.text = text
            body = {"messages": [{"role": "user", "content": text}], "tools": TOOLS}
            (choice,) = made.post(PATH, **body).json()["choices"]
            message = choice["message"]
            assert message["reasoning_content"] == "It is <tool_call> here."
            assert message["content"] is None and choice["finish_reason"] == "tool_calls"
            assert [each["function"]["name"] for each in message["tool_calls"]] == ["stop"]
    finally:
        tokenizer.chat_template = template


def test_a_batch_calls_tools_too(tmp_path: Path, script: Script) -> None:
    """Ids of calls are the same in every run."""
    path = tmp_path / "in.jsonl"
    body = {"messages": HI, "tools": TOOLS, "tool_choice": "required", "max_tokens": 600}
    lines = [body, {**body, "tool_choice": by_name("fly")}]
    path.write_text(
        "".join(
            json.dumps({"custom_id": str(n), "method": "POST", "url": PATH, "body": each}) + "\n"
            for n, each in enumerate(lines)
        )
    )
    script.text, found = None, []
    for _ in range(2):
        with script.open("hermes") as llm:
            calls = Calls(llm, "tiny", {})
            first, second = Input(path).lines
            made = calls.begin(first)
            for request in made.requests:
                llm.engine.add(request)
            while not all(request.finished for request in made.requests):
                llm.engine.step()
            found.append(answer(made)["response"]["body"]["choices"][0])
            with pytest.raises(Refused, match="no such tool"):
                calls.begin(second)
    assert found[0] == found[1] and found[0]["message"]["tool_calls"]
    with script.open("blind") as llm:  # its statistics tell these
        (request,) = Calls(llm, "tiny", {}).begin(first).requests
        assert len(request.warnings) == 1 and UNTOLD in request.warnings[0]
