"""The kernels built once more with AMX tiles in plain C++, and what their products should be.

`emulated_tiles.h` is the instructions, `tiles.cpp` what tests may ask of that library, and
`trapped_tiles.cpp` runs the compiled instructions themselves. Where there is no AVX512 either,
`emulated_avx512.h` takes its place. Every array that is given to a tile
ends where no more memory is: reading beyond it ends the process.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import shutil
import tempfile
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiled
from draftproof import native

Array = np.ndarray[Any, Any]

SETS = "avx2", "avx512", "amx", "amx_attention"
MORE = [compiled.SUPPORT / "tiles.cpp"]
MORE += [compiled.SOURCES / f"kernels_{name}.cpp" for name in SETS]
AVX2 = ("-DDP_X86", f"-I{compiled.SUPPORT}", "-mavx2", "-mfma", "-mf16c")
AVX512 = tuple(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni", "bf16"))
# Optimised loops of emulated instructions would take a minute to compile, and -O3 half of one.
NO_AVX512 = ("-include", "emulated_avx512.h", "-Wno-psabi", "-fno-tree-loop-optimize", "-O1")
LINK = ("-Wl,--wrap=syscall",)  # where the system is asked for tiles
SHIPPED = ("-O3", "-fno-math-errno", "-mprefer-vector-width=512")  # as CMakeLists.txt has it
SHIPPED += ("-mamx-tile", "-mamx-bf16", "-mamx-int8")
REFUSED = "DP_TEST_NO_TILES"  # the environment has it: the system gives none
PANEL, GROUP, STEP = 32, 32, 32
TILE = c_char_p, c_int32, c_void_p, c_void_p, c_int64, c_int32, c_int32, c_void_p  # of dp_tile
SCORES = c_char_p, c_void_p, c_int32, c_void_p, c_int32, c_int32, c_void_p, c_int64  # of dp_scores
WEIGH = c_char_p, c_void_p, c_int32, c_void_p, c_int64, c_int32, c_int32, c_void_p  # of dp_weigh
FORMATS = {"bfloat16": native.BF16, "int8": native.INT8, "int4": native.INT4}


def avx512() -> tuple[str, ...]:
    """Compiler's flags for the processor's own AVX512 or an emulated one; skips without AVX2."""
    if native.library().dp_kernels(b"avx512"):
        return AVX2 + AVX512
    if not native.library().dp_kernels(b"avx2"):
        pytest.skip("no AVX2, of which AVX512 would be emulated")
    return AVX2 + NO_AVX512


def flags() -> tuple[str, ...]:
    """For kernels whose best set is AMX, on emulated tiles; skips where they cannot be."""
    return (*avx512(), "-DDP_AMX", "-DDP_EMULATE_TILES")


@cache
def libraries() -> tuple[Any, Any]:
    """A library with AMX, and one in a system that refuses it; skips where they cannot be."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    link = ("-shared", "-Wl,-Bsymbolic", *LINK)
    built = compiled.build(folder, "amx.so", MORE, "-O1", *flags(), link=link)
    copied = shutil.copy(built, folder / "refused.so")
    made = native.load(str(built)), native.load(str(copied))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(REFUSED, "")
        made[1].dp_kernels(b"")  # asks, once for all
    for library in made:
        library.dp_tile.argtypes = TILE
        library.dp_scores.argtypes, library.dp_weigh.argtypes = SCORES, WEIGH
        library.dp_spoil.argtypes, library.dp_spoil.restype = (c_void_p, c_int32), None
        library.dp_prepare.argtypes = c_int32, c_void_p, c_int32, c_int32, c_void_p
        library.dp_pack.argtypes = c_int32, c_void_p, c_int32, c_int32, c_int32, c_void_p
        library.dp_repack.argtypes = c_int32, c_void_p, c_int32, c_int32, c_void_p
        library.dp_repack.restype = None
        for size in (library.dp_panel_bytes, library.dp_row_bytes_of):
            size.argtypes, size.restype = (c_int32, c_int32), c_int64
        library.dp_prepare.restype = library.dp_pack.restype = library.dp_disturb.restype = None
    return made


@cache
def trapped() -> Any:
    """`dp_tile`, `dp_scores` and `dp_weigh` of AMX as it is shipped; skips where they cannot be.

    The machine has no such instructions: what it refuses is read and done by the emulation.
    """
    if "amx_tile" in Path("/proc/cpuinfo").read_text():
        pytest.skip("this machine may run what should be refused")
    sources = [compiled.SUPPORT / "trapped_tiles.cpp"]
    sources += [
        compiled.SOURCES / f"kernels_{name}.cpp" for name in ("avx512", "amx", "amx_attention")
    ]
    with tempfile.TemporaryDirectory() as folder:  # once loaded, the file is not needed
        build = compiled.build(
            Path(folder), "trapped.so", sources, *SHIPPED, *avx512(), link=["-shared"], alone=True
        )
        made = ctypes.CDLL(str(build))
    made.dp_tile.argtypes, made.dp_scores.argtypes, made.dp_weigh.argtypes = TILE, SCORES, WEIGH
    return made


class Guarded:
    """Bytes that end where the process may not read."""

    def __init__(self, count: int) -> None:
        size = -(-count // mmap.PAGESIZE) * mmap.PAGESIZE
        self.pages = mmap.mmap(-1, size + mmap.PAGESIZE)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        libc = ctypes.CDLL(None)
        libc.mprotect.argtypes = c_void_p, ctypes.c_size_t, ctypes.c_int
        assert libc.mprotect(begin + size, mmap.PAGESIZE, 0) == 0
        self.address = begin + size - count
        self.bytes = np.frombuffer(self.pages, np.uint8, count, size - count)


class Tile:
    """Rows (T, inputs) times 32 outputs, by one call. kind: the weights' format, by number."""

    def __init__(self, kind: int, inputs: int, rows: Array) -> None:
        self.library, self.kind, self.inputs = libraries()[0], kind, inputs
        self.row_bytes = self.library.dp_row_bytes_of(kind, inputs)
        self.panel = Guarded(self.library.dp_panel_bytes(kind, inputs))
        self.prepared = np.zeros((len(rows), self.row_bytes), np.uint8)
        for r, row in enumerate(np.ascontiguousarray(rows, np.float32)):
            to = self.prepared[r].ctypes.data
            self.library.dp_prepare(kind, row.ctypes.data, rows.shape[1], inputs, to)

    def __call__(
        self, rows: slice = slice(None), kernels: str = "amx", library: Any = None
    ) -> Array:
        """(rows, 32)"""
        some = self.prepared[rows]
        x, out = Guarded(some.size), Guarded(len(some) * PANEL * 4)
        x.bytes[:] = some.reshape(-1)
        out.bytes[:] = 255  # NaN
        given = self.panel.address, x.address, self.row_bytes, self.inputs, len(some), out.address
        most = (library or self.library).dp_tile(kernels.encode(), self.kind, *given)
        assert len(some) <= most
        return out.bytes.view(np.float32).reshape(-1, PANEL).copy()


class Product(Tile):
    """weights: (32, inputs), packed."""

    def __init__(self, precision: str, weights: Array, rows: Array) -> None:
        count = weights.shape[1]
        multiple = 2 if precision == "bfloat16" else GROUP
        super().__init__(FORMATS[precision], count + -count % multiple, rows)
        for n, of in enumerate(np.ascontiguousarray(weights, np.float32)):
            given = self.kind, of.ctypes.data, count, self.inputs, n, self.panel.address
            self.library.dp_pack(*given)


class FileProduct(Tile):
    """blocks: (32, bytes of so many inputs), as they lie in a file."""

    def __init__(self, kind: int, blocks: Array, rows: Array) -> None:
        super().__init__(kind, rows.shape[1], rows)
        for n, of in enumerate(np.ascontiguousarray(blocks)):
            self.library.dp_repack(kind, of.ctypes.data, self.inputs, n, self.panel.address)


# --- what TDPBF16PS gives, in numbers: see emulated_tiles.h ---------------------------------------


def rounded(x: Array) -> Array:
    """The nearest bfloat16, in float32."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def flushed(x: Array) -> Array:
    """Zeros for denormals, of their sign."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in float32, rounded once, for bfloat16 a and b.

    Their product is exact in float64. Its sum with c is rounded to odd there: then what is left of
    it in float32 is rounded as if it came from the exact sum.
    """
    a, b, c = (flushed(each).astype(np.float64) for each in (a, b, c))
    product = a * b
    total = product + c
    part = total - product
    lost = (product - (total - part)) + (c - part)  # exactly what the sum does not hold
    bits = total.view(np.int64)
    away = np.where((lost > 0) == (total > 0), 1, -1)
    odd = np.where((lost != 0) & (bits & 1 == 0), bits + away, bits)
    return flushed(odd.view(np.float64).astype(np.float32))


def added(a: Array, b: Array) -> Array:
    return flushed(flushed(a) + flushed(b))


def bf16_products(weights: Array, rows: Array) -> Array:
    """(T, 32): in steps of 32 inputs, the even ones and the odd ones by themselves."""
    rest = (0, 0), (0, -rows.shape[1] % STEP)
    w, x = np.pad(rounded(weights), rest)[None], np.pad(rounded(rows), rest)[:, None]
    total = np.zeros((len(rows), len(weights)), np.float32)
    for begin in range(0, x.shape[2], STEP):
        even, odd = np.zeros_like(total), np.zeros_like(total)
        for i in range(begin, begin + STEP, 2):
            even = fused(x[..., i], w[..., i], even)
            odd = fused(x[..., i + 1], w[..., i + 1], odd)
        total = added(total, added(even, odd))
    return total
