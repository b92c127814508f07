"""What was learnt of a pass's costs is kept in the user's cache folder, for the next process."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import torch
from platformdirs import user_cache_path

from draftproof import clock

ENOUGH = 64  # passes that are worth to be kept
OF = ("model", "runner", "precision", "processor", "threads", "version")


class Learnt(Protocol):
    """Costs that passes taught, fit for JSON; `restore` raises `ValueError` for what is none."""

    passes: int
    keep: bool

    def learnt(self) -> dict[str, Any]: ...
    def restore(self, learnt: dict[str, Any]) -> None: ...


def folder() -> Path:
    """Where this user's costs are kept."""
    return user_cache_path("draftproof") / "costs"


def keep(costs: Learnt, runner: Any) -> None:
    """Go on from what an earlier process learnt; what this one learns is kept when it ends.

    A file that is damaged, or of anything else, is made anew. Without a place to write to, costs
    are learnt in memory alone, which is said once.
    """
    if not hasattr(getattr(runner, "config", None), "to_dict"):
        return
    of = description(runner)
    file = folder() / f"{digest({**of, 'model': shape_of(runner.config)})}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        costs.restore(json.loads(file.read_text()))
    before = costs.passes
    weakref.finalize(runner, _save, costs, before, file, of, os.getpid())


def shape_of(config: Any) -> dict[str, Any]:
    """What a configuration says of its model, not where it was read and by which version."""
    said = config.to_dict()
    return {n: said[n] for n in said if not n.startswith("_") and n != "transformers_version"}


def digest(said: Mapping[str, Any]) -> str:
    """A hash of 32 digits, whatever the order."""
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def listed() -> Iterator[dict[str, Any]]:
    """What is kept: "of" (`description`) and "costs" (rows: seconds)."""
    for file in sorted(folder().glob("*.json")):
        try:
            found = json.loads(file.read_text())
            of = {name: found["of"][name] for name in OF}
            costs = {str(int(rows)): float(each) for rows, each in found["costs"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # damaged: made anew by the next process that learns of the same
        if "1" in costs and all(0 < each < math.inf for each in costs.values()):
            yield {"of": of, "costs": costs}


def description(runner: Any) -> dict[str, Any]:
    """What passes of a runner depend on, its model by name."""
    config, device = runner.config, runner.device
    name = getattr(config, "_name_or_path", "") or config.model_type
    said = (
        Path(str(name)).name,
        runner.name,
        runner.precision,
        clock.computes(device),
        runner.threads or torch.get_num_threads(),
        metadata.version("draftproof"),
    )
    return dict(zip(OF, said, strict=True))


def _save(costs: Learnt, before: int, file: Path, of: dict[str, Any], process: int) -> None:
    if (costs.passes - before < ENOUGH and not costs.keep) or os.getpid() != process:
        return
    made: str | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Another process may write the same file, or read it.
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as written:
            made = written.name
            json.dump({"of": of, **costs.learnt()}, written)
        os.replace(made, file)
    except OSError as error:
        if made is not None:  # a full disk holds what fitted
            with suppress(OSError):
                os.unlink(made)
        _tell(f"{error.strerror or error}: {file.parent}")


@cache
def _tell(cause: str) -> None:
    warnings.warn(
        f"what passes cost is not kept for the next run ({cause}): "
        "set XDG_CACHE_HOME to a folder that can be written",
        stacklevel=2,
    )
