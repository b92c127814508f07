"""The `openai` package as a client: answers, streams, and errors as its exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import draftproof as dp
import serving
from draftproof.server.settings import DRAINING, Limits, digest
from fakes import request as make_request
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
    assert client.models.retrieve(NAME) == model
    with pytest.raises(
        openai.NotFoundError, match="'org/gpt-9' does not exist here: write tiny"
    ) as no:
        client.models.retrieve("org/gpt-9")
    assert no.value.code == "model_not_found" and no.value.type == "not_found_error"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.retrieve(NAME)


def test_a_model_whose_name_has_a_slash() -> None:
    with Server(names=("org/some model", "short")) as made:
        for path in ("org/some model", "org%2Fsome%20model", "short"):
            found = made.client.get(f"/v1/models/{path}").json()
            assert found in made.client.get("/v1/models").json()["data"]
        assert made.client.get("/v1/models/").json()["object"] == "list"


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
        ({"best_of": 3}, openai.BadRequestError),
        ({"prompt": "a" * (9 << 20)}, openai.APIStatusError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(
    client: openai.OpenAI, changes: Any, error: type[openai.APIStatusError], stream: bool
) -> None:
    asked = {"model": NAME, "prompt": "a", "max_tokens": 1, "stream": stream, **changes}
    with pytest.raises(error) as caught:
        client.completions.create(**asked)
    found = caught.value
    assert found.body["message"] in str(found)  # type: ignore[index]
    assert found.status_code == (413 if error is openai.APIStatusError else found.status_code)
    assert found.param in (*changes, None) and found.request_id


def test_what_is_not_there_yet(client: openai.OpenAI) -> None:
    """Each as the package sends it; the error names the parameter."""
    for name, value in {"functions": [{"name": "f", "parameters": {}}]}.items():
        asked: Any = {"model": NAME, "messages": MESSAGES, name: value}
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**asked)
        assert caught.value.param == name and caught.value.type == "invalid_request_error"


def test_a_stream_that_fails(client: openai.OpenAI, server: Server) -> None:
    """An error behind the first chunks is an exception of the package, in the middle."""
    asked: Any = {"model": NAME, "messages": MESSAGES, "max_tokens": 5, "stream": True}
    bans = {"bad_token_ids": list(range(server.front.llm.intake.vocabulary))}
    with pytest.raises(openai.APIError, match="no token") as caught:
        list(client.chat.completions.create(**asked, extra_body=bans))
    assert not isinstance(caught.value, openai.APIStatusError)


def test_a_full_queue_is_tried_again() -> None:
    with Server(limits=Limits(queued=0)) as server:
        admission, other = server.front.admission, make_request(-1, [1])
        admission.places, admission._seconds = 1, 0.1
        admission.enter([other])
        base: Any = {"base_url": f"{server.url}/v1", "api_key": "any"}
        asked: Any = {"model": NAME, "prompt": "a", "max_tokens": 1}
        with openai.OpenAI(**base, max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(**asked)
            assert int(caught.value.response.headers["retry-after"]) >= 1
        later = server.loop.call_later, 0.3, admission.leave, other
        server.loop.call_soon_threadsafe(*later)
        with openai.OpenAI(**base, max_retries=3) as client:
            assert client.completions.create(**asked).choices


def test_while_it_ends_and_behind_that() -> None:
    server = Server()
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
    with client:
        with server:
            server.front.admission.state = DRAINING
            with pytest.raises(openai.InternalServerError) as caught:
                client.completions.create(model=NAME, prompt="a", max_tokens=1)
            assert caught.value.status_code == 503
        with pytest.raises(openai.APIConnectionError):
            client.models.list()


def test_the_asynchronous_client(server: Server, plain: dp.LLM) -> None:
    """Its helper for streams puts together what `create` would answer."""
    asked: Any = {"model": NAME, "messages": MESSAGES, "temperature": 0.8, "max_tokens": 12}
    asked |= {"logprobs": True, "top_logprobs": 2}
    params = [dp.SamplingParams(temperature=0.8, seed=seed, max_tokens=12) for seed in range(8)]

    async def main() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sesame") as client:

            async def ask(seed: int) -> Any:
                if seed % 2:
                    return await client.chat.completions.create(**asked, seed=seed)
                async with client.chat.completions.stream(**asked, seed=seed) as stream:
                    try:
                        return await stream.get_final_completion()
                    except openai.LengthFinishReasonError as full:  # it wants whole objects
                        return full.completion

            return await asyncio.gather(*map(ask, range(8)))

    for answer, each in zip(asyncio.run(main()), params, strict=True):
        (choice,), (own,) = answer.choices, plain.chat(MESSAGES, each)
        assert (choice.message.content, choice.finish_reason) == (own.text, own.finish_reason)
        assert len(choice.logprobs.content) == len(own.token_ids)
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


def test_a_client_that_has_no_more_time(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).completions.create(
            model=NAME, prompt="abc", max_tokens=380, n=8, extra_body={"ignore_eos": True}
        )
    assert server.idle()


def test_a_wrong_key(server: Server) -> None:
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
