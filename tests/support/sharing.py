"""Threads that start together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import draftproof as dp
from draftproof.engine import Engine
from draftproof.runners.base import Output, Work
from draftproof.scheduler import Scheduler
from fakes import Table, request

PARAMS = dp.SamplingParams(max_tokens=12, ignore_eos=True)


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """work(i) of `count` threads that begin at once; the first error is raised."""
    barrier = threading.Barrier(count)

    def one(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [each.result() for each in [pool.submit(one, i) for i in range(count)]]


class Slow(Table):
    """A pass takes its time, so that others come in between."""

    def forward(self, work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
        time.sleep(0.0005)
        return super().forward(work, taps)


def alone(key: int, seed: int, **options: Any) -> list[int]:
    made = request(key, [1 + seed % 7, 2], seed=seed, **options)
    list(Engine(Table(), scheduler=Scheduler(1)).run([made]))
    return made.output
