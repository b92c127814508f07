"""Overload, clients that leave, the end, keys, and what clients must not see of one another."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import pytest

import draftproof as dp
import serving
from draftproof.request import Request
from draftproof.server import bodies
from draftproof.server.answers import Wanted
from draftproof.server.events import Events
from draftproof.server.job import Job
from draftproof.server.pieces import Pieces
from draftproof.server.settings import Limits, digest
from draftproof.server.stream import Stream
from fakes import request as make_request
from serving import Server, events

LONG = {"prompt": "abc", "max_tokens": 380, "ignore_eos": True, "temperature": 0}


def slowed(seconds: float = 0.02, **options: Any) -> dp.LLM:
    """An LLM whose passes take time."""
    made = serving.llm(**{"speculate": None, **options})
    forward = made.runner.forward

    def slow(*args: Any, **more: Any) -> Any:
        time.sleep(seconds)
        return forward(*args, **more)

    made.runner.forward = slow  # type: ignore[method-assign]
    return made


def connected(server: Server, body: dict[str, Any]) -> socket.socket:
    sent = json.dumps(body).encode()
    made = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}\r\n\r\n"
    made.sendall(head.encode() + sent)
    return made


def until(condition: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_whoever_leaves_frees_the_rows_within_a_step(stream: bool, n: int) -> None:
    with Server(slowed) as server:
        engine = server.front.llm.engine
        client = connected(server, {**LONG, "stream": stream, "n": n})
        until(lambda: len(engine.scheduler.running) == n)
        running = [*engine.scheduler.running]
        until(lambda: all(request.begun for request in running))
        client.close()
        until(lambda: not engine.scheduler.running, 3.0)
        assert {request.finish_reason for request in running} == {"abort"}
        assert all(request.stats.tokens < 300 for request in running)
        assert server.idle()
        counted = [line for line in metrics(server).splitlines() if '"abort"' in line]
        assert [line.rpartition(" ")[2] for line in counted if "_total" in line] == [f"{n}.0"]


def metrics(server: Server) -> str:
    text = server.client.get("/metrics").text
    return text.replace('engine="0",', "")


def test_a_client_that_takes_nothing_is_one_that_left() -> None:
    """Its socket takes no byte of the second chunk: the rows are free soon after."""

    async def stuck(message: Any) -> None:
        if message.get("body"):
            await asyncio.sleep(60)

    async def silent() -> Any:
        await asyncio.sleep(60)

    async def main() -> list[Request]:
        ended: list[Request] = []
        asked = [make_request(0, [1, 2], max_tokens=5)]
        job, pieces = Job("a", asked, ended.extend), Pieces(None)
        wanted = Wanted(bodies.ChatBody(messages=[]), True, "tiny", pieces, "")
        stream = Stream(Events(job, wanted), stall=0.05, keep_alive=60.0)
        await stream({"type": "http", "draftproof": {"send": stuck}}, silent, stuck)
        await asyncio.sleep(0)
        return ended

    assert [request.key for request in asyncio.run(main())] == [0]


def test_a_step_is_one_write_for_each_stream() -> None:
    """However many of its texts moved: the system call is most of what a step costs."""
    with Server(lambda: slowed(0.003)) as server:
        with connected(server, {**LONG, "stream": True, "n": 3, "max_tokens": 40}) as client:
            came = b""
            while not came.endswith(b"0\r\n\r\n"):
                came += client.recv(1 << 16)
        sizes, rest = [], came.partition(b"\r\n\r\n")[2]
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            sizes.append(int(size, 16))
            rest = rest[sizes[-1] + 2 :]
    assert came.count(b"data: {") > 2 * len(sizes)
    assert len(sizes) <= 40 + 5  # they begin a step or two apart


def test_a_full_queue_says_when_to_come_again() -> None:
    with Server(slowed, limits=Limits(queued=2, drain=1.0)) as server:
        clients = [connected(server, LONG) for _ in range(6)]  # 4 places, 2 wait
        until(lambda: server.front.admission.load == 6)
        assert server.client.get("/load").json() == {"server_load": 6}
        answer = server.post("/v1/completions", **LONG)
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert 'reason="max_num_queued_reqs"} 1.0' in metrics(server)
        assert "vllm:num_requests_waiting{model_name" in metrics(server)
        for client in clients:
            client.close()
        assert server.idle()
        assert server.completion("ab", max_tokens=1)["choices"]


def test_tokens_that_wait_are_bounded() -> None:
    with Server(slowed, limits=Limits(queued_tokens=100, drain=1.0)) as server:
        clients = [connected(server, {**LONG, "n": 4}), connected(server, LONG)]
        until(lambda: len(server.front.admission.waiting) == 1)
        answer = server.post("/v1/completions", prompt="a" * 99, max_tokens=2)
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "max_num_queued_tokens"
        for client in clients:
            client.close()


def test_an_answer_has_so_much_time() -> None:
    with Server(slowed, limits=Limits(seconds=0.5, drain=1.0)) as server:
        (choice,) = server.completion(**LONG)["choices"]
        assert choice["finish_reason"] == "abort" and len(choice["text"]) > 0


def test_keep_alive_comments_while_nothing_comes() -> None:
    with Server(lambda: slowed(0.2), keep_alive=0.05) as server:
        answer = server.post("/v1/completions", prompt="a", max_tokens=2, stream=True)
        assert answer.text.startswith(": keep-alive\n\n") and len(list(events(answer.text))) == 2


def test_while_loading_nothing_is_served() -> None:
    go = threading.Event()

    def open() -> dp.LLM:
        assert go.wait(30)
        return serving.llm()

    server = Server(open)
    try:
        health = server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        answer = server.post("/v1/completions", prompt="a")
        assert answer.status_code == 503 and "loaded" in answer.json()["error"]["message"]
        assert server.client.get("/metrics").status_code == 200
        go.set()
        server.wait()
        assert server.client.get("/ready").status_code == 200
    finally:
        go.set()
        server.end()


def test_a_model_that_cannot_be_loaded_ends_the_server() -> None:
    def open() -> dp.LLM:
        raise ValueError("no such model")

    server = Server(open)
    server.wait()
    server.end()
    assert isinstance(server.error, ValueError) and str(server.error) == "no such model"


def test_the_end_lets_answers_finish_and_takes_no_more() -> None:
    with (
        Server(lambda: slowed(0.01), limits=Limits(drain=30.0)) as server,
        ThreadPoolExecutor() as pool,
    ):
        asked = pool.submit(
            lambda: httpx.post(
                f"{server.url}/v1/completions", json={**LONG, "max_tokens": 60}, timeout=60
            )
        )
        until(lambda: server.front.admission.load == 1)
        server.signal()
        until(lambda: server.front.state == "draining")
        assert server.client.get("/health").status_code == 503
        late = server.post("/v1/completions", prompt="a")
        assert late.status_code == 503 and "retry-after" in late.headers
        answer = asked.result().json()
        assert answer["choices"][0]["finish_reason"] == "length"
    assert server.clean and server.error is None


def test_what_takes_longer_than_the_end_is_aborted() -> None:
    with Server(slowed, limits=Limits(drain=0.2)) as server, ThreadPoolExecutor() as pool:
        asked = pool.submit(
            lambda: httpx.post(
                f"{server.url}/v1/completions", json={**LONG, "stream": True}, timeout=60
            )
        )
        until(lambda: len(server.front.llm.engine.scheduler.running) == 1)
        server.signal()
        *_, last = events(asked.result().text)
        assert last["choices"][0]["finish_reason"] == "abort"
    assert server.clean


def test_a_second_signal_waits_for_nobody() -> None:
    server = Server(slowed, limits=Limits(drain=60.0))
    server.wait()
    client = connected(server, LONG)
    until(lambda: server.front.admission.load == 1)
    server.signal()
    until(lambda: server.front.state == "draining")
    server.end()  # which takes less than the drain, or fails
    client.close()


def test_keys() -> None:
    keys = tuple(map(digest, ("one", "two")))
    with Server(keys=keys, cors=("https://page.example",)) as server:
        for word in ("", "Bearer", "Bearer three", "Basic one", "Bearer one two"):
            headers = {"Authorization": word} if word else {}
            answer = server.client.post("/v1/completions", json={"prompt": "a"}, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert server.client.post("/tokenize", json={}, headers=headers).status_code == 401
            assert server.client.get("/health", headers=headers).status_code == 200
        for key in ("one", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.client.get("/v1/models", headers=headers).status_code == 200
        asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
        answer = server.client.options("/v1/completions", headers=asked)
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
    with Server() as server:
        answer = server.client.options("/v1/completions", headers=asked)
        assert "access-control-allow-origin" not in answer.headers


PROMPT = "The secret of the first client is not for the second one. " * 3


@pytest.mark.parametrize(
    ("share", "drafts"), [(False, "suffix"), (True, "suffix"), (False, "auto")]
)
def test_two_keys_share_nothing(share: bool, drafts: str) -> None:
    """Neither a prefix nor a look-up, which would show in times and counts."""
    body = {"prompt": PROMPT, "temperature": 1.0, "seed": 3, "max_tokens": 60, "ignore_eos": True}
    body |= {"metrics": True}

    def ask(server: Server, key: str, **more: Any) -> tuple[Any, ...]:
        headers = {"Authorization": f"Bearer {key}"}
        answer = server.client.post(
            "/v1/completions", json={**body, **more}, headers=headers
        ).json()
        usage, found = answer["usage"], answer["metrics"]["speculative_decoding"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["text"], cached, found["num_accepted_draft_tokens"]

    with Server(lambda: serving.llm(speculate=drafts), share=share) as server:
        first = ask(server, "a")
        other = ask(server, "b")
        again = ask(server, "a")
        salted = ask(server, "a", cache_salt="mine")
    assert first[0] == other[0] == again[0] == salted[0]
    assert first[1] == 0 and again[1] == len(PROMPT) - 1 and salted[1] == 0
    assert other[1] == (len(PROMPT) - 1 if share else 0)
    if drafts == "suffix":  # else what is drafted depends on the clock
        assert again[2] > first[2] + 20
        assert salted[2] == first[2]
        assert (other[2] == first[2]) is not share
