"""Predicted outputs over HTTP, as OpenAI's clients send them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import serving
from batches import CHAT, answers, line, write
from drafters import Eager
from serving import CONTEXT, NAME, Server, events

HI: list[Any] = [{"role": "user", "content": "hi"}]
# Letters alone: a text of broken characters is no prediction of itself.
LETTERS: dict[str, Any] = {"bad_token_ids": [*range(3), *range(97, 259)], "seed": 5}
USUAL: dict[str, Any] = {"messages": HI, "max_tokens": 60, **LETTERS}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(lambda: serving.llm(speculate=Eager("ngram"))) as made:
        yield made


@pytest.fixture(scope="module")
def text(server: Server) -> str:
    """What is written in any case."""
    answer = server.post(CHAT, **USUAL, speculative=False).json()
    found: str = answer["choices"][0]["message"]["content"]
    return found


def predicted(content: Any) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content}}


def counts(usage: dict[str, Any]) -> tuple[int, int]:
    details = usage["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


def test_as_the_package_sends_it(server: Server, text: str) -> None:
    half = len(text) // 2
    parts = [{"type": "text", "text": each} for each in (text[:half], text[half:])]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        for content in (text, parts):
            answer = client.chat.completions.create(
                model=NAME, messages=HI, max_tokens=60, extra_body={**LETTERS, **predicted(content)}
            )
            assert answer.choices[0].message.content == text
            assert answer.usage is not None
            details = answer.usage.completion_tokens_details
            assert details is not None and details.accepted_prediction_tokens is not None
            assert details.accepted_prediction_tokens > 30
            assert details.rejected_prediction_tokens == 0


def test_usage_counts_tokens_of_the_prediction(server: Server, text: str) -> None:
    """Not what look-ups draft beside it; with a change in it, some are rejected."""
    wrong = text[:20] + "#" + text[21:]
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    for way in ({}, stream):
        answer = server.post(CHAT, **USUAL, **predicted(wrong), **way)
        told = [*events(answer.text)] if way else [answer.json()]
        accepted, rejected = counts(told[-1]["usage"])
        assert accepted > 20 and rejected > 0
    other = server.post(CHAT, **USUAL, **predicted("\u00e9" * 40), metrics=True).json()
    accepted, rejected = counts(other["usage"])
    drafted = other["metrics"]["speculative_decoding"]["num_draft_tokens"]
    assert other["choices"][0]["message"]["content"] == text
    assert accepted < 5 and accepted + rejected < drafted


def test_completions_take_it_too(server: Server) -> None:
    asked = {"prompt": "abc", "max_tokens": 40, **LETTERS}
    text = server.completion(**asked, speculative=False)["choices"][0]["text"]
    answer = server.completion(**asked, **predicted(text))
    assert answer["choices"][0]["text"] == text and counts(answer["usage"])[0] > 20


def test_a_stream_goes_on_with_it_or_without(server: Server, text: str) -> None:
    asked = {**USUAL, "stream": True, "speculative_details": True}
    parts = [*events(server.post(CHAT, **asked, **predicted(text)).text)]
    told = [part["choices"][0] for part in parts if "resume" in part["choices"][0]]
    ids = told[0]["resume"]["token_ids"]
    start = told[0]["delta"]["content"]
    resume = {"token_ids": ids, "fingerprint": told[0]["resume"]["fingerprint"], "seed": 5}
    for more in ({}, predicted(text), predicted("another")):
        rest = server.post(CHAT, **USUAL, **more, resume=resume)
        assert rest.status_code == 200, rest.text
        assert start + rest.json()["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prediction": "text"}, '{"type": "content", "content": text'),
        ({"prediction": {"type": "content"}}, '{"type": "content", "content": text'),
        ({"prediction": {"type": "diff", "content": "a"}}, '{"type": "content"'),
        (predicted([{"type": "image_url", "image_url": "a"}]), "parts of type text"),
        (predicted("a" * (CONTEXT + 1)), f"401 tokens, and the context ends at {CONTEXT}"),
        ({**predicted("a"), "speculative": False}, "speculative=False rules out: drop one"),
        ({**predicted("a"), "speculative": "ngram"}, "speculative='ngram' rules out"),
    ],
)
def test_what_is_refused(server: Server, body: dict[str, Any], said: str) -> None:
    answer = server.post(CHAT, **USUAL, **body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert said in error["message"] and error["param"] == "prediction"


def test_where_nothing_drafts_from_it(text: str) -> None:
    with Server() as other:  # a draft model alone
        answer = other.post(CHAT, **USUAL, **predicted(text))
    assert answer.status_code == 400
    assert "drafted from by 'auto' alone" in answer.json()["error"]["message"]


def test_lines_of_a_batch(run: Any, tmp_path: Path) -> None:
    lines = [
        line(name, {"prompt": "import os", "seed": 1, "max_tokens": 20, **more})
        for name, more in {
            "plain": {},
            "with": predicted("import sys"),
            "bad": predicted(3),
        }.items()
    ]
    path = write(tmp_path / "in.jsonl", lines)
    out = tmp_path / "out.jsonl"
    run("batch", str(path), "--out", str(out), "--target", "T", "--quiet")
    found = {name: each["response"] for name, each in answers(out).items()}
    texts = [found[name]["body"]["choices"][0]["text"] for name in ("plain", "with")]
    assert texts[0] == texts[1]
    assert found["bad"]["status_code"] == 400
