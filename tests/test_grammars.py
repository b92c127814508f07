"""Outputs bound to grammars: valid, and the same whatever drafts and whoever writes beside."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema
import pytest

import draftproof as dp
from drafters import NATIVE, Eager
from draftproof.proposers.forced import Forced
from draftproof.tree import TokenTree

pytestmark = NATIVE  # the bundled model on torch is slow

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z_]{2,8}$"},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["list", "dict", None]},
        "items": {
            "type": "array",
            "maxItems": 2,
            "items": {"type": "object", "properties": {"x": {"type": "boolean"}}},
        },
    },
    "required": ["name", "count", "kind"],
    "additionalProperties": False,
}
SHORT = {"type": "array", "items": {"enum": ["a", "bb"]}, "minItems": 2, "maxItems": 4}
GRAMMARS = [
    dp.Grammar.json(SCHEMA),
    dp.Grammar.json(SHORT),
    dp.Grammar.regex(r"[a-c]{3,6} = \d{1,4}"),
    dp.Grammar.choice(
        ["return x/y", "return [z]", 'say "q" \\ \n-'],
    ),
    dp.Grammar.lark('start: item ("," item)*\nitem: "<" /[a-z]{1,3}/ ">"'),
    dp.Grammar.gbnf('root ::= "(" [0-9]+ ")" | "None"'),
    dp.Grammar.any_json(),
]
PROMPTS = ["def quick_sort(items):\n    ", "import json\n\nDATA = "]
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 40},
    {"temperature": 0.7, "repetition_penalty": 1.3},
]
METHODS: dict[str, Callable[[], Any]] = {
    "auto": lambda: "auto",
    "forced": Forced,
    "ngram": lambda: "ngram",
    "suffix": lambda: "suffix",
    "lookahead": lambda: "lookahead",
    "early-exit": lambda: dp.EarlyExit(2, min_confidence=0.0),
    "draft": lambda: dp.DraftModel("bundled", 4, min_confidence=0.0),
    "medusa": lambda: dp.Medusa("bundled"),
    "staged": lambda: dp.Staged("bundled", dp.NGram()),
    "specinfer": lambda: dp.SpecInfer(["bundled"]),
    "all": lambda: dp.Auto("ngram", "suffix", dp.DraftModel("bundled"), dp.Medusa("bundled")),
}


ALIKE = ("suffix", "lookahead", "early-exit", "specinfer")  # to another one of these


@cache
def plain() -> dp.LLM:
    return dp.LLM("bundled", speculate=None)


def asked() -> tuple[list[str], list[dp.SamplingParams]]:
    every = [
        (prompt, dp.SamplingParams(grammar=grammar, seed=7, max_tokens=40, **way))
        for prompt in PROMPTS
        for grammar in GRAMMARS
        for way in WAYS
    ]
    return [prompt for prompt, _ in every], [params for _, params in every]


@cache
def expected() -> list[dp.Completion]:
    """One after another: nothing drafts, and nobody writes beside."""
    return [plain().generate(*each)[0] for each in zip(*asked(), strict=True)]


def fits(done: dp.Completion, grammar: dp.Grammar) -> None:
    """What a matcher of another make says about a text that has ended by itself."""
    text = done.text
    assert done.error is None and not done.warnings
    if done.finish_reason == "length":
        assert len(done.token_ids) == 40
    elif grammar.kind == "json":
        jsonschema.validate(json.loads(text), json.loads(grammar.source))
    elif grammar.kind == "choice":
        assert text in json.loads(grammar.source)
    elif grammar.kind == "regex":
        assert re.fullmatch(grammar.source, text, re.ASCII)
    else:
        own = r"<[a-z]{1,3}>(,<[a-z]{1,3}>)*" if grammar.kind == "lark" else r"\([0-9]+\)|None"
        assert re.fullmatch(own, text)


def test_texts_are_valid_and_end_where_their_grammar_is_complete() -> None:
    for done, params in zip(expected(), asked()[1], strict=True):
        assert params.grammar is not None
        fits(done, params.grammar)
    ended = [done.finish_reason == "stop" for done in expected()]
    assert sum(ended) > len(ended) / 2


@pytest.mark.parametrize(
    ("method", "batch"),
    [
        pytest.param(method, batch, marks=[pytest.mark.slow] * (batch != 3 or method in ALIKE))
        for method in METHODS
        for batch in (1, 3, 8)
    ],
)
def test_speculation_changes_no_text(method: str, batch: int) -> None:
    with dp.LLM(plain(), speculate=METHODS[method](), max_batch=batch) as llm:
        done = llm.generate(*asked())
        llm.engine.check()
    for one, other in zip(done, expected(), strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        assert not one.error and not one.warnings
    if method not in ("auto", "all"):  # which may find that nothing pays
        assert sum(one.stats.accepted for one in done) > 0


@pytest.mark.parametrize("rule", ["rejection", dp.Typical()])
def test_other_rules_write_what_is_valid_too(rule: Any) -> None:
    prompts, params = asked()
    drafter = dp.Hybrid([dp.NGram(), dp.SuffixAutomaton()])
    for proposer in (dp.DraftModel("bundled", 4, min_confidence=0.0), drafter):
        with dp.LLM(plain(), speculate=proposer, rule=rule) as llm:
            for one, each in zip(llm.generate(prompts, params), params, strict=True):
                one.warnings.clear()  # that the rule is lossy
                assert each.grammar is not None
                fits(one, each.grammar)


def test_nothing_that_a_grammar_forbids_is_drafted() -> None:
    """Not one node of a method that drafts only what the grammar forbids, and is not asked."""

    class Stubborn:
        taps = ()

        def propose(self, requests: Any) -> list[TokenTree]:
            return [TokenTree.chain([r.tokens[-1], x, 9, 9]) for r in requests]

    llm = dp.LLM(plain(), speculate=Stubborn())
    (x,) = llm.tokenizer("x", add_special_tokens=False)["input_ids"]
    params = dp.SamplingParams(grammar=dp.Grammar.regex("[0-9]{2}x{40}"), max_tokens=12)
    (done,) = llm.generate("x = ", params)
    assert 0 < done.stats.drafted < done.stats.steps  # x alone, and not before the digits
    (free,) = llm.generate("x = ", dp.SamplingParams(max_tokens=12))
    assert free.stats.drafted > 2 * free.stats.steps


def test_completions_of_one_prompt_follow_their_grammar_each_for_itself() -> None:
    params = dp.SamplingParams(temperature=1.2, n=4, seed=1, grammar=dp.Grammar.json(SHORT))
    with dp.LLM(plain(), speculate="ngram", max_batch=2) as llm:
        done = llm.generate("x = ", params)
    assert len({one.text for one in done}) > 1
    for one in done:
        jsonschema.validate(json.loads(one.text), SHORT)


def test_what_is_written_on_behind_a_part_follows_the_grammar() -> None:
    (done,) = plain().generate("x = ", dp.SamplingParams(grammar=GRAMMARS[0], max_tokens=80))
    for cut in range(0, len(done.token_ids), 5):
        params = dp.SamplingParams(grammar=GRAMMARS[0], max_tokens=80)
        (request,) = plain().prepare("x = ", params)
        request.resume(done.token_ids[:cut])
        for _ in plain().engine.run([request]):
            pass
        assert request.completion().token_ids == done.token_ids


def test_an_end_token_is_allowed_where_the_grammar_may_end() -> None:
    params = dp.SamplingParams(temperature=2.0, seed=3, n=8, grammar=dp.Grammar.regex("[a-z]{2,}"))
    ends = set(plain().end_ids)
    done = plain().generate("x = ", params)
    stopped = [one for one in done if one.finish_reason == "stop"]
    assert stopped
    for one in stopped:
        assert one.token_ids[-1] in ends and len(one.text) >= 2
        assert not ends & {*one.token_ids[:-1]}


def test_what_a_grammar_forces_is_a_source_for_texts_that_follow_one() -> None:
    params = dp.SamplingParams(grammar=dp.Grammar.json(SCHEMA), max_tokens=60)
    with dp.LLM(plain(), speculate=Eager("ngram")) as llm:
        bound, free = llm.generate(PROMPTS[:1] * 2, [params, dp.SamplingParams(max_tokens=60)])
    forced = bound.stats.decisions.sources["forced"]
    assert forced.accepted > 2 and forced.accepted > 0.8 * forced.used
    assert "forced" not in free.stats.decisions.sources
    assert bound.token_ids == plain().generate(PROMPTS[0], params)[0].token_ids


@pytest.mark.parametrize("rule", ["rejection", dp.Typical()])
def test_where_a_seed_settles_the_tree_the_others_draft_as_ever(rule: Any) -> None:
    """Under these rules a choice by what is offered would change the text."""
    params = dp.SamplingParams(grammar=dp.Grammar.json(SCHEMA), temperature=0.8, seed=2)
    with dp.LLM(plain(), speculate=dp.Auto("ngram"), rule=rule) as llm:
        (done,) = llm.generate(PROMPTS[0], params)
    assert "forced" not in done.stats.decisions.sources
