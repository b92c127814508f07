"""Web pages of others cannot have texts written, whatever name they come under."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from draftproof.server.running import is_local
from draftproof.server.settings import digest
from serving import Server

BODY = '{"prompt": "a", "max_tokens": 1}'
PAGE = "https://page.example"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(local=True, hosts=("Box.lan",), cors=(PAGE,)) as made:
        yield made


def status(server: Server, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {"Content-Type": "text/plain", **named}  # which browsers send without asking first
    answer = server.client.post("/v1/completions", content=BODY, headers=sent)
    if answer.status_code != 200:
        assert answer.json()["error"]["type"] == "permission_error"
    return answer.status_code


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "["])
def test_another_name_is_refused(server: Server, host: str) -> None:
    assert status(server, Host=host) == 403
    assert server.client.get("/props", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9", "a.localhost", "127.0.0.1:1", "[::1]:8000", "box.lan", ""]
)
def test_names_of_this_machine_are_taken(server: Server, host: str) -> None:
    assert status(server, Host=host) == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:1", "null"])
def test_another_page_is_refused(server: Server, origin: str) -> None:
    assert status(server, Origin=origin) == 403
    assert server.client.get("/health", headers={"Origin": origin}).status_code == 200


def test_its_own_page_and_those_named_are_taken(server: Server) -> None:
    assert status(server, Origin=PAGE) == 200
    assert status(server, Origin=server.url) == 200
    assert status(server, Origin="https://front", Sec_Fetch_Site="same-origin") == 200
    assert status(server, Origin="https://front", X_Forwarded_Host="front") == 200
    assert status(server, Origin="vscode-webview://a") == 200  # a program, which asks whom it likes


def test_a_key_is_enough() -> None:
    with Server(local=True, keys=(digest("one"),)) as server:
        headers = {"Host": "evil.example", "Origin": PAGE, "Authorization": "Bearer one"}
        assert status(server, **headers) == 200


def test_which_addresses_are_local() -> None:
    assert all(map(is_local, ("127.0.0.1", "::1", "localhost", "127.8.8.8")))
    assert not any(map(is_local, ("0.0.0.0", "::", "10.0.0.1", "box.lan")))


def test_a_page_that_is_let_in_can_read_refusals() -> None:
    with Server(keys=(digest("one"),), cors=(PAGE,)) as server:
        for key, code in (("one", 200), ("two", 401)):
            headers = {"Origin": PAGE, "Authorization": f"Bearer {key}"}
            answer = server.client.post("/v1/completions", content=BODY, headers=headers)
            assert answer.status_code == code
            assert answer.headers["access-control-allow-origin"] == PAGE
