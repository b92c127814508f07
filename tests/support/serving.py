"""A server in this process, on a free port, in front of a tiny model of bytes."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import httpx2 as httpx
import torch
from transformers import PreTrainedModel

import draftproof as dp
import spelling
import tiny
from draftproof.server import bodies, running
from draftproof.server.front import Front
from draftproof.server.settings import Limits, Settings

CONTEXT = 400
NAME = "tiny"
__all__ = ["CONTEXT", "NAME", "Server", "bodies", "dumps", "events", "llm", "model", "until_served"]


@cache
def model() -> PreTrainedModel:
    size = len(spelling.tokenizer())
    kinds = {"vocab_size": size, "max_position_embeddings": CONTEXT, "num_hidden_layers": 2}
    return tiny.model("llama", dtype=torch.float64, **kinds)


def llm(**options: Any) -> dp.LLM:
    """One whose drafts are often right, unless they are chosen otherwise."""
    near = dp.DraftModel(tiny.relative(model(), 0.02), 4, min_confidence=0.0)
    usual = {"speculate": near, "max_batch": 4, "prefix_cache": True}
    return dp.LLM(model(), **{"tokenizer": spelling.tokenizer(), **usual, **options})


class Server:
    """Runs until `end`; `front` is what stands between HTTP and the engine."""

    def __init__(
        self, open: Callable[[], dp.LLM] = llm, limits: Limits | None = None, **settings: Any
    ) -> None:
        self.settings = Settings(
            **{"names": (NAME,), "limits": limits or Limits(drain=5.0), **settings}
        )
        logging.getLogger("draftproof.server").setLevel(logging.INFO)
        bound = running.listen("127.0.0.1", 0)
        self.port = bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.front: Front
        self.error: BaseException | None = None
        self.clean = False
        self._listens, self._ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bound, open))
        self._thread.start()
        assert self._listens.wait(60)
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def __enter__(self) -> Server:
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def wait(self) -> None:
        """Until the model is there, or cannot be."""
        while not self._ready.wait(0.02) and self._thread.is_alive():
            pass

    def signal(self) -> None:
        """What SIGTERM does."""
        self.loop.call_soon_threadsafe(self._end)

    def end(self) -> None:
        self.client.close()
        if self._thread.is_alive():
            self.signal()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def completion(self, prompt: Any, **body: Any) -> dict[str, Any]:
        answer = self.post("/v1/completions", prompt=prompt, **body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def idle(self, seconds: float = 10.0) -> bool:
        """Whether nothing runs any more, soon."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            scheduler = self.front.llm.engine.scheduler
            if not (self.front.admission.load or scheduler.running or scheduler.waiting):
                return True
            time.sleep(0.01)
        return False

    def _run(self, bound: socket.socket, open: Callable[[], dp.LLM]) -> None:
        async def main() -> bool:
            self.loop = asyncio.get_running_loop()

            def began(front: Front, end: Callable[[], None]) -> None:
                self.front, self._end = front, end
                self._listens.set()

            return await running.serve(
                self.settings,
                bound,
                open,
                began=began,
                ready=lambda _: self._ready.set(),
                signals=False,
            )

        try:
            with asyncio.Runner(loop_factory=running.loop_factory()) as runner:
                self.clean = runner.run(main())
        except BaseException as error:
            self.error = error
        finally:
            bound.close()


def dumps(body: dict[str, Any]) -> bytes:
    """As a client writes it that lets NaN and infinity pass."""
    return json.dumps(body).encode()


def events(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a stream, which ends with [DONE]."""
    lines = [line for line in text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        assert line.startswith("data: ")
        yield json.loads(line.removeprefix("data: "))


def until_served(process: subprocess.Popen[str], seconds: float) -> str:
    """What a server says until it serves, or ends; it is ended where that takes so long."""
    assert process.stderr is not None
    late = threading.Timer(seconds, process.kill)
    late.start()
    said = ""
    while "is served on" not in said and (line := process.stderr.readline()):
        said += line
    late.cancel()
    return said
