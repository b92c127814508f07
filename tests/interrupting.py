"""An interrupt at any instruction: Python runs signal handlers between two of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any


def instructions(
    files: Sequence[str],
    call: Callable[[], Any],
    stop: int | None = None,
    until: Callable[[], bool] = lambda: False,
) -> int:
    """Runs `call`; how many instructions of these files it took, as long as not `until`.

    Raises `KeyboardInterrupt` at number `stop`.
    """
    count = 0

    def within(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if event == "opcode" and not until():
            count += 1
            if count == stop:
                raise KeyboardInterrupt
        return within

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return within

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
