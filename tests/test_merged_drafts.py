"""Several proposers at once: their trees are merged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import draftproof as dp
import tiny
from draftproof.tree import TokenTree
from proposing import Spy, accepted, plain, relative, target, tokens_of, written


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_list_is_merged(rule: str) -> None:
    parts = [
        Spy(dp.NGram(min_ngram=1)),
        Spy(dp.DraftModel(relative(), 3, min_confidence=0.0)),
        Spy(dp.DraftModel(tiny.relative(target(), seed=2), 3, min_confidence=0.0, branch=2)),
    ]
    outs = written(parts, rule)
    if rule == "coupled":
        assert tokens_of(outs) == plain()
    alone = written(parts[1].proposer, rule)
    assert all(part.trees for part in parts) and accepted(outs) > 0
    if rule == "coupled":  # what one of them would have had accepted is in the tree
        steps = [sum(out.stats.steps for out in each) for each in (outs, alone)]
        assert steps[0] <= steps[1]


def test_a_list_of_one_of_none_and_of_names() -> None:
    for speculate in ([], [None], ["none"], ["ngram"], ["none", "ngram"], ("ngram", dp.NGram(2))):
        assert tokens_of(written(speculate)) == plain()


def test_one_part_of_a_list_that_breaks_does_not_take_the_request_down() -> None:
    class Broken:
        taps: tuple[int, ...] = ()

        def bind(self, target: Any) -> None: ...
        def release(self, request: Any) -> None: ...
        def propose(self, requests: Any) -> Any:
            raise RuntimeError("out of luck")

    outs = written([Broken(), dp.DraftModel(relative(), 3)])
    assert tokens_of(outs) == plain()
    assert any("out of luck" in warning for out in outs for warning in out.warnings)


def test_a_part_that_cannot_let_go_keeps_nothing_of_the_others() -> None:
    def fails(request: Any) -> None:
        raise RuntimeError("it holds on")

    released: list[int] = []
    parts = [dp.NGram(), dp.NGram(), dp.NGram()]
    parts[1].release = fails  # type: ignore[method-assign]
    for part in (parts[0], parts[2]):
        part.release = lambda request: released.append(request.key)  # type: ignore[method-assign]
    outs = written(parts)
    assert tokens_of(outs) == plain()
    assert len(released) == 2 * len(outs)
    assert all(["it holds on" in " ".join(out.warnings) for out in outs])


def test_parts_of_a_list_need_only_taps_and_propose() -> None:
    bare = SimpleNamespace(
        taps=(), propose=lambda requests: [TokenTree.chain([r.tokens[-1], 5]) for r in requests]
    )
    assert tokens_of(written([bare, "ngram"])) == plain()
