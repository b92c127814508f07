"""Fitted shapes follow what is accepted, and notice when it changes."""

from __future__ import annotations

from collections import Counter

from draftproof.drafting.fitting import EVERY, FIRST, Costs, Fit, widths
from draftproof.drafting.growth import Ranks
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
