"""Which parts of a decoder make the keys and values of its cross-attention.

Seen once, in a pass of the decoder; from then on they are called alone, on what the encoder made of
an input. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from draftproof.runners import altering, crossing
from draftproof.runners.crossing import Capture, Roles
from draftproof.runners.kv import Pair
from draftproof.runners.takeover import Takeover


class Maker(NamedTuple):
    """Of one layer: paths within its module, as parts may be exchanged for wrapped ones."""

    module: nn.Module
    keys: str
    values: str
    heads: int

    def made(self, states: Tensor) -> Pair:
        """(N, heads, tokens, head size) twice, of states (N, tokens, hidden size)."""
        keys, values = (
            self.module.get_submodule(path)(states).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for path in (self.keys, self.values)
        )
        return keys, values


def captured(
    decoder: Any, roles: Roles, takeover: Takeover, states: Tensor
) -> tuple[Mapping[int, Pair], Mapping[nn.Module, Tensor]]:
    """A pass over one token for each of states (N, tokens, hidden size).

    Of each layer what its cross-attention is given, and what parts of the decoder made of states.
    """
    step = Capture(roles)
    start = torch.zeros(len(states), 1, dtype=torch.long, device=states.device)

    def decode() -> Any:
        given = {"encoder_hidden_states": states, "use_cache": False}
        return crossing.during(step, lambda: decoder(input_ids=start, **given))

    def seen() -> Any:
        return altering.reading(roles.across, states, decode)

    _, returned = takeover.run(crossing.registered(), seen)
    return step.pairs, returned


def found(
    modules: Mapping[nn.Module, int], pairs: Mapping[int, Pair], seen: Mapping[nn.Module, Tensor]
) -> list[Maker] | None:
    """A maker of each layer; None where some layer's pair is not what two of its parts returned.

    modules: -> layer. pairs: what their attention was given. seen: what parts returned (N, tokens,
    width) in the same pass.
    """
    makers = []
    for module, layer in modules.items():
        parts = {path: seen[part] for path, part in module.named_modules() if part in seen}
        paths = [
            [path for path, output in parts.items() if _same(output, wanted)]
            for wanted in pairs[layer]
        ]
        if [len(each) for each in paths] != [1, 1] or paths[0] == paths[1]:
            return None
        makers.append(Maker(module, paths[0][0], paths[1][0], pairs[layer][0].shape[1]))
    return makers


def _same(output: Tensor, wanted: Tensor) -> bool:
    count, heads, tokens, size = wanted.shape
    if output.shape != (count, tokens, heads * size):
        return False
    return bool((output.unflatten(2, (heads, size)).transpose(1, 2) == wanted).all())


def copied(pair: Pair) -> Pair:
    """So that each input's is let go by itself, each head's in one piece."""
    keys, values = (part.clone(memory_format=torch.contiguous_format) for part in pair)
    return keys, values
