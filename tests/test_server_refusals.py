"""Bad input: the right status, OpenAI's error body in one sentence, and the next call works."""

from __future__ import annotations

import copy
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import draftproof as dp
import serving
import spelling
from draftproof.server import connection
from draftproof.server.connection import HEAD_BYTES
from draftproof.server.settings import Limits
from serving import CONTEXT, NAME, Server

LIMITS = Limits(body_bytes=200_000, header_bytes=8_000, n=4, stops=3, drain=2.0, arrival=1.0)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(limits=LIMITS) as made:
        yield made


def check(answer: Any, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    message = error["message"]
    for word in words:
        assert word.lower() in message.lower(), message
    assert "\n" not in message and 5 < len(message) < 400


BAD: list[tuple[dict[str, Any], int, tuple[str, ...]]] = [
    ({}, 400, ("prompt",)),
    ({"prompt": ""}, 400, ("empty",)),
    ({"prompt": []}, 400, ("empty",)),
    ({"prompt": [[]]}, 400, ("empty",)),
    ({"prompt": 5}, 400, ("prompt", "token ids")),
    ({"prompt": ["a", 5]}, 400, ("prompt",)),
    ({"prompt": [1.5]}, 400, ("prompt",)),
    ({"prompt": [True]}, 400, ("prompt",)),
    ({"prompt": [10**6]}, 400, ("vocabulary",)),
    ({"prompt": [-1]}, 400, ("vocabulary",)),
    ({"prompt": [10**30]}, 400, ()),
    ({"prompt": "a", "messages": []}, 400, ("messages",)),
    ({"prompt": "a", "model": "gpt-9"}, 404, ("gpt-9", "write tiny")),
    ({"prompt": "a", "regex": "a+"}, 400, ("write guided_regex",)),
    ({"prompt": "a" * 300, "max_tokens": 200}, 400, ("300", "200", str(CONTEXT))),
    ({"prompt": "a" * 500}, 400, ("500",)),
    ({"prompt": "a", "top_p": 0}, 400, ("top_p",)),
    ({"prompt": "a", "temperature": -1}, 400, ("temperature",)),
    ({"prompt": "a", "temperature": "hot"}, 400, ("temperature",)),
    ({"prompt": "a", "max_tokens": -1}, 400, ("max_tokens",)),
    ({"prompt": "a", "max_tokens": 1.5}, 400, ("max_tokens",)),
    ({"prompt": "a", "n": 0}, 400, ("n is",)),
    ({"prompt": "a", "n": 5}, 400, ("n is 5", "4")),
    ({"prompt": ["a"] * 200}, 400, ("200",)),
    ({"prompt": "a", "stop": ["a"] * 4}, 400, ("stop",)),
    ({"prompt": "a", "stop": [""]}, 400, ("stop",)),
    ({"prompt": "a", "stop": "a" * 2000}, 400, ("stop",)),
    ({"prompt": "a", "stop": 5}, 400, ("stop",)),
    ({"prompt": "a", "logprobs": 21}, 400, ("logprobs",)),
    ({"prompt": "a", "logit_bias": {"999999": 1}}, 400, ("logit_bias",)),
    ({"prompt": "a", "logit_bias": {"x": 1}}, 400, ("logit_bias",)),
    ({"prompt": "a", "logit_bias": [1]}, 400, ("logit_bias",)),
    ({"prompt": "a", "seed": 2**64}, 400, ("seed",)),
    ({"prompt": "a", "best_of": 2}, 400, ("best_of",)),
    ({"prompt": "a", "tools": [{}]}, 400, ("tools", "/v1/chat/completions")),
    ({"prompt": "a", "suffix": "b"}, 400, ("suffix",)),
    ({"prompt": "a", "frobnicate": 1}, 400, ("frobnicate",)),
    ({"prompt": "a", "stream_options": {"include_usage": True}}, 400, ("stream",)),
    ({"prompt": "a", "stream_options": {"include_obfuscation": True}}, 400, ("obfuscation",)),
    ({"prompt": "a", "speculative": "psychic"}, 400, ("psychic",)),
    ({"prompt": "a", "speculative": {"max_nodes": -1}}, 400, ("speculative",)),
    ({"prompt": "a", "rule": "guess"}, 400, ("guess",)),
    ({"prompt": "a", "response_format": "json"}, 400, ("response_format",)),
    ({"prompt": "a", "response_format": {"type": "yaml"}}, 400, ("response_format", "yaml")),
    ({"prompt": "a", "response_format": {"type": "json_schema"}}, 400, ("response_format",)),
    ({"prompt": "a", "guided_json": {"type": "thing"}}, 400, ("guided_json", "thing")),
    ({"prompt": "a", "guided_json": "{"}, 400, ("guided_json", "no JSON")),
    ({"prompt": "a", "guided_json": 5}, 400, ("guided_json",)),
    ({"prompt": "a", "guided_regex": "(("}, 400, ("guided_regex",)),
    ({"prompt": "a", "guided_choice": []}, 400, ("guided_choice",)),
    ({"prompt": "a", "guided_choice": [1]}, 400, ("guided_choice",)),
    ({"prompt": "a", "grammar": "root ::= ("}, 400, ("grammar",)),
    ({"prompt": "a", "json_schema": {"$ref": "#"}}, 400, ("json_schema", "no text")),
    ({"prompt": "a", "structured_outputs": {}}, 400, ("structured_outputs", "nothing")),
    ({"prompt": "a", "structured_outputs": {"regex": "a", "json": {}}}, 400, ("regex, json",)),
    ({"prompt": "a", "structured_outputs": {"structural_tag": "a"}}, 400, ("structural_tag",)),
    ({"prompt": "a", "guided_regex": "a", "json_schema": {}}, 400, ("drop one",)),
    ({"prompt": "a", "bad_token_ids": list(range(259)), "min_tokens": 1}, 400, ()),
]


@pytest.mark.parametrize(("body", "status", "words"), BAD)
def test_completions(server: Server, body: Any, status: int, words: tuple[str, ...]) -> None:
    check(server.post("/v1/completions", **body), status, *words)
    assert server.completion("ab", max_tokens=1)["choices"]


HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, ("messages",)),
        ({"messages": []}, ("messages",)),
        ({"messages": "hi"}, ("messages",)),
        ({"messages": [{"content": "hi"}]}, ("role",)),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, ("image_url",)),
        ({"messages": [{"role": "user", "content": [5]}]}, ("text",)),
        ({"messages": HI, "tools": [{"type": "function"}]}, ("tools",)),
        ({"messages": HI, "top_logprobs": 2}, ("logprobs",)),
        ({"messages": HI, "logprobs": True, "top_logprobs": 50}, ("logprobs",)),
        ({"messages": HI, "prompt": "a"}, ("prompt",)),
        ({"messages": HI, "add_generation_prompt": False}, ("prefill", "not supported")),
        ({"messages": HI, "reasoning_effort": "low"}, ('kwargs, as {"reasoning_effort": "low"}',)),
        (
            {"messages": HI, "think": False},
            ('chat_template_kwargs, as {"enable_thinking": false}',),
        ),
        ({"messages": HI, "verbosity": "low"}, ("verbosity", "ask for short answers")),
        ({"messages": HI, "audio": {"voice": "a"}}, ("nothing but text is written",)),
        ({"messages": HI, "modalities": ["text", "audio"]}, ("nothing but text is written",)),
        ({"messages": HI, "options": {"temperature": 0}}, ("beside the other fields",)),
        ({"messages": HI, "keep_alive": "5m"}, ("stays loaded",)),
        ({"messages": HI, "format": "json"}, ("write response_format",)),
        ({"messages": HI, "num_predict": 5}, ("write max_tokens",)),
        ({"input": "a"}, ("write messages",)),
    ],
)
def test_chats(server: Server, body: Any, words: tuple[str, ...]) -> None:
    check(server.post("/v1/chat/completions", **body), 400, *words)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b'"x"', b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}',
     b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": 1e999}',
     b"[" * 5000, b'{"prompt": ' + b"[" * 3000 + b"]" * 3000 + b"}"],
)  # fmt: skip
def test_what_is_no_json(server: Server, raw: bytes) -> None:
    check(server.client.post("/v1/completions", content=raw), 400)
    assert server.client.get("/health").status_code == 200


def test_what_must_be_accepted(server: Server) -> None:
    """As the clients of others send it."""
    body = {"model": NAME, "stop": None, "logprobs": None, "repetition_penalty": 1.0, "user": "me"}
    body |= {"ignore_eos": True, "best_of": 1, "max_tokens": 2, "use_beam_search": False}
    sent = json.dumps({"prompt": "a", **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(sent)}\r\nConnection: close\r\n"
    head += "Authorization: Bearer \r\nX-Request-Id: mine\r\n\r\n"
    answered = raw(server, head.encode() + sent)
    assert answered.startswith(b"HTTP/1.1 200") and b"x-request-id: mine" in answered.lower()
    messages: list[Any] = [{"role": "system", "content": ""}]
    messages += [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    chat = {"max_tokens": 2, "max_completion_tokens": 3, "stream": True, "tools": [], "n": 1}
    asked = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    chat |= {"stream_options": asked}
    chat |= {"response_format": {"type": "text"}, "ignore_eos": True, "temperature": 0}
    answer = server.post("/v1/chat/completions", messages=messages, **chat)
    assert answer.status_code == 200 and '"completion_tokens":3' in answer.text


def test_large_bodies_and_headers(server: Server) -> None:
    check(server.client.post("/v1/completions", content=b"a" * 300_000), 413, "200,000")
    chunked = iter([b"a" * 50_000] * 8)
    check(server.client.post("/v1/completions", content=chunked), 413)
    check(server.client.get("/v1/models", headers={"X-Long": "a" * 9000}), 431, "8,000")
    assert server.completion("ab", max_tokens=1)["choices"]


def test_methods_and_paths(server: Server) -> None:
    assert server.client.head("/health").status_code == 200
    check(server.client.get("/v1/completions"), 405)
    check(server.client.options("/v1/completions"), 405)
    check(server.client.post("/v1/nothing"), 404, "/v1/nothing")
    check(server.client.post("/chat/completions"), 404, "the base URL ends in /v1")
    check(server.client.post("/v1/embeddings"), 404, "there are no embeddings")
    check(server.client.post("/apply-template"), 404, "/tokenize takes messages")
    for path in ("/completion", "/api/generate", "/v1/chat/completion"):
        check(server.client.post(path), 404, "write to /v1/completions or /v1/chat/completions")


def raw(server: Server, sent: bytes, wait: float = 5.0) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as made:
        made.sendall(sent)
        got = b""
        while part := made.recv(65536):
            got += part
    return got


def test_http_1_0(server: Server) -> None:
    assert raw(server, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    body = json.dumps({"prompt": "a", "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    answer = raw(server, head + body)
    assert answer.startswith(b"HTTP/1.1 400") and b"HTTP/1.1" in answer.partition(b"\r\n\r\n")[2]


def test_headers_that_never_end(server: Server) -> None:
    answer = raw(server, b"GET /health HTTP/1.1\r\nX: " + b"a" * HEAD_BYTES)
    assert answer.startswith(b"HTTP/1.1 400")


def test_a_body_that_never_comes(server: Server) -> None:
    began = time.monotonic()
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: 50\r\nConnection: close\r\n\r\n{"
    assert raw(server, head, 20).startswith(b"HTTP/1.1 408")
    assert time.monotonic() - began > 0.9


def test_hundreds_of_connections(server: Server) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    try:
        assert server.completion("ab", max_tokens=1)["choices"]
    finally:
        for each in idle:
            each.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_what_a_template_refuses(path: str) -> None:
    own = copy.deepcopy(spelling.tokenizer())
    own.chat_template = "{{ raise_exception('Conversation roles must alternate') }}"
    with Server(lambda: serving.llm(tokenizer=own)) as server:
        check(server.post(path, messages=HI), 400, "roles must alternate")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
def test_long_texts_are_encoded_beside_the_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Else all streams would stand still."""
    llm, threads = server.front.llm, set[int]()
    tokenizer = llm.tokenizer

    class Spy:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def __call__(self, *given: Any, **options: Any) -> Any:
            threads.add(threading.get_ident())
            return tokenizer(*given, **options)

        def apply_chat_template(self, *given: Any, **options: Any) -> Any:
            threads.add(threading.get_ident())
            return tokenizer.apply_chat_template(*given, **options)

    monkeypatch.setattr(llm, "tokenizer", Spy())
    monkeypatch.setattr(llm.intake, "tokenizer", Spy())
    loop = server._thread.ident
    long = "a" * 20_000
    messages = [{"role": "user", "content": [{"type": "text", "text": long}]}]
    chat = path.endswith("chat/completions")
    server.post(path, **({"messages": messages} if chat else {"prompt": long}))
    assert threads and loop not in threads


def test_a_body_behind_its_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is it taken for headers, nor is its answer cut where those would have to be there."""
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(connection, "HEAD_BYTES", 1000)

    def slow() -> dp.LLM:
        made = serving.llm()
        forward = made.runner.forward

        def waits(*given: Any) -> Any:
            time.sleep(0.1)
            return forward(*given)

        monkeypatch.setattr(made.runner, "forward", waits)
        return made

    with Server(slow) as server:
        asked = {"prompt": "a", "max_tokens": 8, "ignore_eos": True, "stream": True}
        body = json.dumps({**asked, "speculative": False, "user": "u" * 5000}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
        with socket.create_connection(("127.0.0.1", server.port), 10) as each:
            each.sendall(f"{head}Connection: close\r\n\r\n".encode())
            time.sleep(0.1)
            each.sendall(body)
            answer = b"".join(iter(lambda: each.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 200") and b"[DONE]" in answer
