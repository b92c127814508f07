"""What is learnt from trees and chosen of them: the short ways beside the plain ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import draftproof as dp
from draftproof.counts import UNASKED, Decisions
from draftproof.drafting.calibration import Calibration
from draftproof.drafting.offers import Offer
from draftproof.drafting.sources import SIBLINGS, Source
from draftproof.drafting.step import Step
from draftproof.request import Request
from draftproof.tree import TokenTree

WRITTEN = st.lists(st.integers(0, 2), min_size=1, max_size=5)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Node 0 is token 0; siblings may repeat a token."""
    nodes = draw(st.integers(1, 12))
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, nodes))]
    tokens = [0, *draw(st.lists(st.integers(0, 2), min_size=nodes - 1, max_size=nodes - 1))]
    scores = [1.0]
    for parent in parents[1:]:
        scores.append(scores[parent] * draw(st.floats(0.1, 1.0)))
    return TokenTree(tokens, parents, scores=scores)


def request() -> Request:
    return Request(0, [0], dp.SamplingParams(max_tokens=20), seed=0)


@given(trees(), st.floats(-1, 1), st.floats(0, 0.9), st.integers(1, 14))
def test_chances_of_a_tree_are_those_of_its_tokens(
    tree: TokenTree, recent: float, least: float, most: int
) -> None:
    calibration = Calibration((1.1, -0.9, 0.4))
    found = calibration.chances(tree, recent, least, most)
    assert len(found) == min(len(tree), most) and found[0] == 1.0
    survivals = [1.0]
    for node, chance in enumerate(found[1:], 1):
        parent = tree.parents[node]
        score = tree.scores[node] / tree.scores[parent]
        alone = calibration.chance(score, tree.depths[node], recent)
        assert chance == (pytest.approx(alone) if survivals[parent] > least else 0.0)
        survivals.append(survivals[parent] * chance)


@given(trees(), WRITTEN)
def test_a_tree_is_learnt_from_along_what_was_written(tree: TokenTree, written: list[int]) -> None:
    source = Source(dp.NGram(), "ngram")
    told: list[tuple[float, int, bool]] = []
    calibration = source.calibration(request())
    learn = calibration.learn

    def telling(score: float, depth: int, recent: float, right: bool) -> float:
        told.append((score, depth, right))
        return learn(score, depth, recent, right)

    calibration.learn = telling
    right, _ = source.learn(request(), tree, written, 0.0)
    node, want, path = 0, list[tuple[float, int, bool]](), 0
    for depth, token in enumerate(written, 1):
        children = tree.children(node)[:SIBLINGS]
        for child in children:
            score = tree.scores[child] / tree.scores[node]
            want.append((score, depth, tree.tokens[child] == token))
        node = next((child for child in children if tree.tokens[child] == token), -1)
        if node < 0:
            break
        path = depth
    assert told == want and right == path


@given(trees(), trees(), st.sets(st.integers(1, 22)), WRITTEN)
def test_each_accepted_token_has_the_source_whose_node_ran(
    one: TokenTree, other: TokenTree, some: set[int], written: list[int]
) -> None:
    offer = Offer(0, depth=20, limit=20)
    for number, tree in enumerate((one, other)):
        offer.add(number, tree, [1.0] * len(tree))
    nodes = set(zip(offer.parents[1:], offer.tokens[1:], strict=True))
    assert len(nodes) == len(offer.tokens) - 1  # each once
    kept = [0]
    for node in range(1, len(offer.tokens)):
        if node in some and offer.parents[node] in kept:
            kept.append(node)
    ran = offer.tree(kept)
    assert [ran.path_tokens(at) for at in range(len(ran))] == [
        TokenTree(offer.tokens, offer.parents).path_tokens(node) for node in kept
    ]
    want, at = list[int](), 0
    for token in written:
        following = [child for child in ran.children(at) if ran.tokens[child] == token]
        if not following:
            break
        at = following[0]
        want.append(offer.owners[kept[at]])
    by = [offer.owners[node] for node in kept[1:]]
    assert Step(kept=kept, tree=ran, drafted_by=by).owners(written) == want


@given(st.lists(st.tuples(st.sampled_from([*UNASKED, "price"]), st.integers(1, 3))))
def test_steps_without_a_look_are_counted(told: list[tuple[str, int]]) -> None:
    decisions = Decisions()
    for why, steps in told:
        decisions.plainly(why, steps)
    assert decisions.unasked == sum(decisions.plain_steps.get(why, 0) for why in UNASKED)
