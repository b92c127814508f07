"""What a draft is taught by: divergences from the law of the target, and the recipe."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from cyclic import batch_of
from distilling import random
from draftproof.training.recipes import losses
from draftproof.training.recipes.draft import LOSSES, Draft
from draftproof.training.recipes.student import student


def laws(logits: Tensor) -> list[list[float]]:
    found = []
    for row in logits.tolist():
        shares = [math.exp(x) for x in row]
        found.append([x / sum(shares) for x in shares])
    return found


ORACLES: dict[str, Any] = {
    "forward-kl": lambda p, q: p * math.log(p / q),
    "reverse-kl": lambda p, q: q * math.log(q / p),
    "tv": lambda p, q: abs(p - q) / 2,
}


@pytest.mark.parametrize("name", list(ORACLES))
def test_divergences(name: str) -> None:
    teacher, ours = random(6, 9), random(6, 9, seed=1)
    of = losses.DIVERGENCES[name]
    wanted = [sum(map(ORACLES[name], p, q)) for p, q in zip(laws(teacher), laws(ours), strict=True)]
    torch.testing.assert_close(of(teacher, ours), torch.tensor(wanted, dtype=torch.float64))
    assert float(of(teacher, teacher).abs().max()) < 1e-12
    # by finite difference, and not towards the teacher only
    assert torch.autograd.gradcheck(of, (teacher, ours.requires_grad_()))


def test_acceptance_is_what_total_variation_leaves() -> None:
    teacher, ours = random(5, 9), random(5, 9, seed=1)
    shared = torch.minimum(teacher.softmax(-1), ours.softmax(-1)).sum(-1)
    torch.testing.assert_close(1 - losses.total_variation(teacher, ours), shared)


@pytest.mark.parametrize("name", list(ORACLES))
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = random(4, 11).float().requires_grad_(), random(6, 11, seed=1).float()
    states, theirs = random(10, 4, seed=2).float().requires_grad_(), random(10, 6, seed=3).float()

    def found() -> list[Tensor]:
        loss, right = losses.divergence(
            states, theirs, lambda x: x @ heads[0], lambda x: x @ heads[1], losses.DIVERGENCES[name]
        )
        grads = torch.autograd.grad(loss, (states, heads[0]))
        return [loss.detach(), right, *grads]

    whole = found()
    argmaxes = (states @ heads[0]).argmax(-1) == (theirs @ heads[1]).argmax(-1)
    assert int(whole[1]) == int(argmaxes.sum())
    monkeypatch.setattr(losses, "ELEMENTS", 2 * 11 * 3)  # 3 rows at a time
    for one, other in zip(whole, found(), strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_to_learn_is_no_loss() -> None:
    states = torch.zeros(0, 4, requires_grad=True)
    of = losses.forward_kl
    loss, right = losses.divergence(states, torch.zeros(0, 6), lambda x: x, lambda x: x, of)
    loss.backward()
    assert (float(loss.detach()), int(right)) == (0.0, 0)


@pytest.mark.parametrize("loss", LOSSES)
@torch.no_grad()
def test_the_recipe_sees_taught_tokens_of_one_document(loss: str) -> None:
    target, made = tiny.model(), student(tiny.model(seed=3), [0, 3])
    texts = [[5, 6, 7, 8, 9, 10], [11, 12, 13]]
    taught = [[False, False, False, True, True, True], [True, True, True]]
    found = Draft(target, made, [], loss=loss)(batch_of(texts, 12, taught), 0.0)
    sums, right, count = 0.0, 0, 0
    for ids, learnt in zip(texts, taught, strict=True):
        p, q = (m(torch.tensor([ids])).logits[0].detach() for m in (target, made))
        for t in range(len(ids) - 1):
            if learnt[t + 1]:
                count += 1
                if loss == "text":
                    sums -= float(q[t].log_softmax(-1)[ids[t + 1]])
                    right += int(q[t].argmax()) == ids[t + 1]
                else:
                    sums += float(losses.DIVERGENCES[loss](p[t], q[t]))
                    right += int(q[t].argmax() == p[t].argmax())
    assert float(found["loss"]) == pytest.approx(sums / count, rel=1e-4)
    assert float(found["agree"]) == pytest.approx(right / count)


def test_wide_drafts_learn_slower() -> None:
    rates = [
        Draft(tiny.model(), tiny.model(hidden_size=width, intermediate_size=8), []).rate
        for width in (48, 320, 640)
    ]
    assert rates == [1e-3, 1e-3, 5e-4]


@torch.no_grad()
def test_what_one_vocabulary_has_beyond_the_other_is_padding() -> None:
    target, made = tiny.model(), tiny.model(seed=3, vocab_size=90)
    ids = [5, 6, 7, 8]
    found = Draft(target, made, [])(batch_of([ids], 4), 0.0)
    p, q = (m(torch.tensor([ids])).logits[0, :-1, :90] for m in (target, made))
    assert float(found["loss"]) == pytest.approx(float(losses.forward_kl(p, q).mean()), rel=1e-4)
