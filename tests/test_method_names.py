"""Methods by name: lists, merged ones, what they are given, and what is said of a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from draftproof import methods
from draftproof.heads import files
from draftproof.heads.module import Heads

NOTHING: dict[str, Any] = {"draft": None, "heads": None}
DRAFT: dict[str, Any] = {"draft": "D", "heads": None}
FREE = ["auto", "ngram", "suffix", "lookahead", "early-exit"]


@pytest.mark.parametrize(
    ("values", "sources", "names"),
    [
        ([], NOTHING, []),
        ([], DRAFT, ["draft"]),
        (["none"], NOTHING, ["none"]),
        (["ngram,suffix"], NOTHING, ["ngram", "suffix"]),
        (["ngram", "suffix"], NOTHING, ["ngram", "suffix"]),
        (["suffix + ngram", "none"], NOTHING, ["suffix+ngram", "none"]),
        (["ngram+suffix,suffix", "suffix+ngram"], NOTHING, ["ngram+suffix", "suffix"]),
        (["ngram+ngram"], NOTHING, ["ngram"]),
        (["ngram,"], NOTHING, ["ngram"]),
        (["all"], NOTHING, FREE),
        (["none,all"], DRAFT, ["none", *FREE, "draft", "staged", "specinfer"]),
        (["all", "ngram+draft"], DRAFT, [*FREE, "draft", "staged", "specinfer", "ngram+draft"]),
        (["ngram"], DRAFT, ["ngram", "draft"]),
        (["ngram+staged"], DRAFT, ["ngram+staged"]),
    ],
)
def test_lists(values: list[str], sources: dict[str, Any], names: list[str]) -> None:
    assert methods.listed(values, sources) == names
    assert methods.listed(names, sources) == names


def test_a_source_may_stay_idle() -> None:
    assert methods.listed(["ngram"], DRAFT, idle=True) == ["ngram"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("ngarm", "method 'ngarm' is unknown: did you mean ngram?"),
        ("N_Gram", "did you mean ngram?"),
        ("ngram+SuffixAutomaton", "did you mean suffix?"),
        ("early_exit", "did you mean early-exit?"),
        ("xyz", "method 'xyz' is unknown: use none, auto, ngram, suffix, lookahead"),
        ("ngram+", "method '' is unknown"),
        ("ngram+all", "all lists methods to be compared"),
        ("eagle3", "did you mean medusa?"),
        ("prompt_lookup", "did you mean ngram?"),
        ("", "no method is named"),
        (" , ", "no method is named"),
        ("ngram+none", "method none contradicts ngram"),
        ("draft", "method draft needs a model: add --draft MODEL"),
        ("foreign", "add --draft MODEL --any-tokenizer, which this command does not have"),
        ("ngram+medusa", "method medusa needs heads: add --heads FOLDER"),
    ],
)
def test_what_is_refused(value: str, says: str) -> None:
    with pytest.raises(ValueError) as error:
        methods.listed([value], NOTHING)
    assert says in str(error.value)


def test_an_option_that_a_command_has_is_advised() -> None:
    with pytest.raises(ValueError, match="add --draft MODEL --any-tokenizer$"):
        methods.listed(["foreign"], {**NOTHING, "foreign": None})


def test_merged_ones() -> None:
    made = methods.named("ngram+draft", DRAFT, num_draft_tokens=3, branch=2)
    assert isinstance(made, dp.Hybrid)
    look_up, draft = made.parts
    assert isinstance(look_up, dp.NGram) and look_up.num_draft_tokens == 3
    assert isinstance(draft, dp.DraftModel)
    assert isinstance(methods.merged([], NOTHING), dp.Auto)
    assert methods.merged(["none"], NOTHING) is None
    assert isinstance(methods.merged(["ngram"], NOTHING), dp.NGram)
    assert isinstance(methods.merged(["ngram,suffix"], NOTHING), dp.Hybrid)
    with pytest.raises(ValueError, match="method none contradicts ngram"):
        methods.merged(["none", "ngram"], NOTHING)
    with pytest.raises(ValueError, match="--branch is no option of ngram.suffix"):
        methods.merged(["ngram+suffix"], NOTHING, branch=2)


PAIR = ["NGram", "SuffixAutomaton"]


@pytest.mark.parametrize(
    "speculate",
    [
        "ngram+suffix",
        ["ngram", "suffix"],
        ["ngram", dp.SuffixAutomaton(), None],
        dp.Hybrid(["ngram", "suffix"]),
        dp.Hybrid([dp.NGram(), "suffix"], max_nodes=9),
    ],
)
def test_names_in_python(speculate: Any) -> None:
    plain = tiny.model("llama")
    prompt, params = [7, 8, 9, 7, 8, 9, 7, 8], dp.SamplingParams(max_tokens=12)
    (want,) = dp.LLM(plain, speculate=None).generate([prompt], params)
    for _ in range(2):  # what was given is as good a second time
        with dp.LLM(plain, speculate=speculate) as llm:
            (got,) = llm.generate([prompt], params)
        assert got.token_ids == want.token_ids and got.stats.drafted
        made = methods.resolve(speculate)
        assert isinstance(made, dp.Hybrid)
        assert [type(part).__name__ for part in made.parts] == PAIR


@pytest.mark.parametrize(
    ("speculate", "says"),
    [
        (dp.NGram, r"speculate=NGram is a class: write speculate=dp.NGram\(\)"),
        (dp.DraftModel, r"write speculate=dp.DraftModel\('name or folder'\)"),
        ([dp.NGram(), dp.Medusa], r"write speculate=dp.Medusa\('folder of heads'\)"),
        (dp.Hybrid, r"write speculate=Hybrid\(...\)"),
        (dp.Hybrid(["ngram", "sufix"]), "did you mean suffix?"),
        (dp.Hybrid(["draft"]), r"needs a model: speculate=dp.DraftModel\('name or folder'\)"),
        ("ngram,suffix", "method 'ngram,suffix' is unknown"),
        (7, "speculate takes None, a method's name, a proposer or a list"),
    ],
)
def test_what_python_refuses(speculate: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        methods.resolve(speculate)


def test_names_inside_of_another_method() -> None:
    model = tiny.model("llama")
    staged = dp.Staged(model, dp.Hybrid(["ngram", "suffix"]))
    with pytest.raises(ValueError, match="takes no names: replace 'ngram'"):
        dp.LLM(model, speculate=staged)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda model: dp.Staged(dp.NGram(), dp.NGram()), "a draft is a model, and NGram a method"),
        (lambda model: dp.SpecInfer([dp.NGram()]), "and NGram a method: give a model's name"),
        (lambda model: dp.Staged(model, "ngram"), r"method such as dp.NGram\(\), and no str"),
        (lambda model: dp.Staged(model, model), r"no LlamaForCausalLM: of a model write dp.Draft"),
    ],
)
def test_a_method_is_no_model_and_a_model_no_method(make: Callable[[Any], Any], says: str) -> None:
    model = tiny.model("llama")
    with pytest.raises(ValueError, match=says) as caught:
        dp.LLM(model, speculate=make(model))
    assert "\n" not in str(caught.value)


def test_one_draft_is_a_list_of_one() -> None:
    """By name it would be a list of letters."""
    model = tiny.model("llama")
    assert dp.SpecInfer("bundled-mender").models == ["bundled-mender"]
    assert dp.SpecInfer(Path("folder")).models == [Path("folder")]
    assert dp.SpecInfer(model).models == [model]
    assert dp.SpecInfer((model, "bundled")).models == [model, "bundled"]
    with pytest.raises(ValueError, match="at least one draft"):
        dp.SpecInfer(())


def test_what_methods_ask_for(tmp_path: Path) -> None:
    head = Heads(torch.zeros(1, 1, 48, 48), vocab_size=tiny.VOCABULARY, exit=2)
    files.save(tmp_path, head)
    exits = {"draft": None, "heads": tmp_path}
    assert methods.needed(["ngram+draft", "staged"], {}) == {"draft"}
    assert methods.needed(["early-exit"], NOTHING) == set()
    assert methods.needed(["early-exit+ngram"], exits) == {"heads"}
    assert methods.listed(["all"], exits) == FREE


def test_every_method_says_how_it_is_written() -> None:
    for name, method in methods.METHODS.items():
        if method.needs is None:
            made = eval(method.python, {"dp": dp})
            assert type(made) is type(methods.named(name))
        else:
            assert getattr(dp, method.python.removeprefix("dp.").partition("(")[0])
