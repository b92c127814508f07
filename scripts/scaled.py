"""The tables of docs/scale.md, of what benchmarks/scale/scale.py simulated.

Knows docs/scale/plan.json.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from measured import load, markdown


def plan() -> Any:
    return load("scale/plan")


def about() -> str:
    """What was simulated."""
    run = plan()
    said, curve = run["settings"], run["pass_s"]
    told = ", ".join(f"{rows}: {seconds / curve['1']:.2f}" for rows, seconds in curve.items())
    return (
        f"Simulated {run['date']} on the costs of `{run['costs_of']}`: a pass over one row takes "
        f"{1e3 * curve['1']:.1f} ms, and over more, in such passes, {told} (beyond what was "
        f"measured, by the shipped curve). Prompts of {said['prompt']} tokens, answers of "
        f"{said['tokens']}; {said['places']} places a replica; a draft's token costs "
        f"{said['price']:g} of a pass. Limits: {1e3 * said['first_limit_s']:,.0f} ms to the first "
        f"token, {1e3 * said['per_token_limit_s']:.0f} ms per token. Plain decoding sustains "
        f"{run['plain_calls_per_s']:.2f} calls a second.\n"
    )


def loads() -> str:
    """Calls a second within limits, by replicas and load."""
    rows = plan()["loads"]
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    found = {(row["replicas"], row["load"], row["policy"]): row for row in rows}
    pairs = dict.fromkeys((row["replicas"], row["load"]) for row in rows)
    lines = []
    for count, share in pairs:
        cells = [found[count, share, policy] for policy in policies]
        lines.append(
            [
                str(count),
                f"{share:.0%}",
                f"{cells[0]['rate']:.2f}",
                *[f"{cell['good_per_s']:.2f} ({cell['good']:.0%})" for cell in cells],
                f"{1e3 * cells[-1]['per_token_p50_s'] / (1e3 * cells[0]['per_token_p50_s']):.2f}",
            ]
        )
    last = "per token, controller's of plain's"
    return markdown(("replicas", "load", "arrive a second", *policies, last), lines)


def paying() -> str:
    """Tokens a second over plain decoding's."""
    rows = plan()["paying"]
    policies = [policy for policy in rows[0]["over"] if policy != "plain"]
    lines = [
        [
            row["kind"],
            str(row["clients"]),
            *[f"{row['over'][policy]:.2f}" for policy in policies],
            f"{row['drafting']:.0%}",
        ]
        for row in rows
    ]
    return markdown(("texts", "at once", *policies, "of its steps draft"), lines)


def costs() -> str:
    """A million tokens, by a machine's price."""
    rows = plan()["sustained"]
    prices = list(rows[0]["cost"])
    lines = [
        [
            row["policy"],
            f"{row['load']:.0%}",
            f"{row['calls_per_s']:.2f}",
            *["-" if row["cost"][each] is None else f"{row['cost'][each]:.2f}" for each in prices],
        ]
        for row in rows
    ]
    heads = [f"at {price} an hour" for price in prices]
    return markdown(("", "load", "calls a second of a replica", *heads), lines)


def routed() -> str:
    """Routing, where calls share the first tokens of their prompts."""
    lines = [
        [
            f"{row['load']:.0%}",
            row["route"],
            f"{row['cached']:.0%}",
            f"{row['good']:.0%}",
            f"{1e3 * row['first_p50_s']:,.0f}",
            f"{1e3 * row['first_p99_s']:,.0f}",
        ]
        for row in plan()["routed"]
    ]
    heads = ("load", "route", "of prompts cached", "within limits")
    return markdown((*heads, "first token p50, ms", "p99"), lines)


SCALED: dict[str, Callable[[], str]] = {
    "scale-about": about,
    "scale-loads": loads,
    "scale-paying": paying,
    "scale-costs": costs,
    "scale-routed": routed,
}
