"""The stress test finds defects: `python tests/stress/planted.py` puts back one after another.

Each was in the code once, or is what a careless change would bring. Every run is a process of its
own, which must fail, or hang until it is stopped; the one without a defect must pass.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SECONDS = 8.0
NONE = "none"


def two_step_at_once() -> None:
    """Whoever wants to step does, whatever another thread is in the middle of."""
    from draftproof.turns import Turns

    def take(self: Any, mine: Any, enough: Any) -> bool:
        with self._lock:
            if not enough():
                self._now.taken = mine
        return self._now.taken is mine

    Turns._take = take  # type: ignore[method-assign]


def aborts_release_at_once() -> None:
    """An abort takes the row away under the step that uses it."""
    from draftproof.engine import Engine

    def abort(self: Any, request: Any) -> None:
        if not request.finished:
            request.finish("abort")
            self._end(request)

    Engine.abort = abort  # type: ignore[method-assign]


def models_are_taken_by_several() -> None:
    """Several LLMs run one model object at once."""
    from draftproof.runners import takeover

    takeover._locked = lambda locks, call: call()


def faults_stop_everybody() -> None:
    """What one request raises in a commit comes out of the step, for whoever steps."""
    from draftproof.request import Request

    def fail(self: Any, error: BaseException) -> None:
        raise error

    Request.fail = fail  # type: ignore[method-assign]


def rows_behind_an_end_are_asked_for() -> None:
    """The walk goes on behind an accepted end, and an error there ends the request."""
    from draftproof import verify

    real = verify.verify

    def onwards(tree: Any, picks: Any, ends: Callable[[int], bool] = lambda node: False) -> Any:
        path, bonus = real(tree, picks)
        for at, node in enumerate(path[1:], 2):
            if ends(node):
                return path[:at], None
        return path, bonus

    from draftproof import rules

    rules.verify = onwards


DEFECTS = {
    each.__name__: each
    for each in (
        two_step_at_once,
        aborts_release_at_once,
        models_are_taken_by_several,
        faults_stop_everybody,
        rows_behind_an_end_are_asked_for,
    )
}


def found(defect: str, runner: str) -> bool:
    """Whether a run with the defect fails."""
    command = [sys.executable, str(HERE), defect, runner]
    return subprocess.run(command, capture_output=True, timeout=300).returncode != 0


def main() -> None:
    if len(sys.argv) == 3:
        sys.path[:0] = [str(HERE.parent.parent / "support"), str(HERE.parent)]
        from crowd import stress

        DEFECTS.get(sys.argv[1], lambda: None)()
        stress(sys.argv[2], SECONDS)
        return
    for name in (NONE, *DEFECTS):
        by = [runner for runner in ("torch", "native") if found(name, runner)]
        print(f"{name:<36} {'found with ' + ', '.join(by) if by else 'not found'}", flush=True)


if __name__ == "__main__":
    main()
