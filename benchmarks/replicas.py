"""What replicas on Ray Serve cost, and whether streams survive them: one JSON object.

    python benchmarks/replicas.py bundled --streams 500

`added`: one engine behind Ray's proxy and `Front`, and one behind `draftproof serve`, in turn:
milliseconds to the first token, from when the engine had written a token to the arrival of its
chunk (by `timings_per_token`; the way of the call there counts too, and is most of it), and from
one chunk to the next. `throughput`: tokens/s of two replicas of one thread each, and of two servers
of one thread started by hand, which share the cores too and get every second call; one way after
the other. Streams under faults, whose texts are compared with plain `LLM.generate`: `survive`, an
engine is killed every so many seconds; `slow`, one engine of two is stopped for most of each
second; `update`, the engines are replaced by others with another draft, one after the other, and
back. Needs `draftproof[ray]`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from functools import partial
from typing import Any

import httpx2
import psutil

import draftproof as dp
from draftproof import clock, prompts
from ray_serving import Replicas, free_port
from server import ready

TEXT = "/v1/completions"


class Stream:
    """One answer as it came. Milliseconds; `pauses` are those of streams that went on elsewhere."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body | {"stream": True, "timings_per_token": True}
        self.text, self.reason, self.error = "", "", ""
        self.tokens, self.first_ms = 0, 0.0
        self.lags, self.pauses = list[float](), list[float]()
        self.came = list[float]()  # when each chunk did

    async def read(self, client: httpx2.AsyncClient) -> Stream:
        began = last = time.perf_counter()
        elsewhere = False
        async with client.stream("POST", TEXT, json=self.body) as answer:
            async for line in answer.aiter_lines():
                now = time.perf_counter()
                elsewhere = elsewhere or line.startswith(": goes on")
                if not line.startswith("data: {"):
                    continue
                part = json.loads(line.removeprefix("data: "))
                if "error" in part:
                    self.error = part["error"]["message"]
                    break
                if elsewhere:
                    self.pauses.append(1000 * (now - last))
                    elsewhere = False
                last = now
                self._take(part, 1000 * (now - began))
        return self

    def _take(self, part: dict[str, Any], ms: float) -> None:
        self.came.append(ms)
        for choice in part["choices"]:
            self.first_ms = self.first_ms or ms
            self.text += choice["text"]
            self.reason = choice["finish_reason"] or ""
        if (timings := part.get("timings")) is not None:
            self.tokens = timings["predicted_n"]
            self.lags.append(ms - timings["prompt_ms"] - timings["predicted_ms"])


def bodies(given: argparse.Namespace, count: int) -> list[dict[str, Any]]:
    """As many calls, each with a seed of its own."""
    texts = [each.turns[0] for each in prompts.load("humaneval", chat=False)]
    same = {"max_tokens": given.tokens, "temperature": 1.0, "ignore_eos": True}
    return [
        same | {"prompt": texts[at % len(texts)], "seed": at, "cache_salt": str(at)}
        for at in range(count)
    ]


async def all_of(
    ports: Sequence[int], asked: Sequence[dict[str, Any]], clients: int
) -> list[Stream]:
    """Answers, so many at a time; calls go to the ports in turn."""
    places = asyncio.Semaphore(clients)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    made = [httpx2.AsyncClient(base_url=url, timeout=3600, limits=limits) for url in urls]

    async def one(at: int) -> Stream:
        async with places:
            return await Stream(asked[at]).read(made[at % len(made)])

    try:
        return list(await asyncio.gather(*map(one, range(len(asked)))))
    finally:
        for each in made:
            await each.aclose()


@contextmanager
def by_hand(given: argparse.Namespace) -> Iterator[int]:
    """`draftproof serve` with one thread; its port."""
    port = free_port()
    command = [sys.executable, "-m", "draftproof", "serve", given.model, "--port", str(port)]
    command += ["--threads", "1", "--max-batch", str(given.places), "--quiet"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and not ready(port):
            time.sleep(0.2)
        if process.poll() is not None:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
        yield port
    finally:
        process.terminate()
        process.wait()


def options(given: argparse.Namespace, replicas: int) -> dict[str, Any]:
    named = {"model": given.model, "threads": 1, "max_batch": given.places, "replicas": replicas}
    return named | {"max_queue": 10_000}


def added(given: argparse.Namespace) -> dict[str, Any]:
    """One engine, one client: beside a server without Ray."""
    found: dict[str, list[Stream]] = {"by hand": [], "ray": []}
    with by_hand(given) as port, Replicas(options(given, 1)) as made:
        for at, body in enumerate(bodies(given, 2 * given.calls)):
            for name, where in clock.in_turn([("by hand", port), ("ray", made.port)], at):
                (one,) = asyncio.run(all_of([where], [body], 1))
                if at >= 2:  # the first ones warm up
                    found[name].append(one)
    told: dict[str, Any] = {}
    for name, each in found.items():
        lags = [lag for one in each for lag in one.lags[1:]]
        gaps = [then - now for one in each for now, then in itertools.pairwise(one.came)]
        told[name] = {
            "first_ms": statistics.median(one.first_ms for one in each),
            "chunk_ms": statistics.median(lags),
            "between_ms": statistics.median(gaps),
        }
    for what in ("first_ms", "chunk_ms", "between_ms"):
        told[f"{what}_more"] = told["ray"][what] - told["by hand"][what]
    return told


def throughput(given: argparse.Namespace) -> dict[str, Any]:
    """Two engines of one thread each, either way; medians."""
    speeds: dict[str, list[float]] = {"by hand": [], "ray": []}

    def measure(name: str, ports: Sequence[int]) -> None:
        asked = bodies(given, given.calls * given.clients)
        asyncio.run(all_of(ports, asked[: given.clients], given.clients))  # warm
        began = time.perf_counter()
        came = asyncio.run(all_of(ports, asked, given.clients))
        speeds[name].append(sum(one.tokens for one in came) / (time.perf_counter() - began))

    for turn in range(given.rounds):
        for name in clock.in_turn([*speeds], turn):
            with ExitStack() as stack:
                if name == "ray":
                    measure(name, [stack.enter_context(Replicas(options(given, 2))).port])
                else:
                    measure(name, [stack.enter_context(by_hand(given)) for _ in range(2)])
    shares = [ray / hand for hand, ray in zip(speeds["by hand"], speeds["ray"], strict=True)]
    return {name: statistics.median(each) for name, each in speeds.items()} | {
        "share": statistics.median(shares)
    }


async def killing(given: argparse.Namespace, made: Replicas) -> AsyncIterator[None]:
    """An engine, whichever it is."""
    chance = random.Random(0)
    while True:
        await asyncio.sleep(given.every)
        there = await asyncio.to_thread(made.engines)
        if there:
            made.kill(chance.choice(there))
            yield


async def slowing(given: argparse.Namespace, made: Replicas) -> AsyncIterator[None]:
    """Always the same engine. A second is short beside what Ray lets a health check take."""
    one = (await asyncio.to_thread(made.engines))[0]
    try:
        while True:
            one.suspend()
            await asyncio.sleep(given.stopped)
            one.resume()
            yield
            await asyncio.sleep(1 - given.stopped)
    finally:
        one.resume()


async def updating(given: argparse.Namespace, made: Replicas) -> AsyncIterator[None]:
    """To another draft and back; calls go on meanwhile."""
    for draft in itertools.cycle((given.draft, None)):
        await asyncio.sleep(given.every)
        made.update(options(given, 2) | {"draft": draft, "drain": 1})
        await asyncio.to_thread(made.wait)
        yield


FAULTS = {"survive": killing, "slow": slowing, "update": updating}


def under(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """Streams at two engines, while what `name` says happens to these."""
    asked, count = bodies(given, given.streams), 0

    async def harm(made: Replicas) -> None:
        nonlocal count
        async with aclosing(FAULTS[name](given, made)) as faults:
            async for _ in faults:
                count += 1

    async def run(made: Replicas) -> list[Stream]:
        harming = asyncio.ensure_future(harm(made))
        try:
            came = await all_of([made.port], asked, given.clients)
        finally:
            harming.cancel()
            await asyncio.wait([harming])
        if not harming.cancelled():
            harming.result()  # which tells why there was no harm any more
        return came

    started = time.perf_counter()
    with Replicas(options(given, 2)) as made:
        start_s = time.perf_counter() - started
        mine = psutil.Process(made.process.pid).children(recursive=True)
        memory = sum(each.memory_info().rss for each in mine)
        began = time.perf_counter()
        came = asyncio.run(run(made))
        seconds = time.perf_counter() - began
    same = {name: asked[0][name] for name in ("max_tokens", "temperature", "ignore_eos")}
    with dp.LLM(given.model, speculate=None, max_batch=given.places) as llm:
        params = [dp.SamplingParams(seed=body["seed"], **same) for body in asked]
        plain = [each.text for each in llm.generate([body["prompt"] for body in asked], params)]
    pauses = sorted(pause for one in came for pause in one.pauses)
    firsts = sorted(one.first_ms for one in came if one.first_ms)
    return {
        "start_s": start_s,
        "rss_of_all_mib": memory / 2**20,
        "seconds": seconds,
        "streams": len(came),
        "faults": count,
        "ended": sum(bool(one.reason) for one in came),
        "errors": sorted({one.error for one in came if one.error}),
        "equal_to_generate": sum(one.text == text for one, text in zip(came, plain, strict=True)),
        "went_on_elsewhere": sum(bool(one.pauses) for one in came),
        "pause_ms_p50": quantile(pauses, 0.5),
        "pause_ms_p99": quantile(pauses, 0.99),
        "first_ms_p50": quantile(firsts, 0.5),
        "first_ms_p99": quantile(firsts, 0.99),
        "tokens_per_s": sum(one.tokens for one in came) / seconds,
    }


def quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


PARTS: dict[str, Any] = {"added": added, "throughput": throughput}
PARTS |= {name: partial(under, name=name) for name in FAULTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="bundled")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--places", type=int, default=8, help="texts at once, of an engine")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--calls", type=int, default=10, help="of each client, where it is timed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two faults")
    parser.add_argument("--stopped", type=float, default=0.8, help="of each second, a slow engine")
    parser.add_argument("--draft", default="bundled", help="what an update drafts with")
    parser.add_argument("--only", choices=PARTS, action="append")
    given = parser.parse_args()
    found = {name: PARTS[name](given) for name in given.only or PARTS}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
