"""The kernels built once more, with `faults.cpp`: any allocation of theirs can be refused."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import compiled
from draftproof import native

ONE, ALL = 1, 1 << 40  # how many allocations are refused, from the n-th on
LINK = ("-shared", "-Wl,-Bsymbolic", "-Wl,--wrap=mmap")


@cache
def library() -> Any:
    """Refuses what `dp_refuse(after, count)` says; skips where it cannot be built."""
    faults = compiled.SUPPORT / "faults.cpp"
    with tempfile.TemporaryDirectory() as folder:  # once loaded, the file is not needed
        built = compiled.build(Path(folder), "faults.so", [faults], "-O0", link=LINK)
        made = native.load(str(built))
    made.dp_refuse.argtypes, made.dp_refuse.restype = (ctypes.c_int64,) * 2, None
    made.dp_refused.restype = ctypes.c_int64
    return made


def refusals(
    attempt: Callable[[Any], Any], prepare: Callable[[], Any] = lambda: None
) -> Iterator[tuple[Any, Any]]:
    """What `prepare` gave, and `attempt` of it while its n-th allocation is refused: for every n.

    Then while all are refused from the n-th on. The last of each kind was refused nothing.
    """
    for count in (ONE, ALL):
        for n in range(10**6):
            given = prepare()
            library().dp_refuse(n, count)
            answer = attempt(given)
            refused = library().dp_refused()
            library().dp_refuse(0, 0)
            yield given, answer
            if not refused:
                assert n > 0, "nothing is allocated here"
                break
