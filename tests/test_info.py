"""What the program tells about itself: `draftproof info`, and completion for shells."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import shellingham
import torch
import transformers

import draftproof
from draftproof import bundled, cli, native
from draftproof.methods import METHODS

INFO: Any = importlib.import_module("draftproof.cli.info")  # `cli.info` is the command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(list(words))
        return (end.value.code, *capsys.readouterr())

    return run


def test_json(run: Any) -> None:
    code, out, err = run("info", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "") and out.count("\n") == 1
    assert set(found) == {
        *(
            "versions",
            "machine",
            "kernels",
            "devices",
            "runners",
            "methods",
            "optional",
            "costs",
            "weights",
            "bundled",
        )
    }
    assert found["versions"]["draftproof"] == draftproof.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["transformers"] == transformers.__version__
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert found["methods"] == [*METHODS]
    extras = {"accelerate", "datasets", "fastapi", "llguidance", "matplotlib", "peft", "ray"}
    assert set(found["optional"]) == extras
    states = [state for kind in ("devices", "runners", "bundled") for state in found[kind].values()]
    assert all(state["available"] == (state["reason"] is None) for state in states)
    assert found["devices"]["cpu"]["available"] and found["runners"]["torch"]["available"]
    assert found["devices"]["cuda"]["available"] == torch.cuda.is_available()
    assert "not supported" in found["devices"]["mps"]["reason"]


def test_the_native_runner_is_told_as_it_is() -> None:
    state = INFO.facts()["runners"]["native"]
    assert state["available"] == (native.found() is not None)
    if state["available"]:
        assert state["kernels"] == native.kernels() and "int8" in state["precisions"]


def test_a_missing_native_runner_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise native.Missing("the native kernels were not built: no compiler")

    monkeypatch.setattr(native, "kernels", missing)
    facts = INFO.facts()
    assert facts["runners"]["native"]["reason"] == "the native kernels were not built: no compiler"
    rows = dict(INFO._rows(facts))
    assert rows["runner native"] == "no: the native kernels were not built: no compiler"


def test_the_table(run: Any) -> None:
    code, out, err = run("info")
    assert (code, err) == (0, "")
    for line in (
        f"draftproof {draftproof.__version__}",
        f"torch {torch.__version__}",
        "device cpu yes",
        "runner native " + ("no: " if native.found() is None else native.kernels()),
        "methods none, auto, ngram, suffix, lookahead,",
        "bundled target 1",
    ):
        assert line in " ".join(out.split()), line
    assert max(map(len, out.splitlines())) <= 80


def test_the_bundled_models_are_counted() -> None:
    found = INFO.facts()["bundled"]["target"]
    config = transformers.AutoConfig.from_pretrained(bundled.TARGET)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert found["parameters"] == model.num_parameters()
    assert found["dtype"] == "bfloat16" and found["bytes"] > 2 * found["parameters"]
    assert found["max_length"] == config.max_position_embeddings


def test_bundled_models_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Any
) -> None:
    monkeypatch.setattr(bundled, "MODELS", tmp_path)
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "model.safetensors").write_bytes(b"no weights")
    found = INFO.facts()["bundled"]
    assert "no weights" in found["target"]["reason"] and not found["draft"]["available"]
    assert run("info")[0] == 0


def test_cuda_devices(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    card = SimpleNamespace(name="H200", total_memory=150 << 30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    found = INFO.facts()["devices"]["cuda"]
    wanted = {"name": "H200", "memory_bytes": 150 << 30, "compute_capability": "9.0"}
    assert found == {"available": True, "reason": None, "devices": [wanted] * 2}
    assert "H200, 150 GiB, 9.0; H200" in " ".join(run("info")[1].split())


@pytest.mark.parametrize("built", [None, "13.0"])
def test_why_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch, built: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    reason = INFO.facts()["devices"]["cuda"]["reason"]
    assert ("built without" in reason) == (built is None) and ("no GPU" in reason) == bool(built)


# --- completion ---


def test_completion_is_shown(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in ("bash", "zsh", "fish"):
        monkeypatch.setattr(shellingham, "detect_shell", lambda shell=shell: (shell, shell))
        code, out, err = run("--show-completion")
        assert (code, err) == (0, "") and f"_DRAFTPROOF_COMPLETE=complete_{shell}" in out


def test_completion_is_installed(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(shellingham, "detect_shell", lambda: ("bash", "/bin/bash"))
    code, out, err = run("--install-completion")
    assert (code, err) == (0, "") and "bash completion installed" in out
    assert "complete" in (tmp_path / ".bash_completions" / "draftproof.sh").read_text()


def test_a_shell_without_completion_is_one_sentence(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise shellingham.ShellDetectionFailure

    for detect, name in ((fail, "unknown"), (lambda: ("tcsh", "/bin/tcsh"), "tcsh")):
        monkeypatch.setattr(shellingham, "detect_shell", detect)
        for option in ("--show-completion", "--install-completion"):
            code, out, err = run(option)
            assert (code, out) == (2, "") and err.count("\n") == 1
            assert err.startswith("error: ") and name in err and "bash" in err


def test_commands_are_completed() -> None:
    program = "from draftproof.cli import main; main()"
    line = {"COMP_WORDS": "draftproof in", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **line, "_DRAFTPROOF_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["info"])
