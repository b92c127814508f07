"""A server as a program of its own, for scripts that ask one. Imports what Python brings, alone."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

READY = 180.0  # seconds that it may take to load its model


@contextmanager
def served(words: Sequence[str], port: int, **options: Any) -> Iterator[tuple[str, int]]:
    """Its address and process number, until it is left; then it has to end well at a signal.

    words: the program and what it is told, but for the port. options: of `subprocess.Popen`.
    Raises `SystemExit` where it ends before, is never ready, or ends badly.
    """
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + READY
    with subprocess.Popen([*words, "--port", str(port)], **options) as server:
        try:
            while not _is_ready(url):
                if server.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"the server at {url} ended, or was never ready")
                time.sleep(0.1)
            yield url, server.pid
        finally:
            server.terminate()
    if server.returncode:
        raise SystemExit(f"the server ended with {server.returncode}")


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5):
            return True
    except OSError:
        return False
