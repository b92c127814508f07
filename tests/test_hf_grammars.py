"""`generate(custom_generate=...)` bound to a grammar, and with a prediction."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

import draftproof as dp
import spelling
import tiny
from generating import same

JSON = dp.Grammar.regex(r'\{"kind":"(a|bb|bcd)","size":[1-9]?[0-9],"on":(true|false)\}')
WORD = dp.Grammar.regex("[a-d]{3,9}(,[a-d]{2,4})*")
END = 2
TEXTS = ["make one: ", "and", "x = 1\ny"]
NEW = 64


@cache
def model(seed: int = 0) -> transformers.PreTrainedModel:
    size = len(spelling.tokenizer())
    return tiny.model("llama", seed, vocab_size=size, max_position_embeddings=256)


def inputs(batch: int) -> dict[str, Tensor]:
    tokenizer = spelling.tokenizer()
    tokenizer.padding_side = "left"
    return dict(tokenizer(TEXTS[:batch], padding=True, return_tensors="pt"))


class Twin(transformers.LogitsProcessor):
    """The mask of a matcher that reads every text from its beginning."""

    def __init__(self, grammars: list[dp.Grammar], width: int) -> None:
        tokenizer: Any = spelling.tokenizer()
        table = LLTokenizer(tokenizer.backend_tokenizer.to_str(), eos_token=END)
        regexes = [LLMatcher.grammar_from_regex(one.source) for one in grammars]
        self.starts = [LLMatcher(table, regex) for regex in regexes]
        self.width = width

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        for row, start in enumerate(self.starts):
            matcher, written = start.deep_copy(), input_ids[row, self.width :].tolist()
            if END in written:
                continue
            assert matcher.try_consume_tokens(written) == len(written)
            keep = torch.tensor([*matcher.compute_logit_bias()][: scores.shape[1]]) > 0
            keep[END] = matcher.is_accepting()
            scores[row, ~keep] = -torch.inf
        return scores


def ours(batch: int, loop: Any, **options: Any) -> Any:
    usual = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": END}
    usual |= {"tokenizer": spelling.tokenizer(), "custom_generate": loop}
    return model().generate(**{**inputs(batch), **usual, **options})


def theirs(batch: int, grammars: list[dp.Grammar], **options: Any) -> Tensor:
    given = inputs(batch)
    twin = Twin(grammars, given["input_ids"].shape[1])
    usual = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": END}
    usual["logits_processor"] = [twin]
    return model().generate(**{**given, **usual, **options})


def without_ends(rows: Tensor, width: int) -> list[list[int]]:
    """Outputs alone, up to their end: where a grammar is complete ours have no end token."""
    outputs = []
    for row in rows[:, width:].tolist():
        end = next((at for at, id in enumerate(row) if id in (END, 0)), len(row))
        outputs.append(row[:end])
    return outputs


def without(row: int, ids: Tensor) -> list[int]:
    """No digits but 0 to 4, or in the second row no t."""
    del ids
    banned = {86} if row == 1 else {*range(23, 28)}
    return [id for id in range(2, 259) if id not in banned]


def options_of(kind: str) -> dict[str, Any]:
    """Rules of transformers' own, before the grammar and behind it."""
    return {
        "none": {},
        "repetition": {"repetition_penalty": 1.7},
        "allowed": {"prefix_allowed_tokens_fn": without},
        "as a dict": {"return_dict_in_generate": True, "output_scores": True},
    }[kind]


def method(kind: str) -> Any:
    return dp.DraftModel(tiny.relative(model())) if kind == "draft" else kind


@pytest.mark.parametrize("kind", ["none", "repetition", "allowed", "as a dict"])
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_greedy_output_is_that_of_transformers_under_the_mask(batch: int, kind: str) -> None:
    """A grammar for all rows, and one for each; whatever drafts."""
    width, options = inputs(batch)["input_ids"].shape[1], options_of(kind)
    for grammar, each in ((JSON, [JSON] * batch), ([WORD, JSON, WORD][:batch],) * 2):
        want = theirs(batch, each, **options)
        for speculate in (None, "auto", method("draft")):
            loop = dp.custom_generate(speculate, grammar=grammar)
            got = ours(batch, loop, **options)
            if kind == "as a dict":
                for one, other in zip(got.scores, want.scores, strict=False):
                    alive = (one > -torch.inf).any(-1) & (one != 0).any(-1)
                    assert torch.equal(one[alive] > -torch.inf, other[alive] > -torch.inf)
                    assert alive.any()
                got, known = got.sequences, want.sequences
            else:
                known = want
            assert without_ends(got, width) == without_ends(known, width)
    accepted = sum(stats.accepted for stats in loop.stats)
    assert accepted, "nothing accepted, nothing tested"


@pytest.mark.parametrize("cut", [{}, {"top_k": 3}, {"top_p": 0.3}, {"min_p": 0.5}])
def test_what_is_sampled_is_valid_and_the_same_whatever_drafts(cut: dict[str, Any]) -> None:
    """The grammar comes before what cuts a row, which else would leave nothing of it."""
    width = inputs(3)["input_ids"].shape[1]
    sampled = {"do_sample": True, "temperature": 1.5, "top_k": 0, **cut}
    found = []
    for speculate in (None, "auto", method("draft")):
        loop = dp.custom_generate(speculate, grammar=[JSON, WORD, JSON], seed=5)
        found.append(without_ends(ours(3, loop, **sampled), width))
    assert found[0] == found[1] == found[2]
    texts = spelling.tokenizer().batch_decode(found[0])
    for text in (texts[0], texts[2]):
        assert re.fullmatch(JSON.source, text)
    assert re.fullmatch(WORD.source, texts[1]) or len(found[0][1]) == NEW


def test_a_row_ends_by_its_grammar_or_by_a_criterion() -> None:
    """Whichever is met first, of stop strings and criteria of the call."""
    width = inputs(2)["input_ids"].shape[1]
    loop = dp.custom_generate(None, grammar=JSON)
    whole = without_ends(ours(2, loop), width)
    stopped = without_ends(ours(2, loop, stop_strings=['","', "no such text"]), width)
    for one, text in zip(stopped, spelling.tokenizer().batch_decode(whole), strict=True):
        assert spelling.tokenizer().decode(one) == text[: text.index('","') + 3]
    never = without_ends(ours(2, loop, stop_strings=["no such text"]), width)
    assert never == whole


def test_one_object_serves_calls_that_end_otherwise() -> None:
    """The tokens that may end a text are those of the call."""
    loop = dp.custom_generate(None, grammar=dp.Grammar.regex("[a-d]{3,}"))
    bias = {"sequence_bias": {(9,): 50.0, (END,): 40.0}}
    assert ours(1, loop, **bias)[0, -1] == END
    other = ours(1, loop, **bias, eos_token_id=9)
    assert other[0, -1] == 9 and END not in other[0].tolist()


def test_a_prediction_is_drafted_from_and_changes_nothing() -> None:
    """Of every row its own; text as well as ids."""
    width = inputs(3)["input_ids"].shape[1]
    options = {"eos_token_id": None, "max_new_tokens": 40, "pad_token_id": 0}
    plain = ours(3, dp.custom_generate(None), **options)
    outputs = plain[:, width:].tolist()
    for prediction in (outputs, outputs[0], ["nothing like it", "", None]):
        loop = dp.custom_generate("auto", prediction=prediction)
        same(ours(3, loop, **options), plain)
    loop = dp.custom_generate("auto", prediction=outputs)
    same(ours(3, loop, **options), plain)
    assert all("prediction" in one.decisions.sources for one in loop.stats)


@pytest.mark.parametrize(
    ("options", "call", "says"),
    [
        ({"grammar": "[a-z]"}, {}, "grammar is .* but must be a dp.Grammar"),
        ({"grammar": [WORD, 5]}, {}, "grammar is 5, but must be a dp.Grammar"),
        ({"grammar": [WORD]}, {}, "there are 1 of grammar for 2 rows"),
        ({"grammar": WORD}, {"tokenizer": None}, "a grammar needs a tokenizer: pass tokenizer="),
        ({"grammar": dp.Grammar.regex("[")}, {}, "Grammar.regex"),
        ({"grammar": dp.Grammar.regex("x{3}")}, {"suppress_tokens": [90]}, "banned"),
        ({"prediction": 5}, {}, "prediction is 5"),
        ({"prediction": ["a", "b", "c"]}, {}, "there are 3 of prediction for 2 rows"),
        ({"prediction": "abc"}, {"tokenizer": None}, "prediction needs a tokenizer"),
        ({"prediction": [9999]}, {}, "prediction holds token id 9999"),
        ({"prediction": "abc", "speculate": "ngram"}, {}, "drafted from by 'auto' alone"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    options: dict[str, Any], call: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        ours(2, dp.custom_generate(**options), **call)
    assert "\n" not in str(caught.value)


def test_predictions_may_be_tensors_and_arrays() -> None:
    """Of token ids, as tokenizers give them: one for all rows, or one for each."""
    plain = ours(2, dp.custom_generate(None))
    width = inputs(2)["input_ids"].shape[1]
    rows = plain[:, width:]
    for prediction in (rows[0], rows[0].numpy(), [*rows[0].numpy()], [*rows], rows[1].tolist()):
        loop = dp.custom_generate("auto", prediction=prediction)
        assert torch.equal(ours(2, loop), plain)
