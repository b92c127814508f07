"""Measuring on purpose what passes cost, where a user asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from draftproof import clock
from draftproof.runners.base import KEY, Target
from draftproof.runners.costs import MOST, ROWS, PassCosts, pass_seconds, passes

LONGEST = 3.0  # seconds of measuring
BEHIND = 64  # tokens that the passes attend to


def measure(
    runner: Target,
    costs: PassCosts,
    seconds: float = LONGEST,
    now: Callable[[], float] = time.perf_counter,
) -> int:
    """Teach `costs` by passes over 1, 2, 3, 4, 6, 8, ... rows, in turn; how many there were.

    Stops after so many seconds, and makes two passes over each number of rows even if that takes
    longer; the first of them is not counted. Passes that the model has no room for are left out.
    """
    behind = max(1, min(BEHIND, runner.max_length - MOST))
    sizes = [rows for rows in ROWS if rows <= MOST and behind + rows <= runner.max_length]
    over = passes(runner, behind)
    began, rounds, done = now(), 0, 0
    try:
        while rounds < 2 or now() - began < seconds:
            for rows in clock.in_turn(sizes, rounds):
                if rounds > 1 and now() - began >= seconds:
                    break
                started = now()
                over(rows)()
                if rounds:
                    costs.observe(rows, rows * (behind + (rows + 1) // 2), now() - started)
                    done += 1
            rounds += 1
    finally:
        runner.free(KEY)
    costs.keep = True
    return done


def check_gap(runner: Target, milliseconds: float) -> None:
    """Raises `ValueError` where a pass alone takes longer than writers shall wait for one."""
    took = 1e3 * pass_seconds(runner, 1, (1,), rounds=3, warm=1)[1]
    if milliseconds < took:
        raise ValueError(
            f"itl_target is {milliseconds:g} ms, and one pass of this model takes {took:.2g}: "
            "give more, or None for four passes"
        )
