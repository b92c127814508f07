"""Everything crossed with everything: what runs, what is refused, and whether the text is the same.

    python scripts/matrix.py                     every cell that build/matrix.json has not yet,
                                                 and those that failed
    python scripts/matrix.py --only 'server/*'   those whose names match
    python scripts/matrix.py --sample 40 --seed 3
    python scripts/matrix.py --write             docs/what_runs/matrix.json, and the tables of it

Exit code 1: a cell failed, or (--sample) has another verdict than the committed ones. The cells
are those of matrix_axes.py; the verdicts are explained in matrix_judge.py.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from matrix_page import kept, verdicts

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "what_runs" / "matrix.json"
ONCE = {"auto"}  # methods that decide by the clock: under a law no second run is the same


def run(cells: Sequence[Any], folder: Path, found: dict[str, Any], told: Any) -> None:
    """Judge the cells, and write each verdict into `found` by the cell's name.

    told: called behind every few, with how many there are.
    """
    from matrix_doors import DOORS
    from matrix_models import Model

    models: dict[str, Any] = {}
    order = sorted(cells, key=lambda cell: (cell.kind, cell.door, cell.method))
    done = 0
    for (kind, door, _), group in itertools.groupby(order, lambda c: (c.kind, c.door, c.method)):
        some = list(group)
        if kind not in models:
            models = {kind: Model(kind, folder)}  # one at a time in memory
        try:
            for cell, got in DOORS[door](models[kind], some):
                found[cell.name] = judged(models[kind], cell, got)
        except Exception as error:
            for cell in some:
                found.setdefault(cell.name, {"verdict": "FAIL", "why": f"the door: {error!r}"})
        done += len(some)
        told(done, some[-1])


def judged(model: Any, cell: Any, got: Any) -> dict[str, Any]:
    """The verdict on a cell with what it took."""
    import matrix_drop_in
    from matrix_axes import DROP_IN
    from matrix_doors import DOORS
    from matrix_judge import EXACT, FAIL, RUNS, differs, verdict, wanted

    want: Any = None
    if not isinstance(got, BaseException) and cell.rule in EXACT:
        try:
            drop_in = cell.door == DROP_IN
            want = matrix_drop_in.plain(model, cell) if drop_in else wanted(model, cell)
        except ValueError as error:
            want = error
    said, why = verdict(model, cell, got, want)
    if said == RUNS and cell.method not in ONCE and cell.door in ("Python", DROP_IN):
        ((_, again),) = DOORS[cell.door](model, [cell])
        if isinstance(again, BaseException):
            said, why = FAIL, f"a second run fails: {again}"
        elif why := next(filter(None, map(differs, again, got)), ""):
            said, why = FAIL, f"a second run with the same seed: {why}"
    made: dict[str, Any] = {"verdict": said}
    if why:
        made["why"] = plainly(why, model)
    if not isinstance(got, BaseException) and (drafted := sum(one.drafted for one in got)):
        made["drafted"] = drafted
    return made


def plainly(why: str, model: Any) -> str:
    """Without what is different on another machine."""
    return re.sub(rf"{re.escape(str(model.folder))}/?", "", why)


def idle(found: Mapping[str, Any]) -> list[str]:
    """Kinds and methods that never drafted where they ran: their verdicts would say nothing."""
    drafted: Counter[tuple[str, str]] = Counter()
    ran: set[tuple[str, str]] = set()
    for name, each in found.items():
        door, kind, method, *_ = name.split("/")
        if door == "Python" and each["verdict"] in ("equal", "runs"):
            ran.add((kind, method))
            drafted[kind, method] += each.get("drafted", 0)
    return [
        f"{kind}/{method} drafted nothing"
        for kind, method in sorted(ran)
        if not drafted[kind, method] and method not in ("none", "auto")
    ]


def about() -> dict[str, Any]:
    from draftproof import clock, native

    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    day = datetime.date.today().isoformat()
    machine = f"{clock.processor()} ({native.kernels()}), {os.cpu_count()} cores"
    return {"date": day, "commit": commit, "processor": machine}


def save(path: Path, found: Mapping[str, Any], **more: Any) -> None:
    from draftproof.out_folders import whole

    with whole(path) as part:
        part.write_text(json.dumps({**more, **found}, indent=0) + "\n", encoding="utf-8")


def chosen(given: argparse.Namespace, every: Sequence[Any]) -> list[Any]:
    """The cells that were asked for, without those that cannot be tried here."""
    cells = [cell for cell in every if fnmatch.fnmatch(cell.name, given.only or "*")]
    if importlib.util.find_spec("ray") is None or given.sample is not None:
        cells = [cell for cell in cells if not cell.door.endswith("--ray")]
    if given.sample is not None:
        cells = Random(given.seed).sample(cells, min(given.sample, len(cells)))
    return cells


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "matrix.json")
    parser.add_argument("--only", metavar="PATTERN", help="names, as 'Python/int8/*'")
    parser.add_argument("--sample", type=int, metavar="N", help="so many, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="what is in --out too")
    parser.add_argument("--write", action="store_true", help="docs/what_runs/ of what is in --out")
    given = parser.parse_args(arguments)
    from matrix_axes import every

    found: dict[str, Any] = {}
    if given.out.exists() and given.sample is None:
        found = json.loads(given.out.read_text(encoding="utf-8"))
    names = {cell.name for cell in every()}
    found = {name: each for name, each in found.items() if name in names}
    if given.write:
        KEPT.parent.mkdir(exist_ok=True)
        committed = kept({name: found[name] for name in sorted(found)}, about())
        KEPT.write_text(json.dumps(committed, indent=1) + "\n", encoding="utf-8")
        return subprocess.run([sys.executable, ROOT / "scripts" / "figures.py"]).returncode
    wanted = chosen(given, every())
    judged = {name for name, each in found.items() if each["verdict"] != "FAIL"}
    todo = [cell for cell in wanted if given.again or cell.name not in judged]
    began = time.monotonic()

    def told(done: int, last: Any) -> None:
        if given.sample is None:
            save(given.out, found)
        seconds = time.monotonic() - began
        print(f"{done:,} of {len(todo):,} cells, {seconds:.0f} s: {last.name}", file=sys.stderr)

    hush()
    run(todo, given.out.parent / "matrix", found, told)
    here = {cell.name: found[cell.name] for cell in wanted}
    failed = {name: each["why"] for name, each in here.items() if each["verdict"] == "FAIL"}
    print(dict(Counter(each["verdict"] for each in here.values())))
    complaints = [f"FAIL {name}: {why}" for name, why in failed.items()]
    if given.sample is None:
        complaints += idle(found)
    elif KEPT.exists():
        before = verdicts(json.loads(KEPT.read_text(encoding="utf-8")))
        complaints += [
            f"{name} was {before[name]} and is {each['verdict']}: {each.get('why', '')}"
            for name, each in here.items()
            if before.get(name, each["verdict"]) != each["verdict"] and name not in failed
        ]
    print("\n".join(complaints))
    return 1 if complaints else 0


def hush() -> None:
    """Libraries say nothing while they load."""
    from draftproof.cli.launch import hush as quiet

    quiet()


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    # What passes cost and packed weights are kept here, and not among the user's.
    os.environ["XDG_CACHE_HOME"] = str(ROOT / "build" / "matrix" / "cache")
    sys.exit(main())
