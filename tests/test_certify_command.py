"""`draftproof certify`: its table, its exit codes, what it refuses, the scripts that it writes."""

from __future__ import annotations

import io
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import draftproof as dp
from draftproof import certify as certificates
from draftproof import cli, clock, methods
from draftproof.certify import law, script
from draftproof.cli import certify
from planted import PROMPTS, draft, not_rolled_back, off_rows, target, wrong_residual, wrong_row

SMALL = ("--num-prompts", "2", "--max-tokens", "8", "--runs", "20")
SHORT = "x = x + 1\ny = y + 1\nx = x + 1\ny = y\n\ndef f(x):\n    return x\ndef f(x):\n"


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Both models on prompts of a few tokens, which are read again for each run."""
    path = tmp_path_factory.mktemp("prompts") / "short.txt"
    path.write_text(SHORT)
    return ("bundled", "--draft", "bundled", *SMALL, "--prompts", str(path))


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["certify", *arguments])
    return int(ended.value.code or 0)


def test_the_command_certifies(bundled: tuple[str, ...], capsys: Any) -> None:
    few = ("--num-prompts", "1", "--max-tokens", "5", "--threads", "1")
    assert run(*bundled, *few, "--rule", "coupled") == 0
    shown = capsys.readouterr().out
    assert "IDENTICAL" in shown and "ngram" in shown and "draft" in shown
    assert run(*bundled, *few, "--rule", "rejection", "--method", "draft") == 0
    assert "chi-square" in capsys.readouterr().out


def test_what_drafts_nothing_has_a_code_of_its_own(capsys: Any) -> None:
    one = ("--num-prompts", "1", "--max-tokens", "1", "--rule", "coupled", "--method", "suffix")
    assert run("bundled", *one) == 4
    shown = " ".join(capsys.readouterr().out.split())
    assert "NOT EXERCISED: suffix under coupled (nothing was drafted); nothing differs" in shown


def test_merged_methods_are_certified(bundled: tuple[str, ...], capsys: Any) -> None:
    coupled = ("--rule", "coupled", "--json")
    assert run(*bundled, "--method", "ngram+draft", "--method", "ngram", *coupled) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["code"] == 0 and told["script"] is None
    drafted = {
        case["method"]: sum(one["drafted"] for one in case["settings"].values())
        for case in told["cases"]
    }
    assert [*drafted] == ["ngram+draft", "ngram"] and drafted["ngram+draft"] > drafted["ngram"]


@pytest.mark.slow
def test_near_ties_have_a_code_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """Passes over several nodes round so coarsely here that tokens differ."""

    def rounded(rows: Tensor) -> Tensor:
        return rows + (torch.sin(1000 * rows.float()) / 5).to(rows)  # the same for the same rows

    off_rows(monkeypatch, rounded)
    loaded = ("--runner", "torch", "--dtype", "bfloat16", "--out", str(tmp_path))
    assert run("bundled", *SMALL, "--method", "suffix", "--rule", "coupled", *loaded) == 3
    assert "NEAR-TIES" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "draft"), "needs a model: add --draft"),
        (("--method", "ngram+draft"), "needs a model: add --draft"),
        (("--method", "nonsense"), "method 'nonsense' is unknown: "),
        (("--method", "ngram+nonsense"), "method 'nonsense' is unknown"),
        (("--method", "none"), "nothing that could be certified"),
        (("--rule", "typical"), "rule 'typical' cannot be certified"),
        (("--runs", "0"), "--runs is 0"),
        (("--method", "lookahead", "--num-draft-tokens", "3"), "no option of lookahead"),
        (("--max-tokens", "99999"), "do not fit in max_length"),
        (("--prompts", "/nowhere.jsonl"), "cannot read the prompts"),
        (("--out", "/dev/null"), "/dev/null is a file; give another folder as --out"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str, capsys: Any) -> None:
    assert run("bundled", *arguments) == 2
    assert words in capsys.readouterr().err


# --- scripts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plant", "rule"),
    [(wrong_row, "coupled"), pytest.param(not_rolled_back, "rejection", marks=pytest.mark.slow)],
)
def test_a_script_shows_the_defect(
    bundled: tuple[str, ...],
    plant: Callable[[pytest.MonkeyPatch], None],
    rule: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: Any,
) -> None:
    arguments = ("--method", "draft", "--rule", rule, "--json", "--out", str(tmp_path))
    with monkeypatch.context() as patch:
        plant(patch)
        assert run(*bundled, *arguments, "--threads", "1", "--device", "cpu") == 1
        path = json.loads(capsys.readouterr().out)["script"]
        assert [path] == [str(one) for one in tmp_path.glob("draftproof-defect-*.py")]
        runpy.run_path(path)
        assert "DIFFERENT" in (shown := capsys.readouterr().out) and "off by" in shown
    assert "'threads': 1" in Path(path).read_text() and "'device': 'cpu'" in Path(path).read_text()
    runpy.run_path(path)  # and here the engine is sound
    assert capsys.readouterr().out.count("nothing differs") == 3


def test_a_script_is_utf_8_whatever_the_locale(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(io, "text_encoding", lambda encoding, level=2: encoding or "ascii")
    path = certify._save("# modèle\n", tmp_path)
    assert path and Path(path).read_bytes().decode("utf-8") == "# modèle\n"


@pytest.mark.slow
def test_a_script_shows_a_false_law(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    paths = {name: str(tmp_path / name) for name in ("target", "draft")}
    target().save_pretrained(paths["target"])
    draft().save_pretrained(paths["draft"])
    sources = {"draft": paths["draft"]}
    monkeypatch.setattr(law, "SETTINGS", {"top_k=4": law.SETTINGS["top_k=4"]})
    options: dict[str, Any] = {"runner": "torch", "dtype": "float32"}
    with monkeypatch.context() as patch:
        wrong_residual(patch)
        found = certificates.certify(
            dp.LLM(paths["target"], speculate=None, **options),
            {"draft": lambda: methods.named("draft", sources)},
            PROMPTS[:1],
            rules=["rejection"],
            max_tokens=4,
            runs=500,
            contexts=1,
        )
        how = {"draft": f"methods.named('draft', {sources!r})"}
        text = script.text(found, paths["target"], options, how)
        assert text is not None and not found.defects
        (tmp_path / "shown.py").write_text(text)
        runpy.run_path(str(tmp_path / "shown.py"))
        p = found.failed_laws[0][1].p
        assert f"DIFFERENT 500 runs, p = {p} " in capsys.readouterr().out
    runpy.run_path(str(tmp_path / "shown.py"))
    assert "nothing differs 500 runs" in capsys.readouterr().out


def test_the_heading_names_what_ran(
    bundled: tuple[str, ...], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card where there is one, and its threads where it is a processor."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a card {device.index}")
    card: Any = SimpleNamespace(device=torch.device("cuda", 1), threads=None)
    assert clock.ran_on(card) == "a card 1"
    here: Any = SimpleNamespace(device=torch.device("cpu"), threads=1)
    assert clock.ran_on(here) == f"1 thread, {clock.processor()}"
    monkeypatch.setattr(clock, "ran_on", lambda runner: f"{runner.device}, a card")
    few = ("--num-prompts", "1", "--max-tokens", "5", "--rule", "coupled", "--method", "ngram")
    run(*bundled[:1], *few)
    assert "cpu, a card; 1 prompt" in capsys.readouterr().out
