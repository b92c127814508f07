"""What models write in each form of calls: the same parts however the text is cut."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

import toolbox
from draftproof.server.tools import forms
from draftproof.server.tools.forms import HERMES, LLAMA, MISTRAL, PLAIN, Form, Known
from draftproof.server.tools.parser import Calls, Part, joined
from draftproof.server.tools.thinking import Thinking
from draftproof.text import TextStream
from toolbox import call

NAMES = {"weather", "stop"}
ROME = call("weather", city="Rome", days=1)
NASTY = call(
    "weather", city='a "}]</tool_call>[TOOL_CALLS]; \\ \n{\N{GRINNING FACE}', days=[{"x": [1, {}]}]
)
LATE = '{ "arguments": {"city": "Oslo"}, "id": "x", "type": "function", "name": "weather" }'
Expected = list[tuple[str, str]] | None  # None: all of it is content


def given(text: str) -> tuple[str, str]:
    """Name and arguments of a call, as they stand in a JSON object."""
    made = json.loads(text)
    arguments = made.get("arguments", made.get("parameters", {}))
    return made["name"], json.dumps(arguments, ensure_ascii=False)


CASES: list[tuple[Form, str, str | None, Expected]] = [
    # form, text, content, calls
    (HERMES, "Just text.\n", None, None),
    (HERMES, f"<tool_call>\n{ROME}\n</tool_call>", "", [given(ROME)]),
    (HERMES, f"<tool_call>{NASTY}</tool_call>", "", [given(NASTY)]),
    (
        HERMES,
        f"I look.\n\n<tool_call>\n{ROME}\n</tool_call>\n<tool_call>\n{LATE}\n</tool_call>\n",
        "I look.",
        [given(ROME), given(LATE)],
    ),
    (HERMES, f"<tool_call>\n{ROME}\n</tool_call>\nDone.", "\nDone.", [given(ROME)]),
    (HERMES, f"<tool_call>\n{ROME[:-1]}\n</tool_call>", "", [given(ROME)]),  # a brace is missing
    (HERMES, '<tool_call>\n{"name": "stop"}\n</tool_call>', "", [("stop", "{}")]),
    (HERMES, f"<tool_call>\n{ROME[:50]}", "", [("weather", ROME[33:50])]),  # cut by the length
    (HERMES, f"<tool_call>\n{ROME[:15]}", None, None),
    (HERMES, f'<tool_call>\n{call("fly", to="Rome")}\n</tool_call>', None, None),
    (HERMES, '<tool_call>\n{"title": "weather"}\n</tool_call>', None, None),
    (HERMES, "<tool_call>weather</tool_call> <tool_ca", None, None),
    (HERMES, '<tool_call>{"name": 5}</tool_call>\n', None, None),
    (HERMES, '<tool_call>{"name": "weather", "arguments": "x"', "", [("weather", '"x"')]),
    (HERMES, f"a < b <tool_<tool_call>{ROME}</tool_call>", "a < b <tool_", [given(ROME)]),
    (LLAMA, "Just text.", None, None),
    (LLAMA, call("weather", "parameters", city="Rome"), "", [given(call("weather", city="Rome"))]),
    (LLAMA, f"<|python_tag|>{ROME}", "", [given(ROME)]),
    (LLAMA, f"\n{ROME}; {NASTY};\n{LATE}", "", [given(ROME), given(NASTY), given(LATE)]),
    (LLAMA, f"{ROME}\n{NASTY}", "", [given(ROME), given(NASTY)]),
    (LLAMA, f"Well: {ROME}", None, None),
    (LLAMA, '{"answer": [1, 2]}  ', None, None),
    (LLAMA, " [1, 2]", None, None),
    (LLAMA, call("fly", to="Rome"), None, None),
    (LLAMA, "{", None, None),
    (LLAMA, " \n", None, None),
    (LLAMA, "<|python_tag|>print(1)", "<|python_tag|>print(1)", None),
    (LLAMA, f"See.<|python_tag|>{ROME}", "See.", [given(ROME)]),
    (MISTRAL, f"[TOOL_CALLS] [{ROME}]", "", [given(ROME)]),
    (MISTRAL, f"[TOOL_CALLS][{ROME}, {NASTY} ,{LATE}] ", "",
     [given(ROME), given(NASTY), given(LATE)]),
    (MISTRAL, f"[TOOL_CALLS] {ROME}", "", [given(ROME)]),
    (MISTRAL, f"[TOOL_CALLS] [{ROME}", "", [given(ROME)]),
    (MISTRAL, f"Yes. [TOOL_CALLS] [{ROME}] There.", "Yes. There.", [given(ROME)]),
    (MISTRAL, "[TOOL_CALLS] []", None, None),
    (MISTRAL, "[TOOL_CALLS] [5]", None, None),
    (MISTRAL, "[TOOL_CALLS]", None, None),
    (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]stop[ARGS]{}', "",
     [("weather", '{"city": "Rome"}'), ("stop", "{}")]),
    (MISTRAL, '[TOOL_CALLS]stop[CALL_ID]a1b2c3d4e[ARGS] {"a": {}}', "", [("stop", '{"a": {}}')]),
    (MISTRAL, 'So[TOOL_CALLS]stop{"a": []} and', "So and", [("stop", '{"a": []}')]),
    (MISTRAL, "[TOOL_CALLS]fly[ARGS]{}", None, None),
    (MISTRAL, "[TOOL_CALLS]" + "x" * 300 + "[ARGS]{}", None, None),
    (MISTRAL, "[TOOL_CALLS]st", None, None),
    (PLAIN, f"[{ROME}, {LATE}]", "", [given(ROME), given(LATE)]),
    (PLAIN, ROME, "", [given(ROME)]),
]  # fmt: skip


def parts(made: Any, pieces: list[str]) -> list[Part]:
    found = [part for piece in pieces for part in made.feed(piece)]
    return joined([*found, *made.feed("", last=True)])


def content(found: list[Part]) -> str:
    return "".join(part.text for part in found if part.kind == "content")


def calls(found: list[Part]) -> list[tuple[str, str]]:
    made: list[tuple[str, str]] = []
    for part in found:
        if part.kind == "name":
            assert part.call == len(made)
            made.append((part.text, ""))
        elif part.kind == "arguments":
            assert part.call == len(made) - 1
            made[-1] = made[-1][0], made[-1][1] + part.text
    return made


def cuts(text: str) -> list[list[str]]:
    """In two at every position; in pieces of 1 to 12 characters; at random."""
    pick = random.Random(len(text))
    made = [[text[:at], text[at:]] for at in range(len(text) + 1)]
    for size in range(1, 13):
        made.append([text[at : at + size] for at in range(0, len(text), size)])
    for _ in range(20):
        places = sorted(pick.choices(range(len(text) + 1), k=9))
        made.append([text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)])
    return made


@pytest.mark.parametrize(("form", "text", "said", "expected"), CASES)
def test_the_calls_are_the_same_however_a_text_is_cut(
    form: Form, text: str, said: str | None, expected: Expected
) -> None:
    whole = parts(Calls(form, NAMES), [text])
    assert calls(whole) == (expected or [])
    assert content(whole) == (text if said is None else said)
    for pieces in cuts(text):
        assert parts(Calls(form, NAMES), pieces) == whole, pieces


@pytest.mark.parametrize("form", ["hermes", "llama-3", "mistral"])
def test_the_calls_are_the_same_in_groups_of_tokens(form: str) -> None:
    """As they come out of a detokenizer, with tokens for the markers."""
    known = Known(toolbox.tokenizer(form))
    assert known.form is not None
    for each, text, said, expected in CASES:
        if each.name != form:
            continue
        ids = known.tokenizer(text, add_special_tokens=False)["input_ids"]
        for size in range(1, 13):
            stream, made = TextStream(known.showing(known.form.markers), [5]), Calls(each, NAMES)
            found: list[Part] = []
            for at in range(0, len(ids), size):
                stream.push(ids[at : at + size])
                found += made.feed(stream.take())
            stream.flush()
            found += made.feed(stream.take(), last=True)
            assert calls(found) == (expected or [])
            assert content(found) == (text if said is None else said)


def test_arguments_come_as_they_are_written() -> None:
    """Not one character later than it is certain that it is one."""
    made, text = Calls(HERMES, NAMES), f"<tool_call>\n{ROME}"
    told = [sum(len(p.text) for p in made.feed(c) if p.kind == "arguments") for c in text]
    begins = text.index('{"city')
    assert told == [0] * begins + [1] * (len(text) - 1 - begins) + [0]


THOUGHTS = [
    (False, "<think>\nI\n think.\n</think>\n\nYes.\n", "I\n think.", "Yes.\n"),
    (False, "\n<think></think> Yes", "", "Yes"),
    (False, "Yes <think>no</think>", "", "Yes <think>no</think>"),
    (False, "<thin", "", "<thin"),
    (False, " \n", "", " \n"),
    (False, "<think>I was cut </thi", "I was cut </thi", ""),
    (True, "I think.</think>Yes.", "I think.", "Yes."),
    (True, "\nI was cut \n", "I was cut", ""),
    (True, "a </b> < </think>\n", "a </b> <", ""),
]


@pytest.mark.parametrize(("inside", "text", "thought", "answer"), THOUGHTS)
def test_thoughts(inside: bool, text: str, thought: str, answer: str) -> None:
    whole = parts(Thinking(inside), [text])
    assert "".join(part.text for part in whole if part.kind == "reasoning") == thought
    assert content(whole) == answer
    for pieces in cuts(text):
        assert parts(Thinking(inside), pieces) == whole, pieces


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("hermes", HERMES),
        ("llama-3", LLAMA),
        ("mistral", MISTRAL),
        ("named", MISTRAL),
        ("none", None),
        ("thinking", None),
    ],
)
def test_a_template_shows_its_form(name: str, form: Form | None) -> None:
    known = Known(toolbox.tokenizer(name))
    assert (known.form and known.form.name) == (form and form.name)
    if known.form is not None:
        assert known.form.several is (name != "llama-3")
        assert known.form.writes_name is (name == "named")
    assert known.thinks is (name == "thinking")


SYSTEM = "{% for m in messages %}{% if m.role == 'system' %}{{ tools }}{% endif %}"
SHOWN = [  # a template; whether it shows tools, and calls
    (toolbox.TEMPLATES["hermes"], True, True),
    (toolbox.TEMPLATES["mistral"], True, True),
    (toolbox.TEMPLATES["none"], True, False),
    (toolbox.TEMPLATES["blind"], False, False),
    (SYSTEM + toolbox.PLAIN + "{% endfor %}", True, False),
    ({"default": toolbox.TEMPLATES["blind"], "tool_use": toolbox.TEMPLATES["none"]}, True, False),
    ("{{ raise_exception('no') }}", True, True),  # which a client is told of as it is
]


@pytest.mark.parametrize(("template", "tools", "calls"), SHOWN)
def test_what_a_template_shows(template: Any, tools: bool, calls: bool) -> None:
    own: Any = copy.deepcopy(toolbox.tokenizer("none"))
    own.chat_template = template
    known = Known(own)
    assert (known.shows_tools, known.shows_calls) == (tools, calls)


def test_a_model_without_templates() -> None:
    assert Known(None).form is None and not Known(None).thinks
    assert forms.Known(object()).form is None
