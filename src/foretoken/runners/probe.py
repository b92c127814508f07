"""One packed pass over two short sequences decides whether a model may be run packed.

Several architectures accept our attention function and come out wrong without a word (windows or
chunks that live only in the mask, layers that share keys, convolutions). The probe compares the
packed logits with the model's own and refuses, naming the cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from foretoken.runners.attention import Segment, Step
from foretoken.runners.kv import KVCache
from foretoken.runners.loading import Refused

if TYPE_CHECKING:
    from foretoken.runners.torch import TorchRunner

LENGTHS = (7, 5)


def check(runner: TorchRunner) -> None:
    """Raise `Refused` unless the packed pass is the model's own pass."""
    model, name = runner.model, type(runner.model).__name__
    span = min(runner.vocabulary, 1 << 15)
    ids = [[(11 + 7919 * (i + 17 * j)) % span for i in range(n)] for j, n in enumerate(LENGTHS)]
    lengths = [min(len(row), runner.max_length) for row in ids]
    ids = [row[:n] for row, n in zip(ids, lengths, strict=True)]
    cache = KVCache(len(ids), max(lengths))
    segments, begin = [], 0
    for key, n in enumerate(lengths):
        row = cache.reserve(key, n)
        segments.append(Segment(begin, begin + n, row, 0, n, None, 0))
        begin += n
    step = Step(segments, cache, calls=[])
    tokens = [token for row in ids for token in row]
    positions = [position for seg in segments for position in seg.positions()]
    try:
        packed, _ = runner.run(tokens, positions, step, list(range(begin)))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        raise Refused(
            f"{name} cannot be run packed: {' '.join(str(error).split())[:200]}"
        ) from error
    _check_calls(name, runner.config, step.calls or [])
    own = []
    training = model.training
    model.eval()
    try:
        for sequence in ids:
            with torch.inference_mode():
                at = torch.tensor([sequence], device=runner.device)
                own.append(model(input_ids=at, use_cache=False).logits[0])
    finally:
        model.train(training)
    expected = torch.cat(own).double()
    error_size = float((packed.double() - expected).abs().max())
    bound = 16 * torch.finfo(runner.dtype).eps * max(1.0, float(expected.abs().max()))
    if runner.dtype in (torch.float32, torch.float64):
        bound *= 64  # a deep sum's rounding; a wrong mask is off by far more
    if not error_size <= bound:
        raise Refused(
            f"{name} gives other logits when its sequences are packed (off by {error_size:.2g}): "
            "something besides attention mixes its tokens; use another architecture"
        )


def _check_calls(name: str, config: Any, calls: list[tuple[Any, ...]]) -> None:
    layers = int(config.num_hidden_layers)
    if sorted(call[0] for call in calls) != list(range(layers)):
        raise Refused(
            f"{name} called attention {len(calls)} times for {layers} layers: layers without "
            "attention or with shared keys cannot be rolled back; use another architecture"
        )
    if any(call[2] for call in calls):
        raise Refused(f"{name} builds its own attention mask: use another architecture")
    if any(call[3] for call in calls):
        raise Refused(f"{name} attends in both directions: use a causal language model")
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = getattr(config, "layer_types", None)
    for layer, given, *_ in calls:
        sliding = kinds[layer] == "sliding_attention" if kinds else window is not None
        if sliding and given is None:
            raise Refused(
                f"{name} hides the window of layer {layer} in its mask: use another architecture"
            )
    if getattr(config, "attention_chunk_size", None):
        raise Refused(
            f"{name} attends in chunks that only its mask knows: use another architecture"
        )
