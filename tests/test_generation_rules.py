"""Our forms of transformers' rules give what transformers' give, row by row."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers.generation import logits_process as theirs

from draftproof.generation import Generation

V, BEGIN = 12, 2
ENDS = [2, 5, 40]  # the last is none of the vocabulary
READ = [3, 4, 3, 4, 7, 3, 4, 6, 6, 6]
WORDS = [[3], [2], [4, 6], [7, 3, 4], [3, 3], [6, 6, 6, 6], [9, 9, 9, 9, 9, 9]]
ENDING = torch.tensor(ENDS)
CASES: dict[str, tuple[Any, Any]] = {
    **{f"no_repeat_ngram_size {n}": (n, theirs.NoRepeatNGramLogitsProcessor(n)) for n in (1, 2, 4)},
    **{
        f"encoder_no_repeat_ngram_size {n}": (
            n,
            theirs.EncoderNoRepeatNGramLogitsProcessor(n, torch.tensor([READ])),  # type: ignore[arg-type]
        )
        for n in (1, 2, 3, 20)
    },
    "bad_words_ids": (WORDS, theirs.NoBadWordsLogitsProcessor(WORDS, ENDS)),
    "min_length": (4, theirs.MinLengthLogitsProcessor(4, ENDING)),
    "min_new_tokens": (4, theirs.MinNewTokensLengthLogitsProcessor(BEGIN, 4, ENDING)),
    "suppress_tokens": ([1, 3, 50], theirs.SuppressTokensLogitsProcessor([1, 3, 50])),
    "begin_suppress_tokens": ([1, 3], theirs.SuppressTokensAtBeginLogitsProcessor([1, 3], BEGIN)),
}


def asked(name: str, value: Any) -> Any:
    config = transformers.GenerationConfig(**{name: value})
    generation = Generation(SimpleNamespace(generation_config=config, config=config), ENDS)
    return generation.rules(READ, [0] * BEGIN, 30, torch.device("cpu"))


@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_of_transformers(case: str) -> None:
    value, processor = CASES[case]
    rules, rng = asked(case.split()[0], value), Random(3)
    torch.manual_seed(3)
    changed = 0
    for _ in range(300):
        text = torch.tensor([rng.choice([3, 4, 6, 7, 9]) for _ in range(rng.randint(1, 9))])
        row = torch.randn(V)
        before, want = row.clone(), processor(text[None], row[None].clone())[0]
        assert torch.equal(rules(text, row), want)
        assert torch.equal(row, before), "what was given is another's"
        changed += not torch.equal(want, row)
    assert changed or value == 20, "nothing is ruled"


def test_words_outside_the_vocabulary_are_told() -> None:
    rules = asked("bad_words_ids", [[3], [4, V]])
    with pytest.raises(ValueError, match="holds token id 12, and the vocabulary ends at 11"):
        rules(torch.tensor([3]), torch.zeros(V))
