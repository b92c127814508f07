"""What the server adds to the engine: processor time per token, time to the first token, a crowd.

    python benchmarks/server.py build/smollm2

The same prompts go to `LLM` in this process and, after it is closed, to `draftproof serve` in
another one, so that they never compete. Prints one JSON object. The server's own cost is the
processor time of its event loop, the thread whose id is the process's; that of the client, which
shares the machine, is told beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx2 as httpx

import draftproof as dp
from draftproof import clock, prompts

TICK = os.sysconf("SC_CLK_TCK")


def loop_seconds(process: int) -> float:
    """Processor time of the event loop so far."""
    with open(f"/proc/{process}/task/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def alone(llm: dp.LLM, texts: Sequence[str], tokens: int) -> dict[str, float]:
    """One stream after another, through `LLM.stream`."""
    firsts, speeds = [], []
    params = dp.SamplingParams(max_tokens=tokens, ignore_eos=True)
    for text in texts:
        began, first, count = time.perf_counter(), 0.0, 0
        for chunk in llm.stream(text, params):
            first = first or time.perf_counter()
            count += len(chunk.token_ids)
        firsts.append(1000 * (first - began))
        speeds.append((count - 1) / (time.perf_counter() - first))
    return {"first_ms": statistics.median(firsts), "per_s": statistics.median(speeds)}


async def stream(client: httpx.AsyncClient, text: str, tokens: int) -> tuple[float, float]:
    """Milliseconds to the first chunk, and tokens/s behind it."""
    body = {"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    began, first, count = time.perf_counter(), 0.0, 0
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter()
                if '"choices":[]' in line:
                    count = json.loads(line[6:])["usage"]["completion_tokens"]
    assert count == tokens
    return 1000 * (first - began), (count - 1) / (time.perf_counter() - first)


async def ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/ready")).status_code == 200
    except httpx.TransportError:
        return False


async def served(url: str, process: int, texts: Sequence[str], given: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        while not await ready(client):
            await asyncio.sleep(0.1)
        await stream(client, texts[0], 16)
        own, mine = loop_seconds(process), time.process_time()
        singly = [await stream(client, text, given.tokens) for text in texts]
        wrote = len(texts) * given.tokens
        own, mine = loop_seconds(process) - own, time.process_time() - mine
        crowd = [texts[i % len(texts)] for i in range(given.clients)]
        began = time.perf_counter()
        await asyncio.gather(*(stream(client, text, given.tokens) for text in crowd))
        took = time.perf_counter() - began
    return {
        "first_ms": statistics.median(first for first, _ in singly),
        "per_s": statistics.median(speed for _, speed in singly),
        "loop_us_per_token": 1e6 * own / wrote,
        "client_us_per_token": 1e6 * mine / wrote,
        "crowd_per_s": given.clients * given.tokens / took,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--method", default="none")
    given = parser.parse_args()
    texts = [each.turns[0] for each in prompts.load("humaneval", chat=False)[: given.prompts]]
    speculate = None if given.method == "none" else given.method
    with dp.LLM(given.model, speculate=speculate, max_batch=given.clients) as llm:
        llm.generate(texts[:1], dp.SamplingParams(max_tokens=16))
        direct: dict[str, Any] = alone(llm, texts, given.tokens)
        crowd = [texts[i % len(texts)] for i in range(given.clients)]
        began = time.perf_counter()
        llm.generate(crowd, dp.SamplingParams(max_tokens=given.tokens, ignore_eos=True))
        took = time.perf_counter() - began
        direct["crowd_per_s"] = given.clients * given.tokens / took
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port = made.getsockname()[1]
    words = ["serve", given.model, "--port", str(port), "--method", given.method, "--quiet"]
    words += ["--max-batch", str(given.clients), "--no-prefix-cache"]
    process = subprocess.Popen([sys.executable, "-m", "draftproof", *words])
    try:
        over = asyncio.run(served(f"http://127.0.0.1:{port}", process.pid, texts, given))
    finally:
        process.terminate()
        process.wait()
    print(json.dumps({"machine": clock.processor(), **vars(given), "direct": direct, "http": over}))


if __name__ == "__main__":
    main()
