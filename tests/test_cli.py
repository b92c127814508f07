"""The command line: the same text as the library, one sentence for whatever is wrong."""

from __future__ import annotations

import inspect
import json
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import draftproof
import tiny
from commands import SIZES, TOKENIZER, Result
from draftproof import cli, native
from draftproof.cli import commands
from draftproof.cli.arguments import generate
from draftproof.engine import Engine

PROMPT = "def main():\n    parser ="


def test_every_sampling_parameter_has_an_option() -> None:
    options = inspect.signature(generate).parameters
    # What may draft is said by --method; a text that was cut is gone on with by a program.
    own = {field.name for field in fields(draftproof.SamplingParams)} - {"speculate", "resume"}
    own |= {"json_schema", "regex", "choice"}
    assert own <= options.keys()


def test_version_and_help(run: Any) -> None:
    code, out, err = run("--version")
    assert (code, err) == (0, "") and out.startswith(f"draftproof {draftproof.__version__} (")
    for part in (f"torch {torch.__version__}", "transformers 5.", "kernels: "):
        assert part in out
    code, out, err = run()
    assert (code, err) == (0, "") and "generate" in out and "demo" in out
    named = ["generate", "chat", "serve", "load", "batch", "bench", "tune", "certify", "quality"]
    named += ["convert", "export", "info", "demo", "train medusa", "train draft"]
    assert list(commands.every(cli.group())) == named
    code, out, _ = run("generate", "--help")
    assert code == 0 and "--repetition-penalty" in out and "MODEL" in out


def test_the_text_of_the_library_from_every_source(run: Any, pair: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.py"
    file.write_text(PROMPT)
    short = ("--max-tokens", "12")
    results = [
        run("generate", "T", PROMPT, *short, tty=True),
        run("generate", "T", "--prompt-file", str(file), *short),
        run("generate", "T", *short, stdin=PROMPT.encode()),
    ]
    llm = draftproof.LLM(pair / "target", speculate=None)
    (wanted,) = llm.generate(PROMPT, draftproof.SamplingParams(max_tokens=12))
    assert (
        results == [Result(0, wanted.text + "\n", "(cut: --max-tokens 12)\n")] * 3
    )  # and nobody's progress bars


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_methods_write_the_same(run: Any, temperature: str) -> None:
    common = ("generate", "T", PROMPT, "--max-tokens", "24", "--temperature", temperature)
    common += ("--seed", "5")
    plain = run(*common, "--method", "none")
    assert (plain.code, plain.err) == (0, "(cut: --max-tokens 24)\n")
    drafting = [
        ("--method", "ngram"),
        ("--draft", "D", "--num-draft-tokens", "3"),
        ("--method", "draft", "--draft", "bundled", "--branch", "2", "--min-confidence", "0"),
        ("--method", "ngram", "--draft", "D"),
    ]
    for options in drafting:
        assert run(*common, *options) == plain


def test_the_dtype_of_the_bundled_target(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    real = draftproof.LLM.__init__

    def spy(self: Any, model: Any, **options: Any) -> None:
        given.append(options["dtype"])
        real(self, model, **options)

    monkeypatch.setattr(draftproof.LLM, "__init__", spy)
    torch_only = ("--runner", "torch")
    for model, more in (
        ("bundled", ()),
        ("bundled", torch_only),
        ("bundled", ("--dtype", "auto")),
        ("T", ()),
        ("T", torch_only),
    ):
        assert run("generate", model, PROMPT, "--max-tokens", "1", *more).code == 0
    natively = "bfloat16" if native.found() is not None else "float32"
    assert given == [natively, "float32", "auto", "auto", "auto"]


def test_json_holds_everything(run: Any) -> None:
    options = (
        "--json",
        "--logprobs",
        "2",
        "--completions",
        "2",
        "--temperature",
        "1",
        "--max-tokens",
        "5",
    )
    code, out, err = run("generate", "T", PROMPT, "--draft", "D", *options)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["prompt"] == PROMPT and [c["index"] for c in found["completions"]] == [0, 1]
    for one in found["completions"]:
        assert len(one["token_ids"]) == len(one["logprobs"]) == len(one["from_draft"]) == 5
        assert one["finish_reason"] == "length" and one["stats"]["tokens"] == 5
        again = run(
            *("generate", "T", PROMPT, "--temperature", "1", "--max-tokens", "5"),
            *("--seed", str(one["seed"])),
        )
        assert again.out == one["text"].removesuffix("\n") + "\n"  # a last break is not doubled


def test_several_completions_and_the_table(run: Any) -> None:
    options = ("--completions", "3", "--temperature", "1", "--seed", "8", "--max-tokens", "4")
    drafting = ("--draft", "D", "--method", "draft")
    code, out, err = run("generate", "T", PROMPT, *drafting, "--stats", *options)
    assert code == 0
    assert [line for line in out.splitlines() if line in ("[0]", "[1]", "[2]")] == [
        "[0]",
        "[1]",
        "[2]",
    ]
    assert "seed 8" in err and "acceptance" in err and err.count("length") == 4
    assert max(map(len, err.splitlines())) <= 80


def test_all_the_sampling_options_arrive(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[draftproof.SamplingParams] = []
    real = draftproof.LLM.submit

    def spy(self: Any, prompt: Any, params: Any, **more: Any) -> Any:
        seen.append(params)
        return real(self, prompt, params)

    monkeypatch.setattr(draftproof.LLM, "submit", spy)
    options = (
        "--temperature 0.5 --top-k 9 --top-p 0.9 --min-p 0.1 --repetition-penalty 1.1 "
        "--presence-penalty 0.2 --frequency-penalty -0.3 --logit-bias 5=-1.5 --logit-bias 6=2 "
        "--bad-token-id 7 --bad-token-id 8 --min-tokens 2 --max-tokens 3 --stop foo --stop bar "
        "--stop-token-id 9 --ignore-eos --seed 4 --logprobs 1 --completions 2 --json"
    )
    assert run("generate", "T", PROMPT, *options.split()).code == 0
    assert seen == [
        draftproof.SamplingParams(
            temperature=0.5,
            top_k=9,
            top_p=0.9,
            min_p=0.1,
            repetition_penalty=1.1,
            presence_penalty=0.2,
            frequency_penalty=-0.3,
            logit_bias={5: -1.5, 6: 2.0},
            bad_token_ids=(7, 8),
            min_tokens=2,
            max_tokens=3,
            stop=("foo", "bar"),
            stop_token_ids=(9,),
            ignore_eos=True,
            seed=4,
            logprobs=1,
            n=2,
        )
    ]


def test_chat_uses_the_template(run: Any, pair: Path, tmp_path: Path) -> None:
    tiny.model(**SIZES).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}> {{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    code, out, _ = run("generate", str(tmp_path), "hello", "--chat", "--json", "--max-tokens", "1")
    assert code == 0
    ids = json.loads(out)["prompt_token_ids"]
    assert "<user> hello" in tokenizer.decode(ids)


def test_nothing_to_write_is_no_error(run: Any) -> None:
    assert run("generate", "T", PROMPT, "--max-tokens", "0") == (0, "\n", "")
    code, out, _ = run("generate", "T", PROMPT, "--max-tokens", "0", "--json", "--stats")
    assert code == 0 and json.loads(out)["completions"][0]["stats"]["tokens"] == 0


def test_the_draft_fails_in_the_middle(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("generate", "T", PROMPT, "--max-tokens", "12")
    calls = []

    def fail(self: Any, requests: Any) -> Any:
        calls.append(1)
        raise RuntimeError("the draft\nhas lost its mind")

    monkeypatch.setattr(draftproof.DraftModel, "propose", fail)
    drafting = ("--draft", "D", "--method", "draft")
    code, out, err = run("generate", "T", PROMPT, "--max-tokens", "12", *drafting)
    assert (code, out) == (0, plain.out) and len(calls) == 1
    assert err.startswith("warning: drafting stopped") and err.count("\n") == 2


@pytest.mark.parametrize("options", [(), ("--json",), ("--completions", "2"), ("--stats",)])
def test_an_interrupt_prints_what_is_there(
    run: Any, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    whole = run("generate", "T", PROMPT, "--max-tokens", "20")
    steps, real = [0], Engine._step

    def interrupted(self: Engine) -> Any:
        steps[0] += 1
        if steps[0] == 7:
            signal.raise_signal(signal.SIGINT)
        return real(self)

    monkeypatch.setattr(Engine, "_step", interrupted)
    code, out, err = run("generate", "T", PROMPT, "--max-tokens", "20", *options)
    assert code == 130 and steps == [7] and "Traceback" not in err
    if "--json" in options:
        (one,) = json.loads(out)["completions"]
        assert one["finish_reason"] == "abort" and len(one["token_ids"]) == 6
        out = one["text"]
    elif "--completions" not in options:
        assert out.endswith("\n")
    if "--completions" not in options:
        assert out.strip() and whole.out.startswith(out.rstrip("\n"))
    assert ("abort" in err) == ("--stats" in options)


def test_a_closed_pipe_is_quiet(pair: Path) -> None:
    program = "import sys; from draftproof.cli import main; main(sys.argv[1:])"
    words = ["generate", str(pair / "target"), PROMPT, "--max-tokens", "60"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()  # the reader has gone before the first word
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), err) == (1, b"")  # typer's code for it


def test_a_method_that_is_taken_up_is_told(run: Any) -> None:
    """Once, not in every step."""
    words = ("generate", "bundled", "import argparse", "--max-tokens", "96", "--decisions")
    code, out, err = run(*words, "--ignore-eos")
    lines = [line for line in err.splitlines() if line.startswith("token ")]
    assert code == 0 and out and len(lines) < 20
    assert all(" on: drafting costs " in line or " off (" in line for line in lines)
    auto = draftproof.Auto(draftproof.NGram(), clock=lambda: 0.0)  # deciding takes no time
    with draftproof.LLM("bundled", speculate=auto) as llm:
        params = draftproof.SamplingParams(max_tokens=64, ignore_eos=True)
        (one,) = llm.generate("import argparse\nimport sys\n" * 4, params)
    changes = one.stats.decisions.changes
    assert len(changes) < 10 and "ngram on: drafting costs 0.00 ms" in changes[0]
