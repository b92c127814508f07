"""Which of the offered nodes a step runs, and what a source's tree adds to those of others."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting.allotting import allot
from draftproof.drafting.offers import Offer
from draftproof.drafting.price import Price
from draftproof.tree import TokenTree

ROW = 0.1  # passes that a row more costs
PRICE = Price(1.0, 1, [0.0, *(1 + ROW * rows for rows in range(40))])


def offered(*chances: Sequence[float]) -> list[Offer]:
    """Chains, of nodes with these chances."""
    offers = []
    for each in chances:
        offer = Offer(0, 30, 30)
        offer.add(0, TokenTree.chain([*range(1 + len(each))]), [1.0, *each])
        offers.append(offer)
    return offers


def ran(offers: Sequence[Offer], bets: Sequence[float], left: float = 9.0) -> list[int]:
    count = len(offers)
    kept, _ = allot(offers, [0] * count, [left] * count, bets, PRICE, left)
    return [len(each) - 1 for each in kept]


def test_a_step_risks_what_it_may_and_no_more() -> None:
    doubtful, sure = [0.5, 1, 1, 1, 1, 1, 1, 1], [1.0] * 8
    assert ran(offered(doubtful), [1.0]) == [8]
    assert ran(offered(doubtful), [0.21]) == [4]  # each is in vain with one half, and costs 0.1
    assert ran(offered(doubtful), [0.04]) == [0]
    assert ran(offered(sure), [0.0]) == [8]  # nothing is at risk


def test_each_text_risks_its_own() -> None:
    doubtful = [0.5, 1, 1, 1]
    assert ran(offered(doubtful, doubtful), [0.11, 0.31]) == [2, 4]


def test_what_may_be_lost_bounds_even_what_is_sure() -> None:
    assert ran(offered([1.0] * 8), [9.0], left=0.35) == [3]


def test_a_source_that_yields_adds_nothing_beside_the_token_of_that_one() -> None:
    offer = Offer(0, 9, 9)
    offer.add(1, TokenTree.chain([0, 5, 6]), [1.0, 0.6, 0.9])
    #  5 and 6 as the other one, 7 behind them; 8 and what follows it in the place of 5
    tree = TokenTree([0, 5, 8, 6, 9, 7], [-1, 0, 0, 1, 2, 3])
    offer.add(0, tree, [1.0, 0.7, 0.9, 0.8, 0.9, 0.5], yields=1)
    assert offer.tokens == [0, 5, 6, 7] and offer.parents == [-1, 0, 1, 2]
    assert offer.chances == [1.0, 0.7, 0.9, 0.5]  # as likely as the surer one says
    assert offer.owners == [-1, 1, 1, 0]


def test_a_source_that_yields_keeps_siblings_of_its_own_and_of_others() -> None:
    offer = Offer(0, 9, 9)
    offer.add(2, TokenTree.chain([0, 7]), [1.0, 0.9])
    offer.add(0, TokenTree([0, 5, 8], [-1, 0, 0]), [1.0, 0.7, 0.2], yields=1)
    assert offer.tokens == [0, 7, 5, 8]
