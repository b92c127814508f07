"""Who steps: one thread at a time, and the others wait for what its steps bring.

What is only marked while somebody has the turn is done when it is given back. Knows nothing of what
is done in a turn.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PATIENCE = 10.0  # seconds for a last step, when the process ends
Mine = tuple[int, object]  # a thread, and which of its calls


@dataclass(slots=True)
class Now:
    """Whose turn it is."""

    taken: Mine | None = None


class Turns:
    """One turn at a time, for any number of threads.

    after: called before a turn is given back. left: whether there is something left for it; may be
    called at any time, by a thread that has the turn or waits for it too.
    """

    def __init__(self, after: Callable[[], None], left: Callable[[], object]) -> None:
        self._after, self._left = after, left
        # A plain lock: what comes again in its own thread (the collector closes a generator, say)
        # fails to take it, where it would find half-changed lists behind a reentrant one.
        self._changed = threading.Condition(threading.Lock())
        self._now = Now()
        weakref.finalize(self, _stop, self._changed, self._now, os.getpid())

    @property
    def taken(self) -> bool:
        return self._now.taken is not None

    def name(self) -> Mine:
        """What one call tells `take` and `give`; made first, so that nothing comes between."""
        return threading.get_ident(), object()

    def take(self, mine: Mine, enough: Callable[[], object] = lambda: False) -> bool:
        """The turn, as soon as nobody has it; false without it if `enough` comes true meanwhile.

        Raises `ValueError` in a thread that has the turn already.
        """
        with self._changed:
            while (taken := self._now.taken) is not None and not enough():
                if taken[0] == mine[0]:
                    raise ValueError(
                        "this LLM is in the middle of a step, which calls it again: "
                        "use it outside of what a step calls"
                    )
                self._changed.wait()
            if taken is None and not enough():
                self._now.taken = mine
        return self._now.taken is mine

    def give(self, mine: Mine) -> None:
        """The turn back, if `mine` has it; always called after `take`, whatever came of it."""
        if self._now.taken is mine:
            self._done()
        self.tidy()

    def tidy(self) -> None:
        """`after`, if there is something left for it and nobody has the turn, who will call it."""
        while self._left() and self._changed.acquire(blocking=False):
            mine = self.name()
            try:
                if self._now.taken is None:
                    self._now.taken = mine
            finally:
                self._changed.release()
            if self._now.taken is not mine:
                return
            self._done()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """For what needs nobody else to step meanwhile."""
        mine = self.name()
        try:
            self.take(mine)
            yield
        finally:
            self.give(mine)

    def _done(self) -> None:
        try:
            self._after()
        finally:
            with self._changed:
                self._now.taken = None
                self._changed.notify_all()


def _stop(changed: threading.Condition, now: Now, process: int) -> None:
    """At exit: wait for the step of a daemon thread, and let it begin no other.

    Torch brings the process down if a thread is in one of its functions when the interpreter goes.
    A forked child waits for nobody: who steps stayed in the parent.
    """
    if os.getpid() != process:
        return
    with changed:
        changed.wait_for(lambda: now.taken is None, timeout=PATIENCE)
        now.taken = (0, now)
