"""The compiled CPU kernels, if they were built: found, loaded and declared for ctypes.

`draftproof.h` documents what is declared here. Knows no model, no tensor and no cache.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import weakref
from collections.abc import Callable
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

VERSION = 20  # of the interface
OK, NO_MEMORY, NOT_FINITE, BAD_ARGUMENT, FORKED = 0, -1, -2, -3, -4
BF16, INT8, INT4, Q4_0, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K = range(9)
IQ4_NL, IQ4_XS, MXFP4, S4_128, Z4_32, Z4_128 = range(9, 15)
PRECISIONS = {"bfloat16": BF16, "int8": INT8, "int4": INT4}  # that numbers are rounded to
BLOCKS = {  # of GGUF files, and what they are packed as without rounding
    "Q8_0": INT8,
    "Q4_1": INT4,
    "Q4_0": Q4_0,
    "Q5_0": Q5_0,
    "Q5_1": Q5_1,
    "Q4_K": Q4_K,
    "Q5_K": Q5_K,
    "Q6_K": Q6_K,
    "IQ4_NL": IQ4_NL,
    "IQ4_XS": IQ4_XS,
    "MXFP4": MXFP4,
}
GROUP = 32  # weights of a block that are rounded together
BLOCK_BYTES = {INT8: 34, INT4: 20}  # of such a block in a file
SOURCE_FP32, SOURCE_BF16, SOURCE_BLOCKS = range(3)
HEAD, EMBEDDINGS, Q, K, V, OUT, GATE, UP, DOWN = range(9)
OF_LAYER = (Q, K, V, OUT, GATE, UP, DOWN)
NORM_IN, NORM_POST, NORM_Q, NORM_K, NORM_LAST, INV_FREQ, WINDOW = range(7)

int32s = POINTER(c_int32)


class Shape(ctypes.Structure):
    """dp_shape."""

    _fields_ = (
        ("layers", c_int32),
        ("hidden", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("intermediate", c_int32),
        ("vocabulary", c_int32),
        ("has_qk_norm", c_int32),
        ("eps", c_float),
        ("rope_scale", c_float),
        ("attention_scale", c_float),
        ("outputs", c_int32),
    )


class Cut(ctypes.Structure):
    """dp_cut."""

    _fields_ = (
        ("temperature", c_double),
        ("top_p", c_double),
        ("floor", c_double),
        ("top_k", c_int32),
    )

    def __init__(self, temperature: float, top_p: float, floor: float, top_k: int) -> None:
        super().__init__(temperature, top_p, floor, min(top_k, (1 << 31) - 1))  # no row is longer


class Drawing(ctypes.Structure):
    """dp_drawing."""

    _fields_ = (
        ("cut", Cut),
        ("seed", c_uint64),
        ("stream", c_uint32),
        ("position", c_uint32),
        ("nodes", c_int32),
        ("tokens", c_void_p),
        ("parents", c_void_p),
        ("logits", c_void_p),
        ("picks", c_void_p),
    )


def formats(layers: int, of: Callable[[int, int], int]) -> Any:
    """What `dp_model_new` takes: `of` tells a matrix's format by its layer, 0 for none."""
    each = [of(which, layer) for layer in range(layers) for which in OF_LAYER]
    return (c_int32 * (2 + len(each)))(of(HEAD, 0), of(EMBEDDINGS, 0), *each)


class Segment(ctypes.Structure):
    """dp_segment."""

    _fields_ = (
        ("row", c_void_p),
        ("begin", c_int32),
        ("end", c_int32),
        ("cached", c_int32),
        ("fresh", c_int32),
        ("first", c_int32),
        ("nodes", c_int32),
        ("parents", c_int32),
    )


class Pass(ctypes.Structure):
    """dp_pass."""

    _fields_ = (
        ("rows", c_int32),
        ("tokens", c_void_p),
        ("segments", c_int32),
        ("segment", POINTER(Segment)),
        ("parents", c_void_p),
        ("wanted", c_int32),
        ("wanted_rows", c_void_p),
        ("logits_rows", c_void_p),
        ("logits", c_void_p),
        ("best", c_void_p),
        ("taps", c_int32),
        ("tap_layers", c_void_p),
        ("tapped", c_int32),
        ("tapped_rows", c_void_p),
        ("hidden", c_void_p),
        ("layers", c_int32),
    )


# Called with Python's lock held: what earlier texts hold may be looked up by several threads.
HELD = "dp_automaton", "dp_ngrams", "dp_glance", "dp_draft", "dp_learn", "dp_allot"
# Name -> (result, arguments).
FUNCTIONS = {
    "dp_version": (c_int32, ()),
    "dp_kernels": (c_char_p, (c_char_p,)),
    "dp_kernels_missed": (c_char_p, ()),
    "dp_team_new": (c_void_p, (c_int32,)),
    "dp_team_free": (None, (c_void_p,)),
    "dp_model_bytes": (c_int64, (POINTER(Shape), int32s)),
    "dp_model_new": (c_void_p, (POINTER(Shape), int32s, c_char_p)),
    "dp_model_over": (c_void_p, (POINTER(Shape), int32s, c_char_p, c_void_p)),
    "dp_model_packed": (c_void_p, (c_void_p,)),
    "dp_model_free": (None, (c_void_p,)),
    "dp_model_matrix": (c_int32, (c_void_p, c_int32, c_int32, c_void_p, *[c_int32] * 3)),
    "dp_blocks": (c_int32, (c_int32, c_void_p, c_int64, c_void_p)),
    "dp_model_weights": (c_int32, (c_void_p, *[c_int32] * 3, c_void_p)),
    "dp_model_order": (c_int32, (c_void_p, c_int32, c_int32, c_void_p, c_int32)),
    "dp_model_bias": (c_int32, (c_void_p, c_int32, c_int32, c_void_p, c_int32)),
    "dp_model_vector": (c_int32, (c_void_p, c_int32, c_int32, c_void_p, c_int32)),
    "dp_model_embeddings": (c_int32, (c_void_p, c_void_p)),
    "dp_row_new": (c_void_p, (c_void_p,)),
    "dp_row_free": (None, (c_void_p,)),
    "dp_row_bytes": (c_int64, (c_void_p, c_int32)),
    "dp_row_reserve": (c_int32, (c_void_p, c_int32)),
    "dp_row_move": (c_int32, (c_void_p, int32s, c_int32, c_int32)),
    "dp_row_copy": (c_int32, (c_void_p, c_void_p, c_int32)),
    "dp_forward": (c_int32, (c_void_p, c_void_p, POINTER(Pass))),
    "dp_read_rate": (c_double, (c_void_p, c_int64, c_int32)),
    "dp_tile_rate": (c_double, (c_void_p, c_int32, c_int32)),
    "dp_gumbel": (None, (c_uint64, c_uint32, c_uint32, c_int32, c_void_p)),
    "dp_exponential": (None, (c_uint64, c_uint32, c_uint32, c_void_p, c_int32, c_void_p)),
    "dp_race": (
        c_int32,
        (
            *(c_void_p, c_int32, c_double, c_uint64, c_uint32, c_uint32, c_int32),
            *(c_void_p, c_void_p, c_void_p),
        ),
    ),
    "dp_survivors": (c_int32, (c_void_p, c_int32, POINTER(Cut), c_void_p, c_void_p)),
    "dp_race_cut": (
        c_int32,
        (
            *(c_void_p, c_int32, POINTER(Cut), c_uint64, c_uint32, c_uint32, c_int32),
            *(c_void_p, c_void_p, c_void_p),
        ),
    ),
    "dp_pick": (c_int32, (c_void_p, POINTER(Drawing), c_int32, c_int32)),
    "dp_head": (c_int32, (c_void_p, c_void_p, c_void_p, c_int32, c_void_p)),
    "dp_automaton_new": (c_void_p, ()),
    "dp_automaton_free": (None, (c_void_p,)),
    "dp_automaton_append": (c_int32, (c_void_p, c_void_p, c_int32)),
    "dp_automaton_undo": (c_int32, (c_void_p, c_int32)),
    "dp_automaton_repeated": (c_int32, (c_void_p, int32s)),
    "dp_automaton_match": (c_int32, (c_void_p, c_void_p, c_int32, int32s)),
    "dp_automaton_likeliest": (
        c_int32,
        (c_void_p, c_int32, c_int32, c_int32, c_double, c_void_p, c_void_p, c_void_p),
    ),
    "dp_automaton_draft": (
        c_int32,
        (
            *(c_void_p, c_int32, c_void_p, c_int32, c_void_p, c_void_p, *[c_int32] * 4),
            *(c_double, c_void_p, c_void_p, c_void_p),
        ),
    ),
    "dp_few_rows": (c_int32, (c_void_p, c_void_p, c_int32)),
    "dp_halves_product": (c_int32, (c_void_p, c_void_p, c_int32, c_void_p)),
    "dp_half_rows": (c_int32, (c_void_p, c_void_p, c_int32, c_void_p, c_void_p, c_int32)),
    "dp_halves_set": (c_void_p, (c_char_p, c_int32)),
    "dp_ngrams_new": (c_void_p, (c_int32,)),
    "dp_ngrams_free": (None, (c_void_p,)),
    "dp_ngrams_draft": (
        c_int32,
        (c_void_p, c_int32, c_void_p, *[c_int32] * 4, c_void_p, c_void_p, c_void_p),
    ),
    "dp_glance": (c_int32, (c_void_p, c_int32, *[c_void_p] * 6, c_double, c_void_p, c_void_p)),
    "dp_draft": (
        c_int32,
        (c_void_p, c_void_p, c_int32, *[c_void_p] * 5, c_int32, c_double, c_int32, c_void_p),
    ),
    "dp_learn": (c_int32, (c_void_p, c_int32, *[c_void_p] * 4)),
    "dp_allot": (c_int32, (c_void_p, c_int32, *[c_void_p] * 9)),
}


class Missing(ImportError):
    """The kernels were not built, or cannot be loaded; the text says why."""


@functools.cache
def library() -> ctypes.CDLL:
    """The shared library, its functions declared. Raises `Missing`."""
    return load(str(file()))


def file() -> Path:
    """Where it lies. Raises `Missing`."""
    spec = importlib.util.find_spec("draftproof.native._draftproof")
    if spec is None or spec.origin is None:
        raise Missing(
            "the native kernels were not built: install draftproof where there is a C++ compiler"
        )
    return Path(spec.origin)


def load(path: str) -> ctypes.CDLL:
    """The library in a file, its functions declared. Raises `Missing`."""
    try:
        found = ctypes.CDLL(path)
        if found.dp_version() != VERSION:
            raise Missing("the native kernels are of another version: install draftproof again")
        held = ctypes.PyDLL(path)
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(held if name.startswith(HELD) else found, name)
            function.restype, function.argtypes = result, arguments
            setattr(found, name, function)
    except (OSError, AttributeError) as error:
        raise Missing(f"the native kernels cannot be loaded: {error}") from error
    return found


def owned(owner: object, free: Any, handle: int) -> weakref.finalize[Any, Any]:
    """Frees `handle` with its owner, or when it is called.

    Never at exit: another thread may still be in a pass.
    """
    made = weakref.finalize(owner, free, handle)
    made.atexit = False
    return made


@functools.cache
def found() -> ctypes.CDLL | None:
    """The shared library, or None where there is none."""
    try:
        return library()
    except Missing:
        return None


def kernels() -> str:
    """The kernels that run here, named as `dp_kernels` names them. Raises `Missing`."""
    name: bytes = library().dp_kernels(b"")
    return name.decode()


def missed() -> str:
    """Why not the best set that the processor could run, or "". Raises `Missing`."""
    why: bytes = library().dp_kernels_missed()
    return why.decode()
