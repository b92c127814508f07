"""Profiles: what `draftproof tune` writes is what every command loads, and nothing else is."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import draftproof as dp
import tiny
from draftproof import profiles
from draftproof.cli.progress import Running
from draftproof.profiles import Choice, Part
from draftproof.tuning import job
from draftproof.tuning import run as tuning

PROMPTS = [[5, 6, 7, 5, 6, 7], [8, 9, 3], [1, 2, 3, 1, 2], [40]]
SMALL: dict[str, Any] = {"max_tokens": 12, "batches": (1, 2), "rounds": 1}
WORDS = ("--num-prompts", "2", "--max-tokens", "8", "--rounds", "1", "--batch", "1")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    target = tiny.model()
    target.save_pretrained(folder / "target")
    tiny.relative(target).save_pretrained(folder / "draft")
    tiny.model(seed=5).save_pretrained(folder / "other")
    return folder


@pytest.fixture(scope="module")
def tuned(models: Path) -> tuning.Tuned:
    with dp.LLM(str(models / "target"), speculate=None, runner="torch", max_batch=2) as llm:
        return dp.tune(
            llm, PROMPTS, drafts=[str(models / "draft")], temperatures=(0.0, 0.7), **SMALL
        )


@pytest.fixture
def file(tuned: tuning.Tuned, tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    tuned.save(path)
    return path


def edited(file: Path, **changes: Any) -> str:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return str(file)


def target(models: Path, name: str = "target", **options: Any) -> dp.LLM:
    return dp.LLM(str(models / name), runner="torch", **options)


def test_what_was_found(tuned: tuning.Tuned) -> None:
    cases = tuned.cases()
    assert set(cases) == {(0.0, 1), (0.0, 2), (0.7, 1), (0.7, 2)}
    for rows in cases.values():
        assert [row.seconds for row in rows] == sorted(row.seconds for row in rows)
        ran = [row for row in rows if row.measured is not None]
        assert len(ran) == 8 and not any(row.differing for row in ran)  # in one round all run
        fixed = [row for row in ran if not row.choice.decides]
        for row in fixed:
            assert row.measured_tokens_per_step == pytest.approx(row.tokens_per_step)
        plain = next(row for row in rows if not row.choice.parts)
        assert (plain.tokens_per_step, plain.speedup) == (1.0, 1.0)
        for row in rows:
            assert row.low is None or row.low <= row.speedup * 1.0001
    assert tuned.prompts["left_out"] == ["prompt 4 is too short (1 tokens)"]
    assert {each["name"] for each in tuned.sources} == {"ngram", "suffix", "draft draft"}


def test_a_profile_drafts_as_it_says(models: Path, file: Path) -> None:
    part = Part("draft", (("num_draft_tokens", 3), ("branch", 2)), str(models / "draft"))
    edited(file, choice=Choice((part,)).as_dict())
    with target(models, speculate=str(file)) as llm, target(models, speculate=None) as plain:
        assert isinstance(llm.engine.proposer, dp.DraftModel)
        assert llm.engine.proposer.num_draft_tokens == 3
        params = dp.SamplingParams(max_tokens=12)
        (one,), (two,) = llm.generate([PROMPTS[0]], params), plain.generate([PROMPTS[0]], params)
        assert one.token_ids == two.token_ids and one.stats.drafted > 0
        llm.use(None)
        llm.use(str(file))
        assert isinstance(llm.engine.proposer, dp.DraftModel)


@pytest.mark.parametrize("decides", [False, True])
def test_every_choice_comes_back(file: Path, decides: bool) -> None:
    parts = tuning.listed(["bundled"], ["auto", "int8"], [])
    choice = Choice(
        tuple(s.grown(tree=((0,), (0, 0))) if s.grows else s.part for s in parts), decides
    )
    found = profiles.choice_of(json.loads(json.dumps({"choice": choice.as_dict()})), "p")
    assert found.as_dict() == json.loads(json.dumps(choice.as_dict()))
    assert found.name == choice.name


def test_another_model_is_refused(models: Path, file: Path) -> None:
    with pytest.raises(ValueError, match="was made for target, and this is another model"):
        target(models, "other", speculate=str(file))


def test_on_another_machine_costs_are_measured_anew(
    models: Path, file: Path, tuned: tuning.Tuned
) -> None:
    there = edited(file, machine=tuned.machine | {"processor": "Abacus"})
    with (
        pytest.warns(UserWarning, match="made with processor Abacus, here it is .* measured anew"),
        target(models, speculate=there) as llm,
    ):
        assert llm.runner.pass_costs.passes > 16


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is damaged"),
        ("[]", "is no profile of draftproof tune"),
        ('{"a": 1}', "is no profile of draftproof tune"),
        ('{"draftproof_profile": 1}', "is damaged"),
        ('{"draftproof_profile": 1, "choice": {"parts": [], "decides": false}}', "is damaged"),
        (None, "cannot read the profile"),
    ],
)
def test_what_is_no_profile(models: Path, tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=said) as error:
        target(models, speculate=str(path))
    assert "draftproof tune" in str(error.value)


def test_a_folder_that_has_moved(models: Path, file: Path) -> None:
    gone = Part("draft", (), "/nowhere/draft").as_dict()
    edited(file, choice={"decides": False, "parts": [gone]})
    with pytest.raises(ValueError, match="names /nowhere/draft, where nothing lies any more"):
        target(models, speculate=str(file))


def test_an_interrupted_run_goes_on(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is whole is not written again, and the result is the same."""
    records = tmp_path / "records"
    prompts = [[a, a + 1, a + 2] for a in range(3, 9)]

    def stop(text: str, share: float | None) -> None:
        if text.startswith("T=0: answers 5"):
            raise KeyboardInterrupt

    written: list[int] = []
    real = job.recording.write

    def write(llm: dp.LLM, some: Any, *more: Any) -> Any:
        written.append(len(some))
        return real(llm, some, *more)

    monkeypatch.setattr(job.recording, "write", write)
    with target(models, speculate=None, max_batch=2) as llm:
        options: dict[str, Any] = {"max_tokens": 8, "batches": (1,), "rounds": 0}
        with pytest.raises(KeyboardInterrupt):
            dp.tune(llm, prompts, records=records, tick=stop, **options)
        assert len([*records.glob("*.npz")]) == 4 and written == [2, 2]
        (damaged, *_) = records.glob("*.npz")
        damaged.write_bytes(b"half")
        again = dp.tune(llm, prompts, records=records, **options)
        assert written == [2, 2, 2, 2]
        (tmp_path / "file").touch()  # a folder that is gone would be made again
        with pytest.raises(
            ValueError, match=f"cannot write .* what was recorded stays in {records}"
        ):
            again.save(tmp_path / "file" / "profile.json")
        assert len([*records.glob("*.npz")]) == 6
        again.save(tmp_path / "profile.json")
        assert not records.exists()
        fresh = dp.tune(llm, prompts, **options)
    one, two = (
        {row.choice: row.tokens_per_step for row in each.rows if not row.choice.decides}
        for each in (again, fresh)
    )
    assert one == two


def test_out_of_time(models: Path) -> None:
    with target(models, speculate=None, max_batch=1) as llm:
        found = dp.tune(llm, [[3, 4, 5], [6, 7, 8]], minutes=1e-9, **SMALL)
    assert "1 of 2 prompts" in found.untried and len(found.rows) > 50
    assert "real runs at T=0, batch 1" in found.untried
    assert all(row.measured is None for row in found.rows)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompts": []}, "there are no prompts to tune on"),
        ({"prompts": [[3]]}, "prompt 1 is too short"),
        ({"prompts": [[3] * 125]}, "prompt 1 is too long"),
        ({"groups": ["one"]}, "there are 1 groups for"),
        ({"prompts": [[], [3] * 500]}, r"1 is too short \(0 tokens\); prompt 2 is too long \(500"),
        ({"minutes": 0}, "minutes is 0"),
        ({"batches": ()}, "a batch size must be 1 or more"),
        ({"max_tokens": 1}, "max_tokens is 1"),
        ({"max_tokens": 9000}, "9000 tokens and one to start from exceed the .* ask for fewer"),
        ({"drafts": ["bundled"]}, "vocabulary has 8192 tokens and the target's 97"),
        ({"drafts": ["bundled"], "draft_dtypes": ("int3",)}, "use auto, int8 or int4"),
        ({"drafts": ["bundled", "bundled"]}, "is given twice"),
    ],
)
def test_what_cannot_be_tuned(models: Path, options: dict[str, Any], said: str) -> None:
    given = {"prompts": PROMPTS, **SMALL, **options}
    with target(models, speculate=None) as llm, pytest.raises(ValueError, match=said):
        dp.tune(llm, given.pop("prompts"), **given)


def test_the_command_and_those_that_load_its_profile(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    code, out, err = run("tune", "T", "--draft", "D", *WORDS, "--batch", "3", "--out", f"{path}")
    assert code == 0 and "Traceback" not in err
    assert "batch 3: there are 2 prompts, so 2 were written at once; give more" in out
    for part in ("temperature 0, batch 1", "predicted", "measured", "written:", "of a pass"):
        assert part in out
    assert {each.name for each in tmp_path.iterdir()} == {"mine.json", "mine.png"}
    code, out, err = run(
        "generate", "T", "def f", "--profile", f"{path}", "--max-tokens", "4", "--json"
    )
    assert code == 0 and len(json.loads(out)["completions"]) == 1
    for more in (("--draft", "D"), ("--method", "ngram"), ("--num-draft-tokens", "3")):
        code, out, err = run("generate", "T", "def f", "--profile", f"{path}", *more)
        assert code == 2 and f"--profile says what drafts: drop {more[0]}" in err
    bench = ("--rounds", "1", "--num-prompts", "1", "--max-tokens", "4", "--against", "")
    code, out, err = run("bench", "T", "--profile", f"{path}", *bench, "--out", f"{tmp_path}")
    assert code == 0 and "profile" in out


def test_the_command_interrupted(run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    real = Running.__call__

    def tell(self: Running, text: str, share: float | None) -> None:
        real(self, text, share)
        if text.startswith("measuring"):
            monkeypatch.setattr(Running, "__call__", real)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Running, "__call__", tell)
    code, out, err = run("tune", "T", *WORDS, "--out", f"{tmp_path}")
    assert code == 130 and not out and "the same command goes on there" in err
    assert "Traceback" not in err and len([*tmp_path.glob("profile.records/*.npz")]) == 2
    code, out, err = run("tune", "T", *WORDS, "--out", f"{tmp_path}", "--json")
    assert code == 0 and json.loads(out)["prompts"]["used"] == 2
    assert {each.name for each in tmp_path.iterdir()} == {"profile.json", "profile.png"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--num-prompts", "0"), "--num-prompts must be 1 or more"),
        (("--out", "/proc/no/p.json"), "cannot write results to /proc/no"),
        (("--draft", "./nowhere"), "there is no file or folder"),
        (("--rounds", "-1"), "rounds is -1"),
        (("--batch", "1", "--batch", "100000000"), "100,000,000 texts at once take"),
    ],
)
def test_bad_words_are_one_sentence(run: Any, words: tuple[str, ...], said: str) -> None:
    code, out, err = run("tune", "T", *WORDS, *words)
    assert code == 2 and not out and said in err and len(err.strip().splitlines()) == 1


def test_info_tells_of_a_draft(run: Any) -> None:
    code, out, _ = run("info", "T", "--draft", "D", "--json")
    pair = json.loads(out)["pair"]
    assert code == 0 and pair["vocabulary"] == "same"
    assert [each["batch"] for each in pair["batches"]] == [1, 8]
    assert all(each["of_a_pass"] > 0 for each in pair["batches"])
    code, out, _ = run("info", "T", "--draft", "D")
    assert code == 0 and "vocabulary same" in out and "at batch 8" in out
    code, out, err = run("info", "--draft", "D")
    assert code == 2 and "--draft is about a model" in err


def test_the_drop_in_takes_a_profile(models: Path, file: Path) -> None:
    load, ids = AutoModelForCausalLM.from_pretrained, torch.tensor([PROMPTS[0]])
    model, other = load(models / "target"), load(models / "other")
    path = edited(file, choice=Choice((Part("ngram"),)).as_dict())
    fast = dp.custom_generate(path)
    got = model.generate(ids, max_new_tokens=8, pad_token_id=0, custom_generate=fast)
    assert got.tolist() == model.generate(ids, max_new_tokens=8, pad_token_id=0).tolist()
    assert fast.stats[0].drafted
    with pytest.raises(ValueError, match="this is another model"):
        other.generate(ids, max_new_tokens=8, custom_generate=dp.custom_generate(path))
    with pytest.raises(ValueError, match="cannot read the profile"):
        dp.custom_generate("none.json")
