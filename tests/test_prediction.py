"""Predicted outputs: drafted from, never believed; the same text whatever is predicted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

import draftproof as dp
import tiny
from drafters import Eager
from draftproof.proposers.predicted import Predicted
from draftproof.request import Request
from laws import RUNS, WARPED, check_law
from proposing import PROMPTS, params, plain, target

MANY = 30  # tokens of an output


def predictions(output: list[int]) -> dict[str, list[int]]:
    """What may be thought to follow: the text, the text edited, and another one."""
    cut = len(output) // 2
    return {
        "right": output,
        "with an insertion": [*output[:cut], 3, 1, 4, *output[cut:]],
        "with a deletion": [*output[:cut], *output[cut + 4 :]],
        "with a change": [*output[:cut], 2, 7, *output[cut + 2 :]],
        "another": random.Random(1).choices(range(tiny.VOCABULARY), k=100),
        "one token": [output[0]],
        "nothing": [],
        "its end": output[-5:],
        "its last token alone": [output[-1]] * 50,
    }


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"frequency_penalty": 1.0}])
def test_no_prediction_changes_a_token(options: dict[str, Any]) -> None:
    outputs = plain(**options)
    kinds = list(predictions(outputs[0]))
    asked = [
        (prompt, params(**options, prediction=predictions(output)[kind]))
        for kind in kinds
        for prompt, output in zip(PROMPTS, outputs, strict=True)
    ]
    wanted = outputs * len(kinds)
    with dp.LLM(target(), speculate=Eager(), max_batch=3) as llm:
        done = llm.generate(*map(list, zip(*asked, strict=True)))
        llm.engine.check()
    assert [one.token_ids for one in done] == wanted
    assert not any(one.warnings for one in done)
    accepted = [one.stats.accepted for one in done]
    assert min(accepted[: len(PROMPTS)]) > MANY // 2  # of predictions that are right


def test_every_token_of_a_prediction_that_is_right_is_accepted() -> None:
    (output, *_) = plain()
    with dp.LLM(target(), speculate=Eager()) as llm:
        (done,) = llm.generate(PROMPTS[0], params(prediction=output))
    share = done.stats.decisions.sources["prediction"]
    assert done.stats.steps <= 3 and share.used == share.accepted == done.stats.accepted
    assert share.accepted >= MANY - 3


def test_behind_an_edit_it_drafts_again_within_eight_tokens() -> None:
    """Of twenty tokens of which one is another, all but a few of those behind it are accepted."""
    (output, *_) = plain()
    for at in range(4, 14, 3):
        wrong = [*output]
        wrong[at] = (wrong[at] + 1) % tiny.VOCABULARY
        with dp.LLM(target(), speculate=Eager()) as llm:
            (done,) = llm.generate(PROMPTS[0], params(prediction=wrong))
        assert done.token_ids == output
        behind = done.from_draft[at + 8 :]
        assert sum(behind) >= len(behind) - 2


def test_who_brings_none_has_no_such_source() -> None:
    with dp.LLM(target(), speculate=Eager("ngram")) as llm:
        first, second = llm.generate(PROMPTS[2:3] * 2, [params(), params(prediction=plain()[2])])
        assert "prediction" not in first.stats.decisions.sources
        assert second.stats.decisions.sources["prediction"].accepted > 10
        (alone,) = llm.generate(PROMPTS[0], params(prediction=plain()[0], speculate="prediction"))
        assert {*alone.stats.decisions.sources} == {"prediction"}


def test_completions_of_one_prompt_keep_their_own_places() -> None:
    asked = params(n=4, prediction=plain()[1])
    with dp.LLM(target(), speculate=None) as llm:
        wanted = [one.token_ids for one in llm.generate(PROMPTS[1], params(n=4))]
    with dp.LLM(target(), speculate=Eager()) as llm:
        done = llm.generate(PROMPTS[1], asked)
    assert [one.token_ids for one in done] == wanted
    assert done[0].stats.accepted > 10


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_text_that_was_cut_goes_on_at_its_place(cut: int) -> None:
    (output, *_) = plain()
    asked = params(prediction=output, resume=output[:cut])
    with dp.LLM(target(), speculate=Eager()) as llm:
        (done,) = llm.generate(PROMPTS[0], asked)
    assert done.token_ids == output
    assert done.stats.steps <= 3 and done.stats.accepted >= MANY - cut - 3


@pytest.mark.parametrize("prediction", [[0, 1, 2], [2, 2, 2, 2]])
@pytest.mark.parametrize("options", [{}, WARPED])
def test_the_law_under_rejection(prediction: list[int], options: dict[str, Any]) -> None:
    check_law("rejection", Eager(), RUNS, prediction=prediction, **options)


@pytest.mark.parametrize("rule", ["rejection", dp.Typical()])
def test_one_that_has_ended_keeps_no_other_from_drafting(rule: Any) -> None:
    """Where a source is settled before it is asked: one with nothing to say is out at once."""
    (output, *_) = plain(temperature=0.0)
    asked = params(prediction=output[:3], max_tokens=60, temperature=1e-3)
    with dp.LLM(target(), speculate=Eager(dp.NGram(min_ngram=1)), rule=rule) as llm:
        (done,) = llm.generate(PROMPTS[0], asked)
    assert done.token_ids[:3] == output[:3]
    assert done.stats.decisions.sources["prediction"].accepted >= 2
    assert done.stats.decisions.sources["ngram"].used > 5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prediction": 3}, "prediction is 3, but must hold token ids"),
        ({"prediction": [1.5]}, "prediction is 1.5"),
        ({"prediction": [1], "speculate": False}, "speculate=False rules out: drop one"),
        ({"prediction": [1], "speculate": "ngram"}, "speculate='ngram' rules out: drop one"),
        ({"prediction": [tiny.VOCABULARY]}, "prediction holds token id 97"),
        ({"prediction": [1] * 5000}, "prediction has 5000 tokens, and the context ends at"),
        ({"prediction": "text"}, "prediction needs a tokenizer"),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], said: str) -> None:
    with dp.LLM(target()) as llm, pytest.raises(ValueError, match=said):
        llm.generate(PROMPTS[0], params(**wrong))


@pytest.mark.parametrize("speculate", [None, "ngram", ["ngram", "suffix"]])
def test_where_nothing_drafts_from_it_it_is_refused(speculate: Any) -> None:
    with dp.LLM(target(), speculate=speculate) as llm:
        with pytest.raises(ValueError, match="prediction is drafted from by 'auto' alone"):
            llm.generate(PROMPTS[0], params(prediction=[1]))
        llm.generate(PROMPTS[0], params())


def test_one_as_long_as_the_context_is_taken() -> None:
    with dp.LLM(target(), max_length=64) as llm:
        llm.generate(PROMPTS[0], params(prediction=[1] * 64))
        with pytest.raises(ValueError, match="65 tokens, and the context ends at 64"):
            llm.generate(PROMPTS[0], params(prediction=[1] * 65))


def test_a_text_that_is_taken_back_has_its_place_anew() -> None:
    """As a draft's text is, whose tokens the target rejects."""

    def tree(request: Request, tokens: Sequence[int]) -> list[int]:
        request.tokens = [5, *tokens]
        (found,) = drafter.propose([request])
        return [*found.tokens[1:4]]

    drafter = Predicted()
    request = Request(0, [5], params(prediction=[]), seed=0)
    request.predicted = [1, 2, 3, 4, 5, 6, 7, 8]
    assert tree(request, [1, 2, 3]) == [4, 5, 6]
    request.rewinds += 1
    assert tree(request, [1]) == [2, 3, 4]
    assert tree(request, [1, 2]) == [3, 4, 5]
    drafter.release(request)
    assert tree(request, [1, 2, 3, 4]) == [5, 6, 7]
