"""A frozen target in int8, by torchao: half of the memory of bf16."""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor, nn

KINDS = ("int8",)


def quantised(weight: Tensor) -> bool:
    """Whether it is a tensor of another kind, of a byte each."""
    return type(weight.data) is not Tensor


def quantise(target: Any, kind: str) -> None:
    """Quantises the weights of all linear layers in place, a scale for each row.

    But not the LM head: gradients go through it, and heads share it. Raises `ValueError`.
    """
    if kind not in KINDS:
        raise ValueError(f"--quantize {kind} is unknown: use {', '.join(KINDS)}")
    logging.disable(logging.WARNING)  # it tells of every kernel of other machines
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ImportError:
        raise ValueError(
            "a quantised target needs torchao: pip install 'foretoken[train]', or drop --quantize"
        ) from None
    finally:
        logging.disable(logging.NOTSET)
    head = target.get_output_embeddings()
    quantize_(
        target,
        Int8WeightOnlyConfig(),
        lambda module, name: isinstance(module, nn.Linear) and module is not head,
    )
