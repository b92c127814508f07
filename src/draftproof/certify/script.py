"""The first defect of a certificate as a script that shows it again, by the same comparisons.

Knows the text of what makes models and methods, not what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from draftproof.certify import SETTINGS, Certificate
from draftproof.rules import named
from draftproof.sampling import SamplingParams

LOADED = '''"""Shows again what `draftproof certify` found, by the same comparisons.

It prints DIFFERENT where that is so, and what differs.
"""

import draftproof as dp
from draftproof import methods
from draftproof.certify import identity, law, plain, sampled

print({where!r})
llm = dp.LLM({model!r}, speculate=None, **{options!r})
speculate = {speculate}
'''
WRITTEN = """\
prompts = {prompts!r}
settings = {settings!r}
params = [dp.SamplingParams(**one) for one in settings]
bound = plain.Bound({bound!r}, 0.0, None, 0.0)  # how far logits may be off

drafting = dp.LLM(llm, speculate=speculate, rule={rule!r}, max_batch=len(prompts))
refs = plain.references(llm, prompts, params, lambda: None)  # plainly, one by one
ways = [(f"prompt {{ref.number}} alone", [ref]) for ref in refs] + [("all in one batch", refs)]
for way, group in ways:
    outcome = {examine}drafting, group, bound)
    print(way, "DIFFERENT" if outcome.defects else "nothing differs")
    for one in outcome.defects:
        print("  prompt", one.number, "token", one.position, one.cause)
        print("    plain", one.plain, "here", one.other, "logits off by", one.difference)
"""
DRAWN = """\
context = {context!r}
off = {bound!r}  # how far logits may be

drafting = dp.LLM(
    llm, speculate=speculate, rule="rejection", max_batch=law.BATCH, prefix_cache={cached}
)
runs = range({first}, {end})
test = law.test(drafting, 0, context, {setting!r}, runs, off, reads={reads!r})
print(
    "DIFFERENT" if test.fails({tests}) else "nothing differs",
    *(test.runs, "runs, p =", test.p, "impossible:", test.impossible, test.cause or ""),
)
"""


def text(
    certificate: Certificate, model: str, options: Mapping[str, Any], how: Mapping[str, str]
) -> str | None:
    """Python that shows the first defect; None where there is none.

    options: what `LLM` takes beside the model. how: by method's name, the text of what
    `speculate` takes.
    """
    if certificate.defects:
        case, setting, one = certificate.defects[0]
        where = f"{setting}, prompt {one.number}, token {one.position}: {one.cause}"
        draws = named(case.rule).wants_laws(SETTINGS[setting])
        body = WRITTEN.format(
            prompts=certificate.prompts,
            settings=[_given(params) for params in certificate.settings[setting]],
            bound=certificate.bound.value,
            rule=case.rule,
            examine="sampled.examine(llm, " if draws else "identity.examine(",
        )
    elif certificate.failed_laws:
        case, test = certificate.failed_laws[0]
        where = f"{test.setting}, context {test.context}: {test.cause or 'another law'}"
        body = DRAWN.format(
            context=test.ids,
            bound=certificate.bound.value,
            setting=test.setting,
            reads=test.reads,
            cached=not test.reads,
            first=test.seeds[0],
            end=test.seeds[1],
            tests=certificate.tests,
        )
    else:
        return None
    where = f"{case.method}, {case.rule}, {where}"
    speculate = how[case.method]
    return (
        LOADED.format(where=where, model=model, options=dict(options), speculate=speculate) + body
    )


def _given(params: SamplingParams) -> dict[str, Any]:
    """Its arguments, of those that are not the defaults."""
    default = SamplingParams()
    named = {f.name: getattr(params, f.name) for f in fields(params)}
    return {name: value for name, value in named.items() if value != getattr(default, name)}
