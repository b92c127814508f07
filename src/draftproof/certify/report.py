"""A certificate as a table and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from draftproof.certify import Case, Certificate, chi_square, law

SHOWN = 5  # defects that are told of


def heading(
    certificate: Certificate, model: str, machine: str, prompts: Sequence[str], asked: int
) -> str:
    """One line on what was certified.

    machine: threads, processor. prompts: their sources. asked: how many there were of them.
    """
    noun = "prompt" if asked == 1 else "prompts"
    added = " with a part beside it in batches," if len(certificate.prompts) > asked else ","
    return (
        f"{model}: {certificate.runner} runner in {certificate.precision}, {machine}; "
        f"{asked} {noun} of {', '.join(prompts)}{added} seed {certificate.seed}"
    )


def table(certificate: Certificate) -> Table:
    """One row per method and rule."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    grid.add_column("method")
    grid.add_column("rule")
    for name in ("posi-\ntions", "tokens/\nstep", "accepted", "logits\ndiffer", "near-\nties"):
        grid.add_column(name, justify="right")
    grid.add_column("defects", justify="right")
    for name in ("law:\ndrafts", "least\np"):
        grid.add_column(name, justify="right")
    for case in certificate.cases:
        whole = case.whole
        share = f"{whole.accepted / whole.drafted:.0%}" if whole.drafted else "none"
        counted = [test.p for test in case.laws if certificate.idle(test) is None]
        grid.add_row(
            case.method,
            case.rule,
            f"{whole.positions:,}",
            f"{whole.positions / whole.steps:.2f}" if whole.steps else "-",
            share,
            f"{whole.difference:.2g}",
            str(len(whole.near_ties)),
            str(len(whole.defects)),
            _drafts(case),
            f"{min(counted):.2g}" if counted else "-",
        )
    return grid


def _drafts(case: Case) -> str:
    """The share of the tested tokens that a draft had."""
    if not case.laws:
        return "-"
    if not any(test.drafted for test in case.laws):
        return "none"
    tested = law.TOKENS * sum(test.runs for test in case.laws)
    return f"{sum(test.accepted for test in case.laws) / tested:.0%}"


def bound(certificate: Certificate) -> str:
    """One line: how far logits may be off, and why."""
    of = certificate.bound
    head = f"{certificate.runner} runner in {certificate.precision}: "
    if of.value == 0 and of.cap == 0:
        return head + "a row's bits do not depend on the pass, so no logit may differ at all"
    wider = "" if of.rounding is None else f", another precision by {of.rounding:.2g}"
    return (
        f"{head}logits may differ by {of.value:.2g} (blocks of tokens differ from single ones by "
        f"{of.blocks:.2g}{wider}; never more than {of.cap:.2g})"
    )


def laws(certificate: Certificate) -> str:
    """One line on the tests of law; empty where none counts."""
    if not certificate.counted:
        return ""
    seen = [certificate.sees(test) for test in certificate.counted if test.bins > 1]
    least, most = (f"{end:.2g}" for end in (min(seen, default=1.0), max(seen, default=1.0)))
    return (
        f"law: {certificate.tests} chi-square tests of {law.TOKENS} tokens jointly; one of them "
        f"fails below p = {law.FALSE_ALARM / certificate.tests:.1g}, so that a sound engine fails "
        f"once in {1 / law.FALSE_ALARM:,.0f} certificates; a law whose total variation from the "
        f"target's is {least if least == most else f'{least} to {most}'} is found in "
        f"{chi_square.POWER:.0%} of certificates"
    )


def idle(certificate: Certificate) -> list[str]:
    """A line for each method on what says nothing of drafts, and on what an interrupt left."""
    lines = []
    for case in certificate.cases:
        if certificate.interrupted is not None and case.unfinished is not None:
            lines.append(f"{case.method}, {case.rule}: only {case.unfinished} are finished")
        silent = [name for name, outcome in case.outcomes.items() if not outcome.drafted]
        if silent:
            lines.append(
                f"{case.method}, {case.rule}: nothing was drafted under {', '.join(silent)}"
            )
        causes = Counter(filter(None, map(certificate.idle, case.laws)))
        lines += [
            f"{case.method}, {case.rule}: {count} of {len(case.laws)} tests of law not exercised: "
            f"{cause}"
            for cause, count in causes.items()
        ]
    return lines


def defects(certificate: Certificate) -> list[str]:
    """A line for each of the first defects."""
    lines = []
    for case, setting, one in certificate.defects[:SHOWN]:
        lines.append(
            f"{case.method}, {case.rule}, {setting}, prompt {one.number}, token {one.position}: "
            f"{one.cause} (plain {one.plain}, here {one.other}, logits off by {one.difference:.2g})"
        )
    for case, test in certificate.failed_laws[:SHOWN]:
        what = f"{test.runs} runs do not follow the target's law (p = {test.p:.1g}, "
        what += f"{test.impossible} impossible)"
        lines.append(
            f"{case.method}, {case.rule}, {test.setting}, context {test.context}: "
            f"{what if test.cause is None else test.cause}"
        )
    return lines


def as_dict(certificate: Certificate, model: str) -> dict[str, Any]:
    """Everything, fit for JSON."""
    return {
        "model": model,
        "runner": certificate.runner,
        "precision": certificate.precision,
        "seed": certificate.seed,
        "prompts": len(certificate.prompts),
        "verdict": certificate.verdict,
        "code": certificate.code,
        "interrupted": certificate.interrupted,
        "bound": asdict(certificate.bound),
        "not_exercised": certificate.not_exercised,
        "law": {"false_alarm": law.FALSE_ALARM, "tests": certificate.tests},
        "cases": [_case(case, certificate) for case in certificate.cases],
    }


def _case(case: Case, certificate: Certificate) -> dict[str, Any]:
    def finite(entry: dict[str, Any]) -> dict[str, Any]:
        off = entry["difference"]
        return entry | {"difference": off if math.isfinite(off) else None}

    return {
        "method": case.method,
        "rule": case.rule,
        "settings": {
            setting: asdict(outcome)
            | {
                "difference": outcome.difference if math.isfinite(outcome.difference) else None,
                "near_ties": [finite(asdict(one)) for one in outcome.near_ties],
                "defects": [finite(asdict(one)) for one in outcome.defects],
            }
            for setting, outcome in case.outcomes.items()
        },
        "laws": [
            asdict(test)
            | {
                "fails": test.fails(certificate.tests),
                "idle": certificate.idle(test),
                "sees": certificate.sees(test) if test.bins > 1 else None,
            }
            for test in case.laws
        ],
    }
