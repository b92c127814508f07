"""What an error tells a user to do in the shell must lead somewhere: each is tried."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import tiny
from commands import SIZES, TOKENIZER
from draftproof import cli
from draftproof.cli import commands

HINTS = [  # what goes wrong, a word of the hint, and the same command as the hint says
    ("--runner torch --dtype int8", "runner auto", "--runner torch --dtype bfloat16"),
    ("--runner native --dtype float16", "change dtype", "--runner auto --dtype float16"),
    ("--dtype int9", "use auto, int8", "--dtype auto"),
    ("--runner native", "runner auto and dtype auto", "--runner auto --dtype auto"),
    ("--dtype int8", "runner auto and dtype auto", "--runner auto --dtype auto"),
    ("--method ngarm", "did you mean ngram?", "--method ngram"),
    ("--method ngram --branch 2", "drop it", "--method ngram"),
    ("--logprobs 1", "add --json", "--logprobs 1 --json"),
    ("--method none,ngram", "drop one", "--method ngram"),
]


@pytest.mark.parametrize(("wrong", "hint", "right"), HINTS)
def test_a_hint_leads_somewhere(
    run: Any, tmp_path: Path, wrong: str, hint: str, right: str
) -> None:
    model = tiny.model("gemma3", dtype=torch.bfloat16, **SIZES)  # nothing for the native runner
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(TOKENIZER).save_pretrained(tmp_path)
    common = ("generate", str(tmp_path), "x", "--max-tokens", "0")
    refused = run(*common, *wrong.split())
    assert refused.code == 2 and hint in refused.err
    assert run(*common, *right.split()).code == 0


@pytest.mark.parametrize("name", commands.OPTIONS)
def test_options_of_other_programs(run: Any, name: str) -> None:
    refused = run("generate", "bundled", "x", name, "1")
    assert refused.code == 2 and f"there is no option {name}: " in refused.err
    assert set(re.findall(r"--[a-z-]+", commands.OPTIONS[name])) <= known("generate")


@pytest.mark.parametrize(
    ("name", "way"), [("--load-in-4bit", "--dtype int4"), ("--n", "--completions N")]
)
def test_a_hint_is_of_the_same_thing(run: Any, name: str, way: str) -> None:
    assert f"write {way}" in run("generate", "bundled", "x", name).err


@pytest.mark.parametrize(("name", "own"), [("-fx", "-f"), ("-tz", "-t")])
def test_a_short_option_is_not_taken_for_one_that_begins_alike(
    run: Any, name: str, own: str
) -> None:
    refused = run("generate", "bundled", "x", name, "1")
    assert refused.code == 2 and commands.OPTIONS[own] not in refused.err
    assert commands.OPTIONS[own] in run("generate", "bundled", "x", f"{own}2").err


@pytest.mark.parametrize("name", commands.OF_TRAIN)
def test_what_else_might_be_trained(run: Any, name: str) -> None:
    refused = run("train", name, "bundled")
    assert refused == (2, "", f"error: there is no command {name!r}: {commands.OF_TRAIN[name]}\n")


def test_data_that_is_nowhere_is_told_before_a_model_is_loaded(run: Any, tmp_path: Path) -> None:
    tiny.model("llama").config.save_pretrained(tmp_path / "model")  # and no weights
    lacking = str(tmp_path / "none.jsonl")
    for words in (("draft", "--size", "1"), ("medusa", "--held-out", lacking)):
        more = ("--data", lacking, "--out", str(tmp_path / "out"))
        refused = run("train", words[0], str(tmp_path / "model"), *words[1:], *more)
        assert refused.code == 2 and f"there is no file or folder {lacking!r}" in refused.err


def test_a_gguf_file_is_not_trained_on(run: Any, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(20))
    more = ("--data", "x", "--out", str(tmp_path / "out"))
    for words in (("draft", "--size", "1"), ("medusa",)):
        refused = run("train", words[0], str(tmp_path / "m.gguf"), *words[1:], *more)
        assert refused.code == 2 and "m.gguf is a GGUF file, which is not trained on" in refused.err


def test_what_bench_writes_in_any_case_is_no_option_of_it(run: Any) -> None:
    for name in ("--json", "--picture"):
        refused = run("bench", "bundled", name)
        assert refused.code == 2 and f"no option {name}: it is written to the folder" in refused.err


def test_h_is_help(run: Any) -> None:
    for words in (("-h",), ("generate", "-h"), ("train", "medusa", "-h")):
        assert "Usage:" in run(*words).out
    refused = run("-m", "bundled", "-p", "x")
    assert refused.err == (
        "error: -m stands before any command: write draftproof generate MODEL PROMPT\n"
    )


def test_mistyped_models_in_training(run: Any, tmp_path: Path) -> None:
    more = ("--data", str(tmp_path / "none.txt"), "--out", str(tmp_path / "out"))
    right = ("bundled", *more)
    for words in (
        ("draft", "bundlde", *more),
        ("medusa", "bundlde", *more),
        ("draft", *right, "--start", "bundlde"),
    ):
        refused = run("train", *words)
        assert refused.code == 2 and "no model 'bundlde': did you mean bundled?" in refused.err


@pytest.mark.parametrize("name", commands.OF_MODELS)
def test_a_model_as_an_option_is_answered_with_the_command_that_was_called(
    run: Any, name: str
) -> None:
    takes = "chat serve bench tune certify quality convert info"
    for command in [*takes.split(), "train draft", "train medusa"]:
        refused = run(*command.split(), name, "bundled")
        hint = f"the model is the first argument: draftproof {command} MODEL"
        assert refused == (2, "", f"error: there is no option {name}: {hint}\n"), command


@pytest.mark.parametrize(
    ("command", "name"), [(c, name) for c, names in commands.OF_COMMANDS.items() for name in names]
)
def test_options_that_mean_something_else_here(run: Any, command: str, name: str) -> None:
    path = f"train {command}" if command in commands.TRAIN else command
    refused = run(*path.split(), "bundled", name, "1")
    hint = commands.OF_COMMANDS[command][name]
    assert refused.code == 2 and f"there is no option {name}: {hint}" in refused.err
    options = known(*[word for word in ("generate", "chat", "bench") if word in hint] or [path])
    assert {*re.findall(r"--[a-z-]+", hint)} <= options


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ("bench serve", "serve MODEL"),
        ("generate load hi", "load URL"),
        ("info train", "train medusa MODEL"),
        ("train draft demo --data no.txt --out no", "demo"),
    ],
)
def test_a_command_is_no_model(
    run: Any, words: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = way.split()[0]
    code, _, err = run(*words.split())
    assert (code, err) == (2, f"error: {name!r} is a command: write draftproof {way}\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    assert run(*words.split()).err.count("is a command") == 0  # a folder of that name may be one


def test_a_conversation_takes_no_message(run: Any) -> None:
    refused = run("chat", "bundled", "hello")
    assert refused.code == 2 and "generate MODEL PROMPT --chat" in refused.err


def known(*names: str) -> set[str]:
    """The options of commands."""
    return {
        each
        for name in names
        for param in commands.every(cli.group())[name].params
        for each in param.opts
    }
