"""Trees for heads, and what they will give, counted from ranks."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from draftproof.training.recipes import calibrate


def test_the_tree_is_the_best_by_enumeration() -> None:
    generator = torch.Generator().manual_seed(4)
    ranks = (torch.rand(400, 2, generator=generator) ** 3 * 6).long()
    counted = calibrate.paths(ranks)
    for path, share in counted.items():
        hits = (ranks[:, : len(path)] == torch.tensor(path)).all(1).float().mean()
        assert share == pytest.approx(float(hits), abs=1e-6)
    for nodes in (1, 2, 4):
        chosen = calibrate.tree_of(ranks, nodes)
        assert all(path[:-1] in chosen for path in chosen if len(path) > 1)
        whole = [
            set(some)
            for some in itertools.combinations(list(counted)[:14], nodes)
            if all(path[:-1] in some for path in some if len(path) > 1)
        ]
        best = max(sum(counted[path] for path in some) for some in whole)
        assert sum(chosen.values()) == pytest.approx(best)


def some_text(seed: int, tokens: int = 4000, heads: int = 3) -> Tensor:
    """Ranks of a text in which easy stretches and hard ones take turns."""
    generator = torch.Generator().manual_seed(seed)
    hard = (torch.arange(tokens) // 40 % 2)[:, None]
    ranks = (torch.rand(tokens, heads, generator=generator) ** (6 - 5 * hard) * 5).int()
    for k in range(1, heads + 1):
        ranks[tokens - k :, k - 1] = calibrate.BEYOND
    return ranks


def test_the_size_of_the_tree_follows_what_a_pass_costs() -> None:
    text = some_text(5)
    flat = calibrate.calibrated([text], {1: 1.0, 32: 1.001}, 0.1, 24)
    steep = calibrate.calibrated([text], {1: 1.0, 32: 8.0}, 0.1, 24)
    assert len(flat.tree) == 24 > len(steep.tree) >= 1
    for found in (flat, steep):
        assert found.expected == pytest.approx(calibrate.replay([text], found.tree)[0])
        assert all(path[:-1] in found.tree for path in found.tree if len(path) > 1)
    for rank in range(5):
        share = float((calibrate.complete(text)[:, 0] == rank).float().mean())
        assert flat.accuracies[0][rank] == pytest.approx(share, abs=1e-3)


def test_a_tree_is_made_for_where_steps_begin() -> None:
    """Half of the text is easy, and most of its steps are in the other half."""
    hard = (torch.arange(4000) // 40 % 2)[:, None]
    ranks = hard * torch.randint(1, 4, (4000, 4), generator=torch.Generator().manual_seed(6))
    anywhere = calibrate.tree_of(ranks, 4)
    assert list(anywhere) == [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]
    found = calibrate.calibrated([ranks], {1: 1.0, 32: 1.001}, 0.1, 4)
    assert found.tree == [(0,), (1,), (2,), (3,)]
    assert found.expected > 1.15 * calibrate.replay([ranks], list(anywhere))[0]


def test_heads_that_are_never_right_have_a_tree_all_the_same() -> None:
    found = calibrate.calibrated([torch.full((9, 2), 500)], {1: 1.0}, 0.0, 8)
    assert found.tree == [(0,)] and found.expected == 1.0


def test_replay_counts_steps_by_hand() -> None:
    far = calibrate.BEYOND
    # Six tokens: the first by the prompt's pass; then 0, 0 is in the tree: two and the bonus; the
    # state of the third token knows nothing: one; and the last one.
    ranks = torch.tensor([[0, 0], [9, 9], [9, 9], [5, 0], [0, far], [far, far]])
    tree = [(0,), (1,), (0, 0)]
    tokens, starts = calibrate.replay([ranks], tree)
    assert tokens == pytest.approx(6 / 4) and starts.tolist() == ranks[[0, 3, 4]].tolist()
    assert calibrate.replay([ranks], [(5,)])[0] == pytest.approx(6 / 5)
    assert calibrate.replay([], tree)[0] == 0.0
