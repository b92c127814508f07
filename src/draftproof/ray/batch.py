"""The engines of a batch as actors of Ray, each a process with a model and cores of its own.

An actor streams each answer out as soon as it is there, so that a lost one takes with it only what
it was writing. Knows neither the output nor who gets which lines: `batch.engines` does.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from draftproof.batch.engines import Idle, Lost, Ready, Told
from draftproof.batch.lines import Line
from draftproof.batch.run import Batch, Done
from draftproof.bundled import BUNDLED
from draftproof.cli import batch_model
from draftproof.cli.launch import hush

FILES = ("model", "draft", "heads", "profile", "chat_template")  # options that may name one


class BatchEngine:
    """A model in a process of its own. given: the options of `draftproof batch`."""

    def __init__(self, given: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> None:
        hush()
        self._given, self._name, self._defaults = SimpleNamespace(**given), name, defaults
        self._open = ExitStack()

    def open(self) -> dict[str, Any]:
        """Load it; who writes. Not in `__init__`, whose errors would be told as a lost actor."""
        made = batch_model.opened(self._given, self._name, self._defaults)
        self._calls, writer = self._open.enter_context(made)
        return writer

    def write(self, lines: Sequence[Line]) -> Iterator[Done]:
        yield from Batch(self._calls).write(lines)


def _check_address(address: str) -> None:
    """Raise `ValueError` where no cluster answers: Ray would try again for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdecimal()):
        return  # none, or a word such as `auto`
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        raise ValueError(
            f"no cluster answers at {address} ({error}): set RAY_ADDRESS to one that runs, or to "
            "nothing, and one is started here"
        ) from error


class Actors:
    """See `batch.engines.Engines`. Joins the cluster that Ray finds, or starts one on this machine.

    given: the options of the command, with `ray`, their number. Raises `ValueError` where they have
    no place.
    """

    def __init__(self, given: SimpleNamespace, name: str, defaults: Mapping[str, Any]) -> None:
        if given.threads is not None and given.threads < 1:
            raise ValueError(f"threads={given.threads} computes nothing: use 1 or more")
        options = vars(given) | {each: _absolute(getattr(given, each)) for each in FILES}
        del options["context"]  # of this process
        self._made = options, name, dict(defaults)
        self._actors: dict[int, Any] = {}
        self._awaited: dict[Any, int] = {}  # an answer, or a stream of them, of which engine
        _check_address(os.environ.get("RAY_ADDRESS", ""))
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            said = " ".join(str(error).split())
            raise ValueError(f"Ray cannot be reached or started: {said}") from error
        try:
            if options["threads"] is None:
                options["threads"] = max(1, int(_cores()) // given.ray)
            self._check(given.ray, options["threads"])
        except BaseException:
            ray.shutdown()
            raise
        named = {"num_cpus": options["threads"], "max_restarts": 0}
        self._kind: Any = ray.remote(**named)(BatchEngine)

    def __enter__(self) -> Actors:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._actors.values():  # what they write now would go nowhere
            ray.kill(each)
        ray.shutdown()

    def start(self, number: int) -> None:
        actor = self._actors[number] = self._kind.remote(*self._made)
        self._awaited[actor.open.remote()] = number

    def give(self, number: int, lines: Sequence[Line]) -> None:
        stream = self._actors[number].write.options(num_returns="streaming").remote(lines)
        self._awaited[stream] = number

    def next(self) -> tuple[int, Told]:
        (ready,), _ = ray.wait(list(self._awaited), num_returns=1)
        number = self._awaited[ready]
        try:
            if isinstance(ready, ray.ObjectRef):
                del self._awaited[ready]
                return number, Ready(ray.get(ready))
            return number, ray.get(next(ready))
        except StopIteration:
            del self._awaited[ready]
            return number, Idle()
        except RayTaskError as error:  # which the actor survives: it says why it cannot
            raise error.cause from error
        except RayError as error:
            self._awaited.pop(ready, None)
            ray.kill(self._actors[number])  # where only an answer of it was lost
            return number, Lost(f"{type(error).__name__}, whose reason Ray's logs may have")

    def _check(self, count: int, threads: int) -> None:
        places = sum(int(each) // threads for each in _machines())
        if places < count:
            raise ValueError(
                f"--ray {count} with {threads} threads each has no place on {_cores():.0f} cores: "
                "give fewer of either, or join a larger cluster (`ray start`)"
            )


def _machines() -> list[float]:
    """Cores of each machine, for Ray."""
    nodes: Any = ray.nodes  # untyped where Ray is installed
    return [each["Resources"].get("CPU", 0.0) for each in nodes() if each["Alive"]]


def _cores() -> float:
    return sum(_machines())


def _absolute(named: Any) -> Any:
    """A file or folder by a name that other processes find it by, on this machine."""
    if named is None or named == BUNDLED or not Path(named).exists():
        return named
    return type(named)(Path(named).absolute())
