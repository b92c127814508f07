"""Log-probabilities over HTTP: those of `LLM.generate`; the prompt's, as lm_eval asks for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import draftproof as dp
import serving
from draftproof.server.settings import Limits
from serving import Server, events


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


@pytest.fixture(scope="module")
def plain() -> Iterator[dp.LLM]:
    with serving.llm(speculate=None, prefix_cache=False) as made:
        yield made


def test_a_completions_are_those_of_generate(server: Server, plain: dp.LLM) -> None:
    body = {"temperature": 0.7, "seed": 1, "max_tokens": 12, "logprobs": 3}
    (own,) = plain.generate("hello", dp.SamplingParams(**body))
    asked = {**body, "return_tokens_as_token_ids": True}
    found = server.completion("hello", **asked)["choices"][0]["logprobs"]
    assert own.logprobs is not None
    assert found["tokens"] == [f"token_id:{token}" for token in own.token_ids]
    for at, known in enumerate(own.logprobs):
        assert found["token_logprobs"][at] == pytest.approx(known[own.token_ids[at]], abs=1e-9)
        top = {f"token_id:{token}": value for token, value in known.items()}
        assert found["top_logprobs"][at] == pytest.approx(top, abs=1e-9)
        assert 3 <= len(top) <= 4


def test_a_chats_are_those_of_generate(server: Server, plain: dp.LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    params = dp.SamplingParams(temperature=0.7, seed=1, max_tokens=12, logprobs=2)
    (own,) = plain.chat(messages, params)
    body = {"messages": messages, "temperature": 0.7, "seed": 1, "max_completion_tokens": 12}
    body |= {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True}
    answer = server.post("/v1/chat/completions", **body).json()["choices"][0]
    assert answer["message"] == {"role": "assistant", "content": own.text}
    streamed: list[Any] = []
    for event in events(server.post("/v1/chat/completions", **body, stream=True).text):
        scores = event["choices"][0]["logprobs"]
        streamed += scores["content"] if scores is not None else []
    assert own.logprobs is not None
    for content in (answer["logprobs"]["content"], streamed):
        assert len(content) == 12
        for entry, known, token in zip(content, own.logprobs, own.token_ids, strict=True):
            assert entry["token"] == f"token_id:{token}"
            assert entry["logprob"] == pytest.approx(known[token], abs=1e-9)
            names = [f"token_id:{best}" for best in known][:2]
            assert [each["token"] for each in entry["top_logprobs"]] == names


def test_bytes_of_half_a_character(server: Server) -> None:
    """Each byte of the tokenizer is a token; what is no character by itself has its byte."""
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 1.0, "seed": 3}
    body |= {"max_tokens": 60, "logprobs": True, "ignore_eos": True}
    entries = server.post("/v1/chat/completions", **body).json()["choices"][0]["logprobs"][
        "content"
    ]
    whole = b"".join(bytes(entry["bytes"]) for entry in entries if "<" not in entry["token"])
    halves = [entry for entry in entries if entry["token"] == "\ufffd"]
    assert halves and all(len(entry["bytes"]) == 1 for entry in halves)
    assert len({entry["bytes"][0] for entry in halves}) > 1 and len(whole) > 40


@pytest.mark.parametrize("stream", [False, True])
def test_lm_evals_log_likelihoods(server: Server, stream: bool) -> None:
    """Its request, and how it reads the answer: a sum without the last, and float equality."""
    model = serving.model()
    ids = [
        [*serving.spelling.tokenizer()(text)["input_ids"]] for text in ("The sky is blue", "a b")
    ]
    body = {"max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    body |= {"model": serving.NAME}
    for prompt in ids:
        if stream:
            answer = server.post("/v1/completions", prompt=prompt, **body, stream=True)
            (event,) = events(answer.text)
            (choice,) = event["choices"]
        else:
            (choice,) = server.completion([prompt], **body)["choices"]
        found = choice["logprobs"]
        assert len(found["token_logprobs"]) == len(prompt) + 1
        assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
        with torch.inference_mode():
            law = torch.log_softmax(model(input_ids=torch.tensor([prompt])).logits[0].double(), -1)
        context = 3
        own = [law[at, prompt[at + 1]].item() for at in range(context - 1, len(prompt) - 1)]
        assert sum(found["token_logprobs"][context:-1]) == pytest.approx(sum(own), abs=1e-8)
        pairs = zip(found["token_logprobs"][1:-1], found["top_logprobs"][1:-1], strict=True)
        greedy = [value == max(top.values()) for value, top in pairs]
        best = [prompt[at + 1] == int(law[at].argmax()) for at in range(len(prompt) - 1)]
        assert greedy == best
        assert "".join(found["tokens"]) == choice["text"]


def test_all_greedy_is_seen(server: Server, plain: dp.LLM) -> None:
    """Of a text that the model writes itself, every token is its best."""
    (own,) = plain.generate("abc", dp.SamplingParams(max_tokens=20, ignore_eos=True))
    prompt = [*own.prompt_token_ids, *own.token_ids]
    body = {"max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0}
    found = server.completion([prompt], **body)["choices"][0]["logprobs"]
    begin = len(own.prompt_token_ids)
    for value, top in zip(
        found["token_logprobs"][begin:], found["top_logprobs"][begin:], strict=True
    ):
        assert value == max(top.values())


def test_a_prompt_alone(server: Server) -> None:
    """Nothing is written: max_tokens 0, as older evaluations ask."""
    body = {"max_tokens": 0, "logprobs": 1, "echo": True}
    answer = server.completion("abcd", **body)
    (choice,) = answer["choices"]
    assert choice["text"] == "abcd" and len(choice["logprobs"]["token_logprobs"]) == 4
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    plain = server.completion("abcd", max_tokens=0, echo=True)
    assert plain["choices"][0]["text"] == "abcd" and plain["choices"][0]["logprobs"] is None


def test_each_choice_has_the_prompts(server: Server) -> None:
    body = {"max_tokens": 2, "logprobs": 0, "echo": True, "n": 3, "ignore_eos": True}
    choices = server.completion(["abc", "de"], **body)["choices"]
    sizes = [len(choice["logprobs"]["token_logprobs"]) for choice in choices]
    assert sizes == [5, 5, 5, 4, 4, 4]


def test_vllms_prompt_logprobs(server: Server, plain: dp.LLM) -> None:
    (own,) = plain.generate("abc", dp.SamplingParams(max_tokens=2, prompt_logprobs=1))
    assert own.prompt_logprobs is not None
    for stream in (False, True):
        body = {"prompt": "abc", "max_tokens": 2, "temperature": 0, "prompt_logprobs": 1}
        answer = server.post("/v1/completions", **body, stream=stream)
        last = [*events(answer.text)][-1] if stream else answer.json()
        found = last["choices"][0]["prompt_logprobs"]
        assert found[0] is None and len(found) == 3
        for known, row in zip(own.prompt_logprobs[1:], found[1:], strict=True):
            values = {int(token): entry["logprob"] for token, entry in row.items()}
            assert known is not None and values == pytest.approx(known, abs=1e-9)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_was_not_read_to_its_end(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer has what there is, beside one that ended."""

    def slow() -> dp.LLM:
        made = serving.llm(speculate=None)
        made.engine.scheduler.prompt_budget = 20
        forward = made.runner.forward

        def waits(*given: Any) -> Any:
            time.sleep(0.3)
            return forward(*given)

        monkeypatch.setattr(made.runner, "forward", waits)
        return made

    body = {"prompt": ["a", "b" * 300], "max_tokens": 1, "logprobs": 1, "echo": True}
    with Server(slow, Limits(seconds=1.0)) as server:
        answer = server.post("/v1/completions", **body, stream=stream)
        assert answer.status_code == 200
        found = [*events(answer.text)] if stream else [answer.json()]
    choices = [choice for each in found for choice in each["choices"]]
    ended = {choice["index"]: choice for choice in choices if choice["finish_reason"]}
    assert [ended[at]["finish_reason"] for at in (0, 1)] == ["length", "abort"]
    values = ended[1]["logprobs"]["token_logprobs"]
    assert len(values) == 300 and values[-1] is None
