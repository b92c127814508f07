"""An interrupt at any place where Python would let one in."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import CodeType
from typing import Any

# CPython looks for signals when a function starts, at a jump back, and after a call. Between other
# instructions (those that leave a `with` block, say) no handler ever runs.
CHECKED = ("CALL", "RESUME", "JUMP_BACKWARD")


@cache
def _checked(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions of `code` at which signals are looked for."""
    return frozenset(i.offset for i in dis.get_instructions(code) if i.opname.startswith(CHECKED))


def places(
    files: Sequence[str],
    call: Callable[[], Any],
    stop: int | None = None,
    until: Callable[[], bool] = lambda: False,
) -> int:
    """Runs `call`; how many places of these files let a signal in, as long as not `until`.

    Raises `KeyboardInterrupt` at number `stop`.
    """
    count = 0

    def within(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        place = event == "return" or (event == "opcode" and frame.f_lasti in _checked(frame.f_code))
        if place and not until():
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
