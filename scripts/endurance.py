"""A night of the server: `python scripts/endurance.py --model MODEL`, or `make endurance`.

`draftproof serve` runs as a program of its own, and clients call it for so long: streams and whole
answers, greedy and drawn, several texts of a prompt, stop strings, schemas and expressions,
predictions; a fifth of them leaves in the middle. Every text has to be that of `LLM.generate`
without drafts, which is asked before; no call may be lost. By quarter of the time it is told how
much was asked, what share of the drafts was accepted, and what memory, threads and files the server
held. Exit code 1: a text differs, a call was lost, or memory of the last quarter is more than 2%
above the second's.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx2 as httpx
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table
from served import served

import draftproof as dp
from draftproof import clock, demo, prompts
from draftproof.bundled import BUNDLED

QUARTERS, GROWTH = 4, 1.02
LEAVE, LONGEST = 0.2, 0.5  # of calls that are cut; seconds until then, at most
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "lines": {"type": "integer"}},
    "required": ["name", "lines"],
    "additionalProperties": False,
}
PATTERN = "(yes|no|perhaps), [a-z]{3,12}"

Body = dict[str, Any]


@dataclass
class Quarter:
    """What happened in it. memory: MiB that are resident, now and then; of a server's process."""

    calls: int = 0
    left: int = 0
    differ: int = 0
    lost: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    memory: list[float] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        middle = {name: statistics.median(getattr(self, name) or [0]) for name in HELD}
        return asdict(self) | middle


HELD = ("memory", "threads", "files")
COUNTED = {
    "vllm:generation_tokens_total": "tokens",
    "vllm:spec_decode_num_draft_tokens_total": "drafted",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
}


def bodies(texts: list[str], rng: random.Random, count: int) -> list[Body]:
    """Calls whose texts hang on nothing but themselves."""
    made = []
    for number in range(count):
        body: Body = {"prompt": rng.choice(texts), "seed": number}
        body |= {
            "temperature": rng.choice([0.0, 0.0, 0.7, 1.0]),
            "max_tokens": rng.choice([1, 8, 48]),
        }
        kind = number % 8
        if kind == 1:
            body |= {"n": 3}
        if kind == 2:
            body |= {"stop": ["\n\n", "e"]}
        if kind == 3:
            body |= {"guided_json": SCHEMA, "max_tokens": 64}
        if kind == 4:
            body |= {"guided_regex": PATTERN, "max_tokens": 32}
        if kind == 5:
            body |= {"frequency_penalty": 0.7, "top_p": 0.9, "temperature": 0.8}
        made.append(body)
    return made


def wanted(llm: dp.LLM, body: Body) -> list[str]:
    """The texts, written without drafts."""
    params = {name: value for name, value in body.items() if name != "prompt"}
    if (schema := params.pop("guided_json", None)) is not None:
        params["grammar"] = dp.Grammar.json(schema)
    if (pattern := params.pop("guided_regex", None)) is not None:
        params["grammar"] = dp.Grammar.regex(pattern)
    return [one.text for one in llm.generate(body["prompt"], dp.SamplingParams(**params))]


async def read(client: httpx.AsyncClient, body: Body) -> list[str]:
    """The texts of an answer, whole or in parts. Raises `ValueError` where it is none."""
    texts = [""] * body.get("n", 1)
    if not body["stream"]:
        answer = await client.post("/v1/completions", json=body)
        if answer.status_code != 200:
            raise ValueError(f"{answer.status_code}: {answer.text[:200]}")
        return [choice["text"] for choice in answer.json()["choices"]]
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
    if not lines or lines[-1] != "data: [DONE]":
        raise ValueError(f"a stream ended with {lines[-1:] or 'nothing'}")
    for line in lines[:-1]:
        for choice in json.loads(line[6:]).get("choices") or ():
            texts[choice["index"]] += choice["text"]
    return texts


async def call(
    client: httpx.AsyncClient, rng: random.Random, body: Body, want: list[str], into: Quarter
) -> None:
    """One of them, with what must not change its text."""
    sent = body | {"stream": rng.random() < 0.5}
    if "guided_json" not in sent and "guided_regex" not in sent and rng.random() < 0.3:
        sent["prediction"] = {"type": "content", "content": want[0] or "a"}
    elif rng.random() < 0.2:
        sent["speculative"] = rng.choice([True, False, {"max_nodes": 2}])
    if rng.random() < 0.2:
        sent["cache_salt"] = str(rng.randrange(5))
    into.calls += 1
    try:
        if rng.random() < LEAVE:
            into.left += 1
            async with asyncio.timeout(rng.random() * LONGEST):
                await read(client, sent)
            return
        got = await read(client, sent)
    except TimeoutError:
        return
    except (ValueError, httpx.HTTPError) as error:
        into.lost += 1
        print(f"lost: {error!r} of {sent}", file=sys.stderr, flush=True)
        return
    if got != want:
        into.differ += 1
        print(f"differs: {got} is not {want} of {sent}", file=sys.stderr, flush=True)


async def counted(client: httpx.AsyncClient, process: int, into: Quarter) -> dict[str, int]:
    """What the server has counted since it began; what it holds is noted."""
    status = Path(f"/proc/{process}/status").read_text()
    held = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    into.memory.append(int(held["VmRSS"].split()[0]) / 1024)
    into.threads.append(int(held["Threads"]))
    into.files.append(len(list(Path(f"/proc/{process}/fd").iterdir())))
    text = (await client.get("/metrics")).text
    sums = dict.fromkeys(COUNTED, 0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in COUNTED:
                sums[sample.name] += int(sample.value)
    return sums


async def night(
    url: str,
    process: int,
    known: list[tuple[Body, list[str]]],
    minutes: float,
    clients: int,
    pause: float,
) -> list[Quarter]:
    quarters = [Quarter() for _ in range(QUARTERS)]
    began = time.monotonic()

    def now() -> Quarter | None:
        at = int((time.monotonic() - began) / (60 * minutes) * QUARTERS)
        return quarters[at] if at < QUARTERS else None

    async with httpx.AsyncClient(base_url=url, timeout=600) as client:

        async def calls(number: int) -> None:
            rng = random.Random(number)
            while (quarter := now()) is not None:
                await call(client, rng, *rng.choice(known), quarter)
                await asyncio.sleep(rng.random() * 2 * pause)

        async def watch() -> None:
            before = dict.fromkeys(COUNTED, 0)
            while (quarter := now()) is not None:
                after = await counted(client, process, quarter)
                for name, shown in COUNTED.items():
                    more = getattr(quarter, shown) + after[name] - before[name]
                    setattr(quarter, shown, more)
                before = after
                await asyncio.sleep(min(10.0, 60 * minutes / QUARTERS / 6))

        await asyncio.gather(watch(), *(calls(number) for number in range(clients)))
    return quarters


def main(
    model: str = "bundled",
    draft: str | None = None,
    minutes: float = 120.0,
    clients: Annotated[int, typer.Option(help="At once.")] = 8,
    pause: Annotated[float, typer.Option(help="Seconds between two calls of a client.")] = 0.5,
    runner: str = "auto",
    dtype: Annotated[str, typer.Option(help="Of the server, and of what it is held to.")] = "auto",
    threads: int = 2,
    kv_memory: Annotated[str, typer.Option(help="Of keys and values: full before long.")] = "512MB",
    port: int = 8797,
    out: Annotated[Path, typer.Option(help="JSON of the quarters.")] = Path(
        "bench-results/endurance.json"
    ),
) -> None:
    """Ask, compare, and tell by quarter."""
    rng = random.Random(0)
    if model == BUNDLED and dtype == "auto":  # as the commands choose, and `dp.LLM` does not
        dtype = demo.precision(None, runner)
    with dp.LLM(model, speculate=None, runner=runner, dtype=dtype, threads=threads) as llm:
        texts = [turn for each in prompts.load("humaneval", False)[:12] for turn in each.turns]
        texts += [texts[0] + "\n# " + "and so on, " * 40, "The sky. " * 30, "a"]
        known = [(body, wanted(llm, body)) for body in bodies(texts, rng, 64)]
    words = [sys.executable, "-m", "draftproof", "serve", model, "--runner", runner]
    words += ["--dtype", dtype, "--threads", str(threads), "--kv-memory", kv_memory]
    words += ["--draft", draft] if draft else []
    with served(words, port) as (url, process):
        quarters = asyncio.run(night(url, process, known, minutes, clients, pause))
    found = [quarter.told() for quarter in quarters]
    told(found, model, minutes)
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"machine": clock.machine(), "model": model, "draft": draft, "runner": runner}
    about |= {"dtype": dtype, "date": time.strftime("%Y-%m-%d", time.gmtime()), "minutes": minutes}
    out.write_text(json.dumps(about | {"clients": clients, "quarters": found}, indent=1) + "\n")
    wrong = sum(quarter.differ + quarter.lost for quarter in quarters)
    raise SystemExit(int(wrong > 0 or found[-1]["memory"] > GROWTH * found[1]["memory"]))


def told(quarters: list[Mapping[str, Any]], model: str, minutes: float) -> None:
    names = ("calls", "left", "differ", "lost", "tokens", "accepted", *HELD)
    table = Table("quarter", *names, title=f"{model}, {minutes:g} minutes")
    for number, quarter in enumerate(quarters, 1):
        rate = quarter["accepted"] / max(1, quarter["drafted"])
        values = {**quarter, "accepted": f"{rate:.0%}", "memory": f"{quarter['memory']:.1f} MiB"}
        table.add_row(str(number), *(str(values[name]) for name in names))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
