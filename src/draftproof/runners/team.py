"""Threads of the native kernels, and what the machine can do on them."""

from __future__ import annotations

import os

from draftproof import native
from draftproof.runners.telling import say_once


class Team:
    """Threads that several runners share; they work for one at a time."""

    def __init__(self, threads: int) -> None:
        library = native.library()
        self.threads, self.handle = threads, library.dp_team_new(threads)
        if not self.handle:
            raise ValueError(f"the system gives no {threads} threads: use fewer")
        native.owned(self, library.dp_team_free, self.handle)

    def limits(self, precision: str = "bfloat16") -> tuple[float, float]:
        """What the machine can do: bytes read a second, and products of the kernels' tiles.

        A pass over T tokens takes at least the weights' bytes by the first, and T times their
        number by the second. Takes about a second and 1 GB.
        """
        library = native.library()
        read = max(library.dp_read_rate(self.handle, 1 << 30, 1) for _ in range(3))
        kind = native.PRECISIONS[precision]
        return read, max(library.dp_tile_rate(self.handle, kind, 20_000) for _ in range(5))


def check_threads(threads: int | None) -> None:
    """Raises `ValueError` for numbers that no machine of so many cores has a use for."""
    if threads is None:
        return
    if threads < 1:
        raise ValueError(f"threads={threads} computes nothing: use 1 or more")
    cores = os.cpu_count() or threads
    if threads > 16 * cores:
        raise ValueError(
            f"threads={threads} on {cores} cores only wait for one another: use {cores}"
        )
    if threads > cores:
        say_once(f"{threads} threads on {cores} cores wait for one another: use {cores}")
