"""`LLM.chat(tools=)`: what the template shows of them, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import draftproof as dp
from speaking import Script
from toolbox import TOOLS, call, tokenizer

SAID = [{"role": "user", "content": "Rain in Rome?"}]


@pytest.mark.parametrize("form", ["hermes", "mistral"])
def test_tools_are_shown_and_calls_come_as_text(form: str) -> None:
    script = Script()
    with script.open(form) as llm:
        script.text = call("weather", city="Rome", days=1)
        params = dp.SamplingParams(max_tokens=100)
        shown, plain = llm.chat(SAID, params, tools=TOOLS), llm.chat(SAID, params)
        assert shown[0].text == plain[0].text == script.text
        template: Any = {"tokenize": False, "add_generation_prompt": True}
        text = llm.tokenizer.apply_chat_template(SAID, tools=TOOLS, **template)
        assert llm.tokenizer.decode(shown[0].prompt_token_ids) == text
        assert "weather" in text
        both = llm.chat([SAID, "Oslo?"], params, tools=TOOLS)
        assert all("weather" in llm.tokenizer.decode(each.prompt_token_ids) for each in both)
        for none in ((), [], None):
            again = llm.chat(SAID, params, tools=none)  # type: ignore[arg-type]
            assert again[0].prompt_token_ids == plain[0].prompt_token_ids


def test_bad_tools_are_refused_in_one_sentence() -> None:
    with Script().open("hermes") as llm:
        for tools in ("weather", ["weather"], {"a": 1}, 5, [1]):
            with pytest.raises(ValueError, match="tools must be a list of"):
                llm.chat(SAID, tools=tools)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"use llm.chat\(messages, tools=...\)"):
            llm.generate("Rome?", tools=TOOLS)  # type: ignore[call-arg]
    blind = copy.deepcopy(tokenizer("hermes"))
    blind.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with (
        Script().open("hermes", tokenizer=blind) as llm,
        pytest.raises(ValueError, match="shows no tools: describe them"),
    ):
        llm.chat(SAID, tools=TOOLS)
