"""The losses of heads: the paper's, whatever the chunks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cyclic import V, batch_of, cycle
from draftproof.heads.module import Heads
from draftproof.training.data.states import labelled
from draftproof.training.recipes import losses
from draftproof.training.recipes.medusa import DECAY, Medusa, fresh
from draftproof.training.recipes.muon import Muon


def oracle_loss(target: Any, heads: Heads, texts: list[list[int]]) -> float:
    """Medusa-1 of documents run alone: sum over heads of 0.8^k times the mean cross-entropy."""
    total = 0.0
    for k in range(1, heads.heads + 1):
        found = []
        for ids in texts:
            states = target.model(torch.tensor([ids])).last_hidden_state[0]
            w = heads.weights[k - 1, 0]
            for t in range(len(ids) - k - 1):
                x = states[t] + F.silu(w @ states[t])
                found.append(-target.lm_head(x).log_softmax(-1)[ids[t + k + 1]])
        total += 0.8**k * float(torch.stack(found).mean())
    return total


@torch.no_grad()
def test_the_loss_is_the_papers(cyclic: Any) -> None:
    heads = fresh(cyclic, 3)
    heads.weights.normal_(0, 0.2, generator=torch.Generator().manual_seed(0))
    texts = [cycle(3, 20), cycle(8, 9), cycle(20, 11)]
    found = Medusa(cyclic, heads, [])(batch_of(texts, 20), 0.0)["loss"]
    assert float(found) == pytest.approx(oracle_loss(cyclic, heads, texts), rel=1e-5)
    assert DECAY == 0.8


def test_heads_begin_as_the_lm_head(cyclic: Any) -> None:
    for own in (False, True):
        heads = fresh(cyclic, 2, own=own)
        states = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
        wanted = cyclic.lm_head(states)
        torch.testing.assert_close(heads.logits(states, cyclic.lm_head), wanted.expand(2, 5, V))


def test_no_label_lies_in_another_document_or_is_not_learnt() -> None:
    texts = [[1, 2, 3, 4, 5], [6, 7, 8]]
    taught = [[False, False, False, True, True], [True, True, True]]
    batch = batch_of(texts, 10, taught)
    flat = batch["ids"].flatten()
    for ahead in range(1, 6):
        at, labels = labelled(batch, ahead)
        wanted = {
            (ids[t], ids[t + ahead])
            for ids, marks in zip(texts, taught, strict=True)
            for t in range(len(ids) - ahead)
            if marks[t + ahead]
        }
        assert set(zip(flat[at].tolist(), labels.tolist(), strict=True)) == wanted


def test_gradient_of_the_loss_weights(cyclic: Any) -> None:
    """By finite difference, in fp64, through blocks, head and weights."""
    target = copy.deepcopy(cyclic).double().requires_grad_(False)
    heads = fresh(target, 2).double()
    with torch.no_grad():
        heads.weights.normal_(0, 0.1, generator=torch.Generator().manual_seed(2))
    recipe, batch = Medusa(target, heads, []), batch_of([cycle(5, 16)], 16)

    # The loss itself is summed in fp32, so the step is wide.
    recipe(batch, 0.0)["loss"].backward()
    assert heads.weights.grad is not None
    for index in ((0, 0, 3, 4), (1, 0, 7, 1)):
        step, found = 1e-2, []
        for sign in (1, -1):
            with torch.no_grad():
                heads.weights[index] += sign * step
                found.append(float(recipe(batch, 0.0)["loss"]))
                heads.weights[index] -= sign * step
        slope = (found[0] - found[1]) / (2 * step)
        assert float(heads.weights.grad[index]) == pytest.approx(slope, rel=2e-2, abs=1e-4)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(8, V, bias=False)
    with torch.no_grad():
        head.weight.normal_(generator=generator)
    labels = torch.randint(V, (37,), generator=generator)
    found = []
    for elements in (1 << 20, 5 * V):
        monkeypatch.setattr(losses, "ELEMENTS", elements)
        states = torch.randn(37, 8, generator=torch.Generator().manual_seed(3), requires_grad=True)
        loss, right = losses.cross_entropy(states, labels, head)
        loss.backward()
        found.append((loss.detach(), right, states.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("cached", [1 << 20, 5 * V])
def test_a_gradient_taken_at_once_is_the_same(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CACHED", cached)
    monkeypatch.setattr(losses, "LEAST", 1)
    generator = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(V, 8, generator=generator), torch.randn(37, 8, generator=generator))
    labels = torch.randint(V, (37,), generator=generator)
    found = []
    for frozen in (False, True):
        states = rows.clone().requires_grad_()
        loss, right = losses.cross_entropy(states, labels, lambda x: x @ weight.T, frozen)
        (3 * loss).backward()
        found.append((loss.detach(), right, states.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_rows_at_once_are_enough_for_a_large_vocabulary() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert losses.at_once(8192, cpu) == losses.at_once(151_936, cpu) == 128
    assert losses.at_once(97, cpu) == (1 << 20) // 97
    assert losses.at_once(151_936, gpu) == losses.ELEMENTS // 151_936 == 220


def test_muon_in_float32_goes_where_torchs_goes() -> None:
    """Their roundings differ by bfloat16's; the state is the same, so checkpoints go on."""
    torch.manual_seed(0)
    shapes = (24, 48), (48, 24), (16, 16)
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    made = Muon(ours, 0.02, 0.05)
    usual = torch.optim.Muon(theirs, 0.02, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        made.step()
        usual.step()
    for one, other in zip(ours, theirs, strict=True):
        moved = (other - 1).norm()
        assert 0 < (one - other).norm() < 0.02 * moved
        assert torch.equal(
            made.state[one]["momentum_buffer"], usual.state[other]["momentum_buffer"]
        )
