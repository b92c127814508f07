"""What the server adds to the engine: processor time per token, time to the first token, a crowd.

    python benchmarks/server.py build/smollm2

The same prompts go to `LLM` in this process and to `draftproof serve` in another one, alternately,
so that both meet the machine in the same state and never compete. Prints one JSON object: medians,
and the medians of what each pair differs by. The server's own cost is the processor time of its
event loop, the thread whose id is the process's. Clients are bare sockets, as an HTTP library takes
more of the machine than the server; what they take is told beside it. `floor` is what a loop that
does nothing else takes to be woken as often and to write as many bytes beside the same passes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import draftproof as dp
from draftproof import clock, prompts
from draftproof.server.running import loop_factory

CHUNK = b"x" * 250  # as many bytes as a chunk has


def loop_seconds(process: int) -> float:
    """Processor time of the event loop so far."""
    with open(f"/proc/{process}/task/{process}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def direct(llm: dp.LLM, text: str, tokens: int) -> tuple[float, float]:
    """Milliseconds to the first chunk of `LLM.stream`, and tokens/s behind it."""
    params = dp.SamplingParams(max_tokens=tokens, ignore_eos=True)
    began, first, count = time.perf_counter(), 0.0, 0
    for chunk in llm.stream(text, params):
        first = first or time.perf_counter()
        count += len(chunk.token_ids)
    return 1000 * (first - began), (count - 1) / (time.perf_counter() - first)


def asked(port: int, text: str, tokens: int) -> socket.socket:
    """A stream that begins."""
    body: dict[str, Any] = {"prompt": text, "max_tokens": tokens, "ignore_eos": True}
    body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    raw = json.dumps(body).encode()
    made = socket.create_connection(("127.0.0.1", port))
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    made.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    return made


def whole(came: Sequence[bytes], tokens: int) -> None:
    assert b'"completion_tokens":%d,' % tokens in b"".join(came), b"".join(came)[-500:]


def stream(port: int, text: str, tokens: int) -> tuple[float, float]:
    """As `direct`, through the server."""
    began, first, came = time.perf_counter(), 0.0, []
    with asked(port, text, tokens) as client:
        while raw := client.recv(1 << 16):
            first = first or (time.perf_counter() if b"data: {" in raw else 0.0)
            came.append(raw)
    took = time.perf_counter() - first
    whole(came, tokens)
    return 1000 * (first - began), (tokens - 1) / took


def crowd(port: int, texts: Sequence[str], tokens: int) -> float:
    """Seconds that streams at the same time take."""
    began = time.perf_counter()
    with selectors.DefaultSelector() as news:
        for text in texts:
            news.register(asked(port, text, tokens), selectors.EVENT_READ, [])
        while news.get_map():
            for key, _ in news.select():
                client: Any = key.fileobj
                if raw := client.recv(1 << 16):
                    key.data.append(raw)
                    continue
                whole(key.data, tokens)
                news.unregister(client)
                client.close()
    return time.perf_counter() - began


async def floor(llm: dp.LLM, text: str, tokens: int) -> tuple[float, float]:
    """Microseconds of processor time for a token of a loop that only writes, and tokens/s.

    For each chunk of `LLM.stream`, on another thread, the loop is woken once and writes once.
    """
    loop, ended, clients = asyncio.get_running_loop(), asyncio.Event(), list[Any]()

    class Kept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            clients.append(transport)

    server = await loop.create_server(Kept, "127.0.0.1", 0)
    reads = "import socket, sys\nc = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
    port = str(server.sockets[0].getsockname()[1])
    reader = subprocess.Popen([sys.executable, "-c", reads + "while c.recv(65536): pass", port])
    while not clients:
        await asyncio.sleep(0.01)
    speeds = list[float]()

    def engine() -> None:
        count, first = 0, 0.0
        for chunk in llm.stream(text, dp.SamplingParams(max_tokens=tokens, ignore_eos=True)):
            first, count = first or time.perf_counter(), count + len(chunk.token_ids)
            loop.call_soon_threadsafe(clients[0].write, CHUNK)
        speeds.append((count - 1) / (time.perf_counter() - first))
        loop.call_soon_threadsafe(ended.set)

    thread, began = threading.Thread(target=engine), time.thread_time()
    thread.start()
    await ended.wait()
    took = time.thread_time() - began
    thread.join()
    clients[0].close()
    server.close()
    await asyncio.to_thread(reader.wait)
    return 1e6 * took / tokens, speeds[0]


def ready(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return client.recv(1 << 12).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def pairs(llm: dp.LLM, port: int, process: int, texts: Sequence[str], given: Any) -> dict[str, Any]:
    """Every prompt here and there, and crowds of all."""
    tokens, clients = given.tokens, given.clients
    here, there, bare, own, mine = list[Any](), list[Any](), list[Any](), 0.0, 0.0
    for number, text in enumerate(texts):
        if not number % 2:  # who is first changes
            here.append(direct(llm, text, tokens))
        loop, busy = loop_seconds(process), time.thread_time()
        there.append(stream(port, text, tokens))
        own, mine = own + loop_seconds(process) - loop, mine + time.thread_time() - busy
        if number % 2:
            here.append(direct(llm, text, tokens))
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            bare.append(runner.run(floor(llm, text, tokens)))
    wrote = len(texts) * tokens
    told = {
        "direct": {"first_ms": middle(here, 0), "per_s": middle(here, 1)},
        "http": {
            "first_ms": middle(there, 0),
            "per_s": middle(there, 1),
            "loop_us_per_token": 1e6 * own / wrote,
            "client_us_per_token": 1e6 * mine / wrote,
        },
        "floor": {"loop_us_per_token": middle(bare, 0), "per_s": middle(bare, 1)},
        "first_ms_more": statistics.median(b[0] - a[0] for a, b in zip(here, there, strict=True)),
        "per_s_share": statistics.median(b[1] / a[1] for a, b in zip(here, there, strict=True)),
    }
    many = [texts[i % len(texts)] for i in range(clients)]
    params = dp.SamplingParams(max_tokens=tokens, ignore_eos=True)
    wrote, shares, both, own, mine = clients * tokens, list[float](), list[Any](), 0.0, 0.0
    for _ in range(given.crowds):
        began = time.perf_counter()
        llm.generate(many, params)
        took, loop, busy = time.perf_counter() - began, loop_seconds(process), time.thread_time()
        over = crowd(port, many, tokens)
        own, mine = own + loop_seconds(process) - loop, mine + time.thread_time() - busy
        shares.append(took / over)
        both.append((wrote / took, wrote / over))
    if given.crowds:
        told["crowd"] = {
            "direct_per_s": middle(both, 0),
            "http_per_s": middle(both, 1),
            "share": statistics.median(shares),
            "loop_us_per_token": 1e6 * own / wrote / given.crowds,
            "client_us_per_token": 1e6 * mine / wrote / given.crowds,
        }
    return told


def middle(rows: Sequence[Sequence[float]], column: int) -> float:
    return statistics.median(row[column] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--crowds", type=int, default=5, help="of so many clients")
    parser.add_argument("--method", default="none")
    given = parser.parse_args()
    texts = [each.turns[0] for each in prompts.load("humaneval", chat=False)[: given.prompts]]
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port = made.getsockname()[1]
    words = ["serve", given.model, "--port", str(port), "--method", given.method, "--quiet"]
    words += ["--max-batch", str(given.clients), "--no-prefix-cache"]
    process = subprocess.Popen([sys.executable, "-m", "draftproof", *words])
    speculate = None if given.method == "none" else given.method
    try:
        with dp.LLM(given.model, speculate=speculate, max_batch=given.clients) as llm:
            while not ready(port):
                time.sleep(0.1)
            direct(llm, texts[0], 16)
            stream(port, texts[0], 16)
            told = pairs(llm, port, process.pid, texts, given)
    finally:
        process.terminate()
        process.wait()
    print(json.dumps({"machine": clock.processor(), **vars(given), **told}))


if __name__ == "__main__":
    main()
