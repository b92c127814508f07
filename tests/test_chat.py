"""`draftproof chat`: turns, commands; the answers are the library's."""

from __future__ import annotations

import io
import sys
from os.path import commonprefix
from pathlib import Path
from typing import Any

import pytest
import torch

import draftproof as dp
from conversing import ROOM, SHORT, printed, talk, tokenizer
from draftproof import cli
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.runners.torch import TorchRunner

METHODS = [
    (),
    ("--method", "ngram"),
    ("--draft", "D", "--num-draft-tokens", "3", "--branch", "1"),
    ("--method", "ngram", "--draft", "D"),
]
WORDS = ["hello", "what is a list?", "and a tuple?", "hello"]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("options", METHODS)
def test_the_answers_are_the_librarys(
    chat: Any, chat_models: Path, options: tuple[str, ...], temperature: float
) -> None:
    wanted = talk(chat_models, WORDS, "be brief", temperature=temperature, seed=5)
    assert len(set(wanted)) > 2 and any(wanted)
    options += ("--quiet", "--temperature", str(temperature), "--seed", "5", "--system", "be brief")
    code, out, err = chat(*options, *SHORT, lines=WORDS)
    assert (code, out) == (0, printed(wanted))
    assert set(err.splitlines()) <= {"(cut: --max-tokens 20)"}


def test_the_second_turn_reads_only_what_is_new(
    chat: Any, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[list[int]] = []
    real = TorchRunner.forward

    def spy(self: TorchRunner, work: Any, taps: Any = ()) -> Any:
        passes.append([token for item in work for token in item.new])
        return real(self, work, taps)

    monkeypatch.setattr(TorchRunner, "forward", spy)
    assert chat(*SHORT, lines=["hello", "what now?"]).code == 0
    (first, _), (second, _) = asked
    known = len(commonprefix([first, second]))
    assert known == len(first)  # the template only adds
    read = [tokens for tokens in passes if tokens]
    assert read[0] == first[:-1] and len(read) == 2
    assert read[1] == second[-1 - len(read[1]) : -1]
    # The answer's last tokens are not cached: what the end of a turn writes is never run.
    assert len(read[1]) <= len(tokenizer()(";[user]what now?;[assistant]")["input_ids"]) + 2


def test_a_head_that_reads_a_layer_comes_with_early_exit(
    chat: Any, chat_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, used = torch.zeros(1, 1, 48, 48), []
    files.save(tmp_path, Heads(weights, vocab_size=len(tokenizer()), exit=2))
    real = dp.LLM.use

    def spy(self: dp.LLM, speculate: Any) -> None:
        real(self, speculate)
        used.append(self.engine.proposer)

    monkeypatch.setattr(dp.LLM, "use", spy)
    lines = ["/method ngram", "/method early-exit", "hello", "/method"]
    code, _, err = chat(*SHORT, "--heads", str(tmp_path), lines=lines)
    assert code == 0 and err.endswith("method: early-exit\n"), err
    assert isinstance(used[-1], dp.EarlyExit) and used[-1].exit == 2 and used[-1].heads is not None


def test_methods_are_switched_between_turns(chat: Any, chat_models: Path, asked: Any) -> None:
    lines = ["hello", "/method ngram", "and?", "/method none", "so", "/method ngram,draft", "no"]
    lines += ["/method draft", "why", "/method", "/method magic", "/method none ngram", "ah"]
    code, out, err = chat("--draft", "D", "--branch", "2", *SHORT, lines=lines)
    words = [line for line in lines if not line.startswith("/")]
    assert (code, out) == (0, printed(talk(chat_models, words)))
    drafted = ["Auto", "NGram", "NoneType", "Hybrid", "DraftModel", "DraftModel"]
    assert [name for _, name in asked] == drafted
    told = [line for line in err.splitlines() if not line.startswith("(")]
    assert told[:5] == [
        "method: ngram",
        "method: none",
        "method: ngram+draft",
        "method: draft",
        "method: draft",
    ]
    assert told[5].startswith("error: ") and "magic" in told[5]
    assert told[6].startswith("error: ") and "contradicts" in told[6]


def test_a_draft_needs_a_model(chat: Any) -> None:
    code, _, err = chat(*SHORT, lines=["/method draft", "/method"])
    assert code == 0 and "--draft" in err and err.endswith("method: auto\n")


def test_stats(chat: Any) -> None:
    code, out, err = chat(*SHORT, lines=["/stats"])
    assert (code, out, err) == (0, "", "nothing was written yet\n")
    code, out, err = chat("--draft", "D", "--seed", "7", *SHORT, lines=["a", "b", "/stats"])
    assert code == 0 and out.count("\n") == 2
    assert "seed 7" in err and "all 2 answers" in err and err.count("acceptance") == 4
    assert max(map(len, err.splitlines())) <= 80


def test_reset_forgets_all_but_the_system_message(chat: Any, asked: Any) -> None:
    code, out, err = chat("--system", "be brief", *SHORT, lines=["hello", "/reset", "hello", "so"])
    first, second, _ = out.splitlines()
    assert code == 0 and first == second and "forgotten" in err
    assert asked[0][0] == asked[1][0]
    assert "be brief" in tokenizer().decode(asked[1][0])


def test_commands(chat: Any, chat_models: Path) -> None:
    lines = ["/help", "/dance", "/", "/reset now", "", "   ", " /etc", "/exit", "never asked"]
    code, out, err = chat(*SHORT, lines=lines)
    assert (code, out) == (0, printed(talk(chat_models, ["/etc"])))
    for name in ("/help", "/stats", "/method", "/reset", "/exit", "Ctrl-C"):
        assert name in err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 3 and "/dance" in errors[0] and "now" in errors[2]


def test_what_does_not_fit_is_refused_and_forgotten(chat: Any, chat_models: Path) -> None:
    lines = ["hello", "x" * ROOM, "and?"]
    code, out, err = chat(*SHORT, lines=lines)
    assert (code, out) == (0, printed(talk(chat_models, ["hello", "and?"])))
    (error,) = (line for line in err.splitlines() if line.startswith("error: "))
    assert f"{ROOM - 1} fit" in error and "/reset" in error


def test_an_answer_ends_with_the_context(chat: Any, chat_models: Path) -> None:
    content = "x" * (ROOM - 30)
    (wanted,) = talk(chat_models, [content])
    code, out, err = chat(lines=[content, "more"])
    assert (code, out) == (0, printed([wanted]))
    assert "(cut: the context is full)" in err and "error: " in err  # no room for another


def test_a_line_that_is_not_text(
    chat: Any, monkeypatch: pytest.MonkeyPatch, chat_models: Path, capsys: Any
) -> None:
    source = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\nhello\r\nso"))
    monkeypatch.setattr(sys, "stdin", source)
    with pytest.raises(SystemExit) as end:
        cli.main(["chat", str(chat_models / "T"), *SHORT])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (0, printed(talk(chat_models, ["hello", "so"])))
    assert err.startswith("error: the message is not UTF-8 text (byte 0): convert it\n")


def test_a_terminal_is_prompted_on_stderr(chat: Any) -> None:
    code, out, err = chat(*SHORT, lines=["hello"], tty=True)
    assert code == 0 and "> " not in out and err.count("> ") == 2
    assert "/help" in err.splitlines()[0]
    assert "> " not in chat(*SHORT, lines=["hello"]).err
