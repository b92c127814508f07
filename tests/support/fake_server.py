"""A server of OpenAI's API that writes what it is told to, when it is told to."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

HEAD = "HTTP/1.1 {} x\r\ncontent-type: {}\r\n{}\r\n\r\n"


@dataclass(frozen=True)
class Reply:
    """pieces: a chunk each; first_s, gap_s: before the first one, and before each other.

    tokens: what usage says; None: there is none. end: "stop", another reason, "cut" (the connection
    closes), "error" (an error in the stream) or "hang".
    """

    pieces: Sequence[str] = ("a", "b", "c")
    tokens: int | None = 3
    first_s: float = 0.0
    gap_s: float = 0.0
    status: int = 200
    end: str = "stop"


class FakeServer:
    """In a thread of its own, on a free port. bodies: of all calls, in the order they came."""

    def __init__(self, reply: Callable[[dict[str, Any]], Reply] = lambda body: Reply()) -> None:
        self.reply, self.bodies = reply, list[dict[str, Any]]()
        self.at_once = self.most = 0  # calls that are being answered, and the most of them
        self.heads: list[str] = []
        self._listens = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> FakeServer:
        self._thread.start()
        assert self._listens.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def called(self, count: int, seconds: float = 60.0) -> bool:
        """Whether so many calls have come, soon."""
        end = time.monotonic() + seconds
        while len(self.bodies) < count and time.monotonic() < end:
            time.sleep(0.01)
        return len(self.bodies) >= count

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._listens.set()
        await self._end.wait()
        server.close()

    async def _connected(self, reader: Any, writer: Any) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                sizes = [
                    int(line.partition(":")[2])
                    for line in head.splitlines()
                    if line.lower().startswith("content-length")
                ]
                body = await reader.readexactly(sizes[0]) if sizes else b""
                if head.startswith("GET"):
                    self._whole(writer, 200, {"data": [{"id": "fake"}, {"id": "other"}]})
                    continue
                self.bodies.append(json.loads(body))
                self.at_once += 1
                self.most = max(self.most, self.at_once)
                try:
                    if not await self._answer(writer, self.reply(self.bodies[-1])):
                        break
                finally:
                    self.at_once -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            writer.close()

    def _whole(self, writer: Any, status: int, body: Any) -> None:
        said = json.dumps(body).encode()
        length = f"content-length: {len(said)}"
        writer.write(HEAD.format(status, "application/json", length).encode() + said)

    async def _answer(self, writer: Any, reply: Reply) -> bool:
        """Whether the connection stays."""
        if reply.status != 200:
            error = {"message": f"status {reply.status} it is", "type": "x"}
            self._whole(writer, reply.status, {"error": error})
            return True
        chunked = "transfer-encoding: chunked"
        writer.write(HEAD.format(200, "text/event-stream", chunked).encode())
        role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        self._event(writer, role)  # no text yet, so no first token
        for number, piece in enumerate(reply.pieces):
            await asyncio.sleep(reply.gap_s if number else reply.first_s)
            self._event(writer, {"choices": [{"index": 0, "delta": {"content": piece}}]})
            await writer.drain()
        if reply.end == "hang":
            await self._end.wait()
        if reply.end in ("cut", "hang"):
            return False
        if reply.end == "error":
            self._event(writer, {"error": {"message": "it went wrong", "type": "x"}})
        else:
            last = {"index": 0, "delta": {}, "finish_reason": reply.end}
            self._event(writer, {"choices": [last]})
        if reply.tokens is not None:
            usage = {"prompt_tokens": 8, "completion_tokens": reply.tokens}
            usage["prompt_tokens_details"] = {"cached_tokens": 2}  # type: ignore[assignment]
            self._event(writer, {"choices": [], "usage": usage})
        self._chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _event(self, writer: Any, body: Any) -> None:
        self._chunk(writer, b"data: " + json.dumps(body).encode() + b"\n\n")

    def _chunk(self, writer: Any, data: bytes) -> None:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
