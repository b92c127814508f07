"""An interrupt stays one, whatever the libraries that are being loaded make of it.

Their lazy imports catch what an interrupt leaves half done, and report a broken installation.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # the exit code of what an interrupt has ended


@contextmanager
def kept() -> Iterator[None]:
    """Leave with `KeyboardInterrupt` if one came inside, even as another error or swallowed.

    Where a process ignores interrupts, as what a script put into the background does, it goes on.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():  # which has none
        yield
        return
    came = False

    def interrupt(number: int, frame: object) -> NoReturn:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with unsaid():  # said here, at the end
            yield
    except Exception:
        if came:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextmanager
def unsaid() -> Iterator[None]:
    """Inside, Python tells of no interrupt that it drops, as one that comes while it discards.

    A second Ctrl-C comes while what the first has ended is closed; its traceback would be Python's.
    """
    said = sys.unraisablehook

    def unraisable(dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            said(dropped)

    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = said


@contextmanager
def ended() -> Iterator[None]:
    """Inside, SIGTERM (of `kill`, `timeout` or a batch system) is what an interrupt is.

    It leaves no half-written file, and what was finished is kept. Whoever handles it already does.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # ignored, as in what a script put into the background
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
