"""What an application is started with: the options of `draftproof serve`, and its own.

They have _ for -. `serve run draftproof.ray:app model=bundled replicas=2` gives texts, a YAML
file values of any kind. Knows no Ray.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from draftproof import cli
from draftproof.cli import commands

ELSEWHERE = {
    "host": "give http_options in the YAML file, or `serve start --http-host`",
    "port": "give http_options in the YAML file, or `serve start --http-port`",
}


@dataclass(frozen=True, slots=True)
class Own:
    """Options beside those of the server.

    replicas: engines; None: between min_replicas and max_replicas, as `queued_tokens` say, which
    may wait for each more of them. Delays: seconds that more, or fewer, are wanted until it is
    done. fronts: replicas of the front. affinity_header: by which clients tell what belongs
    together.
    """

    replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    queued_tokens: int = 4096
    upscale_delay: float = 10.0
    downscale_delay: float = 120.0
    fronts: int = 1
    affinity_header: str = "x-session-id"

    @property
    def most(self) -> int:
        """Engines at a time."""
        return self.replicas or self.max_replicas or 1

    @property
    def scales(self) -> bool:
        return self.min_replicas is not None or self.max_replicas is not None


OWN = tuple(Own.__dataclass_fields__)
SCALING = ("queued_tokens", "upscale_delay", "downscale_delay")


def read(given: Mapping[str, Any]) -> tuple[SimpleNamespace, Own]:
    """The options of the server as its command has them, and those of the application.

    Raises `ValueError` in one sentence. threads: where it is not given, each engine has its share
    of this machine's cores.
    """
    mine = {name: value for name, value in given.items() if name in OWN}
    own = _own(mine)
    rest = {name: value for name, value in given.items() if name not in OWN}
    command = cli.group().commands["serve"]
    try:
        context = command.make_context("serve", _words(command, rest))
    except commands.USAGE as error:
        raise ValueError(error.format_message()) from error
    options = SimpleNamespace(**context.params, context=context)
    if options.threads is None:
        options.threads = max(1, (os.cpu_count() or 1) // own.most)
    if options.threads < 1:
        raise ValueError(f"threads={options.threads} computes nothing: use 1 or more")
    return options, own


def _own(given: Mapping[str, Any]) -> Own:
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name == "affinity_header":
            made[name] = str(value)
            continue
        kind = float if name.endswith("delay") else int
        try:
            made[name] = kind(value)
            if isinstance(value, bool) or (isinstance(value, float) and made[name] != value):
                made[name] = math.nan
        except (TypeError, ValueError, OverflowError):
            made[name] = math.nan
        if not math.isfinite(made[name]):
            noun = "a number" if kind is float else "a whole number"
            raise ValueError(f"{name} is {value!r}, but must be {noun}")
        if made[name] < (0 if kind is float else 1):
            raise ValueError(f"{name} is {value!r}: give {0 if kind is float else 1} or more")
    own = Own(**made)
    if own.replicas is not None and own.scales:
        raise ValueError("replicas says how many engines there are: drop min_ and max_replicas")
    if not own.scales and (unused := [name for name in SCALING if name in given]):
        raise ValueError(
            f"{unused[0]} is about engines that come and go: give max_replicas, or drop it"
        )
    if (own.min_replicas or 1) > own.most:
        raise ValueError(
            f"min_replicas is {own.min_replicas} and max_replicas {own.most}: give more of these"
        )
    return own


def _words(command: Any, given: Mapping[str, Any]) -> list[str]:
    """The command line that says the same."""
    known = {param.opts[0].lstrip("-").replace("-", "_"): param for param in command.params}
    words = []
    for name, value in given.items():
        if name in ELSEWHERE or name not in known:
            why = ELSEWHERE.get(name, "it is unknown: see `draftproof serve --help`")
            raise ValueError(f"{name} cannot be followed here: {why}")
        if value is None:
            continue
        option = known[name]
        if name == "model":
            words.append(str(value))
        elif getattr(option, "is_flag", False):
            words += [option.opts[0]] * _is_true(name, value)
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                words += [option.opts[0], str(each)]
    return words


def _is_true(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() not in ("true", "false"):
        raise ValueError(f"{name} is {value!r}, but must be true or false")
    return str(value).lower() == "true"
