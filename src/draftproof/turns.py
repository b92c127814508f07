"""Who steps: one thread at a time, and the others wait for what its steps bring.

What is only marked while somebody has the turn is done when it is given back. An interrupt may come
between any two lines: so whoever has a turn holds a lock of its own by `with`, which lets go of it
whatever happens, and the turn is free when that lock is. Knows nothing of what is done in a turn.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

AGAIN = 0.2  # seconds after which a waiting thread looks again, in case nobody told it
PATIENCE = 10.0  # seconds for a last step, when the process ends


@dataclass(frozen=True, slots=True)
class Mine:
    """A call that wants a turn; it has one no longer than it holds the lock."""

    thread: int = field(default_factory=threading.get_ident)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class Now:
    """Whose turn it is, or was."""

    taken: Mine | None = None

    def by(self) -> Mine | None:
        taken = self.taken
        return taken if taken is not None and taken.lock.locked() else None


class Turns:
    """One turn at a time, for any number of threads.

    after: called before a turn is given back. left: whether there is something left for it; may be
    called at any time, by a thread that has the turn or waits for it too.
    """

    def __init__(self, after: Callable[[], None], left: Callable[[], object]) -> None:
        self._after, self._left = after, left
        # Reentrant: the collector may close a generator, which aborts, under any line.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._now, self._process = Now(), os.getpid()
        weakref.finalize(self, _stop, self._changed, self._now, self._process)

    @property
    def taken(self) -> bool:
        return self._now.by() is not None

    @property
    def forked(self) -> bool:
        """Whether this is a fork of the process that the turns belong to."""
        return os.getpid() != self._process

    def alone(
        self, call: Callable[[], T], enough: Callable[[], object] = lambda: False
    ) -> T | None:
        """`call` in a turn, as soon as nobody has one; None if `enough` comes true before.

        Raises `ValueError` in a thread that has the turn already, and in a forked child. A call,
        not a context manager: an interrupt between entering one and its body would keep the turn.
        """
        mine = Mine()
        with mine.lock:
            try:
                return call() if self._take(mine, enough) else None
            finally:
                if self._now.taken is mine:
                    self._done()
                self.tidy()

    def check_process(self) -> None:
        """Raises `ValueError` in a forked child, where whoever had the turn has stayed behind."""
        if self.forked:
            raise ValueError(
                "this LLM was made in another process, a fork of which this is: make one here"
            )

    def tidy(self) -> None:
        """`after`, if there is something left for it and nobody has the turn, who will call it."""
        while self._left():
            mine = Mine()
            with mine.lock:
                with self._lock:
                    if self._now.by() is None:
                        self._now.taken = mine
                if self._now.taken is not mine:
                    return
                self._done()

    def _take(self, mine: Mine, enough: Callable[[], object]) -> bool:
        """Whether the turn is had, and not enough without it."""
        self.check_process()
        with self._lock:
            while (by := self._now.by()) is not None and not enough():
                if by.thread == mine.thread:
                    raise ValueError(
                        "this LLM is in the middle of a step, which calls it again: "
                        "use it outside of what a step calls"
                    )
                self._changed.wait(AGAIN)
            if by is None and not enough():
                self._now.taken = mine
        return self._now.taken is mine

    def _done(self) -> None:
        try:
            self._after()
        finally:
            with self._lock:
                self._now.taken = None
                self._changed.notify_all()


def _stop(changed: threading.Condition, now: Now, process: int) -> None:
    """At exit: wait for the step of a daemon thread, and let it begin no other.

    Torch brings the process down if a thread is in one of its functions when the interpreter goes.
    A forked child waits for nobody: who steps stayed in the parent.
    """
    if os.getpid() != process:
        return
    last = Mine(thread=0)
    last.lock.acquire()
    with changed:
        changed.wait_for(lambda: now.by() is None, timeout=PATIENCE)
        now.taken = last
