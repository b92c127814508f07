"""Heads on a target: their matrices on its kernels, as rows of its passes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from draftproof.heads.module import Heads
from draftproof.runners.base import KEY, Target, Work
from draftproof.runners.reduced import Reduced
from draftproof.tree import TokenTree


def placed(heads: Heads, target: Target) -> Placed:
    """The heads on the target; `ValueError` for heads of another one."""
    (output,) = target.forward([Work(KEY, [], TokenTree.chain([0]))], (-1,))
    target.free(KEY)
    ours = heads.hidden_size, heads.vocab_size
    theirs = output.hidden[-1].shape[-1], target.vocabulary
    if ours != theirs:
        raise ValueError(
            f"hidden size and vocabulary of the heads are {ours}, the target's {theirs}: use "
            "heads of this target"
        )
    return Placed(heads, target)


class Placed:
    """`heads` for inference with `target`; does not follow later changes of them."""

    def __init__(self, heads: Heads, target: Target) -> None:
        weights = heads.weights.detach()
        self.heads, self.target = heads, target
        # The first blocks of all heads read the same state: they are one matrix.
        self.first = target.linear(weights[:, 0].flatten(0, 1))
        self.later = [[target.linear(w) for w in head[1:]] for head in weights]
        outputs = heads.outputs
        self.outputs = None if outputs is None else [target.linear(w) for w in outputs.detach()]
        tokens, V = heads.tokens, heads.vocab_size
        self.few = None if tokens is None else Reduced(tokens, V, rest=-torch.inf)
        self.biases = None if heads.biases is None else heads.biases.detach().to(target.device)

    def logits(self, states: Tensor, count: int | None = None) -> Tensor:
        """Hidden states (N, d) -> logits (K, N, V) of the first `count` heads.

        A shared LM head takes all rows in one call.
        """
        K, d = self.heads.heads, self.heads.hidden_size
        y = self.first(states).unflatten(1, (K, d)).transpose(0, 1)[:count]  # (K, N, d)
        x = self._block(states.to(y).expand_as(y), y, 0)
        for layer in range(1, self.heads.layers):
            y = torch.stack([self.later[k][layer - 1](x[k]) for k in range(len(x))])
            x = self._block(x, y, layer)
        if self.outputs is not None and not self.heads.shared:
            own = [output(rows) for output, rows in zip(self.outputs, x, strict=False)]
            return self._spread(torch.stack(own))
        head = self.target.head if self.outputs is None else self.outputs[0]
        rows: Tensor = head(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return self._spread(rows)

    def _spread(self, rows: Tensor) -> Tensor:
        """(K, N, V) of (K, N, R), where the heads guess R tokens alone."""
        if self.few is None or rows.device.type != "cpu":
            return self.heads.spread(rows)
        wide: Tensor = self.few.widened(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
        return wide

    def _block(self, x: Tensor, y: Tensor, layer: int) -> Tensor:
        if self.biases is not None:
            y = y + self.biases[: len(y), layer, None].to(y)
        return x + silu(y)
