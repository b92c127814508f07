"""Numbers rounded to integers of 8 bits in groups of 32, as the kernels round them, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32


def in_groups(x: Tensor, in_halves: bool) -> tuple[Tensor, Tensor]:
    """Integers (N, groups, 32) and scales (N, groups) in float64; in_halves: scales are in fp16."""
    groups = torch.nn.functional.pad(x, (0, -x.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
    scale = groups.abs().amax(2) / torch.tensor(127.0)
    if in_halves:
        scale = scale.half().float()
        integers = (groups / scale[..., None]).round().clamp(-127, 127)
    else:
        most = torch.tensor(127.0)  # a number would be divided as its product with an inverse
        integers = (groups * (most / groups.abs().amax(2, keepdim=True))).round()
    return integers.nan_to_num(0).double(), scale.double()
