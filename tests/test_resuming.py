"""A text that was cut goes on: the same tokens, text, end and scores as if it had not been."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

import draftproof as dp
import native_models
import serving
import spelling
import tiny
from draftproof import fingerprints
from draftproof.runners.native import NativeRunner

PROMPT = "the quick brown"
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3},
    "penalised": {"temperature": 0.7, "seed": 4, "frequency_penalty": 0.9, "top_p": 0.9},
    "scored": {"temperature": 1.0, "seed": 5, "logprobs": 2, "prompt_logprobs": 1},
    "unended": {"temperature": 1.2, "seed": 6, "min_tokens": 20},
    "several": {"temperature": 1.0, "seed": 7, "n": 3},
}


@pytest.fixture(scope="module")
def llm() -> Any:
    with serving.llm() as made:
        yield made


def stopped(llm: dp.LLM, params: dict[str, Any]) -> dict[str, Any]:
    """With a stop string of several tokens, that the text comes to."""
    (whole,) = llm.generate(PROMPT, dp.SamplingParams(**{**params, "n": 1}))
    return params | {"stop": [whole.text[18:22]]}


@pytest.mark.parametrize("kind", [*KINDS, "stop"])
def test_it_goes_on_from_everywhere(llm: dp.LLM, kind: str) -> None:
    given = {"max_tokens": 30, **KINDS.get(kind, KINDS["sampled"])}
    if kind == "stop":
        given = stopped(llm, given)
    whole = llm.generate(PROMPT, dp.SamplingParams(**given))
    assert kind != "stop" or whole[0].finish_reason == "stop"
    longest, accepted = max(len(one.token_ids) for one in whole), 0
    for at in range(longest + 1):
        written = [one.token_ids[:at] for one in whole]
        params = dp.SamplingParams(**given, resume=written if len(whole) > 1 else written[0])
        for one, again in zip(whole, llm.generate(PROMPT, params), strict=True):
            assert (again.token_ids, again.text) == (one.token_ids, one.text)
            assert again.finish_reason == one.finish_reason
            assert "seed" not in given or again.seed == one.seed
            if one.logprobs is not None:
                assert again.logprobs[:at] == [{}] * at and again.prompt_logprobs is not None
                for new, old in zip(again.logprobs[at:], one.logprobs[at:], strict=True):
                    assert new == pytest.approx(old)
            accepted += again.stats.accepted
    assert accepted


def test_a_stream_goes_on(llm: dp.LLM) -> None:
    params = stopped(llm, {"temperature": 1.0, "seed": 3, "max_tokens": 30})
    chunks = [*llm.stream(PROMPT, dp.SamplingParams(**params))]
    for cut in range(len(chunks)):
        seen = [token for chunk in chunks[:cut] for token in chunk.token_ids]
        rest = [*llm.stream(PROMPT, dp.SamplingParams(**params, resume=seen))]
        for name in ("text", "token_ids"):
            one, other = ([*chain(*(getattr(e, name) for e in p))] for p in (chunks[cut:], rest))
            assert one == other, cut
        assert rest[-1].finish_reason == chunks[-1].finish_reason


def test_what_cannot_have_been_written(llm: dp.LLM) -> None:
    params: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 30}
    (whole,) = llm.generate(PROMPT, dp.SamplingParams(**params))
    ids, size = whole.token_ids, llm.intake.vocabulary
    refused: list[tuple[dict[str, Any], str]] = [
        ({"resume": [*ids[:3], size]}, f"token id {size} at position 3, and the vocabulary ends"),
        ({"resume": [*ids[:3], -1]}, "token id -1 at position 3"),
        ({"resume": ids, "max_tokens": 29}, "resume holds 30 tokens, and the text has to end"),
        ({"resume": ids[:6], "stop_token_ids": ids[4:5]}, "at position 5, and the text ended"),
        ({"resume": ids[:6], "stop": whole.text[:2]}, "and the text ended before it"),
        ({"resume": ids[:6], "bad_token_ids": ids[2:3]}, "at position 2, which bad_token_ids"),
        (
            {"resume": ids[:4], "stop_token_ids": ids[3:4], "min_tokens": 9},
            "at position 3, which min_tokens",
        ),
        ({"resume": ids[:2], "seed": None}, "needs the seed"),
        ({"resume": [ids, ids]}, "the tokens of 2 completions, and n is 1"),
        ({"resume": ids, "n": 2}, "the tokens of 1 completions, and n is 2"),
        ({"resume": "text"}, "must hold token ids"),
        ({"resume": ["text"]}, "must hold token ids"),
        ({"resume": 5}, "must hold token ids"),
    ]
    for more, said in refused:
        with pytest.raises(ValueError, match="resume") as told:
            llm.generate(PROMPT, dp.SamplingParams(**{**params, **more}))
        assert said in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("rule", ["rejection", dp.Typical()], ids=["rejection", "typical"])
def test_a_rule_under_which_texts_are_not_determined(llm: dp.LLM, rule: Any) -> None:
    with dp.LLM(llm, speculate=None, rule=rule) as other:
        ids = other.generate(PROMPT, dp.SamplingParams(max_tokens=6))[0].token_ids
        greedy = dp.SamplingParams(max_tokens=6, resume=ids[:3])
        assert other.generate(PROMPT, greedy)[0].token_ids == ids
        sampled = dp.SamplingParams(max_tokens=6, resume=ids[:3], temperature=1.0, seed=1)
        with pytest.raises(ValueError, match=r"cannot go on exactly under the rule.*'coupled'"):
            other.generate(PROMPT, sampled)


# --- where it may go on


def fingerprint(model: Any, **options: Any) -> str:
    with dp.LLM(model, **{"tokenizer": spelling.tokenizer(), **options}) as llm:
        return fingerprints.of(llm.runner, llm.tokenizer)


def test_what_tells_models_apart() -> None:
    model = serving.model()
    first = fingerprint(model)
    assert fingerprint(model, speculate=None, max_batch=3) == first
    others = [
        fingerprint(tiny.relative(model, 1e-3)),
        fingerprint(model, max_length=100),
        fingerprint(model, tokenizer=None),
        fingerprint(model.float()),
    ]
    model.double()
    assert len({first, *others}) == 5


def test_no_two_sets_of_kernels_pass_for_one() -> None:
    """They may differ by rounding, so what one began another one does not go on with."""
    made = [native_models.runner("llama", kernels=kernels) for kernels in native_models.sets()]
    told = [fingerprints.of(runner, None) for runner in made]
    assert len({*told}) == len(made) > 0
    assert told == [fingerprints.of(runner, None) for runner in made]


def test_threads_do_not_tell() -> None:
    packed = native_models.packed("llama", "bfloat16")
    made = [
        NativeRunner(native_models.model("llama"), packed=packed, team=native_models.team(threads))
        for threads in (1, 2)
    ]
    assert len({fingerprints.of(runner, None) for runner in made}) == 1


def test_what_is_asked_has_a_name_of_its_own() -> None:
    """Grammars by all of their text, of which what is shown is cut; and by the rule."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "x": "y" * 200}
    asked = [
        fingerprints.of_call([[5]], dp.SamplingParams(grammar=dp.Grammar.json(each)), rule)
        for each in (schema, schema | {"z": 1})
        for rule in ("coupled", "rejection")
    ]
    assert len({*asked}) == 4
