"""A model as a GGUF file that draftproof and llama.cpp load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof import hub, native, places
from draftproof.bundled import located
from draftproof.gguf import vocabulary, writing
from draftproof.gguf.names import HEAD
from draftproof.out_folders import whole
from draftproof.runners import choice
from draftproof.runners.base import of_torch
from draftproof.runners.checkpoint import Checkpoint
from draftproof.runners.team import check_threads
from draftproof.runners.weights import LoadedWeights, Weights
from draftproof.vocabularies import load_tokenizer

FORMATS = {"Q8_0": native.INT8, "Q4_1": native.INT4}
AT_ONCE = 64  # rows that a thread rounds


def convert(
    model: str | Path,
    out: Path,
    precision: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    threads: int | None = None,
    told: Callable[[str, float], None] = lambda name, share: None,
) -> Path:
    """Write a model (hub id, folder or file) into `out`, a .gguf file; the path of what is written.

    precision: of `writing.KINDS`. int8 and int4 are rounded as `dtype="int8"` and "int4" round them
    at load, but for embeddings that the head does not share, which become int8 too; other programs
    read them as Q8_0 and Q4_1. threads: None: as many as torch has. The file appears when it is
    whole.
    Raises `ValueError`, in one sentence.
    """
    if precision not in writing.KINDS:
        raise ValueError(f"dtype {precision!r} is unknown: use {', '.join(writing.KINDS)}")
    if out.suffix != ".gguf":
        raise ValueError(f"{out} does not end in .gguf: that is what is written")
    if precision in choice.QUANTISED:
        try:
            native.library()
        except native.Missing as error:
            raise ValueError(f"{precision} is rounded by the native kernels: {error}") from error
    check_threads(threads)
    places.check(model, revision)
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    source = hub.fetched(located(model, "target"), revision)
    writing.architecture_of(choice.configuration(source, **options))
    tokenizer = load_tokenizer(source, None, options)
    if tokenizer is None:
        raise ValueError(f"{model} came without a tokenizer, and a GGUF file holds one")
    weights, shapes = _weights(source, options)
    fields = vocabulary.fields(tokenizer, weights.config.vocab_size)
    with whole(out) as part, of_torch(threads):
        writing.write(
            part,
            weights.config,
            shapes,
            lambda name: weights[name].detach(),
            precision,
            rounded,
            fields,
            told,
        )
    return out


def _weights(source: Any, options: dict[str, Any]) -> tuple[Weights, Mapping[str, tuple[int, ...]]]:
    """Numbers in the checkpoint's own type, and the shapes of all that a file needs."""
    weights: Checkpoint | LoadedWeights | None = choice.stored(
        source, as_they_lie=False, dtype=None, **options
    )
    if weights is None:
        weights = LoadedWeights(
            choice.load(source, device=torch.device("cpu"), dtype=None, **options)
        )
    shapes = {name: tuple(each.shape) for name, each in weights.model.state_dict().items()}
    if weights.tied:
        shapes.pop(HEAD, None)
    return weights, shapes


def rounded(tensor: Tensor, kind: str) -> NDArray[np.uint8]:
    """(rows, bytes of a row) Blocks of a matrix, by the kernels' own rounding, on torch's threads.

    Raises `ValueError` for a weight that is not finite, or too large for them.
    """
    library, format_ = native.library(), FORMATS[kind]
    numbers = tensor.float().contiguous()
    rows, inputs = numbers.shape
    size = native.BLOCK_BYTES[format_]
    data = np.empty((rows, inputs // native.GROUP * size), np.uint8)

    def some(first: int) -> int:
        count = min(AT_ONCE, rows - first)
        code: int = library.dp_blocks(
            format_, numbers[first].data_ptr(), count * inputs, data[first].ctypes.data
        )
        return code

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        if any(pool.map(some, range(0, rows, AT_ONCE))):
            raise ValueError("a weight is not finite, or too large: give --dtype bfloat16")
    return data
