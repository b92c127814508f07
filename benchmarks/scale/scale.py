"""A plan past one machine: `python benchmarks/scale/scale.py`, on measured costs of passes.

Requests per second within limits for 1 to 100 replicas at three loads; the controller, fixed
lengths and plain decoding; what a million tokens cost; where speculation stops paying; what routing
by prefix brings. Written to docs/scale/plan.json, which `scripts/figures.py` shows.

    --costs FILE    of `draftproof info MODEL --measure --json`, or a run of cpu_peers.py
    --own FILE      of own.py: what is not in that table
    --check FILE    of `draftproof load URL --out`: predicted against measured, for one replica

Simulated, but for the costs; `fleet` says what is left out.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fleet import AUTO, Call, Fleet, Route, Served, anyone, least, prefix
from machines import Machine, Own, read_costs, read_own

ROOT = Path(__file__).resolve().parents[2]
COSTS = ROOT / "docs" / "cpu_peers" / "passes-Llama-3.2-1B-bf16.json"
OUT = ROOT / "docs" / "scale" / "plan.json"
POLICIES: tuple[str | int, ...] = (0, 2, 4, 8, AUTO)
REPLICAS = (1, 3, 10, 100)
LOADS = (0.3, 0.6, 0.9)  # of what plain decoding can at most
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
KINDS = ("easy", "mixed", "hard", "hopeless")
MIX = ("easy", "mixed", "hard")  # of the texts that arrive, equally often
PROMPT, TOKENS = 64, 128
FIRST, PER_TOKEN = 40.0, 2.0  # limits, in passes over one row
GOOD = 0.9  # share of calls within limits that a load must keep
PRICES = (0.05, 0.2, 1.0, 4.0)  # of a machine, an hour
GROUPS, SHARED = 64, 256  # for routing: who shares the first tokens of a prompt, and how many
STEPS = 32  # of a twentieth of what plain decoding can: the highest load that is tried
WARM = 0.25  # of the calls, which find the queues empty


def name(policy: str | int) -> str:
    return "plain" if policy == 0 else AUTO if policy == AUTO else f"fixed {policy}"


def poisson(rate: float, count: int, seed: int, **more: Any) -> list[Call]:
    rng, due, calls = random.Random(seed), 0.0, []
    for number in range(count):
        due += rng.expovariate(rate)
        kind, group = rng.choice(MIX), rng.randrange(GROUPS)
        asked = {"prompt": PROMPT, "tokens": TOKENS, "kind": kind, "group": group} | more
        calls.append(Call(due=due, number=number, **asked))
    return calls


def summed(found: Sequence[Served], one: float) -> dict[str, float]:
    """Of what came after the warm-up: shares, rates a second and times in seconds."""
    counted = found[int(WARM * len(found)) :]
    seconds = counted[-1].call.due - counted[0].call.due  # of arrivals: nobody waits for the end
    good = sum(
        each.first_s <= FIRST * one and each.per_token_s <= PER_TOKEN * one for each in counted
    )
    firsts, per_token = ([getattr(e, n) for e in counted] for n in ("first_s", "per_token_s"))
    return {
        "good": good / len(counted),
        "good_per_s": good / seconds if seconds else 0.0,
        "first_p50_s": statistics.median(firsts),
        "first_p99_s": statistics.quantiles(firsts, n=100)[98],
        "per_token_p50_s": statistics.median(per_token),
    }


def paying(machine: Machine) -> list[dict[str, Any]]:
    """Tokens a second over plain decoding's, by kind of text and clients of one replica."""
    rows = []
    for kind in KINDS:
        for clients in CLIENTS:
            roomy = replace(machine, places=max(clients, 16))
            calls = [Call(0.0, PROMPT, TOKENS, kind, number=n) for n in range(max(24, 3 * clients))]
            rates, drafting = {}, 0.0
            for policy in POLICIES:
                fleet = Fleet(roomy, policy, 1)
                fleet.clients(clients, calls)
                (replica,) = fleet.replicas
                rates[name(policy)] = len(calls) * TOKENS / replica.now
                if policy == AUTO:
                    drafting = replica.steps["drafting"] / replica.steps.total()
            over = {policy: rate / rates["plain"] for policy, rate in rates.items()}
            rows.append({"kind": kind, "clients": clients, "over": over, "drafting": drafting})
    return rows


def most(machine: Machine) -> float:
    """Calls a second of one replica that is never idle, plainly."""
    calls = [Call(0.0, PROMPT, TOKENS, "mixed", number=n) for n in range(4 * machine.places)]
    fleet = Fleet(machine, 0, 1)
    fleet.clients(machine.places, calls)
    return len(calls) / fleet.replicas[0].now


def one_load(
    machine: Machine, policy: str | int, count: int, calls: Sequence[Call]
) -> dict[str, float]:
    return summed(Fleet(machine, policy, count, seed=1).run(calls), machine.costs.one)


def loads(machine: Machine, top: float, each: int, pool: Executor) -> list[dict[str, Any]]:
    """Calls within limits, by replicas, load and policy; the largest are begun first."""
    rows, running = [], []
    for count in reversed(REPLICAS):
        for load in LOADS:
            rate = load * top * count
            calls = poisson(rate, max(each * count, 300), 1)
            for policy in reversed(POLICIES):
                rows.append({"replicas": count, "load": load, "rate": rate, "policy": name(policy)})
                running.append(pool.submit(one_load, machine, policy, count, calls))
    rows = [row | each.result() for row, each in zip(rows, running, strict=True)]
    rank = [name(policy) for policy in POLICIES].index
    return sorted(rows, key=lambda row: (row["replicas"], row["load"], rank(row["policy"])))


def sustained(machine: Machine, top: float, each: int) -> list[dict[str, Any]]:
    """The highest load at which `GOOD` of the calls keep the limits, for ten replicas."""
    rows, count = [], 10
    for policy in POLICIES:
        keeps, fails = 0, STEPS  # in steps of a twentieth; halved as long as there is one between
        while fails - keeps > 1:
            step = (keeps + fails) // 2
            calls = poisson(step / 20 * top * count, each * count, seed=2)
            served = Fleet(machine, policy, count, seed=2).run(calls)
            if summed(served, machine.costs.one)["good"] < GOOD:
                fails = step
            else:
                keeps = step
        best = keeps / 20
        rate = best * top
        cost = {
            f"{price:g}": 1e6 * price / 3600 / (rate * TOKENS) if rate else None for price in PRICES
        }
        rows.append({"policy": name(policy), "load": best, "calls_per_s": rate, "cost": cost})
    return rows


def routed(machine: Machine, top: float, each: int) -> list[dict[str, Any]]:
    """Eight replicas whose calls share the first tokens of their prompts by groups."""
    sharing = replace(machine, shared=SHARED)
    rows, count = [], 8
    routes: dict[str, Route] = {"any": anyone, "least of two": least, "prefix": prefix}
    for load in (0.3, 0.5):
        calls = poisson(load * top * count, each * count, seed=3, prompt=SHARED + PROMPT)
        for title, route in routes.items():
            found = Fleet(sharing, AUTO, count, route, seed=3).run(calls)
            cached = 1 - sum(each.read for each in found) / sum(e.call.prompt for e in found)
            about = {"load": load, "route": title, "cached": cached}
            rows.append(about | summed(found, machine.costs.one))
    return rows


def asked(level: dict[str, Any], kind: str) -> list[Call]:
    """The calls of a measured load that were answered, in the order in which they were sent."""
    calls = []
    for each in sorted(level["answers"], key=lambda each: each["sent_ms"]):
        if each["fault"] is None:
            usage = each["usage"]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            read, due = max(1, usage["prompt_tokens"] - cached), each["due_ms"] / 1e3
            calls.append(Call(due, read, usage["completion_tokens"], kind, number=len(calls)))
    return calls


def checked(path: Path, machine: Machine, policy: str | int, kind: str) -> str:
    """Predicted against measured, for every load of `draftproof load`. Raises `ValueError`."""
    try:
        levels = json.loads(path.read_text(encoding="utf-8"))["levels"]
        loads = [asked(level, kind) for level in levels]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of draftproof load: give that of --out") from error
    lines = ["load                 tokens/s            first token p50, ms   per token p50, ms"]
    for level, calls in zip(levels, loads, strict=True):
        if not calls:
            raise ValueError(f"{level['level']}: no call was answered, so nothing can be compared")
        fleet = Fleet(machine, policy, 1)
        if level["rate"]:
            found, began = fleet.run(calls), calls[0].due
        else:
            found, began = fleet.clients(level["clients"], calls), 0.0
        seconds = max(each.end for each in found) - began
        pairs = (
            (sum(call.tokens for call in calls) / seconds, level["tokens_per_s"]),
            (1e3 * statistics.median(e.first_s for e in found), level["first_token_ms"]["p50"]),
            (1e3 * statistics.median(e.per_token_s for e in found), level["per_token_ms"]["p50"]),
        )
        told = [f"{ours:8.1f} / {theirs:8.1f} {ours / theirs:5.2f}" for ours, theirs in pairs]
        lines.append(f"{level['level'][:20]:20} {'  '.join(told)}")
    return "\n".join([*lines, "predicted / measured, and their ratio"])


def main(
    costs: Annotated[Path, typer.Option(help="What passes take: JSON.")] = COSTS,
    check: Annotated[
        Path | None, typer.Option(help="A measured load: `draftproof load --out`.")
    ] = None,
    policy: Annotated[str, typer.Option(help="Of --check: plain, controller, or a length.")] = "",
    kind: Annotated[
        str, typer.Option(help=f"Of the texts of --check: {', '.join(KINDS)}.")
    ] = "mixed",
    price: Annotated[float, typer.Option(help="A draft's token, in passes.")] = 0.1,
    places: Annotated[int, typer.Option(help="Texts at once of a replica (--max-batch).")] = 16,
    own: Annotated[Path | None, typer.Option(help="What own.py has measured: JSON.")] = None,
    each: Annotated[int, typer.Option(help="Calls of a replica, at least.")] = 40,
    out: Annotated[Path, typer.Option(help="Where the plan is written.")] = OUT,
) -> None:
    """A plan past one machine, simulated on measured costs of passes."""
    try:
        if price < 0:
            raise ValueError(f"--price is {price}: give 0 or more")
        if min(places, each) < 1:
            raise ValueError(f"--places is {places} and --each {each}: give 1 or more")
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r} is unknown: use {', '.join(KINDS)}")
        machine = Machine(read_costs(costs), places, price, read_own(own) if own else Own())
        if check is not None:
            if policy not in ("", "plain", AUTO) and not policy.isdecimal():
                raise ValueError(f"policy {policy!r} is unknown: use plain, {AUTO} or a number")
            chosen = policy if policy == AUTO else int(policy) if policy.isdecimal() else 0
            print(checked(check, machine, chosen, kind))
            return
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    top = most(machine)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        others = {
            part.__name__: pool.submit(part, *given)
            for part, given in (
                (paying, (machine,)),
                (sustained, (machine, top, each)),
                (routed, (machine, top, each)),
            )
        }
        parts = {"loads": loads(machine, top, each, pool)}
        parts |= {title: running.result() for title, running in others.items()}
    found = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "costs_of": costs.stem,
        "pass_s": {rows: machine.costs.seconds(rows) for rows in (1, 4, 8, 16, 32, 64)},
        "settings": {
            "prompt": PROMPT,
            "tokens": TOKENS,
            "places": places,
            "price": price,
            "own_s": asdict(machine.own),
            "first_limit_s": FIRST * machine.costs.one,
            "good": GOOD,
            "groups": GROUPS,
            "per_token_limit_s": PER_TOKEN * machine.costs.one,
            "shared": SHARED,
        },
        "plain_calls_per_s": top,
        **parts,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"written: {out}; python scripts/figures.py shows it")


if __name__ == "__main__":
    typer.run(main)
