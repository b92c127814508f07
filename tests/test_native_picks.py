"""Tokens that the native runner draws itself: those that Python picks, for whatever is drawn."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import draftproof as dp
import native_models
from draftproof import native, rules, sampling
from draftproof.runners import drawing
from draftproof.runners.base import Work
from draftproof.sampling import SamplingParams
from draftproof.tree import TokenTree
from draftproof.verify import verify
from draftproof.writing import Writing

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
CUTS: list[dict[str, Any]] = [
    {},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
]


def writing(seed: int, **options: Any) -> Writing:
    params = SamplingParams(temperature=options.pop("temperature", 0.7), **options)
    return Writing(0, [3, 4, 5], params, seed=seed, max_length=100, rule=rules.named("coupled"))


def grown(text: Writing, rng: Random, rows: Tensor) -> TokenTree:
    """A tree of as many nodes as there are rows, most of which are what is picked."""
    tree = TokenTree.root(text.tokens[-1])
    for node in range(1, len(rows)):
        parent = rng.randrange(node)
        path = tree.path_tokens(parent)
        position = len(text.tokens) + len(path)
        token = sampling.pick(rows[parent], text.params, text.history, path, text.noise, position)
        token = token if rng.random() < 0.7 else rng.randrange(rows.shape[1])
        siblings = {tree.tokens[child] for child in tree.children(parent)}
        if token in siblings:  # two of one token would have one row
            token = rng.choice(sorted({*range(rows.shape[1])} - siblings))
        tree = TokenTree([*tree.tokens, token], [*tree.parents, parent])
    return tree


def drawn(
    texts: Sequence[Writing], trees: Sequence[TokenTree], rows: Sequence[Tensor], threads: int
) -> list[array[int] | None]:
    work = [
        Work(number, [], tree, draw=text.draw)
        for number, (text, tree) in enumerate(zip(texts, trees, strict=True))
    ]
    return drawing.picks(native_models.team(threads), work, rows)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vocabulary", [7, 97, 5000])
def test_picks_are_those_of_each_text(vocabulary: int, threads: int) -> None:
    rng, generator = Random(vocabulary), torch.Generator().manual_seed(vocabulary)
    for round in range(8):
        texts = [
            writing(rng.randrange(2**64), temperature=rng.choice((0.1, 0.7, 1.5)), **cut)
            for cut in rng.sample(CUTS, len(CUTS))
        ]
        rows = [
            3 * torch.randn(rng.randrange(1, 9), vocabulary, generator=generator) for _ in texts
        ]
        trees = [grown(text, rng, own) for text, own in zip(texts, rows, strict=True)]
        found = drawn(texts, trees, rows, threads)
        longest = 0
        for text, tree, own, made in zip(texts, trees, rows, found, strict=True):
            assert made is not None
            wanted = rules.Picks(text, tree, own)
            reached = {0}
            for node in range(len(tree)):
                parent = tree.parents[node]
                if node and parent in reached and wanted[parent] == tree.tokens[node]:
                    reached.add(node)
            assert [*made] == [
                wanted[node] if node in reached else -1 for node in range(len(tree))
            ], (round, text.params)
            assert verify(tree, made) == verify(tree, wanted)
            longest = max(longest, len(reached))
        assert longest > 1


def test_a_row_without_a_pick_is_left_to_the_text() -> None:
    rows = torch.randn(3, 50)
    rows[1, 7] = math.nan
    text = writing(1)
    first = rules.Picks(text, TokenTree.root(5), rows)[0]
    tree = TokenTree([5, first, first], [-1, 0, 0])
    (made,) = drawn([text], [tree], [rows], 1)
    assert made is not None and made[0] == first and made[1] == -1 and made[2] >= 0
    with pytest.raises(sampling.NoCandidate):
        rules.Picks(text, tree, rows, made)[1]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 1e-4},
        {"presence_penalty": 1.0},
        {"logit_bias": {5: 1.0}},
        {"min_tokens": 2},
        {"bad_token_ids": [4]},
    ],
)
def test_what_changes_rows_first_is_not_drawn_so(options: dict[str, Any]) -> None:
    assert writing(1).draw is not None
    assert writing(1, **options).draw is None


def test_rules_from_outside_and_other_rules_are_not_drawn_so() -> None:
    text = writing(1)
    text.history.process = lambda ids, row: row
    assert text.draw is None
    for rule in ("rejection", "typical"):
        params = SamplingParams(temperature=0.7)
        assert Writing(0, [3], params, seed=1, max_length=9, rule=rules.named(rule)).draw is None


def test_trees_that_are_none_are_refused() -> None:
    library, team, rows = native.library(), native_models.team(1), torch.zeros(2, 9)
    made = array("i", [0, 0])

    def code(parents: Sequence[int], temperature: float = 0.7, n: int = 9) -> int:
        ids = array("i", [1, 2]), array("i", parents)
        text = native.Drawing(
            *(native.Cut(temperature, 1.0, -math.inf, 0), 1, 0, 5, 2),
            *(ids[0].buffer_info()[0], ids[1].buffer_info()[0]),
            *(rows.data_ptr(), made.buffer_info()[0]),
        )
        return int(library.dp_pick(team.handle, text, 1, n))

    assert code([-1, 0]) == native.OK
    for wrong in (code([-1, 1]), code([-1, -1]), code([-1, 0], 0.0), code([-1, 0], n=0)):
        assert wrong == native.BAD_ARGUMENT


def written(params: SamplingParams, count: int) -> list[list[int]]:
    prompts = [[5, 6, 7] * 6 + [at] for at in range(8, 8 + count)]
    model = native_models.model("llama")
    with dp.LLM(model, runner="native", dtype="bfloat16", speculate=dp.NGram(4)) as llm:
        return [list(each.token_ids) for each in llm.generate(prompts, params)]


@pytest.mark.parametrize("cut", CUTS[:2])
@pytest.mark.parametrize("count", [1, 5])
def test_texts_are_the_same_and_python_picks_none(
    count: int, cut: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=3, ignore_eos=True, **cut)
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "picks", lambda team, work, logits: [None] * len(work))
        slow = written(params, count)

    def none(*args: Any) -> int:
        raise AssertionError("picked by Python")

    monkeypatch.setattr(sampling, "pick", none)
    assert written(params, count) == slow
