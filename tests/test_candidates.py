"""A folder of drafts, judged before anything is written: which fit, and which can pay."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from draftproof.cli import pairing
from draftproof.drafting.beside import stranger
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.runners import costs
from draftproof.tuning import candidates
from draftproof.tuning.candidates import Judged
from draftproof.tuning.job import listed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("candidates")
    tiny.model().save_pretrained(made / "a draft")
    tiny.model(vocab_size=3000).save_pretrained(made / "of another vocabulary")
    layers = {"exit": 2, "heads": None}
    for name, layer in layers.items():
        heads = Heads(torch.zeros(1, 1, 48, 48), vocab_size=tiny.VOCABULARY, exit=layer)
        files.save(made / name, heads)
    others = Heads(torch.zeros(1, 1, 32, 32), vocab_size=tiny.VOCABULARY)
    files.export_original(made / "of another model", others, torch.zeros(tiny.VOCABULARY, 32))
    for name, config in {"broken": "{", "a list": "[]"}.items():
        (made / name).mkdir()
        (made / name / "config.json").write_text(config)
    (made / "notes.txt").write_text("no draft")
    (made / "empty").mkdir()
    return made


@pytest.fixture(scope="module")
def looked(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "SECONDS", 0.05)
        with dp.LLM(tiny.model(), speculate=None, runner="torch") as llm:
            return candidates.look(llm, folder, ["auto"], (1, 8))


def test_each_is_told_and_what_fits_is_kept(looked: Any, folder: Path) -> None:
    found, drafts, heads = looked
    told = {each.name: each for each in found}
    assert [*told] == [
        "a draft",
        "a list",
        "broken",
        "of another vocabulary",
        "exit",
        "heads",
        "of another model",
    ]
    assert [each["batch"] for each in told["a draft"].batches] == [1, 8]
    assert all(each["of_a_pass"] > 0 for each in told["exit"].batches)
    assert told["heads"].batches == [] and not told["heads"].why  # no pass that could be dear
    assert "another tokenizer: --any-tokenizer" in told["of another vocabulary"].why
    assert "use heads of this target" in told["of another model"].why
    assert all("no weights" in told[name].why for name in ("broken", "a list"))
    names = {name for name, each in told.items() if not each.why}
    places = [*(place for place, _ in drafts), *heads]
    assert {Path(place).name for place in places} == names
    assert all(str(folder) in place for place in places)


def test_a_draft_is_tried_in_the_precisions_that_may_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is refused in a precision is no error of the command's."""

    def judged(llm: Any, model: str, quantize: str | None, *given: Any) -> Judged:
        if quantize == "int8":
            raise ValueError("no kernel")
        return Judged(Path(model).name)

    monkeypatch.setattr(candidates, "judged", judged)
    monkeypatch.setattr(candidates, "measured", lambda llm: None)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    llm: Any = None
    found, drafts, _ = candidates.look(llm, tmp_path, ["auto", "int8"], (1,))
    assert [(each.name, each.why) for each in found] == [
        ("x.gguf", ""),
        ("x.gguf int8", "no kernel"),
    ]
    assert drafts == [(str(tmp_path / "x.gguf"), "auto")]
    names = [source.name for source in listed([*drafts, "y"], ["auto", "int8"], [])]
    assert names[2:] == ["draft x.gguf", "draft y", "draft y int8"]
    names = [source.name for source in listed(["a/x", "b/x", "c/y"], ["auto"], [])]
    assert names[2:] == ["draft a/x", "draft b/x", "draft y"]  # others, though they end alike
    with pytest.raises(ValueError, match="dtype 'int5' is unknown"):
        listed([("y", "int5")], ["auto"], [])


def test_gguf_files_alone_and_in_folders(tmp_path: Path) -> None:
    """Of one in parts only the first is a draft."""
    wanted = ["alone.gguf", "folder", "parts", "whole-00001-of-00002.gguf"]
    for name in (
        *("alone.gguf", "folder/m.gguf", "whole-00001-of-00002.gguf", "whole-00002-of-00002.gguf"),
        *("parts/m-00001-of-00002.gguf", "parts/m-00002-of-00002.gguf", "texts/notes.txt"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"GGUF")
    models, heads = candidates.within(tmp_path)
    assert models == [str(tmp_path / name) for name in wanted] and not heads


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere", "there is no folder"),
        ("a draft", "is one draft, not a folder of them: use --draft"),
        ("empty", "no draft lies in"),
    ],
)
def test_what_is_no_folder_of_drafts(folder: Path, place: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        candidates.within(folder / place)


def test_a_draft_pays_by_what_passes_cost() -> None:
    """A target whose passes cost the same whatever runs, and one whose rows cost a pass each."""
    with dp.LLM(tiny.model(), speculate=None, runner="torch") as llm:
        known = costs.of(llm.runner)
        for wide, needed in ((1.0, 0.1), (20.0, None)):
            known.seconds = lambda rows, wide=wide: 1.0 if rows == 1 else wide  # type: ignore
            found = candidates._paying(llm, 1, 0.1)
            assert found["of_a_pass"] == pytest.approx(0.1)
            assert found["needed"] == (needed and pytest.approx(needed, abs=0.01))
    never = Judged(
        "x", batches=[{"batch": 1, "of_a_pass": 2.0, "needed": None, "needed_for_a_quarter": None}]
    )
    assert "costs too much" in never.why and never.as_dict()["left_out"] == never.why
    assert "costs 2.00 of a pass, and never pays; left out: " in pairing.listed(never)
    once = Judged(
        "x",
        batches=[
            *never.batches,
            {"batch": 8, "of_a_pass": 0.1, "needed": 0.2, "needed_for_a_quarter": 0.43},
        ],
    )
    assert (
        not once.why
        and "pays from 0.20 acceptance on, a quarter from 0.43 on" in pairing.listed(once)
    )


def test_the_command_tells_them_first_and_tries_those_that_fit(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "SECONDS", 0.05)
    (tmp_path / "drafts").mkdir()
    (tmp_path / "drafts" / "broken").mkdir()
    (tmp_path / "drafts" / "broken" / "config.json").write_text("{")
    words = ("--num-prompts", "2", "--max-tokens", "6", "--rounds", "0", "--batch", "1")
    code, out, err = run(
        "tune", "T", "--candidates", f"{tmp_path / 'drafts'}", *words, "--out", f"{tmp_path}"
    )
    assert code == 0 and "broken: left out: " in err and "written:" in out
    kept = json.loads((tmp_path / "profile.json").read_text())["candidates"]
    assert [each["name"] for each in kept] == ["broken"]
    code, out, err = run("tune", "T", "--candidates", f"{tmp_path / 'none'}", *words)
    assert code == 2 and not out and "there is no folder" in err


def test_what_an_id_means_is_compared() -> None:
    """A token that one of them alone has contradicts nothing; without tokenizers there are rows."""
    target: Any = SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 1})
    fewer: Any = SimpleNamespace(get_vocab=lambda: {"b": 1})
    more: Any = SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 1, "c": 2})
    other: Any = SimpleNamespace(get_vocab=lambda: {"b": 0, "a": 1})
    assert stranger(8, 8, fewer, target) == stranger(8, 8, more, target) == ""
    assert stranger(8, 8, other, target) == "id 0 is 'b' there and 'a' in the target"
    assert stranger(8, 8, None, target) == stranger(8, 8, other, None) == ""
    assert stranger(2000, 900, None, None) == "2000 tokens and 900"


def test_an_interrupt_while_a_candidate_loads_is_no_refusal() -> None:
    """Libraries that load weights raise something else of it."""

    def load() -> Judged:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ValueError("could not determine the shape of a storage")

    with pytest.raises(KeyboardInterrupt):
        candidates._tried("draft", load)
