"""Medusa: which tree is proposed."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cases import PROMPTS
from draftproof.heads.module import Heads
from draftproof.heads.placed import Placed
from draftproof.proposers.medusa import Medusa
from draftproof.request import Request
from draftproof.sampling.noise import noise
from draftproof.shapes import best_first
from draftproof.tree import TokenTree
from draftproof.writing import Feedback
from fitted_heads import (
    CHAIN,
    KINDS,
    STATIC,
    D,
    K,
    V,
    fitted,
    llm_of,
    params,
    plain,
    random,
    random_heads,
)

# --- what is proposed ---


class Fake:
    """A target that was never asked to run, and counts calls of its head."""

    def __init__(self, lm_head: Tensor) -> None:
        self.lm_head, self.rows, self.device = lm_head, [], torch.device("cpu")

    def linear(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda rows: rows @ weight.T

    def head(self, hidden: Tensor) -> Tensor:
        self.rows.append(len(hidden))
        return hidden @ self.lm_head.T


def bound(heads: Heads, *tree: Any, **options: Any) -> tuple[Medusa, Fake]:
    made, fake = Medusa(heads, *tree, **options), Fake(random(V, D, seed=5, scale=0.5))
    made.placed = Placed(heads, fake)  # type: ignore[arg-type]
    return made, fake


def after_a_step(key: int = 0, rule: str = "coupled", **options: Any) -> Request:
    """A request whose last step accepted node 2 of a tree with a side branch."""
    request = Request(key, [3, 4, 5], params(max_tokens=50, **options), seed=key, rule=rule)
    tree, path = TokenTree([5, 6, 7, 8], [-1, 0, 0, 2]), [0, 2]
    for token in (7, 9):
        request.write(token, torch.zeros(4, V), 0)
    request.commit(tree, path, 2)
    request.feedback = Feedback(tree, path, {-1: random(4, D, seed=key, scale=1.0)})
    return request


@torch.no_grad()
def slow_guesses(
    medusa: Medusa, fake: Fake, request: Request, width: int
) -> list[dict[int, float]]:
    """Of each head, the softmax of its best tokens: one head and one layer at a time."""
    assert request.feedback is not None
    found = []
    for k in range(medusa.heads.heads):
        x = request.feedback.hidden[-1][2]
        for layer in range(medusa.heads.layers):
            y = medusa.heads.weights[k, layer] @ x
            if medusa.heads.biases is not None:
                y = y + medusa.heads.biases[k, layer]
            x = x + y * torch.sigmoid(y)
        outputs = medusa.heads.outputs
        p = ((fake.lm_head if outputs is None else outputs[k]) @ x).softmax(0)
        found.append({int(t): float(p[t]) for t in p.argsort(descending=True)[:width]})
    return found


def branches(tree: TokenTree) -> dict[tuple[int, ...], float]:
    """Every node but node 0 by its tokens, and its score."""
    assert tree.scores is not None
    return {tuple(tree.path_tokens(i)): tree.scores[i] for i in range(1, len(tree))}


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_grown_tree_is_the_best_of_all(layers: int, own: bool, bias: bool) -> None:
    medusa, fake = bound(random_heads(3, layers, bias, own), "grown", nodes=9)
    request = after_a_step()
    (tree,) = medusa.propose([request])
    guesses = slow_guesses(medusa, fake, request, 9)
    every = {}
    for depth in range(1, 4):
        for path in itertools.product(*(g.items() for g in guesses[:depth])):
            score = 1.0
            for _, share in path:
                score *= share
            every[tuple(token for token, _ in path)] = score
    best = dict(sorted(every.items(), key=lambda item: -item[1])[:9])
    assert tree.tokens[0] == 9 and tree.laws is None
    assert branches(tree) == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_static_tree_is_made_of_ranks(rule: str) -> None:
    medusa, fake = bound(random_heads(), STATIC)
    request = after_a_step(rule=rule)
    (tree,) = medusa.propose([request])
    ids = [list(guess) for guess in slow_guesses(medusa, fake, request, 3)]
    want = [tuple(ids[k][rank] for k, rank in enumerate(path)) for path in STATIC]
    assert list(branches(tree)) == sorted(want, key=len)


def test_under_the_rejection_rule_noise_has_no_say() -> None:
    medusa, fake = bound(random_heads(), CHAIN)
    request = after_a_step(rule="rejection", temperature=1.5, top_k=4)
    (tree,) = medusa.propose([request])
    guesses = slow_guesses(medusa, fake, request, 1)
    assert list(tree.tokens[1:]) == [next(iter(guess)) for guess in guesses]
    assert tree.laws is None


@pytest.mark.parametrize("temperature", [0.4, 1.0, 60.0])
def test_with_noise_the_heads_answer_for_the_noisy_logits(temperature: float) -> None:
    medusa, fake = bound(random_heads(), [(rank,) for rank in range(6)])
    request = after_a_step(temperature=temperature)
    (tree,) = medusa.propose([request])
    p = slow_guesses(medusa, fake, request, V)[0]
    e = noise(request.seed, 0, len(request.tokens), V)
    logits = torch.tensor([p[token] for token in range(V)]).log()
    best = (logits - temperature * e.log()).argsort(descending=True)[:6]
    assert list(tree.tokens[1:]) == best.tolist() and tree.scores is not None
    g = -(1 - (-e).exp()).log()  # close to -log(E) for what wins among many tokens
    shares = (logits + temperature * g)[best].softmax(0)
    assert tree.scores[1:] == pytest.approx(shares.tolist(), rel=1e-3)


def test_penalties_and_bans_reach_the_heads() -> None:
    medusa, _ = bound(random_heads(), CHAIN)
    (free,) = medusa.propose([after_a_step()])
    best = free.tokens[1:]
    banned, penalised = after_a_step(bad_token_ids=tuple(best)), after_a_step(presence_penalty=2.0)
    penalised.history.append(best)
    for tree in medusa.propose([banned]) + medusa.propose([penalised]):
        assert len(tree) == 4 and not set(tree.tokens[1:]) & set(best)


def test_all_heads_of_all_requests_go_through_the_head_of_the_target_at_once() -> None:
    medusa, fake = bound(random_heads(own=False), nodes=4)
    requests = [after_a_step(key) for key in range(5)]
    requests[2].feedback = None
    together = medusa.propose(requests)
    assert fake.rows == [K * 4]
    for request, tree in zip(requests, together, strict=True):
        (alone,) = medusa.propose([request])
        assert branches(alone) == pytest.approx(branches(tree), rel=1e-5)
    assert [len(tree) for tree in together] == [5, 5, 1, 5, 5]


def stale(change: str) -> Request:
    request = after_a_step()
    if change == "no step yet":
        request.feedback = None
    elif change == "nothing tapped":
        request.feedback = Feedback(TokenTree.chain([9]), [0], {})
    elif change == "a token more":
        request.tokens.append(11)
    elif change == "a token less":
        request.tokens.pop()
    return request


@pytest.mark.parametrize(
    "change", ["no step yet", "nothing tapped", "a token more", "a token less"]
)
def test_nothing_is_drafted_from_a_state_that_is_not_the_last(change: str) -> None:
    medusa, fake = bound(random_heads(own=False))
    request = stale(change)
    (tree,) = medusa.propose([request])
    assert list(tree.tokens) == request.tokens[-1:] and fake.rows == []
    assert len(medusa.propose([stale("")])[0]) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_scores_fall_and_doubtful_nodes_are_left_out(kind: str, temperature: float) -> None:
    heads = copy.deepcopy(random_heads())
    heads.accuracies = [[0.5, 0.2, 0.1]] * K
    requests = [after_a_step(key, temperature=temperature) for key in range(8)]
    every = bound(heads, KINDS[kind], nodes=8)[0].propose(requests)
    some = bound(heads, KINDS[kind], nodes=8, min_confidence=0.1)[0].propose(requests)
    for whole, cut in zip(every, some, strict=True):
        assert whole.scores is not None and len(whole) == 9
        for i in range(1, len(whole)):
            assert 0 < whole.scores[i] <= whole.scores[whole.parents[i]] <= 1
        want = {path: score for path, score in branches(whole).items() if score >= 0.1}
        assert branches(cut) == pytest.approx(want)
    assert sum(map(len, some)) < sum(map(len, every))


def test_heads_that_fail_later_change_nothing() -> None:
    medusa = Medusa(fitted("llama"))
    heads, size = medusa.heads.heads, medusa.heads.hidden_size
    with llm_of("llama", medusa, max_batch=4) as llm:
        medusa.placed.first = lambda rows: torch.full((len(rows), heads * size), torch.nan)
        outs = llm.generate(PROMPTS, params())
    assert [out.token_ids for out in outs] == plain("llama", "greedy")
    assert all("drafting stopped" in warning for out in outs for warning in out.warnings)
    assert all(out.warnings for out in outs)


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), max_size=3), st.integers(1, 12))
def test_best_first_equals_trying_every_path(shares: list[list[float]], nodes: int) -> None:
    every = {}
    for depth in range(1, len(shares) + 1):
        for path in itertools.product(*(range(len(s)) for s in shares[:depth])):
            value = 1.0
            for k, rank in enumerate(path):
                value *= shares[k][rank]
            if value > 0:
                every[path] = value
    got = [path for path, share in best_first(shares, nodes + 1)[1:] if share > 0]
    assert len(set(got)) == len(got) == min(nodes, len(every))
    assert [every[path] for path in got] == sorted(every.values(), reverse=True)[:nodes]
    for i, path in enumerate(got):
        assert len(path) == 1 or path[:-1] in got[:i]


def test_the_default_tree_is_what_lies_with_the_heads() -> None:
    heads = random_heads()
    assert Medusa(heads).paths == []
    heads.accuracies = [[0.9, 0.05], [0.8, 0.1], [0.7, 0.1]]
    assert Medusa(heads, nodes=4).paths == [(0,), (0, 0), (0, 1), (0, 0, 0)]
    heads.tree = [(0,), (1,)]
    assert Medusa(heads).paths == [(0,), (1,)]
    assert Medusa(heads, "grown").paths == []
    assert Medusa(heads, "calibrated", nodes=1).paths == [(0,)]


# --- one set of heads for several ---


def test_heads_are_left_as_they_were() -> None:
    heads = random_heads()
    before = {name: tensor.clone() for name, tensor in heads.state_dict().items()}
    medusa = Medusa(heads)
    for dtype in (torch.float64, torch.float32):
        with llm_of("llama", medusa, dtype) as llm:
            llm.generate(PROMPTS[:1], params(max_tokens=4))
    for name, tensor in heads.state_dict().items():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, before[name])
    assert all(parameter.requires_grad for parameter in heads.parameters())
