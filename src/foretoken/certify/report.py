"""A certificate as a table, as JSON, and its first defect as a script that shows it again."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any

from rich import box
from rich.table import Table

from foretoken.certify import Case, Certificate, law

SHOWN = 5  # defects that are told of


def table(certificate: Certificate) -> Table:
    """One row per method and rule."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    made.add_column("method")
    made.add_column("rule")
    for name in ("posi-\ntions", "tokens/\nstep", "accepted", "logits\ndiffer", "near-\nties"):
        made.add_column(name, justify="right")
    made.add_column("defects", justify="right")
    made.add_column("law,\nleast p", justify="right")
    for case in certificate.cases:
        whole = case.whole
        share = f"{whole.accepted / whole.drafted:.0%}" if whole.drafted else "-"
        smallest = min((test.p for test in case.laws), default=math.nan)
        made.add_row(
            case.method,
            case.rule,
            f"{whole.positions:,}",
            f"{whole.positions / whole.steps:.2f}" if whole.steps else "-",
            share,
            f"{whole.difference:.2g}",
            str(len(whole.near_ties)),
            str(len(whole.defects)),
            f"{smallest:.2g}" if case.laws else "-",
        )
    return made


def bound(certificate: Certificate) -> str:
    """One line: how far logits may be off, and why."""
    of = certificate.bound
    head = f"{certificate.runner} runner in {certificate.precision}: "
    if of.value == 0 and of.cap == 0:
        return head + "a row's bits do not depend on the pass, so no logit may differ at all"
    wider = "" if of.rounding is None else f", a wider precision by {of.rounding:.2g}"
    return (
        f"{head}logits may differ by {of.value:.2g} (blocks of tokens differ from single ones by "
        f"{of.blocks:.2g}{wider}; never more than {of.cap:.2g})"
    )


def laws(certificate: Certificate) -> str:
    """One line on the tests of law; empty where there were none."""
    if not certificate.tests:
        return ""
    return (
        f"law: {certificate.tests} chi-square tests of {law.TOKENS} tokens jointly; one of them "
        f"fails below p = {law.FALSE_ALARM / certificate.tests:.1g}, so that a sound engine fails "
        f"once in {1 / law.FALSE_ALARM:,.0f} certificates"
    )


def defects(certificate: Certificate) -> list[str]:
    """A line for each of the first defects."""
    lines = []
    for case, setting, one in certificate.defects[:SHOWN]:
        lines.append(
            f"{case.method}, {case.rule}, {setting}, prompt {one.number}, token {one.position}: "
            f"{one.cause} (plain {one.plain}, here {one.other}, logits off by {one.difference:.2g})"
        )
    for case, test in certificate.false_laws[:SHOWN]:
        lines.append(
            f"{case.method}, {case.rule}, {test.setting}, context {test.context}: {test.runs} runs "
            f"do not follow the target's law (p = {test.p:.1g}, {test.impossible} impossible)"
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
        "bound": asdict(certificate.bound),
        "law": {"false_alarm": law.FALSE_ALARM, "tests": certificate.tests},
        "cases": [_case(case, certificate.tests) for case in certificate.cases],
    }


def _case(case: Case, tests: int) -> dict[str, Any]:
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
        "laws": [asdict(test) | {"fails": test.fails(tests)} for test in case.laws],
    }


SCRIPT = '''"""What `foretoken certify` found: {where}.

Tokens or, where they agree, the log-probabilities that they were picked by must differ below.
"""

import foretoken as ft
from foretoken import methods

prompts = {prompts!r}
settings = {settings!r}
params = [ft.SamplingParams(**one, logprobs=5) for one in settings]
llm = ft.LLM({model!r}, dtype={dtype!r}, runner={runner!r}, rule={rule!r}, max_batch=len(prompts))
plain = llm.generate(prompts, params)
llm.use({speculate})
drafted = llm.generate(prompts, params)
for number, (one, two) in enumerate(zip(plain, drafted, strict=True)):
    ends = one.finish_reason, two.finish_reason
    same = one.token_ids == two.token_ids and ends[0] == ends[1]
    print("prompt", number, "same tokens" if same else "DIFFERENT", *ends)
    for at, (a, b) in enumerate(zip(one.logprobs, two.logprobs)):
        off = max((abs(a[i] - b[i]) for i in a.keys() & b.keys()), default=float("inf"))
        ids = one.token_ids[at], two.token_ids[at]
        if off or ids[0] != ids[1]:
            print("  token", at, *ids, "log-probabilities off by", off)
'''


def script(certificate: Certificate, how: dict[str, Any]) -> str | None:
    """Python that shows the first difference; None where there is none.

    how: what `LLM` takes, as `model`, `dtype` and `runner`; by method's name, the text of what
    `speculate` takes.
    """
    if not certificate.defects:
        return None
    case, setting, one = certificate.defects[0]
    where = f"{case.method}, {setting}, prompt {one.number}, token {one.position}: {one.cause}"
    settings = []
    for params in certificate.settings[setting]:
        default = type(params)()
        named = {f.name: getattr(params, f.name) for f in fields(params)}
        settings.append({k: v for k, v in named.items() if v != getattr(default, k)})
    return SCRIPT.format(
        where=where,
        prompts=certificate.prompts,
        settings=settings,
        rule=case.rule,
        speculate=how[case.method],
        **{name: how[name] for name in ("model", "dtype", "runner")},
    )
