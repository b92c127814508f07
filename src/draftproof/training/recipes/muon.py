"""Muon (Jordan et al. 2024) in float32, for processors on which bfloat16 is emulated.

torch's orthogonalises in bfloat16, which takes many times as long where no instruction multiplies
that; nothing else differs, and a state is the same. Knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CUDA = "cuda"


class Muon(torch.optim.Muon):
    """As torch's with `adjust_lr_fn="match_rms_adamw"`; on a GPU it is torch's."""

    def __init__(self, matrices: list[Tensor], rate: float, weight_decay: float) -> None:
        super().__init__(matrices, rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        if any(each.device.type == CUDA for group in self.param_groups for each in group["params"]):
            theirs: float | None = super().step(closure)  # type: ignore[no-untyped-call]
            return theirs
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._move(matrix, group)
        return loss

    def _move(self, matrix: Tensor, group: dict[str, Any]) -> None:
        state, momentum, gradient = self.state[matrix], group["momentum"], matrix.grad
        assert gradient is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        mean = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        update = gradient.lerp(mean, momentum) if group["nesterov"] else mean
        turned = orthogonal(update.float(), group["ns_coefficients"], group["ns_steps"])
        rate = float(group["lr"])
        matrix.mul_(1 - rate * group["weight_decay"])
        matrix.add_(turned.to(matrix.dtype), alpha=-rate * 0.2 * math.sqrt(max(matrix.shape)))


def orthogonal(
    matrix: Tensor, coefficients: tuple[float, float, float], steps: int, least: float = 1e-7
) -> Tensor:
    """Its directions, each about as long as the others: Newton and Schulz' iteration."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if tall else matrix
    found = found / found.norm().clamp(min=least)
    for _ in range(steps):
        square = found @ found.T
        found = torch.addmm(
            found, torch.addmm(square, square, square, beta=b, alpha=c), found, beta=a
        )
    return found.T if tall else found
