"""What a process learns of the costs of passes is there for the next one, and never in its way."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import draftproof as dp
from draftproof import cli
from draftproof.cli import info as command
from draftproof.runners import costs, curves, kept
from draftproof.runners.costs import PassCosts
from draftproof.runners.curves import MOST
from draftproof.runners.measuring import measure, prepare
from simulated import FLAT, STEEP, taught


class Config:
    """Of a model."""

    def __init__(self, layers: int) -> None:
        self.layers = layers

    model_type = "made"

    def to_dict(self) -> dict[str, object]:
        return {"layers": self.layers, "_name_or_path": "anywhere", "transformers_version": "5"}


class Runner:
    """As much of one as its costs depend on."""

    name, precision, threads = "torch", "float32", 2

    def __init__(self, layers: int = 2) -> None:
        self.config = Config(layers)
        self.device = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "draftproof" / "costs"


def learn(runner: Runner, passes: int = 200, curve=STEEP) -> PassCosts:
    found = costs.of(runner)
    taught(found, curve, passes)
    return found


def ended(runner_costs: PassCosts) -> None:
    """Its runner is gone: what was learnt is written."""
    gc.collect()


def test_the_next_process_goes_on_from_what_was_learnt(folder: Path) -> None:
    before = learn(Runner())
    ended(before)
    again, other = costs.of(Runner()), costs.of(Runner(layers=3))
    assert again.passes == 1 and other.passes == 0
    assert again.one == pytest.approx(before.one)
    assert before.curve()[12] > again.curve()[12] > 1.1 * other.curve()[12]
    taught(again, FLAT, 200)  # and it may be different by now
    assert again.curve()[12] == pytest.approx(1.1, rel=0.12)


def test_a_busy_process_turns_no_drafts_off_for_good(folder: Path) -> None:
    """Its wide passes were held up; those after it make none, and so can learn nothing of them."""
    busy = costs.of(Runner())
    for _ in range(40):
        for rows in (1, 3, 8):
            busy.observe(rows, 0, (1 if rows == 1 else 4.2) * 0.01)
    assert busy.curve()[8] > 3.5
    ended(busy)
    del busy
    seen = []
    for _ in range(4):
        later = costs.of(Runner())
        for _ in range(100):
            later.observe(1, 0, 0.01)
        seen.append(later.hopeful(1)[8])
        ended(later)
        del later
    fresh = PassCosts().curve()[8]
    assert seen == sorted(seen, reverse=True) and seen[-1] < 1.15 * fresh


def test_few_passes_are_not_kept(folder: Path) -> None:
    ended(learn(Runner(), passes=60))
    assert not folder.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: json.dumps({"state": [1.0], "spread": [[1.0]]}),
        lambda text: text.replace('"state": [', '"state": [NaN, ', 1),
        lambda text: json.dumps({**json.loads(text), "state": [1e9] * len(curves.ROWS) + [1e9]}),
        lambda text: json.dumps(
            {**json.loads(text), "spread": (1e300 * np.eye(len(curves.ROWS) + 1)).tolist()}
        ),
    ],
)
def test_a_damaged_file_is_made_anew(folder: Path, damage) -> None:
    ended(learn(Runner()))
    (file,) = folder.iterdir()
    file.write_text(damage(file.read_text()))
    found = learn(Runner())
    assert found.curve()[12] == pytest.approx(2.54, rel=0.2)
    ended(found)
    json.loads(file.read_text())


def test_without_a_place_to_write_nothing_is_lost_and_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    kept._tell.cache_clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            ended(learn(Runner()))
    assert len(told) == 1 and "set XDG_CACHE_HOME" in str(told[0].message)


def test_of_a_full_disk_nothing_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dump", full)
    kept._tell.cache_clear()
    with pytest.warns(UserWarning, match="No space left on device"):
        ended(learn(Runner()))
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"of": {}, "costs": {}}',
        '{"of": {"model": "m"}, "costs": []}',
        '{"of": 1, "costs": {"1": 1}}',
        "OF {}",
        'OF {"1": 0.0}',
        'OF {"1": "x"}',
        'OF {"1": NaN}',
        'OF {"2": 1}',
        'OF {"one": 1}',
    ],
)
def test_what_is_kept_and_damaged_is_not_told(folder: Path, text: str) -> None:
    folder.mkdir(parents=True)
    whole = json.dumps(dict.fromkeys(kept.OF, "x"))
    if text.startswith("OF "):
        text = f'{{"of": {whole}, "costs": {text[3:]}}}'
    (folder / "damaged.json").write_text(text)
    assert [*kept.listed()] == []
    (folder / "other.json").write_text(f'{{"of": {whole}, "costs": {{"1": 1, "4": 2}}}}')
    (found,) = kept.listed()
    assert found["costs"] == {"1": 1, "4": 2} and "4: 2.00" in command._costs(found)[1]


def test_a_real_process_keeps_them(folder: Path) -> None:
    code = (
        "import draftproof as dp\n"
        "llm = dp.LLM('bundled', speculate=None)\n"
        "print(llm.generate('def add(a, b):', dp.SamplingParams(max_tokens=96))[0].token_ids)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    (path,) = folder.iterdir()
    with dp.LLM("bundled", speculate=None) as llm:
        assert costs.of(llm.runner).passes == 1  # read, and not measured here
        (again,) = llm.generate("def add(a, b):", dp.SamplingParams(max_tokens=96))
    assert done.stdout == f"{again.token_ids}\n"
    assert [*folder.iterdir()] == [path]


def test_measuring_on_purpose_keeps_to_its_time_and_is_kept(folder: Path) -> None:
    llm = dp.LLM("bundled", speculate=None)
    now = iter(range(10**6))
    measured = PassCosts(9.0)
    done = measure(llm.runner, measured, 400, now=lambda: float(next(now)))
    rows = sum(each <= MOST for each in curves.ROWS)
    # Its clock moves by one with every look, thrice a pass: two rounds count, and not all of more.
    assert rows <= done == measured.passes <= 400 / 3
    assert measured.keep and measured.one == pytest.approx(1.0, rel=0.1)
    slow = iter(range(0, 10**6, 2))  # a pass of four seconds: one that counts, and one before it
    assert measure(llm.runner, PassCosts(9.0), 3, now=lambda: float(next(slow))) == 1
    assert measure(llm.runner, PassCosts(9.0), 3, 2, lambda: 7.0) == 2 * rows  # it stands still
    assert llm.generate("def f(", dp.SamplingParams(max_tokens=4))[0].token_ids  # nothing is left


def test_a_server_measures_before_it_is_ready_what_nobody_did(folder: Path) -> None:
    with dp.LLM("bundled", speculate=None) as llm:
        assert 0 < prepare(llm.runner) == costs.of(llm.runner).passes
        assert prepare(llm.runner) == 0


def test_info_tells_and_measures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def info(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(["info", *words])
        return (int(end.value.code or 0), *capsys.readouterr())

    code, out, _ = info("bundled", "--json")
    (told,) = json.loads(out)["costs"]
    assert code == 0 and told["from"].startswith("estimated") and told["costs"]["8"] > 0
    code, out, _ = info("bundled", "--measure", "--json")
    (told,) = json.loads(out)["costs"]
    assert code == 0 and told["from"].startswith("measured")
    gc.collect()
    code, out, _ = info("--json")
    (listed,) = json.loads(out)["costs"]
    assert listed["costs"] == told["costs"] and listed["of"] == told["of"]
    code, out, _ = info()
    words = " ".join(out.split())  # a column breaks lines anywhere
    assert "costs target" in words and "1 row" in words and "of that (kept)" in words
    code, out, err = info("--measure")
    assert code == 2 and "info MODEL --measure" in err and "Traceback" not in err
