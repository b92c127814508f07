"""What clients do with a connection beyond one call after the other."""

from __future__ import annotations

import json
import logging
import socket
import time
from typing import Any

import pytest

import draftproof as dp
import serving
from serving import Server

LONG = {"prompt": "abc", "max_tokens": 380, "ignore_eos": True, "temperature": 0}
SHORT = {"prompt": "abc", "max_tokens": 2, "temperature": 0}
JAVAS = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


def slowed() -> dp.LLM:
    """An LLM whose passes take time."""
    made = serving.llm(speculate=None)
    forward = made.runner.forward

    def slow(*given: Any, **more: Any) -> Any:
        time.sleep(0.02)
        return forward(*given, **more)

    made.runner.forward = slow  # type: ignore[method-assign]
    return made


def call(body: dict[str, Any], more: str = "") -> bytes:
    sent = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{more}Content-Length: {len(sent)}\r\n\r\n"
    return head.encode() + sent


def read(client: socket.socket, answers: int) -> bytes:
    """So many whole answers."""
    came = b""
    while came.count(b'"usage"') < answers:
        assert (part := client.recv(1 << 16)), came
        came += part
    return came


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("later", [0.0, 0.1])
def test_whoever_leaves_takes_the_calls_along_that_wait_behind_one(
    caplog: pytest.LogCaptureFixture, stream: bool, later: float
) -> None:
    """Sent at once or later, while the first is written: none of them is written for nobody."""
    with Server(slowed) as server:
        scheduler = server.front.llm.engine.scheduler
        body = call({**LONG, "stream": stream})
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(body)
        while later and not any(each.begun for each in scheduler.running):
            time.sleep(0.005)
        time.sleep(later)
        client.sendall(body * 3)
        while not any(each.begun for each in scheduler.running):
            time.sleep(0.005)
        (first,) = scheduler.running
        client.close()
        assert server.idle(3.0)
        assert first.finish_reason == "abort" and first.stats.tokens < 300
        time.sleep(0.1)
        assert server.idle(0.1)
        lines = server.client.get("/metrics").text.splitlines()
        (ended,) = (each for each in lines if '"abort"' in each and "_total" in each)
        assert ended.endswith(" 1.0")
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_calls_that_do_not_wait_for_answers(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as client:
        client.sendall(call(SHORT) * 40)
        came = read(client, 40)
    texts = {part.partition(b'"logprobs"')[0] for part in came.split(b'"text":')[1:]}
    assert came.count(b"HTTP/1.1 200") == 40 and len(texts) == 1


@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_an_offer_of_another_protocol_is_passed_over(server: Server, pause: float) -> None:
    """Java's client sends one with its first call, whose body was lost."""
    for offer in (JAVAS, JAVAS.upper(), "connection: upgrade\r\nupgrade:\twebsocket\r\n"):
        head, end, body = call(SHORT, offer).partition(b"\r\n\r\n")
        with socket.create_connection(("127.0.0.1", server.port), 10) as client:
            client.sendall(head + end)
            time.sleep(pause)
            client.sendall(body)
            assert read(client, 1).startswith(b"HTTP/1.1 200")
            client.sendall(call(SHORT))  # and the connection stays what it was
            assert read(client, 1).startswith(b"HTTP/1.1 200")


@pytest.fixture(scope="module")
def server() -> Any:
    with Server() as made:
        yield made
