"""The page at `/`: one file, which runs nothing but its own script and makes nothing but text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from draftproof.sampling import SamplingParams
from draftproof.server.settings import digest
from serving import Server

HTML = files("draftproof.server").joinpath("page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(keys=(digest("sesame"),)) as made:
        yield made


class Read(HTMLParser):
    """Tags with their attributes, and what stands in scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: dict[str, list[str]] = {"script": [], "style": []}
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in self.inline:
            self.inline[self._open].append(data)


READ = Read()
READ.feed(HTML)


def policy(server: Server) -> dict[str, list[str]]:
    rules = server.client.get("/").headers["content-security-policy"].split("; ")
    return {rule.split()[0]: rule.split()[1:] for rule in rules}


def test_it_comes_without_a_key_and_with_its_headers(server: Server) -> None:
    answer = server.client.get("/")
    assert answer.status_code == 200 and answer.text == HTML
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert server.client.head("/").status_code == 200
    assert server.client.get("/v1/models").status_code == 401


def test_nothing_runs_in_it_but_its_own(server: Server) -> None:
    rules = policy(server)
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == ["'none'"]
    assert rules["connect-src"] == ["'self'"] and rules["frame-ancestors"] == ["'none'"]
    for kind in ("script", "style"):
        (content,) = READ.inline[kind]
        found = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == [f"'sha256-{found}'"]
    assert not [word for words in rules.values() for word in words if "unsafe" in word]


def test_it_needs_nothing_else() -> None:
    """No address but its own server's, no attribute that the policy would forbid."""
    for tag, given in READ.tags:
        assert not {"src", "srcset", "style", "action"} & given.keys(), tag
        assert not [name for name in given if name.startswith("on")], tag
        assert given.get("href", "data:,") == "data:,"
    assert "http:" not in HTML and "https:" not in HTML and "//cdn" not in HTML
    assert len(HTML.encode()) < 40_000


def test_what_is_written_becomes_text_alone() -> None:
    (script,) = READ.inline["script"]
    ways = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(")
    ways += ("createContextualFragment", "DOMParser", "srcdoc", "setHTML", "javascript:")
    assert [way for way in ways if way in script] == []
    assert "textContent" in script
    assert set(re.findall(r"setAttribute\(\"([^\"]+)", script)) <= {"aria-live", "aria-label"}


def test_it_has_a_field_for_every_parameter() -> None:
    """Those of a list or of a program's use are typed as JSON."""
    (script,) = READ.inline["script"]
    fields = set(re.findall(r'\["([a-zA-Z_ ]+)", ?(?:NUMBER|LINE|LONG|\[|"password")', script))
    own = {each for each in SamplingParams.__dataclass_fields__}
    typed = {"logit_bias", "bad_token_ids", "stop_token_ids", "ignore_eos", "logprobs", "n"}
    typed |= {"prompt_logprobs", "resume", "grammar"}
    renamed = {"speculate": "speculative", "max_draft_nodes": "max_nodes"}
    assert {renamed.get(name, name) for name in own - typed} <= fields
    assert "further fields" in fields


def test_what_it_is_made_of_is_named() -> None:
    """Every control has a label, and the language is told."""
    kinds = dict(READ.tags)
    assert kinds["html"]["lang"] == "en" and "viewport" in str(READ.tags)
    assert "prefers-color-scheme: dark" in HTML and "max-width: 40rem" in HTML
    labelled = {given.get("for") for tag, given in READ.tags if tag == "label"}
    assert "message" in labelled
