"""`draftproof quality`: table, files, refusals, and what is left of an interrupted one."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from draftproof import LLM, native, quality
from draftproof.cli import quality as command
from draftproof.quality import Cost, Quality, report

SMALL = ("--num-prompts", "2", "--max-tokens", "6", "--num-tokens", "160", "--window", "80")
COST = Cost("int8", "native (avx512)", 20.5, 0.004, 0.02, 0.95, [3, None], 10**8, 171.0, [0.1, 0.2])
FOUND = Quality("float32", 20.0, 4 * 10**8, 50.0, 1000, 64, [COST])


def test_a_table_a_picture_and_the_numbers(run: Any, tmp_path: Path) -> None:
    code, out, err = run(
        "quality", "T", *SMALL, "--dtype", "float32,bfloat16", "--out", f"{tmp_path}"
    )
    assert code == 0 and "Traceback" not in err
    for part in ("target beside itself in float32", "158 tokens of the bundled English text"):
        assert part in " ".join(out.split())
    (file,) = tmp_path.glob("quality-*.json")
    found = json.loads(file.read_text())
    exact, half = found["costs"]
    assert (exact["precision"], half["precision"]) == ("float32", "bfloat16")
    assert exact["divergence"] == 0 and exact["parts_after"] is None
    assert 0 < half["divergence"] < 0.01
    assert [*tmp_path.glob("quality-*.png")] and found["window"] == 80


def test_prompts_and_json(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "def f(x):", "completion": " return x"}\n{"text": "import os"}\n')
    words = ("--prompts", f"{file}", "--dtype", "bfloat16", "--json", "--out", f"{tmp_path}")
    code, out, _ = run("quality", "T", *SMALL, *words)
    found = json.loads(out)
    assert code == 0 and found["text"].endswith("prompts.jsonl prompts")
    assert len(found["costs"][0]["parted"]) == 2


def test_of_prompts_too_so_many_tokens_are_read(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "def f(x):\\n    return x + 1\\n"}\n' * 4)
    words = ("--max-tokens", "2", "--dtype", "bfloat16", "--json", "--out", f"{tmp_path}")
    words += ("--prompts", f"{file}", "--num-prompts", "4")
    whole = json.loads(run("quality", "T", *words)[1])["tokens"]
    (row, rest) = divmod(whole, 4)
    assert not rest
    cut = json.loads(run("quality", "T", *words, "--num-tokens", f"{row + 1 + 3}")[1])
    assert cut["tokens"] == row + 2 and len(cut["costs"][0]["parted"]) == 4


def test_the_bundled_model_is_judged_by_code(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("quality", "bundled", *SMALL, "--dtype", "bfloat16", "--out", f"{tmp_path}")
    assert code == 0 and "held-out prompts" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dtype", "int3"), "dtype 'int3' is unknown"),
        (("--num-prompts", "0"), "--num-prompts must be 1 or more"),
        (("--num-tokens", "0"), "--num-tokens must be 1 or more"),
        (("--window", "1"), "--window must be 2 or more"),
        (("--num-tokens", "1"), "--num-tokens must be 2 or more"),
        (("--max-tokens", "256"), "--max-tokens 256 does not fit in the model's 256"),
        (("--text", "no/such/file"), "cannot read the text no/such/file"),
        (("--text", "BINARY"), "is not UTF-8 text (byte 0)"),
        (("--text", "SHORT"), "fewer than a window of 80: give more of it, or --window"),
        (("--text", "SHORT", "--prompts", "bundled"), "--text and --prompts both"),
        (("--dtype", "int8", "--runner", "torch"), "int8"),
    ],
)
def test_bad_input_is_one_sentence(
    run: Any, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    files = {"BINARY": b"\xff\xfe", "SHORT": b"import os"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    listed = [f"{tmp_path / word}" if word in files else word for word in words]
    code, out, err = run("quality", "T", *SMALL, "--out", f"{tmp_path / 'out'}", *listed)
    assert code == 2 and not out and said in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_what_was_measured_is_shown_where_it_cannot_be_written(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    words = ("--dtype", "bfloat16", "--max-tokens", "1", "--out", f"{tmp_path / 'file'}")
    code, out, err = run("quality", "T", *SMALL, *words)
    assert code == 2 and not out and "file is a file; give another folder as --out" in err
    monkeypatch.setattr(command, "check_folder", lambda out: None)  # as of a disk that is full then
    code, out, err = run("quality", "T", *SMALL, *words)
    assert code == 2 and "bfloat16" in out and "cannot write results to" in err
    code, out, _ = run("quality", "T", *SMALL, *words, "--json")
    (cost,) = json.loads(out, parse_constant=pytest.fail)["costs"]
    assert code == 2 and cost["tokens_per_s"] is None  # nothing is timed in one token


def test_a_refused_precision_is_named_beside_the_others(run: Any, tmp_path: Path) -> None:
    words = ("--dtype", "int8", "--dtype", "bfloat16", "--runner", "torch", "--out", f"{tmp_path}")
    code, out, _ = run("quality", "T", *SMALL, *words)
    assert code == 0 and "int8 is left out: " in out and "bfloat16" in out


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_one_shows_what_is_finished(
    run: Any, tmp_path: Path, monkeypatch: Any, as_json: bool
) -> None:
    real = quality._cost

    def interrupted(precision: str, *args: Any) -> Cost:
        if precision == "bfloat16":
            raise KeyboardInterrupt
        return real(precision, *args)

    monkeypatch.setattr(quality, "_cost", interrupted)
    words = ("--dtype", "float32,bfloat16", "--out", f"{tmp_path}", *["--json"][: int(as_json)])
    code, out, err = run("quality", "T", *SMALL, *words)
    assert code == 130 and "Traceback" not in err
    assert [*tmp_path.glob("quality-*-incomplete.json")]
    told = json.loads(out)["incomplete"] if as_json else out
    assert "bfloat16" in told and (as_json or "incomplete: interrupted at bfloat16" in out)


def test_an_interrupt_while_a_model_loads_is_no_refused_precision(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries that load weights raise something else of it."""
    loaded: list[Any] = []

    def load(*given: Any, **named: Any) -> Any:
        loaded.append(named["dtype"])
        if len(loaded) == 2:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            raise ValueError("could not determine the shape of a storage")
        return LLM(*given, **named)

    monkeypatch.setattr(command, "LLM", load)
    words = ("--dtype", "bfloat16,float64", "--out", f"{tmp_path}")
    code, out, _ = run("quality", "T", *SMALL, *words)
    assert code == 130 and loaded == ["float32", "bfloat16"]
    assert "incomplete: interrupted at bfloat16" in out and "is left out" not in out


def test_the_usual_precisions_are_those_of_the_machine(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("quality", "bundled", *SMALL, "--out", f"{tmp_path}")
    assert code == 0 and "bfloat16" in out and ("int8" in out) == (native.found() is not None)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_table_fits(width: int) -> None:
    from rich.console import Console

    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(report.table(FOUND, width))
    text = capture.get()
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    for part in ("20.00", "20.50 +2.5%", "0.00400", "95.0%", "1/2", "400", "171"):
        assert part in text
    assert text.splitlines()[1].startswith("  perplexity") == (width < 80)
