"""The front of replicas: the server's endpoints without a model, for all engines together."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import replicas
import serving
from draftproof.ray import front as fronts
from draftproof.ray import gathered
from draftproof.ray.surviving import Lost
from draftproof.server.settings import Limits, digest
from replicas import Lossy, ask, engines, run

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PAIR = (serving.llm, serving.llm)
BODY: dict[str, Any] = {"prompt": "the quick", "max_tokens": 8, "temperature": 0}


def test_endpoints() -> None:
    async def main() -> None:
        async with engines(*PAIR) as pair:
            app = replicas.front(Lossy(pair)).app()
            for path in ("/health", "/ready"):
                assert (await ask(app, path)).json() == {"status": "ok"}
            assert (await ask(app, "/load")).json() == {"server_load": 0}
            assert (await ask(app, "/v1/models")).json()["data"][0]["id"] == serving.NAME
            one = f"/v1/models/{serving.NAME}"
            assert (await ask(app, one)).json()["id"] == serving.NAME
            assert (await ask(app, "/v1/models/a/b")).status == 404
            assert (await ask(app, "/tokenize", {"prompt": "abc"})).json()["count"] == 3
            assert (await ask(app, "/detokenize", {"tokens": [70]})).status == 200
            assert (await ask(app, "/props")).json()["total_slots"] == 4
            assert (await ask(app, "/openapi.json")).json()["paths"].keys() >= {CHAT, TEXT}
            assert (await ask(app, "/nothing")).status == 404
            whole = await ask(app, TEXT, BODY, {"x-request-id": "mine"})
            assert whole.json()["choices"][0]["finish_reason"] == "length"
            assert whole.headers["x-request-id"] == "mine"

    run(main())


def test_the_page_is_the_servers() -> None:
    async def main() -> None:
        async with engines(serving.llm) as one:
            answer = await ask(replicas.front(Lossy(one), keys=(digest("k"),)).app(), "/")
        assert answer.status == 200 and "<title>draftproof" in answer.text
        assert "script-src" in answer.headers["content-security-policy"]

    run(main())


def test_the_newer_endpoint() -> None:
    """Whole answers, written anew where an engine is lost; the same texts as of a chat."""

    async def main() -> None:
        said = {"max_output_tokens": 8, "temperature": 0}
        async with engines(*PAIR) as pair:
            lossy = Lossy(pair, [1])
            app = replicas.front(lossy).app()
            whole = await ask(app, "/v1/responses", {"input": "hello", **said})
            assert len(lossy.calls) == 2 and lossy.keys[0]
            messages = [{"role": "user", "content": "hello"}]
            chat = await ask(app, CHAT, {"messages": messages, "max_tokens": 8, "temperature": 0})
            assert lossy.keys[0] == lossy.keys[2]
            for body, status, words in (
                ({"input": "hello", "model": "other"}, 404, "does not exist here"),
                ({"input": [{"type": "odd"}]}, 400, "input"),
            ):
                refused = await ask(app, "/v1/responses", body)
                assert refused.status == status, refused.text
                assert words in refused.json()["error"]["message"]
            assert len(lossy.calls) == 3
        text = whole.json()["output"][0]["content"][0]["text"]
        assert text == chat.json()["choices"][0]["message"]["content"]

    run(main())


def test_refusals_are_those_of_the_server() -> None:
    """By the front where it can know, by an engine where it has to."""
    bodies: list[tuple[int, dict[str, Any], str]] = [
        (404, BODY | {"model": "other"}, "does not exist here"),
        (400, BODY | {"tools": [1]}, "tools are for chats"),
        (400, BODY | {"top_p": 7}, "top_p is 7"),
        (400, BODY | {"max_tokens": 4000}, "the context ends"),
        (400, BODY | {"prompt": ""}, "the prompt is empty"),
        (400, BODY | {"resume": {"token_ids": [9999], "seed": 1}}, "token id 9999 at position 0"),
    ]

    async def main() -> None:
        limits = Limits(body_bytes=1000)
        async with engines(*PAIR) as pair:
            lossy = Lossy(pair)
            app = replicas.front(lossy, keys=(digest("k"),), limits=limits).app()
            allowed = {"authorization": "Bearer k"}
            assert (await ask(app, TEXT, BODY)).status == 401
            assert (await ask(app, TEXT, BODY | {"prompt": "a" * 2000}, allowed)).status == 413
            assert not lossy.calls
            for stream in (False, True):
                for status, body, said in bodies:
                    answer = await ask(app, TEXT, body | {"stream": stream}, allowed)
                    assert (answer.status, stream) == (status, stream), answer.text
                    assert said in answer.json()["error"]["message"]
            assert (await ask(app, TEXT, BODY, allowed)).status == 200

    run(main())


def test_health_is_the_engines() -> None:
    class Gone(Lossy):
        async def every(self, name: str) -> list[Any]:
            raise Lost("none is there")

    class Late(Lossy):
        async def every(self, name: str) -> list[Any]:
            await asyncio.sleep(60)
            return []

    async def main() -> None:
        async with engines(*PAIR) as pair:
            for kind in (Gone, Late):
                answer = await ask(replicas.front(kind(pair)).app(), "/health")
                assert (answer.status, answer.json()["status"]) == (503, "no engine")
            assert (await ask(replicas.front(Gone(pair)).app(), "/load")).status == 503
            pair[0].front.admission.state = "dead"
            app = replicas.front(Lossy(pair)).app()
            assert (await ask(app, "/health")).status == 200
            pair[1].front.admission.state = "draining"
            assert (await ask(app, "/health")).json() == {"status": "dead"}

    before, fronts.HEALTH_SECONDS = fronts.HEALTH_SECONDS, 0.01
    try:
        run(main())
    finally:
        fronts.HEALTH_SECONDS = before


def test_metrics_of_all_engines() -> None:
    async def main() -> None:
        async with engines(*PAIR) as pair:
            for number, engine in enumerate(pair):
                engine.name = f"e{number}"
            app = replicas.front(Lossy(pair)).app()
            for _ in range(3):  # in turn: two at the first, one at the second
                await ask(app, TEXT, BODY)
            lines = (await ask(app, "/metrics")).text.splitlines()
        for name, count in (("e0", 16.0), ("e1", 8.0)):
            labels = f'engine="{name}",model_name="{serving.NAME}"'
            assert f"vllm:generation_tokens_total{{{labels}}} {count}" in lines
        families = [line for line in lines if line.startswith("# TYPE")]
        assert len(families) == len(set(families)) > 30

    run(main())


def test_a_family_stands_once() -> None:
    text = b'# HELP a A.\n# TYPE a gauge\na{engine="0"} 1.0\n'
    told = gathered.one([("x", text), ("y", text.replace(b"1.0", b"2.0"))])
    assert told == b'# HELP a A.\n# TYPE a gauge\na{engine="x"} 1.0\na{engine="y"} 2.0\n'


@pytest.mark.parametrize("chat", [False, True])
def test_calls_that_begin_alike_have_one_key(chat: bool) -> None:
    head = "a" * 300  # more tokens than are looked at

    def body(text: str) -> dict[str, Any]:
        if chat:
            return {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
        return {"prompt": text, "max_tokens": 2}

    async def main() -> None:
        async with engines(serving.llm) as one:
            lossy = Lossy(one)
            app = replicas.front(lossy).app()
            path = CHAT if chat else TEXT
            for text in (head + "b", head + "c", "b" + head):
                assert (await ask(app, path, body(text))).status == 200
            await ask(app, path, body(head) | {"cache_salt": "mine"})
            await ask(app, path, body(head), {"authorization": "Bearer other"})
            for text in ("x", "y"):
                await ask(app, path, body(text), {"x-session-id": "s"})
            await ask(app, path, body(head) | {"stream": True})
        first, second, other, salted, keyed, one_session, same_session, streamed = lossy.keys
        assert first == second == streamed and one_session == same_session
        assert len({first, other, salted, keyed, one_session}) == 5

    run(main())


def test_without_a_tokenizer_calls_go_anywhere() -> None:
    async def main() -> None:
        async with engines(serving.llm) as one:
            lossy = Lossy(one)
            made = replicas.front(lossy)
            made.tokenizer = None
            assert (await ask(made.app(), TEXT, BODY)).status == 200
            assert lossy.keys == [""]

    run(main())


def test_pauses_are_counted() -> None:
    async def main() -> None:
        async with engines(*PAIR) as pair:
            made = replicas.front(Lossy(pair, [2, 1]))
            await ask(made.app(), TEXT, {**BODY, "max_tokens": 200, "stream": True})
            told = (await ask(made.app(), "/metrics")).text
        assert "draftproof:streams_continued_total 2.0" in told
        assert "draftproof:stream_pause_seconds_count 2.0" in told

    run(main())


@pytest.mark.parametrize("keys", [(), (digest("k"),)])
def test_pages_that_the_front_lets_in_are_let_in(keys: tuple[bytes, ...]) -> None:
    """Streamed or not; engines know of no pages."""
    page = {"origin": "https://page.example", "authorization": "Bearer k"}

    async def main() -> None:
        async with engines(*PAIR) as pair:
            app = replicas.front(Lossy(pair), keys=keys, cors=("https://page.example",)).app()
            for body in (BODY, BODY | {"stream": True}):
                answer = await ask(app, TEXT, body, page)
                assert answer.status == 200, answer.text
                assert answer.headers["access-control-allow-origin"] in ("*", page["origin"])
            assert (await ask(app, "/tokenize", {"prompt": "abc"}, page)).status == 200
            if not keys:
                other = page | {"origin": "https://evil.example"}
                assert (await ask(app, TEXT, BODY, other)).status == 403

    run(main())


def test_a_client_that_leaves_before_anything_came_is_no_defect() -> None:
    """What is asked for may not be closed while it still runs."""

    async def main() -> None:
        closed = asyncio.Event()

        async def parts() -> Any:
            try:
                await asyncio.sleep(60)
                yield 1
            finally:
                await asyncio.sleep(0.01)
                closed.set()

        async def gone() -> Any:
            return {"type": "http.disconnect"}

        stream = parts()
        call: Any = SimpleNamespace(receive=gone)
        with pytest.raises(fronts.Left):
            await fronts.stays(call, stream.__anext__())
        await stream.aclose()
        assert closed.is_set()

    run(main())
