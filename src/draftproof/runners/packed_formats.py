"""Which format each matrix of a model is packed in. Knows no tensors."""

from __future__ import annotations

from collections.abc import Mapping

from draftproof import native
from draftproof.runners.weights import Weights

PANEL = 32  # outputs that share a format
MATRICES = {
    native.Q: "self_attn.q_proj",
    native.K: "self_attn.k_proj",
    native.V: "self_attn.v_proj",
    native.OUT: "self_attn.o_proj",
    native.GATE: "mlp.gate_proj",
    native.UP: "mlp.up_proj",
    native.DOWN: "mlp.down_proj",
}
HEAD, EMBEDDINGS = "lm_head", "model.embed_tokens"
TOGETHER = ((native.Q, native.K, native.V), (native.GATE, native.UP))  # in one matrix


def rounded(precision: str, which: int, layer: int = 0) -> int:
    """What numbers are rounded to. int4: but for the head, which tells tokens apart: int8."""
    if which == native.EMBEDDINGS:
        return -1  # used where they lie
    if which == native.HEAD and precision == "int4":
        return native.INT8
    return native.PRECISIONS.get(precision, native.BF16)


class Formats:
    """Of each matrix. precision: see `packing.Packed`."""

    def __init__(
        self, shape: native.Shape, weights: Weights, precision: str | Mapping[int, int]
    ) -> None:
        self.shape, self.precision = shape, precision
        self._blocks: dict[tuple[int, int], int] = {}
        self._find(native.HEAD, 0, weights, HEAD)
        if not weights.tied:
            self._find(native.EMBEDDINGS, 0, weights, EMBEDDINGS)
        for layer in range(shape.layers):
            for which, path in MATRICES.items():
                self._find(which, layer, weights, f"model.layers.{layer}.{path}")
            for kinds in TOGETHER:
                if not self._fit(kinds, layer):
                    for which in kinds:
                        self._blocks.pop((which, layer), None)

    def in_blocks(self, which: int, layer: int) -> bool:
        """Whether its blocks are packed, not numbers."""
        return (which, layer) in self._blocks

    def all_in_blocks(self) -> list[tuple[int, int]]:
        """(which, layer) of those."""
        return sorted(self._blocks)

    def of(self, which: int, layer: int) -> int:
        """-1 for embeddings that are not packed."""
        if (found := self._blocks.get((which, layer))) is not None:
            return found
        if isinstance(self.precision, str):
            return rounded(self.precision, which)
        return self.precision.get(which, rounded("bfloat16", which))

    def _find(self, which: int, layer: int, weights: Weights, path: str) -> None:
        if (found := weights.format(f"{path}.weight")) is not None:
            self._blocks[which, layer] = found

    def _fit(self, kinds: tuple[int, ...], layer: int) -> bool:
        """Whether these can be one matrix: else their blocks become numbers, in bfloat16."""
        found = {self.of(which, layer) for which in kinds}
        if len(found) == 1:
            return True
        if native.BF16 in found or native.GATE in kinds:
            return False
        heads = (self.shape.heads, self.shape.kv_heads)
        return all(count * self.shape.head_dim % PANEL == 0 for count in heads)
