"""What a client that looks on is told of each step: its tree, who drafted, what was accepted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import draftproof as dp
import serving
from drafters import Eager
from serving import Server, events

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
USUAL: dict[str, Any] = {"max_tokens": 40, "seed": 3, "ignore_eos": True, "temperature": 0.6}
USUAL |= {"prompt": "abcabcabcabc"}
TREES: dict[str, Any] = {"speculative_details": "trees"}


def near() -> dp.DraftModel:
    return dp.DraftModel(serving.tiny.relative(serving.model(), 0.02), 4, min_confidence=0.0)


@pytest.fixture(scope="module", params=["auto", "draft", "ngram"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made: dict[str, Any] = {
        "auto": lambda: Eager(dp.NGram(min_ngram=1), near()),
        "draft": near,
        "ngram": lambda: dp.NGram(min_ngram=1),
    }
    with Server(lambda: serving.llm(speculate=made[request.param]())) as server:
        yield server


def told(server: Server, path: str = TEXT, **more: Any) -> list[dict[str, Any]]:
    answer = server.post(path, **{**USUAL, **TREES, "stream": True, **more})
    assert answer.status_code == 200, answer.text
    return [part["choices"][0] for part in events(answer.text) if part["choices"]]


def check(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Its steps; that each of its tokens and of its nodes is told as the last chunk has them."""
    details = [choice["speculative_details"] for choice in choices]
    tokens = [each["token"] for each in details if "token" in each]
    steps = [each["step"] for each in details if "step" in each]
    last = details[-1]
    assert tokens == last["tokens"]
    assert [{name: step[name] for name in ("nodes", "written", "why")} for step in steps] == last[
        "trees"
    ]
    assert sum(step["written"] for step in steps) == len(tokens)
    for step, counts in zip(steps, last["steps"], strict=True):
        nodes = step["nodes"]
        right = [at for at, node in enumerate(nodes) if node["accepted"]]
        assert (len(nodes), len(right)) == (counts["nodes"], counts["accepted"])
        assert not nodes or not step["why"]
        parent = -1  # what is accepted is a path from the root
        for at in right:
            assert nodes[at]["parent"] == parent
            parent = at
        assert all(node["parent"] < at for at, node in enumerate(nodes))
    return steps


def test_of_a_stream(server: Server) -> None:
    choices = told(server)
    steps = check(choices)
    whole = server.post(TEXT, **USUAL).json()["choices"][0]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    nodes = [node for step in steps for node in step["nodes"]]
    accepted = [node for node in nodes if node["accepted"]]
    assert 0 < len(accepted) < len(nodes)
    scores = [node["score"] for node in nodes if node["score"] is not None]
    assert len(scores) == len(nodes) and all(0 < score <= 1 for score in scores)
    texts = [choice["text"] for choice in choices]
    at = 0  # an accepted node has the text that its token wrote
    for step in steps:
        for node, text in zip(
            [n for n in step["nodes"] if n["accepted"]], texts[at:], strict=False
        ):
            assert node["text"] == text or "\ufffd" in node["text"] + text or not text
        at += step["written"]


def test_of_an_answer_that_comes_whole(server: Server) -> None:
    streamed = told(server)[-1]["speculative_details"]
    whole = server.post(TEXT, **USUAL, **TREES).json()["choices"][0]["speculative_details"]
    assert len(whole["trees"]) == len(whole["steps"])
    assert whole["seed"] == streamed["seed"] == 3


def test_of_a_chat_and_of_several_choices(server: Server) -> None:
    asked = {"messages": [{"role": "user", "content": "aaaa"}], "n": 3}
    choices = told(server, CHAT, **{**asked, "prompt": None})
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        check(own[1:])


@pytest.mark.parametrize("rule", ["rejection", "typical"])
def test_under_other_rules(server: Server, rule: str) -> None:
    choices = told(server, rule=rule)
    details = choices[-1]["speculative_details"]
    assert len(details["trees"]) == len(details["steps"])
    assert sum(len(step["nodes"]) for step in details["trees"]) > 0


def test_of_what_goes_on(server: Server) -> None:
    choices = told(server)
    ids = [choice["resume"]["token_ids"] for choice in choices if "resume" in choice]
    resume = {"token_ids": [token for each in ids[:11] for token in each]}
    rest = told(server, resume=resume)
    details = rest[-1]["speculative_details"]
    assert [token["source"] for token in details["tokens"][:11]] == ["resumed"] * 11
    tokens = [each["speculative_details"]["token"] for each in rest if each["resume"]["token_ids"]]
    assert tokens == details["tokens"][11:]
    assert "".join(each["text"] for each in choices).endswith("".join(e["text"] for e in rest))


def test_who_does_not_ask_is_told_nothing(server: Server) -> None:
    for more in ({}, {"speculative_details": True}):
        answer = server.post(TEXT, **USUAL, stream=True, **more)
        assert '"step":' not in answer.text and '"trees"' not in answer.text
    bad = server.post(TEXT, **USUAL, speculative_details="leaves")
    assert bad.status_code == 400 and '"trees"' in bad.json()["error"]["message"]


def test_why_nothing_is_drafted() -> None:
    with Server(lambda: serving.llm(speculate=Eager(dp.NGram(min_ngram=4, max_ngram=5)))) as server:
        steps = check(told(server, prompt="abc", temperature=2.0))
        assert {step["why"] for step in steps if not step["nodes"]} >= {"nothing offered"}
        off = check(told(server, speculative=False))
        assert {step["why"] for step in off} == {"off"}
