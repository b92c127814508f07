"""Text over HTTP is that of `LLM.generate`, token for token, whoever else is served beside."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import draftproof as dp
import serving
from draftproof.runners.rows import FIRST_SLOTS
from serving import CONTEXT, Server, events

PROMPTS = ["abc", "hello there, ", "def f(x):\n    return x\n", "aaaa" * 20]
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0.0, "max_tokens": 24},
    {"temperature": 0.8, "seed": 3, "max_tokens": 24},
    {"temperature": 1.0, "seed": 4, "max_tokens": 12, "n": 3},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 5, "max_tokens": 20},
    {"temperature": 0.9, "seed": 6, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"temperature": 0.9, "seed": 7, "frequency_penalty": 0.5, "bad_token_ids": [5, 6]},
    {"temperature": 1.0, "seed": 8, "stop": ["e", "Z"], "min_tokens": 5, "max_tokens": 60},
    {"temperature": 1.0, "seed": 9, "stop_token_ids": [40, 41, 42, 43], "ignore_eos": True},
    {"temperature": 0.8, "seed": 10, "logprobs": 3, "max_tokens": 8},
    {"temperature": 0.0, "max_tokens": 8, "logprobs": 0, "n": 2, "ignore_eos": True},
]
DRAFTS: list[Any] = [None, {"speculative": False}, {"speculative": {"max_nodes": 2}}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


@pytest.fixture(scope="module")
def plain() -> Iterator[dp.LLM]:
    with serving.llm(speculate=None, prefix_cache=False) as made:
        yield made


def wanted(plain: dp.LLM, prompt: Any, body: dict[str, Any]) -> list[dp.Completion]:
    params = {"max_tokens": 16, **body}
    return plain.generate(prompt, dp.SamplingParams(**params))


def tokens_of(choice: dict[str, Any]) -> list[int]:
    return [int(name.removeprefix("token_id:")) for name in choice["logprobs"]["tokens"]]


@pytest.mark.parametrize("body", SAMPLED)
@pytest.mark.parametrize("more", DRAFTS)
def test_texts_and_tokens(server: Server, plain: dp.LLM, body: dict[str, Any], more: Any) -> None:
    for prompt in PROMPTS[:2]:
        ours = wanted(plain, prompt, body)
        asked = {"logprobs": 1, "return_tokens_as_token_ids": True, **body, **(more or {})}
        answer = server.completion(prompt, **asked)
        for choice, own in zip(answer["choices"], ours, strict=True):
            assert choice["text"] == own.text
            assert tokens_of(choice) == own.token_ids
            assert choice["finish_reason"] == own.finish_reason


def test_something_is_drafted_and_accepted(server: Server) -> None:
    answer = server.completion("abc", temperature=0, max_tokens=40, ignore_eos=True, metrics=True)
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 10
    found = answer["metrics"]["speculative_decoding"]
    assert found["num_accepted_draft_tokens"] == details["accepted_prediction_tokens"]
    assert sum(found["acceptance_histogram"]) == found["num_spec_steps"] > 0
    asked = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "metrics": True}
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    *_, last = events(server.post("/v1/completions", prompt="abc", **asked).text)
    assert not last["choices"] and last["metrics"] == answer["metrics"]  # where vLLM has them
    off = server.completion("abc", temperature=0, max_tokens=40, ignore_eos=True, speculative=False)
    assert off["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    assert off["choices"][0]["text"] == answer["choices"][0]["text"]


@pytest.mark.parametrize("chunk", ["step", "token"])
def test_streams(plain: dp.LLM, chunk: str) -> None:
    with Server(chunk=chunk) as server:
        for body in SAMPLED:
            for prompt in PROMPTS[1:3]:
                answer = server.post("/v1/completions", prompt=prompt, stream=True, **body)
                assert answer.headers["content-type"].startswith("text/event-stream")
                ours = wanted(plain, prompt, body)
                texts = [""] * len(ours)
                reasons: list[str | None] = [None] * len(ours)
                tokens = 0
                for event in events(answer.text):
                    (choice,) = event["choices"]
                    index = choice["index"]
                    assert reasons[index] is None, "something came behind the last chunk"
                    texts[index] += choice["text"]
                    reasons[index] = choice["finish_reason"]
                    if choice["logprobs"] is not None:
                        tokens += len(choice["logprobs"]["tokens"])
                        assert chunk == "step" or len(choice["logprobs"]["tokens"]) <= 1
                assert texts == [own.text for own in ours]
                assert reasons == [own.finish_reason for own in ours]
                if "logprobs" in body:
                    assert tokens == sum(len(own.token_ids) for own in ours)


def test_a_step_is_a_chunk_and_a_token_is_one() -> None:
    """Drafts that are always right: several tokens a step."""
    right = dp.DraftModel(serving.model(), 4, min_confidence=0.0)
    sizes: dict[str, int] = {}
    for chunk in ("step", "token"):
        with Server(lambda: serving.llm(speculate=right), chunk=chunk) as server:
            body = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "stream": True}
            answer = server.post("/v1/completions", prompt="abc", **body)
            sizes[chunk] = len(list(events(answer.text)))
    assert sizes["token"] >= 40 and sizes["step"] <= 20


def test_a_crowd_gets_what_each_would_get_alone(server: Server, plain: dp.LLM) -> None:
    asked = [
        (PROMPTS[i % 4], SAMPLED[i % len(SAMPLED)], {**(DRAFTS[i % 3] or {}), "stream": i % 2 > 0})
        for i in range(24)
    ]

    def ask(one: tuple[str, dict[str, Any], dict[str, Any]]) -> list[str]:
        prompt, body, more = one
        answer = server.post("/v1/completions", prompt=prompt, **body, **more)
        if not more["stream"]:
            return [choice["text"] for choice in answer.json()["choices"]]
        texts = [""] * body.get("n", 1)
        for event in events(answer.text):
            texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
        return texts

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(ask, asked))
    assert found == [[own.text for own in wanted(plain, p, body)] for p, body, _ in asked]
    assert server.idle()


def test_several_prompts_of_every_kind(server: Server, plain: dp.LLM) -> None:
    ids = [spelled(prompt) for prompt in PROMPTS[:2]]
    body = {"temperature": 1.0, "seed": 2, "max_tokens": 6, "n": 2}
    ours = [own.text for prompt in PROMPTS[:2] for own in wanted(plain, prompt, body)]
    for given in (PROMPTS[:2], ids):
        answer = server.completion(given, **body)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert [choice["text"] for choice in answer["choices"]] == ours
        assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert server.completion(ids[0], **body)["choices"][0]["text"] == ours[0]
    echoed = server.completion(ids, **body, echo=True)
    begins = [PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[1]]
    for choice, begin, text in zip(echoed["choices"], begins, ours, strict=True):
        assert choice["text"] == begin + text


def spelled(text: str) -> list[int]:
    return [*serving.spelling.tokenizer()(text)["input_ids"]]


@pytest.mark.parametrize("rule", ["rejection", "typical", "coupled"])
def test_a_rule_of_its_own(server: Server, rule: str) -> None:
    answer = server.completion("abc", temperature=1.0, seed=1, max_tokens=20, rule=rule)
    assert answer["choices"][0]["finish_reason"] in ("length", "stop")
    assert ("warnings" in answer) == (rule == "typical")


def test_details_add_up(server: Server) -> None:
    body = {"temperature": 0, "max_tokens": 30, "ignore_eos": True, "speculative_details": True}
    (choice,) = server.completion("abc", **body)["choices"]
    found = choice["speculative_details"]
    assert len(found["tokens"]) == 30
    assert sum(step["accepted"] + 1 for step in found["steps"]) == 30
    drafted = [token for token in found["tokens"] if token["depth"]]
    assert len(drafted) == sum(step["accepted"] for step in found["steps"]) > 5
    assert {token["source"] for token in drafted} == {"draft"}
    assert all(t["source"] == "target" for t in found["tokens"] if not t["depth"])


def test_a_text_that_memory_ends_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.memory.OPEN", 100)

    def narrow() -> dp.LLM:
        made = serving.llm(speculate=None, kv_memory="auto")
        made.memory.total = FIRST_SLOTS * made.memory.slot_bytes
        return made

    messages = [{"role": "user", "content": "hi"}]
    body = {"messages": messages, "temperature": 0, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    with Server(narrow) as server:
        open_ended, last = [
            [*events(server.post("/v1/chat/completions", **body, **more).text)]
            for more in ({}, {"max_tokens": 100})
        ]
    usage = open_ended[-1]["usage"]
    assert usage["limited_by"] == "memory" and 100 < usage["total_tokens"] < CONTEXT - 64
    assert open_ended[-2]["choices"][0]["finish_reason"] == "length"
    assert "no memory" in str(open_ended[-2]["warnings"])
    assert last[-1]["usage"]["completion_tokens"] == 100 and "limited_by" not in last[-1]["usage"]
