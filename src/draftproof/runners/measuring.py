"""Measuring on purpose what passes cost, where a user asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from draftproof import clock
from draftproof.runners.base import KEY, Target
from draftproof.runners.costs import PassCosts, of, pass_seconds, passes
from draftproof.runners.curves import MOST, ROWS, attended

LONGEST = 3.0  # seconds of measuring
ROUNDS = 8  # of measuring what will be learnt from all passes to come
BEHIND = 64  # tokens that the passes attend to


def measure(
    runner: Target,
    costs: PassCosts,
    seconds: float = LONGEST,
    rounds: int = 1000,
    now: Callable[[], float] = time.perf_counter,
) -> int:
    """Teach `costs` by passes over 1, 2, 3, ... rows, in turn; how many there were.

    Stops after so many seconds or rounds, and makes one pass even if that takes longer. Not counted
    are the first ones, over the most rows first, for at most a third of the time. Passes that the
    model has no room for are left out.
    """
    behind = max(1, min(BEHIND, runner.max_length - MOST))
    sizes = [rows for rows in ROWS if rows <= MOST and behind + rows <= runner.max_length]
    began, done = now(), 0
    over = passes(runner, behind)
    try:
        for rows in reversed(sizes):
            over(rows)()
            if now() - began > seconds / 3:
                break
        while done < rounds * len(sizes):
            for rows in clock.in_turn(sizes, done // len(sizes)):
                if done and now() - began >= seconds:
                    return done
                started = now()
                over(rows)()
                costs.observe(rows, attended(rows, behind), now() - started)
                done += 1
        return done
    finally:
        costs.keep = True
        runner.free(KEY)


def prepare(runner: Target, now: Callable[[], float] = time.perf_counter) -> int:
    """Measure where no earlier process did, shortly; how many passes there were."""
    known = of(runner)
    return 0 if known.passes else measure(runner, known, LONGEST, ROUNDS, now)


def check_gap(runner: Target, milliseconds: float) -> None:
    """Raises `ValueError` where a pass alone takes longer than writers shall wait for one."""
    took = 1e3 * pass_seconds(runner, 1, (1,), rounds=3, warm=1)[1]
    if milliseconds < took:
        raise ValueError(
            f"itl_target is {milliseconds:g} ms, and one pass of this model takes {took:.2g}: "
            "give more, or None for four passes"
        )
