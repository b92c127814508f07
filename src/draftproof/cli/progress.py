"""What runs and how long it still takes: a bar on a terminal, elsewhere one line a minute."""

from __future__ import annotations

import time
from threading import Event, Thread
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

EVERY_S = 60.0  # between two lines where there is no terminal
SOON = 0.02  # a share below which no estimate means anything


class Running:
    """Call it with what runs now and the share that is done, None as long as it is not known.

    An estimate is shown once some share is done at a pace that was measured, for `sure_s` seconds
    at least: what is left at it.
    """

    def __init__(
        self, every_s: float = EVERY_S, *, sure_s: float = 0.0, console: Console | None = None
    ) -> None:
        console = Console(stderr=True) if console is None else console
        self._every_s, self._sure_s, self._console = every_s, sure_s, console
        self._line = ""
        self._began: tuple[float, float] | None = None  # when a share was first known, and which
        self.shown = console.is_terminal
        columns = TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[left]}")
        self._bar = Progress(*columns, console=console, transient=True, disable=not self.shown)
        self._task = self._bar.add_task("", total=None, left="")
        self._ended = Event()
        self._teller = Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Running:
        self._bar.start()
        if not self.shown:
            self._teller.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._bar.stop()

    def __call__(self, text: str, share: float | None) -> None:
        if share is not None and self._began is None:
            self._began = time.monotonic(), share
        left = self._left(share)
        total = None if share is None else 1.0
        self._bar.update(
            self._task, description=text, total=total, completed=share or 0.0, left=left
        )
        self._line = f"{text}, {share:.0%} done{', ' + left if left else ''}" if share else text

    def begin(self, text: str) -> None:
        """Another part begins, which takes as long as it takes."""
        self._began = None
        self(text, None)

    def line(self, text: str) -> None:
        """Something worth keeping, above the bar."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def tell(self) -> None:
        """The line of a minute."""
        self.line(self._line)

    def _left(self, share: float | None) -> str:
        if share is None or self._began is None:
            return ""
        (began, first), now = self._began, time.monotonic()
        if share - first < SOON or now - began < self._sure_s or share >= 1:
            return ""
        seconds = (now - began) * (1 - share) / (share - first)
        return (
            f"about {seconds:.0f} s left" if seconds < 100 else f"about {seconds / 60:.0f} min left"
        )

    def _tell(self) -> None:
        while not self._ended.wait(self._every_s):
            self.tell()
