"""Fitted shapes follow what is accepted, and notice when it changes."""

from __future__ import annotations

from collections import Counter

import pytest

from draftproof.drafting.fitting import EVERY, FIRST, Costs, Fit, widths
from draftproof.drafting.growth import Ranks
from draftproof.proposers.draft import DraftModel
from draftproof.proposers.lookahead import Lookahead
from draftproof.request import Request
from draftproof.sampling import SamplingParams
from draftproof.shapes import choices_to_parents
from draftproof.tree import TokenTree, merge
from draftproof.writing import Feedback


def fit() -> Fit:
    return Fit(Costs({1: 1.0, 2: 1.1, 8: 1.7}, 0.05), 8, 4)


def grown(shape: Counter[Ranks]) -> TokenTree:
    """A tree of that shape, in which every token is another."""
    parents, ranks = [-1], [()]
    for node, path in enumerate(ranks):
        for rank in range(shape[path]):
            parents.append(node)
            ranks.append((*path, rank))
    return TokenTree(list(range(len(parents))), parents)


def request() -> Request:
    return Request(0, [0], SamplingParams(), seed=0)


def live(made: Fit, rank: int, steps: int) -> None:
    """Steps in which the target always says what stands at `rank`."""
    one = request()
    for _ in range(steps):
        tree, path = grown(made.widths), [0]
        while len(children := tree.children(path[-1])) > rank:
            path.append(children[rank])
        one.feedback = Feedback(tree, path, {})
        made.learn(one, tree)


def test_it_begins_wide_and_then_drafts_what_pays() -> None:
    made = fit()
    assert grown(made.widths).parents == grown(widths(choices_to_parents(FIRST))).parents
    live(made, 0, 2 * EVERY)
    assert made.fitted == Counter({(): 1, (0,): 1, (0, 0): 1, (0, 0, 0): 1})


def test_a_rank_that_begins_to_pay_is_noticed() -> None:
    made = fit()
    live(made, 0, 2 * EVERY)
    assert max(made.fitted.values()) == 1
    live(made, 1, 12 * EVERY)
    assert made.fitted[()] == 2


def test_of_a_merged_tree_only_its_own_nodes_count() -> None:
    made, one = fit(), request()
    ours, other = TokenTree([0, 1, 2], [-1, 0, 0]), TokenTree([0, 9, 2], [-1, 0, 1])
    whole = merge([other, ours])
    where = ours.within(whole)
    one.feedback = Feedback(whole, [0, where[2]], {})
    made.learn(one, ours)
    assert made.offered == [1, 1, 0] and made.accepted == [0, 1, 0]
    one.feedback = Feedback(other, [0, 1], {})  # a budget left nothing of it
    made.learn(one, ours)
    assert made.offered == [1, 1, 0] and made.accepted == [0, 1, 0]


def test_nothing_is_learnt_from_a_step_in_which_another_drafted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two calls of this one, with the same tokens at another place of the text."""
    drafter, one = DraftModel(None, tree="auto"), request()
    made = drafter.fit = fit()
    ours = TokenTree([0, 1, 2], [-1, 0, 0])
    monkeypatch.setattr(drafter, "_shaped", lambda requests, *_: [ours] * len(requests))
    drafter.propose([one])
    one.feedback, one.passes = Feedback(ours, [0, 1], {}), 1
    drafter.propose([one])
    assert made.steps == 1 and made.offered == [1, 1, 0]
    one.feedback, one.passes = Feedback(TokenTree([0, 2], [-1, 0]), [0, 1], {}), 3
    drafter.propose([one])
    assert made.steps == 1 and made.offered == [1, 1, 0]
    one.feedback, one.passes = Feedback(ours, [0, 2], {}), 4
    drafter.propose([one])
    assert made.steps == 2 and made.accepted == [1, 1, 0]


def test_a_window_is_read_in_the_step_after_it_alone() -> None:
    one = Request(0, [7, 7], SamplingParams(), seed=0)
    for late in (0, 1):
        drafter = Lookahead(1, 2, from_text=False)
        (tree,) = drafter.propose([one])
        one.feedback = Feedback(tree, [0], {}, [5] * len(tree))
        one.passes += 1 + late
        (tree,) = drafter.propose([one])
        assert (5 in tree.tokens) is (not late)
