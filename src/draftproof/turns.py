"""Who steps: one thread at a time, and the others wait for what its steps bring.

What is only marked while somebody has the turn is done when it is given back. An interrupt may come
between any two lines: so whoever has a turn holds a lock of its own by `with`, which lets go of it
whatever happens, and the turn is free when that lock is. Nor is there a condition to wait on: one
that is interrupted may come back without its lock. Knows nothing of what is done in a turn.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections import deque
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
    """Whose turn it is, or was; when the process ends, only the thread that ends it has one."""

    taken: Mine | None = None
    last: Mine | None = None

    def by(self) -> Mine | None:
        taken = self.taken
        return taken if taken is not None and taken.lock.locked() else self.last


class Turns:
    """One turn at a time, for any number of threads.

    after: called before a turn is given back. left: whether there is something left for it; may be
    called at any time, by a thread that has the turn or waits for it too.
    """

    def __init__(self, after: Callable[[], None], left: Callable[[], object]) -> None:
        self._after, self._left = after, left
        # Reentrant: the collector may close a generator, which aborts, under any line.
        self._lock = threading.RLock()
        self._bells = deque[queue.SimpleQueue[None]]()  # of those who wait
        self._now, self._process = Now(), os.getpid()
        weakref.finalize(self, _stop, self._lock, self._now, self._process)

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
        bell: queue.SimpleQueue[None] | None = None
        while True:
            with self._lock:
                by = self._now.by()
                if enough():
                    return False
                if by is None or (by is self._now.last and by.thread == mine.thread):
                    self._now.taken = mine
                    return True
                if by.thread == mine.thread:
                    raise ValueError(
                        "this LLM is in the middle of a step, which calls it again: "
                        "use it outside of what a step calls"
                    )
                bell = bell or queue.SimpleQueue()
                if bell not in self._bells:
                    self._bells.append(bell)
            with contextlib.suppress(queue.Empty):
                bell.get(timeout=AGAIN)

    def _done(self) -> None:
        try:
            self._after()
        finally:
            with self._lock:
                self._now.taken = None
                while self._bells:
                    self._bells.popleft().put(None)


def _stop(lock: threading.RLock, now: Now, process: int) -> None:
    """At exit: wait for the step of a daemon thread, and let it begin no other.

    Torch brings the process down if a thread is in one of its functions when the interpreter goes.
    A forked child waits for nobody: who steps stayed in the parent.
    """
    if os.getpid() != process:
        return
    with lock:
        by, now.last = now.by(), Mine()
    if by is not None:
        by.lock.acquire(timeout=PATIENCE)
