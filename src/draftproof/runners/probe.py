"""A short pass of a new runner decides whether it computes what the model computes.

Several architectures accept our attention function and come out wrong without a word (windows or
chunks that live only in the mask, layers that share keys, convolutions). The probe compares the
packed logits with the model's own and refuses, naming the cause.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from draftproof.runners import reference, wide
from draftproof.runners.attention import Call, Step
from draftproof.runners.base import KEY, Work
from draftproof.runners.kv import KVCache
from draftproof.runners.loading import Refused
from draftproof.runners.segments import Segment
from draftproof.runners.takeover import Takeover
from draftproof.runners.telling import LOG
from draftproof.runners.weights import Weights
from draftproof.tree import TokenTree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from draftproof.runners.native import NativeRunner
    from draftproof.runners.torch import TorchRunner

R = TypeVar("R", bound="TorchRunner")

# Native: of the logits, relative to their spread. SmolLM2 has 0.08 and 0.17 with the right weights,
# most of it rounding in transformers' own bfloat16; what is packed wrongly has 1 or more.
_FAR = {"bfloat16": 0.2, "int8": 0.4, "int4": 0.6}
LENGTHS = (7, 5)
ANOTHER = "use another architecture"
# Of the largest logit. fp64 has fp32's, because many models take a softmax or a norm in fp32.
_BOUND = {
    torch.float64: 1e-4,
    torch.float32: 1e-4,
    torch.bfloat16: 0.125,
    torch.float16: 0.016,
}
# In half precision a near-tied router may send a row to another expert: half of them must agree.
_SHARE = {torch.bfloat16: 0.5, torch.float16: 0.5}


def check_torch(runner: TorchRunner) -> None:
    """Raise `Refused` unless the packed pass is the model's own pass.

    From then on the runner knows the keys and values of every layer.
    """
    name = type(runner.model).__name__
    span = min(runner.vocabulary, 1 << 15)
    ids = [[(11 + 7919 * (i + 17 * j)) % span for i in range(n)] for j, n in enumerate(LENGTHS)]
    ids = [row[: runner.max_length] for row in ids]
    caches = []

    def passes(runner: TorchRunner) -> tuple[Tensor, Tensor]:
        cache, packed = _packed(runner, ids)
        caches.append(cache)
        return packed, torch.cat([_own(runner, sequence) for sequence in ids])

    if (off := verdict(runner, passes, ANOTHER)) is not None:
        raise Refused(
            f"{name} gives other logits when its sequences are packed (off by {off:.2g}), "
            f"because {_cause(runner, ids[0])}: {ANOTHER}"
        )
    runner.learn(caches[0].layers)


def _packed(runner: TorchRunner, ids: Sequence[list[int]]) -> tuple[KVCache, Tensor]:
    """Logits (rows, V) of sequences in one pass, and where their keys and values are."""
    lengths = [len(row) for row in ids]
    cache = KVCache(len(ids), max(lengths))
    segments, begin = [], 0
    for key, n in enumerate(lengths):
        row = cache.reserve(key, n)
        segments.append(Segment(begin, begin + n, row, 0, n, None, 0))
        begin += n
    step = Step(segments, cache, calls=[])
    tokens = [token for row in ids for token in row]
    positions = [position for seg in segments for position in seg.positions()]
    packed, _ = runner.run(tokens, positions, step, list(range(begin)))
    _check_calls(type(runner.model).__name__, runner.config, step.calls or [])
    return cache, packed


def verdict(runner: R, passes: Callable[[R], tuple[Tensor, Tensor]], instead: str) -> float | None:
    """How far the packed logits that `passes` gives are off the model's own, its second; or None.

    Where they are, a copy in float64 decides, as rounding alone takes some models as far. Raises
    `Refused`, with what to use instead, where there are no logits.
    """
    try:
        off = differs(runner.model, *passes(runner))
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        if isinstance(error, Refused):
            raise
        name, text = type(runner.model).__name__, " ".join(str(error).split())[:200]
        raise Refused(f"{name} cannot be run packed ({text}): {instead}") from error
    if off is None or not math.isfinite(off):
        return off
    try:
        made = type(runner)(wide.of(runner.model), max_batch=runner.max_batch)
        packed, own = wide.during(lambda: passes(made))
        return differs(made.model, packed, own)
    except Exception as error:  # of a copy that nobody asked for: what was found stands
        LOG.debug("no copy in float64 (%s)", error)
        return off


def differs(model: PreTrainedModel, packed: Tensor, own: Tensor) -> float | None:
    """How far packed logits (N, V) are off the model's own; None: no further than rounding is.

    Raises `Refused` where the model's own are not finite.
    """
    expected, dtype = own.double(), model.dtype
    largest = float(expected.abs().max())
    if not math.isfinite(largest):
        broken = (n for n, each in model.named_parameters() if not each.isfinite().all())
        raise Refused(
            f"{type(model).__name__} gives logits that are not finite: "
            f"{next(broken, 'none of its weights')} holds NaN or infinity"
        )
    errors = (packed.double() - expected).abs().amax(1)  # (rows,)
    off = float(errors.quantile(_SHARE.get(dtype, 1.0)))
    return None if off <= _BOUND[dtype] * max(1.0, largest) else off


def own_logits(model: PreTrainedModel) -> Tensor:
    """The model's own logits (T, V) of a short text: before its weights may go."""
    ids = torch.tensor([_text(model.config.get_text_config())])
    out: Any = Takeover(model).look(lambda: model(input_ids=ids, use_cache=False))
    logits: Tensor = out.logits[0]
    return logits.float()


def check_native(
    runner: NativeRunner,
    expected: Tensor,
    said: str = "dtype",
    unrounded: Callable[[], NativeRunner] | None = None,
) -> bool:
    """Raise `Refused` unless packed weights give what `own_logits` gave.

    A class that is known by its name may hide what the kernels do not compute. said: the option
    that its precision was given by. unrounded: of a draft, a runner of the same weights in
    bfloat16. If that one is right, all that is wrong is what a precision loses, which in a draft
    changes no text: it is told, and the answer is False.
    """
    off, most = _apart(runner, expected)
    if off <= most:
        return True
    instead, precision = "use runner='torch'", runner.precision
    if precision in ("int8", "int4"):
        instead = f"drop {said}" if precision == "int8" else f"give {said}='int8', or drop it"
        instead += " (draftproof quality tells what each precision costs)"
    if unrounded is not None and precision != "bfloat16":
        again, bound = _apart(unrounded(), expected)
        if again <= bound:
            said = f"the draft's logits in {precision} come out {off:.0%} off its own"
            LOG.warning("%s: less of it will be accepted, no text changes; %s", said, instead)
            return False
        instead = f"drop {said} and use runner='torch'"
    raise Refused(
        "the native runner does not take this model: its logits"
        f"{'' if precision == 'bfloat16' else f' in {precision}'} come out {off:.0%} off those of "
        f"transformers; {instead}"
    )


def agrees(runner: NativeRunner, weights: Weights) -> bool:
    """Whether packed weights give what plain torch computes from those that they were made of.

    For models of which every field of the configuration is known: nothing hides in their class.
    """
    off, most = _apart(runner, reference.logits(weights, _text(runner.config)))
    return off <= most


def _apart(runner: NativeRunner, expected: Tensor) -> tuple[float, float]:
    """How far its logits are off, relative to their spread, and how far they may be."""
    (output,) = runner.forward([Work(KEY, [], TokenTree.chain(_text(runner.config)))])
    error = (output.logits - expected).norm()
    runner.free(KEY)
    spread = (expected - expected.mean(-1, keepdim=True)).norm()
    # Four bits of a checkpoint are its own: activations alone are rounded, as in int8.
    off = float(error / spread) if error else 0.0  # all logits may be alike
    return off, _FAR.get(runner.precision, _FAR["int8"])


def _text(config: Any) -> list[int]:
    length = min(12, int(config.max_position_embeddings))
    return [(7 * i + 3) % int(config.vocab_size) for i in range(length)]


def _own(runner: TorchRunner, sequence: list[int], **options: Any) -> torch.Tensor:
    """The logits (T, V) of the model's own pass over one sequence."""
    at = torch.tensor([sequence], device=runner.device)
    out = runner.takeover.look(lambda: runner.model(input_ids=at, use_cache=False, **options))
    logits: torch.Tensor = out.logits[0]
    return logits


def _cause(runner: TorchRunner, sequence: list[int]) -> str:
    if "position_ids" not in inspect.signature(runner.model.forward).parameters:
        return "it takes no position_ids"
    positions = torch.arange(len(sequence), device=runner.device)[None]
    numbered = _own(runner, sequence, position_ids=positions)
    if not torch.allclose(numbered, _own(runner, sequence), rtol=1e-2, atol=1e-2):
        return "it does not count positions from 0"
    return "something besides attention mixes its tokens"


def _check_calls(name: str, config: Any, calls: list[Call]) -> None:
    layers = int(config.num_hidden_layers)
    ran = sorted(call.layer for call in calls)
    if ran != list(range(layers)):
        often = len(set(ran)) < len(ran)
        raise Refused(
            f"{name} called attention {len(calls)} times for {layers} layers, and only layers that "
            f"attend {'once in a pass' if often else 'themselves'} can be rolled back: {ANOTHER}"
        )
    if any(call.masked for call in calls):
        raise Refused(f"{name} builds its own attention mask: {ANOTHER}")
    if any(call.bidirectional for call in calls):
        raise Refused(f"{name} attends in both directions: use a causal language model")
    if any(call.capped for call in calls) and config._attn_implementation == "sdpa":
        # Older transformers let it, and their own logits lack the cap.
        raise Refused(
            f"{name} caps its attention scores, which sdpa leaves out: "
            "load it with attn_implementation='eager'"
        )
    if others := sorted({other for call in calls for other in call.others}):
        raise Refused(f"{name} steers attention by its own {', '.join(others)}: {ANOTHER}")
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = getattr(config, "layer_types", None)
    for call in calls:
        sliding = kinds[call.layer] == "sliding_attention" if kinds else window is not None
        if sliding and call.window is None:
            raise Refused(f"{name} hides the window of layer {call.layer} in its mask: {ANOTHER}")
    if getattr(config, "attention_chunk_size", None):
        raise Refused(f"{name} attends in chunks that only its mask knows: {ANOTHER}")
