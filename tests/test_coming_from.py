"""Names that people bring from other libraries: answered with what to use here."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import draftproof as dp
from draftproof import foreign_names
from draftproof.drafting.base import Drafter
from spelling import model, tokenizer

DRAFTERS = [
    kind
    for name in dp.__all__
    if isinstance(kind := getattr(dp, name), type) and issubclass(kind, Drafter)
]
NEEDED: dict[type, dict[str, Any]] = {
    dp.DraftModel: {"model": "x"},
    dp.Medusa: {"heads": "bundled"},
    dp.ForeignDraft: {"model": "x", "tokenizer": object(), "target_tokenizer": object()},
    dp.Hybrid: {"parts": ["ngram"]},
    dp.SpecInfer: {"models": ["x"]},
    dp.Staged: {"model": "x", "drafter": dp.NGram()},
}
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "coming_from.md"


@pytest.fixture(scope="module")
def llm() -> Iterator[dp.LLM]:
    with dp.LLM(model(), tokenizer=tokenizer(), speculate=None) as made:
        yield made


@pytest.mark.parametrize("name", sorted(foreign_names.LLM))
def test_options_of_other_models(name: str) -> None:
    with pytest.raises(TypeError, match=f"LLM has no {name}: "):
        dp.LLM("bundled", **{name: 1})


@pytest.mark.parametrize("name", sorted(foreign_names.DRAFTERS))
@pytest.mark.parametrize("kind", DRAFTERS)
def test_options_of_other_drafts(kind: type, name: str) -> None:
    with pytest.raises(TypeError, match=f"{kind.__name__} has no {name}: "):
        kind(**{name: 1})


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_number_of_a_method_is_one(kind: type) -> None:
    numbers = {
        name
        for name, each in inspect.signature(kind).parameters.items()
        if str(each.annotation).removesuffix(" | None") in ("int", "float")
    }
    for name in numbers:
        for wrong in ("3", [3], True):
            with pytest.raises(ValueError, match=f"{name} is .*, but must be a"):
                kind(**{**NEEDED.get(kind, {}), name: wrong})


def test_a_number_of_an_llm_is_one() -> None:
    for name in ("max_batch", "max_length", "threads"):
        with pytest.raises(ValueError, match=f"{name} is '8', but must be an integer"):
            dp.LLM("bundled", **{name: "8"})
        with pytest.raises(ValueError, match=f"{name} is 2.5, but must be an integer"):
            dp.LLM("bundled", **{name: 2.5})


def test_a_switch_of_an_llm_is_one() -> None:
    for name in ("trust_remote_code", "prefix_cache", "cache_weights"):
        for wrong in ("no", 1, None):
            with pytest.raises(ValueError, match=f"{name} is {wrong!r}, but must be True or False"):
                dp.LLM("bundled", **{name: wrong})


def test_what_was_given_without_a_name() -> None:
    with pytest.raises(TypeError, match="LLM takes 1 without a name; by name: tokenizer="):
        dp.LLM("bundled", tokenizer(), speculate=None)
    with pytest.raises(ValueError, match=r"dp\.DraftModel\('Qwen/Qwen3-0\.6B'\)"):
        dp.LLM("bundled", speculate="Qwen/Qwen3-0.6B")
    with pytest.raises(TypeError, match=r"custom_generate has no assistant_model: .*DraftModel"):
        dp.custom_generate(assistant_model="x")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", sorted(foreign_names.SAMPLING))
def test_sampling_options(name: str, llm: dp.LLM) -> None:
    with pytest.raises(TypeError, match=f"SamplingParams has no {name}: "):
        dp.SamplingParams(**{name: 1})
    with pytest.raises(TypeError, match=f"LLM.generate has no {name}: "):
        llm.generate("x", **{name: 1})


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (call, name)
        for call in ("generate", "chat", "stream", "submit")
        for name in sorted(foreign_names.CALLS)
        if name not in inspect.signature(getattr(dp.LLM, call)).parameters
    ],
)
def test_options_of_a_call(call: str, name: str, llm: dp.LLM) -> None:
    with pytest.raises(TypeError, match=f"LLM.{call} has no {name}: "):
        getattr(llm, call)("x", **{name: 1})


@pytest.mark.parametrize(
    ("call", "name", "near"),
    [(dp.LLM, "spekulate", "speculate"), (dp.SamplingParams, "max_token", "max_tokens")],
)
def test_a_slip_of_the_pen(call: Any, name: str, near: str) -> None:
    with pytest.raises(TypeError, match=f"has no {name}: did you mean {near}?"):
        call(**{name: 1})


@pytest.mark.parametrize("name", sorted(foreign_names.MODULE))
def test_names_that_are_asked_of_the_package(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}': use dp[.]"):
        getattr(dp, name)
    with pytest.raises(AttributeError, match="dp.LLM"):
        _ = dp.LLM.from_pretrained  # type: ignore[attr-defined]


def test_a_name_of_the_package_that_is_nearly_one() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Ngram': did you mean NGram\?"):
        _ = dp.Ngram  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = dp.nothing  # type: ignore[attr-defined]


def test_no_hint_names_what_is_there() -> None:
    """A name that is an option here is not another library's."""
    assert not foreign_names.LLM.keys() & inspect.signature(dp.LLM).parameters.keys()
    own = inspect.signature(dp.SamplingParams).parameters.keys()
    assert not foreign_names.SAMPLING.keys() & own
    assert own <= foreign_names.CALLS.keys()


def test_every_hint_names_something_that_is_there(llm: dp.LLM) -> None:
    kinds = {"LLM": dp.LLM, "SAMPLING": dp.SamplingParams}
    for table, kind in kinds.items():
        options = inspect.signature(kind).parameters.keys()
        for hint in getattr(foreign_names, table).values():
            direct = re.findall(r"(?:use|with) (\w+)=", hint)
            assert {*direct} <= {*options, "custom_generate"}, hint
        for name in re.findall(r"dp\.(\w+)", " ".join(getattr(foreign_names, table).values())):
            assert name in dp.__all__
    (out,) = llm.generate("x", dp.SamplingParams(max_tokens=1, logprobs=0))
    for place, thing in {"Completion": out, "LLM": llm}.items():
        for hint in foreign_names.ATTRIBUTES[place].values():
            for name in re.findall(r"(?:use|and|in) (?:its )?\.(\w+)", hint):
                assert hasattr(thing, name), hint


def test_an_unknown_keyword_is_answered_with_those_that_there_are(llm: dp.LLM) -> None:
    with pytest.raises(TypeError, match="SamplingParams has no warmth: it has temperature=, top_k"):
        dp.SamplingParams(warmth=1)
    with pytest.raises(TypeError, match="LLM.chat has no mood: it has messages=, params=, tools="):
        llm.chat("hi", mood="good")


def test_a_method_of_ones_own_may_take_any_name() -> None:
    class Own(Drafter):
        def __init__(self, **options: int) -> None:
            self.options = options

    assert Own(warmth=1).options == {"warmth": 1}


def test_attributes(llm: dp.LLM) -> None:
    (out,) = llm.generate("x", dp.SamplingParams(max_tokens=2))
    for thing, place in ((out, "Completion"), (llm, "LLM")):
        for name, way in foreign_names.ATTRIBUTES[place].items():
            with pytest.raises(AttributeError) as caught:
                getattr(thing, name)
            assert str(caught.value) == f"{place} has no attribute {name!r}: {way}"
        assert not hasattr(thing, "nothing_of_the_kind")
    assert copy.deepcopy(out) == pickle.loads(pickle.dumps(out)) == out


def test_an_llm_is_not_called(llm: dp.LLM) -> None:
    with pytest.raises(TypeError, match=r"llm\.generate"):
        llm("x")


def rows() -> list[tuple[str, ...]]:
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    cells = [line.strip("|").split(" | ") for line in lines if line.startswith("| ")]
    return [tuple(cell.strip() for cell in row) for row in cells if row[0].strip() != "There"]


def test_the_tables_run(llm: dp.LLM) -> None:
    """Every constructor and call that stands there on our side, as code."""
    asked = {"prompt": "x", "text": "x", "messages": "hi", "params": dp.SamplingParams()}
    asked |= {
        "prompts": ["x", "y"],
        "texts": ["x", "y"],
        "draft": model(),
        "model": model(),
        "name": model(),
    }
    asked |= {"folder_or_name": model(), "tokenizer": tokenizer(), "dp": dp, "llm": llm}
    asked["completion"] = llm.generate("x", dp.SamplingParams(max_tokens=1))[0]
    ran = 0
    for _, ours in rows():
        for code in re.findall(r"`((?:dp|llm|completion)\.[^`]+)`", ours):
            code = re.sub(r"(max_length)=\d+", r"\1=64", code)
            if 'dtype="' in code:  # of a loaded model it is not changed
                assert re.search(r'dtype="(bfloat16|int8)"', code)
                continue
            made: Any = eval(code, dict(asked))
            ran += 1
            if isinstance(made, dp.LLM) and made is not llm:
                made.close()
    assert ran > 25
