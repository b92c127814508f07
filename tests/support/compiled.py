"""The native kernels for tests: built with other flags, and driven through their C interface alone.

Knows no transformers model: `Raw` packs a small one of random numbers.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_float, c_int32
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import draftproof
from draftproof import native

SUPPORT = Path(__file__).parent
BUILT = SUPPORT.parents[1] / "build" / "tests"
SOURCES = Path(draftproof.__file__).parent / "native"
# As CMakeLists.txt has it, but for speed; the portable kernels only.
FLAGS = ("-std=c++17", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-fvisibility=hidden")

SHAPE: dict[str, Any] = {
    "layers": 2,
    "hidden": 32,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "intermediate": 40,
    "vocabulary": 45,
    "eps": 1e-6,
    "rope_scale": 1.0,
    "attention_scale": 0.25,
}


def same_format(layers: int, kind: int) -> Any:
    """Of all matrices; embeddings are the head's."""
    return native.formats(layers, lambda which, _: -1 if which == native.EMBEDDINGS else kind)


def build(
    folder: Path,
    name: str,
    more: Sequence[Path],
    *flags: str,
    link: Sequence[str],
    alone: bool = False,
) -> Path:
    """The kernels and `more` sources compiled with `flags`; skips where that cannot be.

    alone: only those sources. What was built from the same files stays in build/tests, for all
    processes that test.
    """
    compiler = shutil.which("c++")
    if compiler is None or sys.platform != "linux":
        pytest.skip("there is no C++ compiler that builds for Linux here")
    sources = [path for path in SOURCES.glob("*.cpp") if not re.search("avx|amx|neon", path.name)]
    assert sources, "the kernels' sources are not in the checkout"
    asked = repr((alone, [path.name for path in more], flags, link, compiler))
    key = hashlib.sha256(asked.encode())
    for path in sorted([*SOURCES.iterdir(), *SUPPORT.iterdir()]):
        if path.suffix in (".cpp", ".h", ".inl"):
            key.update(path.read_bytes())
    BUILT.mkdir(parents=True, exist_ok=True)
    kept = BUILT / f"{key.hexdigest()[:24]}-{name}"
    with (BUILT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            _compile(folder, name, more if alone else [*more, *sources], compiler, flags, link)
            shutil.copy(folder / name, part := kept.with_suffix(".part"))
            part.replace(kept)
    shutil.copy(kept, folder / name)
    return folder / name


def _compile(
    folder: Path,
    name: str,
    sources: Sequence[Path],
    compiler: str,
    flags: Sequence[str],
    link: Sequence[str],
) -> None:
    def run(*arguments: str) -> None:
        done = subprocess.run([compiler, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def compiled(source: Path) -> str:
        made = str(folder / f"{source.stem}.o")
        run(*FLAGS, *flags, f"-I{SOURCES}", "-c", str(source), "-o", made)
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sources))
    run(*objects, *flags, *link, "-pthread", "-o", str(folder / name))


ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def sanitised(folder: Path) -> tuple[Path, dict[str, str]]:
    """The kernels under the address sanitiser, and the environment in which Python loads them."""
    library = build(folder, "kernels.so", [], "-O1", "-g", *ADDRESS, link=["-shared"])
    runtime = [
        subprocess.check_output(["c++", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return library, {"LD_PRELOAD": " ".join(runtime), "ASAN_OPTIONS": "detect_leaks=0"}


class Raw:
    """A model of random numbers in a library, and passes over it."""

    def __init__(self, library: Any, precision: int = native.BF16, **changes: Any) -> None:
        self.library = library
        self.shape = native.Shape(**{**SHAPE, **changes})
        formats = same_format(self.shape.layers, precision)
        self.model = library.dp_model_new(byref(self.shape), formats, b"portable")
        if not self.model:
            raise MemoryError
        s = self.shape
        sizes = {
            native.Q: (s.heads * s.head_dim, s.hidden),
            native.K: (s.kv_heads * s.head_dim, s.hidden),
            native.V: (s.kv_heads * s.head_dim, s.hidden),
            native.OUT: (s.hidden, s.heads * s.head_dim),
            native.GATE: (s.intermediate, s.hidden),
            native.UP: (s.intermediate, s.hidden),
            native.DOWN: (s.hidden, s.intermediate),
        }
        vectors = {
            native.NORM_IN: [1.0] * s.hidden,
            native.NORM_POST: [1.0] * s.hidden,
            native.NORM_LAST: [1.0] * s.hidden,
            native.INV_FREQ: [2.0**-i for i in range(s.head_dim // 2)],
            native.WINDOW: [0.0],
        }
        self.codes = [self.matrix(native.HEAD, 0, s.vocabulary, s.hidden)]
        for layer in range(s.layers):
            for which, (outputs, inputs) in sizes.items():
                self.codes.append(self.matrix(which, layer, outputs, inputs))
            for which, values in vectors.items():
                self.codes.append(self.vector(which, layer, values))
            bias = gaussian(sizes[native.Q][0])
            self.codes.append(library.dp_model_bias(self.model, native.Q, layer, bias, len(bias)))

    def matrix(self, which: int, layer: int, outputs: int, inputs: int) -> int:
        data = gaussian(outputs * inputs)
        arguments = self.model, which, layer, data, native.SOURCE_FP32, outputs, inputs
        code: int = self.library.dp_model_matrix(*arguments)
        return code

    def vector(self, which: int, layer: int, values: Sequence[float]) -> int:
        arguments = self.model, which, layer, floats(values), len(values)
        code: int = self.library.dp_model_vector(*arguments)
        return code

    def row(self, slots: int) -> int:
        row: int | None = self.library.dp_row_new(self.model)
        if not row:
            raise MemoryError
        if self.library.dp_row_reserve(row, slots) != native.OK:
            self.library.dp_row_free(row)
            raise MemoryError
        return row

    def forward(
        self,
        team: int,
        row: int,
        chain: Sequence[int],
        cached: int = 0,
        in_segment: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> tuple[int, bytes]:
        """A pass over nodes behind `cached` tokens of one row: (code, logits of all of them).

        in_segment, changes: other values in its segment and in the pass.
        """
        n, segment = len(chain), native.Segment(row, 0, len(chain), cached, 0, 0, len(chain), 0)
        for name, value in (in_segment or {}).items():
            setattr(segment, name, value)
        logits, best = (c_float * (n * self.shape.vocabulary))(), (c_int32 * n)()
        fields: dict[str, Any] = {
            "rows": n,
            "tokens": ids(chain),
            "segments": 1,
            "segment": (native.Segment * 1)(segment),
            "parents": ids(range(-1, n - 1)),
            "wanted": n,
            "wanted_rows": ids(range(n)),
            "logits_rows": ids(range(n)),
            "logits": ctypes.addressof(logits),
            "best": best,
            "taps": 0,
            "layers": self.shape.layers,
        }
        values = {**fields, **changes}  # which hold what the pass reads by address
        given = native.Pass(**{name: address(value) for name, value in values.items()})
        code: int = self.library.dp_forward(self.model, team, byref(given))
        return code, bytes(logits)

    def head(self, team: int, rows: int) -> tuple[int, bytes]:
        hidden = gaussian(rows * self.shape.hidden)
        logits = (c_float * (rows * self.shape.vocabulary))()
        code: int = self.library.dp_head(self.model, team, hidden, rows, logits)
        return code, bytes(logits)


@cache
def gaussian(count: int) -> ctypes.Array[c_float]:
    rng = Random(count)
    return floats([rng.gauss(0, 0.3) for _ in range(count)])


def address(value: Any) -> Any:
    """Where 32-bit ids lie; anything else as it is."""
    if isinstance(value, ctypes.Array) and value._type_ is c_int32:
        return ctypes.addressof(value)
    return value


def ids(values: Sequence[int]) -> ctypes.Array[c_int32]:
    return (c_int32 * len(values))(*values)


def floats(values: Sequence[float]) -> ctypes.Array[c_float]:
    return (c_float * len(values))(*values)
