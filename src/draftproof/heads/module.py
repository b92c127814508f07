"""Heads over one hidden state of the target, as a module.

Head k (from 1) turns the hidden state that predicts the next token into one that predicts the k-th
token after that; the target's LM head, or a projection of its own, makes logits of it. Medusa: Cai
et al. 2024 (arXiv 2401.10774). Does not know targets, requests, files or how heads are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

AGAIN = "fetch or train the heads again"
Ranks = tuple[int, ...]  # (2, 0): the best guess of head 2 after the third best of head 1


class Heads(nn.Module):
    """K heads: `layers` blocks x + SiLU(W1 x + b) each, then W2 or the target's LM head.

    weights: W1, (K, layers, d, d). The paper starts from zeros: each head then equals the LM head.
    biases: b, (K, layers, d). outputs: W2, (K, V, d); None: the target's LM head is shared.
    tokens: the ids (R,), ascending, of all that the heads guess, and outputs is (K, R, d), or
    (1, R, d), one for all heads: rows of the target's, which do not learn; None: all V.
    target: its name. accuracies: per head, how often its guess of each rank is right. tree: paths
    of ranks that suit these heads. exit: a single head reads the normed state after so many layers
    of the target; None: after all. Raises `ValueError`.
    """

    tokens: Tensor | None

    def __init__(
        self,
        weights: Tensor,
        biases: Tensor | None = None,
        outputs: Tensor | None = None,
        *,
        vocab_size: int,
        tokens: Tensor | None = None,
        target: str = "",
        accuracies: Sequence[Sequence[float]] | None = None,
        tree: Sequence[Sequence[int]] | None = None,
        exit: int | None = None,
    ) -> None:
        super().__init__()
        if exit is not None and (not isinstance(exit, int) or exit < 1 or len(weights) != 1):
            raise ValueError(f"exit={exit!r} is of one head, after 1 layer or more: {AGAIN}")
        self.exit = exit
        if weights.ndim != 4 or 0 in weights.shape:
            raise ValueError(f"weights has the shape {tuple(weights.shape)}, not (K, layers, d, d)")
        K, layers, _, d = weights.shape
        self.heads, self.layers, self.hidden_size, self.vocab_size = K, layers, d, vocab_size
        self.weights = nn.Parameter(_sound("weights", weights, K, layers, d, d))
        self.biases = self.outputs = None
        if biases is not None:
            self.biases = nn.Parameter(_sound("biases", biases, K, layers, d))
        self.register_buffer("tokens", _ascending(tokens, vocab_size), persistent=False)
        if outputs is not None:
            size = vocab_size if self.tokens is None else len(self.tokens)
            count = 1 if self.tokens is not None and len(outputs) == 1 else K
            sound = _sound("outputs", outputs, count, size, d)
            learns = self.tokens is None or count > 1
            self.outputs = nn.Parameter(sound, requires_grad=learns)
        elif self.tokens is not None:
            raise ValueError("heads that guess a part of the tokens have outputs for these")
        self.target = target
        self.accuracies = None if accuracies is None else checked_accuracies(accuracies, K)
        self.tree = None if tree is None else checked_tree(tree, K)

    @property
    def shared(self) -> bool:
        """Whether all heads have one projection, the target's or a part of it."""
        return self.outputs is None or (self.tokens is not None and len(self.outputs) == 1)

    def forward(self, states: Tensor) -> Tensor:
        """Hidden states (N, d) -> those of each head, (K, N, d)."""
        x = states.expand(self.heads, *states.shape)
        for layer in range(self.layers):
            y = x @ self.weights[:, layer].transpose(1, 2)
            if self.biases is not None:
                y = y + self.biases[:, layer, None]
            x = x + nn.functional.silu(y)
        return x

    def logits(self, states: Tensor, lm_head: Callable[[Tensor], Tensor]) -> Tensor:
        """Hidden states (N, d) -> logits (K, N, V); a shared LM head takes all rows in one call."""
        x: Tensor = self(states)
        if self.outputs is not None:
            return self.spread(x @ self.outputs.transpose(1, 2))
        rows: Tensor = lm_head(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return rows

    def spread(self, rows: Tensor) -> Tensor:
        """Logits (..., R) of what the heads guess -> (..., V), with -inf for the other tokens."""
        if self.tokens is None:
            return rows
        every = rows.new_full((*rows.shape[:-1], self.vocab_size), -torch.inf)
        return every.index_copy_(-1, self.tokens.to(rows.device), rows)


def _ascending(tokens: Tensor | None, vocab_size: int) -> Tensor | None:
    if tokens is None:
        return None
    whole = not tokens.is_floating_point() and tokens.ndim == 1 and 0 < len(tokens) < vocab_size
    ids = tokens.long()
    if not whole or not bool(((ids >= 0) & (ids < vocab_size)).all() and (ids.diff() > 0).all()):
        raise ValueError(f"token_map is no ascending ids of {vocab_size} tokens: {AGAIN}")
    return ids


def shaped(name: str, tensor: Tensor, *shape: int) -> Tensor:
    if tensor.shape != shape or not tensor.is_floating_point():
        actual = f"{tuple(tensor.shape)} of {tensor.dtype}"
        raise ValueError(f"{name} is {actual} and should be {shape} of floats: {AGAIN}")
    return tensor


def _sound(name: str, tensor: Tensor, *shape: int) -> Tensor:
    if not shaped(name, tensor, *shape).isfinite().all():
        raise ValueError(f"{name} holds NaN or infinity: {AGAIN}")
    return tensor


def _lists(value: Any, kind: type[int] | type[float]) -> list[list[Any]]:
    try:
        return [[kind(x) for x in each] for each in value]
    except (TypeError, ValueError):
        return []


def checked_tree(tree: Any, heads: int) -> list[Ranks]:
    """The paths of a tree by length, then ranks; `ValueError` unless they hang together."""
    paths = {tuple(path) for path in _lists(tree, int)}
    if not paths or any(not path or min(path) < 0 for path in paths):
        raise ValueError("a tree is a list of paths of ranks from 0 on, as [(0,), (1,), (0, 0)]")
    if (depth := max(map(len, paths))) > heads:
        raise ValueError(f"the tree is {depth} deep and there are {heads} heads: use a lower tree")
    for path in paths:
        if path[:-1] and path[:-1] not in paths:
            raise ValueError(f"the tree holds {path} but not {path[:-1]}: add that")
    return sorted(paths, key=lambda path: (len(path), path))


def checked_accuracies(accuracies: Any, heads: int) -> list[list[float]]:
    """One list per head of one share per rank, or `ValueError`."""
    lists = _lists(accuracies, float)
    if len(lists) != heads or not all(r and all(0 <= x <= 1 for x in r) for r in lists):
        raise ValueError(
            f"accuracies are shares from 0 to 1 per rank, one list for each of {heads}"
        )
    return lists
