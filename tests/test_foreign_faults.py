"""What a user's own method gets wrong is told in one sentence, with where it was raised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import draftproof as dp
import tiny
from draftproof import methods
from draftproof.tree import TokenTree

IDS = [[5, 6, 7, 5, 6, 7, 5]]
PARAMS = dp.SamplingParams(max_tokens=6, ignore_eos=True)
Wrong = Callable[[Sequence[Any]], Any]


class Faulty:
    """Proposes what it is told to."""

    taps: tuple[int, ...] = ()

    def __init__(self, wrong: Wrong) -> None:
        self.wrong = wrong

    def propose(self, requests: Sequence[Any]) -> Any:
        return self.wrong(requests)


def last(requests: Sequence[Any]) -> int:
    token: int = requests[0].tokens[-1]
    return token


def boom(requests: Sequence[Any]) -> Any:
    raise KeyError("boom")


FAULTS: dict[str, tuple[Wrong, str]] = {
    "too few": (lambda asked: [], "propose returned 0 for 1 requests: return a list of one Tok"),
    "none": (lambda asked: None, "propose returned None: return a list of one TokenTree per"),
    "a tree": (lambda asked: TokenTree.chain([last(asked)]), "propose returned a TokenTree: "),
    "a list": (lambda asked: [[last(asked), 3]], "propose made a list of a request: return a l"),
    "text": (lambda asked: [TokenTree.chain([last(asked), "a"])], "is no integer: give ids"),
    "order": (
        lambda asked: [TokenTree([last(asked), 3, 4], [-1, 2, 0])],
        "the parent of a node must stand before it in the tree: sort the nodes (test_foreign_fa",
    ),
    "a bug": (
        boom,
        f"KeyError: 'boom' (test_foreign_faults.py:{boom.__code__.co_firstlineno + 1})",
    ),
}


@pytest.mark.parametrize("beside", [None, "hybrid", "auto"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told(fault: str, beside: str | None) -> None:
    wrong, says = FAULTS[fault]
    made: Any = Faulty(wrong)
    if beside is not None:
        made = dp.Hybrid([made, dp.NGram()]) if beside == "hybrid" else dp.Auto(made, dp.NGram())
    model = tiny.model()
    (plain,) = dp.LLM(model, speculate=None).generate(IDS, PARAMS)
    with dp.LLM(model, speculate=made) as llm:
        (found,) = llm.generate(IDS, PARAMS)
    assert found.token_ids == plain.token_ids and not found.error
    (warning,) = found.warnings
    assert says in warning and "\n" not in warning


def test_one_text_that_is_no_tree_is_not_the_others_fault() -> None:
    def one(asked: Sequence[Any]) -> list[Any]:
        trees: list[Any] = [TokenTree.chain([each.tokens[-1], 3]) for each in asked]
        pairs = zip(asked, trees, strict=True)
        return [None if each.prompt[0] == 9 else tree for each, tree in pairs]

    with dp.LLM(tiny.model(), speculate=Faulty(one)) as llm:
        good, bad = llm.generate([*IDS, [9, 8, 7]], PARAMS)
    assert not good.warnings and good.stats.drafted
    assert "propose made None of a request" in bad.warnings[0] and not bad.stats.drafted


def test_our_own_sentences_name_no_line() -> None:
    with dp.LLM(tiny.model(), speculate=Faulty(lambda asked: [TokenTree.chain([96])])) as llm:
        (found,) = llm.generate(IDS, PARAMS)
    assert found.warnings[0].endswith("node 0 of the tree is not the request's last token")


def test_missing_taps_are_named() -> None:
    class Untapped:
        def propose(self, requests: Sequence[Any]) -> list[TokenTree]:
            return []

    made: Any = Untapped()
    says = r"Untapped has propose but no taps: write taps = \(\)"
    for call in (lambda: methods.resolve(made), lambda: dp.Hybrid([made, dp.NGram()])):
        with pytest.raises(ValueError, match=says):
            call()
