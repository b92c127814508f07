"""The processes that are compared: started, asked, and told why one does not answer."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def strangers() -> Callable[[], float | None]:
    """A call that tells how many cores others kept busy since; None where /proc does not tell.

    Counts processes of ours that have ended, so call it when all sides are closed.
    """
    before = time.monotonic(), _busy(), _own()

    def found() -> float | None:
        busy = _busy()
        if busy is None or before[1] is None:
            return None
        others = busy - before[1] - (_own() - before[2])
        return round(max(0.0, others) / (time.monotonic() - before[0]), 2)

    return found


def _busy() -> float | None:
    """Seconds for which any core of the machine did anything."""
    try:
        words = Path("/proc/stat").read_text().split(maxsplit=8)[1:8]
    except OSError:
        return None
    user, nice, system, _, _, irq, soft = map(int, words)
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


class Failed(Exception):
    """A side that cannot do what it was asked; the message is one line."""


@dataclass(frozen=True)
class Start:
    """How a side is started."""

    name: str
    python: Path
    script: str
    arguments: Sequence[str]
    log: Path  # its standard error


@dataclass
class Process:
    """A running worker; sleeps whenever it is not asked."""

    start: Start
    threads: int
    timeout: float
    versions: dict[str, str] = field(default_factory=dict)
    dead: str = ""  # why it answers no more

    def __post_init__(self) -> None:
        if not self.start.python.exists():
            raise Failed(f"no environment at {self.start.python.parent.parent}")
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(self.threads),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self.start.log.parent.mkdir(parents=True, exist_ok=True)
        with self.start.log.open("w") as log:
            self._process = subprocess.Popen(
                [self.start.python, HERE / self.start.script, *self.start.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # what it starts ends with it
            )
        self.versions = self._answer()["versions"]

    @property
    def name(self) -> str:
        return self.start.name

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """The answer to one command; `Failed` if there is none."""
        if self.dead:
            raise Failed(self.dead)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **details}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._gone() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], self.timeout)[0]:
            self.close()
            self.dead = f"no answer within {self.timeout:g} s"
            raise Failed(self.dead)
        line = self._process.stdout.readline()
        if not line:
            raise self._gone()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _gone(self) -> Failed:
        code = self._process.wait()
        lines = self.start.log.read_text(errors="replace").strip().splitlines()
        self.dead = f"ended with {code}: {lines[-1].strip()[:300] if lines else 'no message'}"
        return Failed(self.dead)

    def close(self) -> None:
        """End the process and what it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
