"""What cannot be followed is refused in a sentence, in time, and the engine goes on."""

from __future__ import annotations

import gc
import json
import threading
import time
from functools import cache
from typing import Any

import pytest
import torch

import draftproof as dp
from draftproof.drafting.lawful import lawful
from draftproof.grammars import compiling
from draftproof.grammars.guide import Guide
from draftproof.sampling import NoCandidate
from draftproof.sampling import grammars as specified
from draftproof.tree import TokenTree
from laws import small

PLAIN = dp.SamplingParams(max_tokens=8)
DEEP = 3000


@cache
def llm() -> dp.LLM:
    return dp.LLM("bundled", speculate="ngram")


def bound(grammar: dp.Grammar, **options: Any) -> dp.Completion:
    return llm().generate("x = ", dp.SamplingParams(grammar=grammar, **options))[0]


def ids(text: str) -> list[int]:
    return list(llm().tokenizer(text, add_special_tokens=False)["input_ids"])


def chained(count: int) -> str:
    """Rules that each refer to the next: a compiler that recurses needs a large stack."""
    rules = "\n".join(f"a{i}: a{i + 1}" for i in range(count))
    return f'start: a0\n{rules}\na{count}: "x"'


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: dp.Grammar.json("{"), "no JSON"),
        (lambda: dp.Grammar.json([1]), "is an object"),
        (lambda: dp.Grammar.json({"const": float("nan")}), "cannot be written as JSON"),
        (lambda: dp.Grammar.json({"const": {1, 2}}), "cannot be written as JSON"),
        (lambda: dp.Grammar.json("[" * 100_000), "no JSON"),
        (lambda: dp.Grammar.json({"enum": ["x" * 1_000_000]}), "bytes, and at most"),
        (lambda: dp.Grammar.regex("\ud800"), "half a character"),
        (lambda: dp.Grammar.regex(5), "written as text"),  # type: ignore[arg-type]
        (lambda: dp.Grammar.choice([]), "at least one"),
        (lambda: dp.Grammar.choice("yes"), "list of texts"),
        (lambda: dp.Grammar.choice(["a", ""]), "none of them empty"),
        (lambda: dp.Grammar("yaml", "a: 1"), "is unknown"),
        (lambda: dp.SamplingParams(grammar="a+"), "must be a dp.Grammar"),  # type: ignore[arg-type]
    ],
)
def test_what_has_not_the_form_of_a_grammar(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (dp.Grammar.json({"type": "thing"}), "Invalid type"),
        (dp.Grammar.json({"enum": []}), "Unsatisfiable"),
        (dp.Grammar.json({"allOf": [{"type": "string"}, {"type": "array"}]}), "Unsatisfiable"),
        (dp.Grammar.json({"$ref": "#"}), "no text that it allows"),
        (dp.Grammar.json({"$ref": "http://localhost/a"}), "not present"),
        (dp.Grammar.json({"not": {"type": "string"}}), "Unimplemented"),
        (dp.Grammar.json({"type": "string", "pattern": "(?=a)b"}), "look-around"),
        (dp.Grammar.json('{"items":' * 500 + "{}" + "}" * 500), "recursion limit"),
        (dp.Grammar.regex("(("), "regex"),
        (dp.Grammar.regex("(" * DEEP + "a" + ")" * DEEP), "regex"),
        (dp.Grammar.lark(""), "Empty grammar"),
        (dp.Grammar.lark("foo bar"), "Expected"),
        (dp.Grammar.lark("start: start"), "no text that it allows"),
        (dp.Grammar.lark("start: " + "(" * DEEP + '"a"' + ")" * DEEP), "nested"),
        (dp.Grammar.gbnf('root = "x"'), "Expected ::="),
        (dp.Grammar.gbnf("root ::= " + "(" * DEEP + '"a"' + ")" * DEEP), "nests too deep"),
    ],
    ids=lambda each: each.kind if isinstance(each, dp.Grammar) else None,
)
def test_what_does_not_compile(grammar: dp.Grammar, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        bound(grammar)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    assert llm().generate("x = ", PLAIN)[0].error is None


def test_rules_that_refer_to_one_another_do_not_end_the_process() -> None:
    schema = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(6000)}
    schema["a6000"] = {"type": "string"}  # type: ignore[dict-item]
    for grammar in (
        dp.Grammar.lark(chained(15_000)),
        dp.Grammar.json({"$ref": "#/$defs/a0", "$defs": schema}),
    ):
        try:
            assert bound(grammar, max_tokens=4).error is None
        except ValueError as error:  # on a machine that has no second for it
            assert "to compile" in str(error)


def test_what_takes_long_to_compile_is_left_and_others_write_meanwhile() -> None:
    llm().generate("x = ", dp.SamplingParams(grammar=dp.Grammar.regex("a"), max_tokens=2))
    slow = dp.Grammar.json({"allOf": [{"type": "string", "pattern": f"a{i}"} for i in range(900)]})
    wrote: list[float] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            llm().generate("x = ", PLAIN)
            wrote.append(time.monotonic())

    thread = threading.Thread(target=write)
    thread.start()
    began = time.monotonic()
    with pytest.raises(ValueError, match="1 s to compile: make it simpler"):
        bound(slow)
    ended = time.monotonic()
    stop.set()
    thread.join()
    assert not [each for each in threading.enumerate() if each.name == "draftproof grammar"]
    assert bound(dp.Grammar.regex("ab?c"), max_tokens=4).error is None  # it was ended: others go on
    assert sum(began < at < ended for at in wrote) > 1


def test_a_trial_that_ends_its_process() -> None:
    """As one that takes all the memory that a trial may have."""
    other = dp.LLM(llm(), speculate=None)
    other.intake.grammars.compile(dp.Grammar.regex("a"))
    judge = other.intake.grammars._compiler._judge
    judge._process.kill()
    with pytest.raises(ValueError, match="takes more memory to compile"):
        other.intake.grammars.compile(dp.Grammar.regex("b"))
    other.intake.grammars.compile(dp.Grammar.regex("b"))
    process = judge._process
    del other, judge
    gc.collect()
    assert process.poll() is not None  # it ends with the model


def test_only_a_few_are_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    other = dp.LLM(llm(), speculate=None)  # whose grammars are its own
    other.intake.grammars.compile(dp.Grammar.regex("a"))
    monkeypatch.setattr(compiling, "SECONDS", 0.05)
    free = threading.Event()

    def waits(source: str) -> str:
        free.wait(60)
        return '{"grammars": []}'

    monkeypatch.setitem(compiling.WRITTEN, "lark", waits)
    try:
        for number in range(compiling.AT_ONCE):
            with pytest.raises(ValueError, match="make it simpler"):
                other.intake.grammars.compile(dp.Grammar.lark(f"start: {number}"))
        with pytest.raises(ValueError, match="try again in a second"):
            other.intake.grammars.compile(dp.Grammar.regex("never seen"))
    finally:
        free.set()
    monkeypatch.undo()
    params = dp.SamplingParams(grammar=dp.Grammar.regex("never seen"))
    assert other.generate("x = ", params)[0].text == "never seen"


@pytest.mark.parametrize("speculate", [None, "ngram", "lookahead"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bans_that_leave_nothing_end_that_request_alone(
    speculate: str | None, temperature: float
) -> None:
    banned = [i for text in "0123456789" for i in ids(text)]
    every = [
        dp.SamplingParams(max_tokens=12, temperature=temperature, seed=1),
        dp.SamplingParams(
            grammar=dp.Grammar.regex("[ab]{2}[0-9]"),
            bad_token_ids=banned,
            max_tokens=12,
            temperature=temperature,
            seed=1,
        ),
        dp.SamplingParams(
            grammar=dp.Grammar.regex("x?"), min_tokens=9, max_tokens=12, temperature=temperature
        ),
    ]
    with dp.LLM(llm(), speculate=speculate) as other:
        free, bans, least = other.generate(["x = "] * 3, every)
        other.engine.check()
        assert free.token_ids == other.generate("x = ", every[0])[0].token_ids
    assert free.error is None and bans.finish_reason == "error"
    assert bans.error is not None and "the grammar allows" in bans.error
    assert len(bans.text) == 2 and {*bans.text} <= {*"ab"}
    assert least.text in ("", "x")  # a complete grammar ends a text, however short
    assert least.finish_reason in ("stop", "error")


def test_a_grammar_that_cannot_end_is_cut_at_the_length() -> None:
    endless = {"type": "array", "items": {"$ref": "#"}, "minItems": 1}
    done = bound(dp.Grammar.json(endless), max_tokens=20)
    assert (done.finish_reason, len(done.token_ids)) == ("length", 20)


def test_a_model_without_a_tokenizer() -> None:
    with dp.LLM(small(0), speculate=None) as other:
        params = dp.SamplingParams(grammar=dp.Grammar.regex("a"))
        with pytest.raises(ValueError, match="a grammar needs a tokenizer"):
            other.generate([1, 2], params)


def test_an_interrupt_in_a_matcher_is_made_good() -> None:
    """Whatever state it was left in, the next question begins from what was written."""
    matcher = llm().intake.grammars.compile(dp.Grammar.regex("[ab]{40}"))
    guide = Guide(matcher, (), ())
    (a,), (b,) = ids("a"), ids("b")
    assert guide.valid([a], [b, a]) == 2
    guide._matcher.try_consume_tokens([b, b, b])  # and then the interrupt came
    guide._whole = False
    assert guide.allows([a, b], [a], b)
    assert [guide.valid([a] * n, [a] * 50) for n in (38, 40, 2)] == [2, 0, 38]


def test_white_space_is_bounded() -> None:
    matcher = llm().intake.grammars.compile(dp.Grammar.json({"type": "array", "maxItems": 0}))
    space, line = ids("[ ]"), ids("\n")
    assert matcher.validate_tokens(space) == len(space)
    assert matcher.validate_tokens(ids("[") + line * 50) == len(ids("[")) + 40


def test_sizes_are_told() -> None:
    most = specified.MOST
    assert dp.Grammar.regex("a" * most).source
    with pytest.raises(ValueError, match=f"{most + 1:,} bytes"):
        dp.Grammar.regex("a" * (most + 1))
    with pytest.raises(ValueError, match=f"^the grammar has {most + 10:,} bytes"):
        dp.Grammar.json({"const": "a" * (most - 3)})
    assert dp.Grammar.json(True) == dp.Grammar.json("true") == dp.Grammar.json({})
    with pytest.raises(ValueError, match="the schema false allows nothing"):
        dp.Grammar.json(False)
    assert json.loads(dp.Grammar.any_json().source) == {"type": "object"}
    assert repr(dp.Grammar.regex("b" * 99)).endswith("...')")


@pytest.mark.parametrize("speculate", [None, "ngram", "auto", "lookahead"])
def test_a_grammar_that_grows_too_large_ends_that_request_alone(speculate: str | None) -> None:
    """Found out in the middle of a text, by the target or by a draft."""
    wide = dp.Grammar.lark("start: " + " | ".join(f'"a" "{i}b" "c"' for i in range(6000)))
    every = [dp.SamplingParams(max_tokens=12), dp.SamplingParams(max_tokens=12, grammar=wide)]
    with dp.LLM(llm(), speculate=speculate) as other:
        free, bound = other.generate(["a = a a a a a a a", "a = a a a a a a a"], every)
        other.engine.check()
    assert free.error is None and len(free.token_ids) == 12
    assert bound.finish_reason == "error"
    assert bound.error is not None and "the grammar cannot be followed" in bound.error


def test_a_choice_may_be_long() -> None:
    texts = [f"value {i} of {i % 7}" for i in range(5000)]
    done = bound(dp.Grammar.choice(texts), temperature=1.0, seed=1)
    assert done.text in texts and done.finish_reason == "stop"


def test_drafts_of_a_grammar_that_can_no_longer_be_followed() -> None:
    class Failed(Guide):
        def _check(self) -> None:
            raise NoCandidate("no token can be picked: the grammar cannot be followed, too large")

    (request,) = llm().prepare("x = ", PLAIN)
    matcher = llm().intake.grammars.compile(dp.Grammar.regex("[ab]+"))
    request.follow_grammar(Failed(matcher, (), ()))
    tree = TokenTree([request.tokens[-1], 5, 6], [-1, 0, 0])
    assert len(lawful(request, tree)) == 1
    request.follow_grammar(Guide(matcher, (), ()))
    (a,) = ids("a")
    tree = TokenTree([request.tokens[-1], a, 6, a, a, a], [-1, 0, 0, 1, 2, 3])
    assert lawful(request, tree).tokens == [request.tokens[-1], a, a, a]
    drawn = TokenTree([request.tokens[-1], 6], [-1, 0], laws=torch.ones(2, 9))
    assert lawful(request, drawn) is drawn
