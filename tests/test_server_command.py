"""`draftproof serve` as a process: it serves, drains on a signal, and refuses in one sentence."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from draftproof.cli import serve
from draftproof.ray import options
from draftproof.server import running
from draftproof.server.settings import Limits
from serving import until_served


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
    return port


def test_from_start_to_signal(pair: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = ["serve", str(pair / "target"), "--port", str(port), "--dtype", "float64"]
    words += ["--served-name", "small", "--draft", str(pair / "draft"), "--max-tokens", "5"]
    words += ["--temperature", "0", "--drain", "5"]
    command = [sys.executable, "-m", "draftproof", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = until_served(process, 120)
        body = {"model": "small", "prompt": "def f(x):"}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 5
        again = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        assert again["choices"] == answer["choices"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        process.send_signal(signal.SIGTERM)
        said += process.stderr.read()
        assert process.wait(30) == 0, said
    assert "small is served on" in said and "tokens=5" in said and "ending" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--chunk", "letter"), "chunk 'letter' is unknown"),
        (("--api-key", ""), "an --api-key is empty, and would let everybody in"),
        (("--served-name", ""), "a --served-name is empty: give it, or drop it"),
        (("--cors", "http://localhost:3000/"), "--cors 'http://localhost:3000/' is no origin"),
        (("--cors", "*", "--cors", "localhost:3000"), "--cors 'localhost:3000' is no origin"),
        (("--temperature", "-1"), "temperature is -1.0"),
        (("--itl-target", "nan"), "--itl-target is nan"),
        (("--itl-target", "0"), "--itl-target is 0 ms: give more than 0, or drop it"),
        (("--max-length", "0"), "max_length=0 leaves no room"),
        (("--kv-memory", "8"), "--kv-memory is 8 bytes, in which no text has room: write 8GB"),
        (("--kv-memory", "1KB"), "--kv-memory is 1,000 bytes, in which no text has room"),
        (("--port", "70000"), "65535"),
        (("--host", "no.such.host.invalid"), "--host takes an address of this machine"),
    ],
)
def test_refusals(run: Any, words: tuple[str, ...], said: str) -> None:
    result = run("serve", "T", "--port", "0", *words)
    assert result.code == 2 and said in result.err and "Traceback" not in result.err
    assert "listening" not in result.err


def test_a_port_that_is_taken() -> None:
    with running.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1:{port}: .*--port"):
            running.listen("127.0.0.1", port)


def test_a_model_that_is_none(run: Any, tmp_path: Path) -> None:
    result = run("serve", str(tmp_path), "--port", "0")
    assert result.code == 2 and "Traceback" not in result.err, result.err


def test_options_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each the one that it is called."""
    words: dict[str, Any] = {"max_queue": 3, "max_queue_tokens": 4, "timeout": 5, "drain": 6}
    words |= {"share": True, "chunk": "token", "served_name": ["a"], "cors": ["http://a:1"]}
    words |= {"allow_host": ["h"], "quiet": True, "no_prefix_cache": True}
    given, _ = options.read({"model": "bundled", **words})
    made = serve.settings_of(given)
    assert made.limits == Limits(queued=3, queued_tokens=4, seconds=5.0, drain=6.0)
    assert (made.share, made.chunk, made.names) == (True, "token", ("a",))
    assert (made.cors, made.hosts, made.log) == (("http://a:1",), ("h",), False)
    seen: dict[str, Any] = {}
    monkeypatch.setattr(serve.opening, "for_many", lambda given, **more: seen.update(more))
    serve.opened(given)
    assert seen == {"prefix_cache": False, "itl_target": None}
