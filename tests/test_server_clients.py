"""The `openai` package as a client: answers, streams, and errors as its exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

import draftproof as dp
import serving
from draftproof.server.settings import digest
from serving import NAME, Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(keys=(digest("sesame"),)) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sesame", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def plain() -> Iterator[dp.LLM]:
    with serving.llm(speculate=None, prefix_cache=False) as made:
        yield made


MESSAGES: Any = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
]


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == NAME and model.object == "model"


def test_chat(client: openai.OpenAI, plain: dp.LLM) -> None:
    params = dp.SamplingParams(temperature=0.8, seed=5, max_tokens=20, n=2)
    ours = plain.chat(MESSAGES, params)
    asked: Any = {"model": NAME, "messages": MESSAGES, "temperature": 0.8, "seed": 5}
    asked |= {"max_completion_tokens": 20, "n": 2}
    answer = client.chat.completions.create(**asked)
    assert [choice.message.content for choice in answer.choices] == [own.text for own in ours]
    assert [choice.finish_reason for choice in answer.choices] == [o.finish_reason for o in ours]
    usage = answer.usage
    assert usage is not None and usage.completion_tokens == sum(len(o.token_ids) for o in ours)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens == len(ours[0].prompt_token_ids)


def test_a_streamed_chat(client: openai.OpenAI, plain: dp.LLM) -> None:
    params = dp.SamplingParams(temperature=0.8, seed=5, max_tokens=20, n=2)
    ours = plain.chat(MESSAGES, params)
    asked: Any = {"model": NAME, "messages": MESSAGES, "temperature": 0.8, "seed": 5, "n": 2}
    asked |= {"max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}
    texts, roles, reasons, ids, usages = ["", ""], [[], []], [[], []], set(), []  # type: ignore[var-annotated]
    for chunk in client.chat.completions.create(**asked):
        ids.add(chunk.id)
        usages.append(chunk.usage)
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index].append(choice.delta.role)
            reasons[choice.index] += [choice.finish_reason] if choice.finish_reason else []
        assert bool(chunk.choices) is (chunk.usage is None)
    assert texts == [own.text for own in ours] and len(ids) == 1
    assert all(each[0] == "assistant" and not any(each[1:]) for each in roles)
    assert reasons == [[own.finish_reason] for own in ours]
    assert usages[-1].completion_tokens == sum(len(own.token_ids) for own in ours)


def test_completions(client: openai.OpenAI, plain: dp.LLM) -> None:
    params = dp.SamplingParams(max_tokens=12, logprobs=2)
    (own,) = plain.generate("abc", params)
    extra = {"speculative": {"max_nodes": 3}, "speculative_details": True, "top_k": 0}
    answer = client.completions.create(
        model=NAME, prompt="abc", max_tokens=12, logprobs=2, temperature=0, extra_body=extra
    )
    assert answer.choices[0].text == own.text
    scores = answer.choices[0].logprobs
    assert scores is not None and scores.token_logprobs is not None
    assert own.logprobs is not None
    chosen = [row[token] for row, token in zip(own.logprobs, own.token_ids, strict=True)]
    assert scores.token_logprobs == pytest.approx(chosen, abs=1e-9)
    stream = client.completions.create(
        model=NAME, prompt="abc", max_tokens=12, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == own.text


def test_leaving_a_stream(client: openai.OpenAI, server: Server) -> None:
    stream = client.completions.create(
        model=NAME, prompt="abc", max_tokens=300, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert server.idle()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"prompt": "a" * 1000}, openai.BadRequestError),
        ({"n": 1000}, openai.BadRequestError),
    ],
)
def test_errors(client: openai.OpenAI, changes: Any, error: type[openai.APIStatusError]) -> None:
    with pytest.raises(error) as caught:
        client.completions.create(**{"model": NAME, "prompt": "a", "max_tokens": 1, **changes})
    assert caught.value.body["message"] in str(caught.value)  # type: ignore[index]


def test_a_wrong_key(server: Server) -> None:
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
