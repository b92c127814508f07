"""What a simulated replica is, from files of what was measured."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, fields
from pathlib import Path

from draftproof.runners.costs import PassCosts
from draftproof.runners.curves import KNEES


@dataclass(frozen=True)
class Own:
    """Seconds that the table of passes lacks: of a step, of each text in it, of each token that
    a text is behind; of a prompt, and of each token of it that is read. `own.py` measures them.
    """

    step: float = 0.0
    text: float = 0.0
    token: float = 0.0
    prompt: float = 0.0
    read: float = 0.0


@dataclass(frozen=True)
class Machine:
    """What a replica is. price: of a draft's token, in passes over one row; shared: tokens of a
    prompt that a group shares.
    """

    costs: PassCosts
    places: int = 16
    price: float = 0.1
    own: Own = Own()
    shared: int = 0
    prefixes: int = 8  # groups whose first tokens are kept


def read_costs(path: Path) -> PassCosts:
    """Raises `ValueError`, in one sentence, for a file with no costs of passes."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: give JSON of draftproof info --measure") from error
    if isinstance(found, dict) and found.get("costs"):
        took = {int(rows): each for rows, each in found["costs"][0]["costs"].items()}
    elif isinstance(found, dict) and found.get("passes", {}).get("draftproof"):
        each = found["passes"]["draftproof"].items()
        took = {int(rows): statistics.median(sum(rounds, [])) for rows, rounds in each}
    else:
        raise ValueError(f"{path} has no costs of passes: draftproof info MODEL --measure --json")
    costs = PassCosts(KNEES["avx512"])
    for _ in range(30):
        for rows, seconds in took.items():
            costs.observe(rows, 0, seconds)
    return costs


def read_own(path: Path) -> Own:
    """Raises `ValueError`, in one sentence, for a file that `own.py` has not written."""
    try:
        own = json.loads(path.read_text(encoding="utf-8"))["own_s"]
        return Own(*(float(own[each.name]) for each in fields(Own)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no JSON of own.py: give the file of its --out") from error
