"""The page at `/` in headless Chromium, which `pip install playwright` and the system bring."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import draftproof as dp
import serving
from drafters import Eager
from serving import Server

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium"),
]
LETTERS: dict[str, Any] = {"bad_token_ids": [*range(3), *range(97, 259)], "seed": 5}
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>&lt;b>"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(lambda: serving.llm(speculate=Eager(dp.NGram(min_ngram=1)))) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens the page; at the end nothing may have failed in it, nor been kept from running."""
    pages, wrong = [], list[str]()

    def opened(url: str, further: dict[str, Any] | None = None, **options: Any) -> Any:
        page = browser.new_page(**options)
        pages.append(page)
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if "Policy" in said.text else None)
        page.goto(url)
        until(page, "document.getElementById('model').textContent === 'tiny'")
        page.click("summary")
        page.fill("[name='further fields']", json.dumps({**LETTERS, **(further or {})}))
        page.fill("[name=max_tokens]", "40")
        page.click("summary")
        return page

    yield opened
    for page in pages:
        page.close()
    assert wrong == []


def until(page: Any, holds: str) -> None:
    """As the page's own `wait_for_function`, which its policy forbids."""
    end = time.monotonic() + 120
    while not page.evaluate(holds):
        assert time.monotonic() < end, f"never: {holds}"
        time.sleep(0.02)


def send(page: Any, text: str) -> None:
    page.fill("#message", text)
    page.press("#message", "Enter")


def ended(page: Any, count: int = 1) -> None:
    until(
        page,
        f"document.querySelectorAll('.side .note').length >= {count}"
        " && !document.getElementById('send').disabled",
    )


def wanted(server: Server, text: str, **more: Any) -> str:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 40, "temperature": 0.7}
    answer = server.post("/v1/chat/completions", **{**body, **LETTERS, **more})
    found: str = answer.json()["choices"][0]["message"]["content"]
    return found


def test_a_stream_its_colours_and_its_trees(server: Server, opened: Any) -> None:
    text = wanted(server, "abcabcabcabc")
    page = opened(server.url, {"prediction": {"type": "content", "content": text[:30]}})
    send(page, "abcabcabcabc")
    ended(page)
    assert page.text_content(".side .text") == text
    assert "40 tokens" in page.text_content(".side .note")
    assert page.locator("#legend li").all_text_contents() == ["the model itself", "prediction"]
    page.locator(".text span.c0").first.hover()
    tree = page.locator("#tree")
    assert "accepted" in tree.inner_text() and "this token: prediction" in tree.inner_text()
    assert tree.locator("li.yes").count() >= 1
    page.focus(".side .text")
    page.keyboard.press("Escape")
    assert not tree.is_visible()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.locator(".text span.here").count() == 1 and tree.is_visible()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("[...document.querySelectorAll('.text span')].indexOf(shown)") == 1


def test_a_conversation_goes_on(server: Server, opened: Any) -> None:
    page = opened(server.url)
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda each: bodies.append(each.post_data_json) if each.post_data else None)
    send(page, "first")
    ended(page)
    send(page, "second")
    ended(page, 2)
    first = page.locator(".side .text").first.text_content()
    assert [m["content"] for m in bodies[1]["messages"]] == ["first", first, "second"]
    assert bodies[0]["temperature"] == 0.7 and bodies[0]["seed"] == 5
    page.click("#new")
    assert page.text_content("#log") == ""


def test_plain_beside_it_writes_the_same(server: Server, opened: Any) -> None:
    page = opened(server.url)
    page.check("#beside")
    send(page, "abcabc")
    page.wait_for_selector("text=the same text")
    texts = page.locator(".side .text").all_text_contents()
    assert texts == [wanted(server, "abcabc")] * 2
    assert page.locator(".side").nth(1).locator("span.c1").count() == 0
    page.click("text=Race them again")
    until(page, "[...document.querySelectorAll('.side button')].every(b => !b.disabled)")
    assert page.locator(".side .text span[hidden]").count() == 0


def test_what_looks_like_a_page_stays_text(server: Server, opened: Any) -> None:
    page = opened(server.url, {"guided_choice": [EVIL], "max_tokens": 200, "bad_token_ids": []})
    send(page, EVIL)
    ended(page)
    assert page.text_content(".side .text") == page.text_content(".said") == EVIL
    for at in (0, 5, 20):
        page.locator(".side .text span").nth(at).hover()
    page.locator("[name=speculative]").evaluate("(each, evil) => { each.value = evil }", EVIL)
    send(page, "a")
    page.wait_for_selector(".bad")
    assert EVIL[:20] in page.text_content(".bad")
    assert page.locator("#log script, #log img, #log b, #tree script, #tree img").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_stop_in_the_middle(server: Server, opened: Any) -> None:
    page = opened(server.url, {"max_tokens": 300, "ignore_eos": True})
    send(page, "abc")
    page.wait_for_selector(".side .text span[data-step]")
    page.keyboard.press("Escape")
    ended(page)
    assert server.idle()
    said = page.text_content(".side .note")
    assert "stopped" in said or "length" in said  # it may have been quicker
    send(page, "again")
    ended(page, 2)


class Cut:
    """A way to a server on which a stream breaks behind so many bytes, once."""

    def __init__(self, port: int, behind: int) -> None:
        self.behind, self.cuts = behind, 0
        self._to = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(ours,), daemon=True).start()

    def _serve(self, ours: socket.socket) -> None:
        with ours, socket.create_connection(("127.0.0.1", self._to)) as theirs:
            asks = threading.Thread(target=self._pass, args=(ours, theirs, False))
            asks.start()
            self._pass(theirs, ours, True)
            asks.join()

    def _pass(self, one: socket.socket, other: socket.socket, answers: bool) -> None:
        passed = 0
        try:
            while data := one.recv(512):
                if answers and (passed or b"event-stream" in data):
                    passed += len(data)
                other.sendall(data)
                if passed > self.behind and not self.cuts:
                    self.cuts += 1
                    time.sleep(1)  # what came is read before the break is seen
                    break
        except OSError:
            pass
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def test_a_broken_connection_goes_on(server: Server, opened: Any) -> None:
    way = Cut(server.port, 6000)
    try:
        page = opened(way.url)
        send(page, "abcabcabcabc")
        page.wait_for_selector("text=the connection broke")
        assert way.cuts == 1
        begun = page.text_content(".side .text")
        whole = wanted(server, "abcabcabcabc")
        assert begun and whole.startswith(begun) and begun != whole
        page.click("text=Go on")
        ended(page)
        until(page, "!document.querySelector('.side .bad')")
        assert page.text_content(".side .text") == whole
    finally:
        way.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_telephone(server: Server, opened: Any, scheme: str) -> None:
    page = opened(server.url, viewport={"width": 360, "height": 640}, color_scheme=scheme)
    page.check("#beside")
    send(page, "x" * 100)
    page.wait_for_selector("text=the same text")
    page.locator(".text span[data-step]").nth(3).click()
    page.click("summary")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.click("#tree button")
    assert not page.locator("#tree").is_visible()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light is (scheme == "light")
