"""`scripts/matrix.py`: a sample of its cells, its axes, and a judge that finds what is wrong."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftproof import native

ROOT = Path(__file__).resolve().parent.parent
NAMES = "matrix matrix_axes matrix_doors matrix_judge matrix_models matrix_page"
SAMPLE = (  # besides those that are drawn
    "Python/bf16/ngram+draft/coupled/8/-",
    "Python/bf16/draft/rejection/ragged/n",
    "shell/bf16/ngram/greedy/1/stop tokens",
    "custom_generate/fp32/ngram/greedy/1/-",
    "server/bf16/auto/coupled/1/n",
    "batch/bf16/draft/greedy/1/seeds",
)
KIND = "bf16"  # which loads in a moment
NATIVE = pytest.mark.skipif(native.found() is None, reason="the kernels are not built")


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    """The modules of the matrix, by name."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield SimpleNamespace(**{name: import_module(name) for name in NAMES.split()})
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def committed(scripts: SimpleNamespace) -> dict[str, str]:
    kept: dict[str, str] = scripts.matrix_page.verdicts(json.loads(scripts.matrix.KEPT.read_text()))
    return kept


def judged(scripts: SimpleNamespace, cells: Sequence[Any], folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    scripts.matrix.run(cells, folder, found, lambda done, last: None)
    return found


@NATIVE
def test_a_sample_has_the_verdicts_that_are_kept(
    scripts: SimpleNamespace, committed: dict[str, str], tmp_path: Path
) -> None:
    every = [cell for cell in scripts.matrix_axes.every() if cell.kind == KIND]
    drawn = every[7 :: len(every) // 6]
    cells = [each for each in drawn if each.door in ("Python", "Python stream")]
    cells += map(scripts.matrix_axes.Cell.named, SAMPLE)
    found = judged(scripts, cells, tmp_path)
    assert len(found) == len({*cells}) > 7
    for name, each in found.items():
        usual = "equal" if "/greedy/" in name or "/coupled/" in name else "runs"
        assert each["verdict"] == committed.get(name, usual), (name, each)
    assert sum(each.get("drafted", 0) for each in found.values()) > 100


def test_what_is_kept_has_no_failure(scripts: SimpleNamespace, committed: dict[str, str]) -> None:
    """And every cell of Python; of the other doors the page tells how many were tried."""
    axes = scripts.matrix_axes
    every = {cell.name for cell in axes.every()}
    assert committed.keys() <= every
    assert {name for name in every if name.startswith(f"{axes.PYTHON}/")} <= committed.keys()
    assert [name for name, verdict in committed.items() if verdict == "FAIL"] == []


def test_pairs_meet_at_every_door(scripts: SimpleNamespace) -> None:
    axes = scripts.matrix_axes
    cells = axes.every()
    assert len(cells) == len({cell.name for cell in cells})
    for door in axes.DOORS:
        rows = [cell[1:] for cell in cells if cell.door == door]
        values = list(axes.axes_of(door).values())
        for a, b in itertools.combinations(range(len(values)), 2):
            if door == axes.RAY and (a, b) == (0, 1):  # each of these pairs is a process
                continue
            met = {(row[a], row[b]) for row in rows}
            assert met == set(itertools.product(values[a], values[b])), (door, a, b)
    full = [axes.KINDS, axes.METHODS, axes.RULES, axes.BATCHES]
    met = {cell[1:5] for cell in cells if (cell.door, cell.extra) == (axes.PYTHON, "-")}
    assert met == set(itertools.product(*full))


@NATIVE
def test_what_is_wrong_fails(scripts: SimpleNamespace, tmp_path: Path) -> None:
    """A token, a finish, a logarithm; an error that is none of ours, or that is two lines."""
    cell = scripts.matrix_axes.Cell.named("Python/bf16/ngram/greedy/1/logprobs")
    judge, door = scripts.matrix_judge, scripts.matrix_doors.DOORS["Python"]
    model = scripts.matrix_models.Model("bf16", tmp_path)
    ((_, (right,)),) = door(model, [cell])
    fields = vars(right)

    def verdict(got: Any) -> str:
        name: str = scripts.matrix.judged(model, cell, got)["verdict"]
        return name

    def answer(**changes: Any) -> str:
        return verdict([judge.Answer(**{**fields, **changes})])

    assert answer() == "equal"
    ids = right.ids
    assert answer(ids=[*ids[:-1], ids[-1] + 1]) == "FAIL"
    assert answer(ids=None, text=right.text + "x") == "FAIL"
    assert answer(finish="abort") == answer(finish="stop") == answer(error="no") == "FAIL"
    assert answer(chosen=[p - 0.1 for p in right.chosen]) == answer(chosen=None) == "FAIL"
    assert answer(warnings=["drafting stopped: IndexError"]) == "FAIL"
    assert verdict([right, right]) == verdict([]) == "FAIL"
    said = "this cannot run: drop it"
    assert verdict(judge.Refusal(said)) == "refused"
    for error in (RuntimeError(said), ValueError(said), judge.Refusal(f"{said}\n  at line 3")):
        assert verdict(error) == "FAIL"  # nobody of the package raised the second


@NATIVE
def test_a_second_run_of_a_law_is_compared(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = scripts.matrix_axes.Cell.named("Python/bf16/ngram/rejection/1/-")
    doors, axes = scripts.matrix_doors, scripts.matrix_axes
    model = scripts.matrix_models.Model("bf16", tmp_path)
    one, other = (
        next(iter(doors.python(model, [axes.Cell(*cell[:3], rule, *cell[4:])])))[1]
        for rule in ("rejection", "greedy")
    )
    for runs, verdict in (((one, one), "runs"), ((one, other), "FAIL")):
        told = iter(runs)
        monkeypatch.setitem(doors.DOORS, "Python", lambda *_, told=told: [(cell, next(told))])
        ((_, got),) = doors.DOORS["Python"](model, [cell])
        assert scripts.matrix.judged(model, cell, got)["verdict"] == verdict


def test_methods_that_never_drafted_are_told(scripts: SimpleNamespace) -> None:
    cells = {"Python/bf16/ngram/greedy/1/-": {"verdict": "equal"}}
    cells["Python/int8/draft/greedy/1/-"] = {"verdict": "equal", "drafted": 3}
    cells["Python/bf16/none/greedy/1/-"] = cells["Python/bf16/auto/greedy/1/-"] = {
        "verdict": "runs"
    }
    assert scripts.matrix.idle(cells) == ["bf16/ngram drafted nothing"]
