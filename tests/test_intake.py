"""Conversations and prompts at the door: what is taken, and what is refused in one sentence."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import draftproof as dp
from draftproof.asked import params_of, prompts_of
from draftproof.intake import Intake
from spelling import MAX, model, tokenizer

SHORT = dp.SamplingParams(max_tokens=5, ignore_eos=True)
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[dp.LLM]:
    with dp.LLM(model(), tokenizer=tokenizer(), speculate=None) as made:
        yield made


def test_requests_need_no_model() -> None:
    intake = Intake(tokenizer(), vocabulary=259, max_length=20, end_ids=(2,))
    one, two = intake.requests("ab", dp.SamplingParams(n=2, seed=1))
    assert one.prompt == two.prompt == tokenizer()("ab")["input_ids"]
    assert one.key != two.key and one.siblings == two.siblings == [one.key, two.key]
    assert one.stop_ids == {2} and one.max_length == 20
    with pytest.raises(ValueError, match="tokenizer"):
        Intake(None, 259, 20).requests("ab", dp.SamplingParams())


def test_text_is_a_users_message(llm: dp.LLM) -> None:
    (want,) = llm.chat(HI, SHORT)
    assert llm.chat("hi", SHORT)[0].token_ids == want.token_ids
    assert llm.chat(HI[0], SHORT)[0].token_ids == want.token_ids
    assert [out.token_ids for out in llm.chat(["hi", HI], SHORT)] == [want.token_ids] * 2
    streamed = [token for chunk in llm.stream(HI, SHORT) for token in chunk.token_ids]
    assert streamed == want.token_ids


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "user"}], "message 1 has no content"),
        ([HI[0], {"role": "user", "content": None}], "message 2 has no content"),
        ([{"content": "hi"}], "message 1 has no role"),
        ([HI[0], "hi"], "message 2 is a str"),
        ([], "at least one"),
        (b"hi", "bytes"),
        (5, "not int$"),
    ],
)
def test_messages_that_are_none(llm: dp.LLM, messages: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        llm.chat(messages, SHORT)


def test_a_slip_in_a_message_is_refused_as_a_server_does(llm: dp.LLM) -> None:
    """What is none goes to the template, and what the template itself has."""
    for slip, right in (({"role": "usr"}, "user"), ({"tool_cals": [1]}, "tool_calls")):
        says = rf"^messages\[1\] has the \w+ '\w+', which is unknown: did you mean '{right}'\?$"
        for call in (llm.chat, llm.stream):
            with pytest.raises(ValueError, match=says):
                call([*HI, {**HI[0], **slip}], SHORT)  # type: ignore[operator]
    for role in ("tool", "developer", "ipython", "model", "observation", "function"):
        llm.chat([*HI, {"role": role, "content": "hi"}], SHORT)
    own: Any = copy.copy(tokenizer())
    own.chat_template = "{% for m in messages if m.role == 'usr' %}{{ m.content }}{% endfor %}"
    with dp.LLM(llm, tokenizer=own) as other:
        other.chat([{"role": "usr", "content": "hi"}], SHORT)


@pytest.mark.parametrize("prompt", [b"hi", bytearray(b"hi"), [b"hi"]])
def test_bytes_are_no_token_ids(llm: dp.LLM, prompt: Any) -> None:
    with pytest.raises(ValueError, match="bytes are no prompt"):
        llm.generate(prompt, SHORT)


def test_prompts_in_dicts(llm: dp.LLM) -> None:
    """As vLLM takes them, one or several."""
    ids = tokenizer()("ab")["input_ids"]
    (want,) = llm.generate("ab", SHORT)
    forms: list[Any] = [{"prompt": "ab"}, {"prompt_token_ids": ids}]
    for prompts in (*forms, forms):
        assert all(out.token_ids == want.token_ids for out in llm.generate(prompts, SHORT))
    assert "".join(chunk.text for chunk in llm.stream(forms[0], SHORT)) == want.text


def test_what_is_not_read_of_a_dict_is_refused(llm: dp.LLM) -> None:
    """A picture that nobody looks at would be answered as if there were none."""
    with pytest.raises(ValueError, match="a prompt has multi_modal_data, which is not read here"):
        llm.generate({"prompt": "ab", "multi_modal_data": {"image": object()}}, SHORT)
    llm.generate({"prompt": "ab", "multi_modal_data": None}, SHORT)


def test_a_content_in_parts(llm: dp.LLM) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    (want,) = llm.chat(HI, SHORT)
    assert llm.chat([{**HI[0], "content": parts}], SHORT)[0].token_ids == want.token_ids
    with pytest.raises(ValueError, match="only text"):
        llm.chat([{**HI[0], "content": [{"type": "image_url", "image_url": "x"}]}], SHORT)


def test_messages_are_no_prompt_of_generate(llm: dp.LLM) -> None:
    for messages in (HI, [HI]):
        with pytest.raises(ValueError, match="llm.chat"):
            llm.generate(messages, SHORT)


def test_no_limit_is_the_context(llm: dp.LLM) -> None:
    params = dp.SamplingParams(max_tokens=None, stop=None, min_tokens=3, ignore_eos=True)
    (out,) = llm.generate([5, 6], params)
    assert len(out.token_ids) == MAX - 2 and out.finish_reason == "length"


@pytest.mark.parametrize("name", ["bfloat16", "bf16"])
def test_bundled_is_a_model(name: str) -> None:
    with dp.LLM("bundled", dtype=name, speculate=dp.Medusa("bundled")) as llm:
        assert llm.runner.precision == "bfloat16"
        assert "return" in llm.generate("def f(x):", dp.SamplingParams(max_tokens=9))[0].text


@pytest.mark.parametrize("name", ["fp16", "half", "fp32", "float"])
def test_other_names_of_precisions(name: str) -> None:
    from draftproof.runners.loading import pick_dtype

    assert str(pick_dtype(name)) in ("torch.float16", "torch.float32")


class Inputs(UserDict[str, Any]):
    """What a transformers tokenizer returns: a mapping that is no dict."""


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_what_a_tokenizer_returned_is_read_without_its_padding(kind: Any) -> None:
    ids, mask = [[0, 0, 5, 6], [1, 2, 3, 4]], [[0, 0, 1, 1], [1, 1, 1, 1]]
    inputs = Inputs(input_ids=kind(ids), attention_mask=kind(mask))
    assert prompts_of(inputs, 0) == [[5, 6], [1, 2, 3, 4]]
    assert prompts_of(Inputs(input_ids=kind(ids[1])), 0) == [ids[1]]
    assert prompts_of(Inputs(input_ids=[5, 6], attention_mask=[0, 1])) == [[6]]


@pytest.mark.parametrize("rows", [[[0, 0, 5], [1, 2, 3]], [[1, 2, 3], [5, 0, 0]]])
def test_padding_that_would_be_read_is_refused(rows: list[list[int]]) -> None:
    for given in (rows, torch.tensor(rows)):
        with pytest.raises(ValueError, match=r"prompt \d holds padding \(token id 0\)"):
            prompts_of(given, 0)
    assert prompts_of(rows, 9) == prompts_of(rows) == rows
    assert prompts_of([[0, 5, 6], [0, 7, 8]], 0)  # a first token that pads too
    assert prompts_of([[0, 0, 5]], 0) and prompts_of([[0, 0, 5], [1]], 0)  # not padded to one width


def test_a_generation_config_is_no_parameters() -> None:
    with pytest.raises(ValueError, match=r"dp\.SamplingParams\.from_model\(llm\)"):
        params_of(GenerationConfig(), 1)
