"""`draftproof chat`: answers that are interrupted or fail, and what is remembered of them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import draftproof as dp
from conversing import SHORT, printed, talk, tokenizer
from draftproof.cli.talk import Conversation
from draftproof.engine import Engine
from draftproof.sampling import NoCandidate

METHODS = [
    (),
    ("--method", "ngram"),
    ("--draft", "D", "--num-draft-tokens", "3", "--branch", "1"),
    ("--method", "ngram", "--draft", "D"),
]


@pytest.mark.parametrize("options", METHODS)
def test_an_interrupt_ends_the_answer_only(
    chat: Any, asked: Any, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    whole = chat(*options, *SHORT, lines=["hello"]).out
    steps, real = [0], Engine._step

    def interrupted(self: Engine) -> Any:
        steps[0] += 1
        if steps[0] == 4:
            signal.raise_signal(signal.SIGINT)
        return real(self)

    del asked[:]
    monkeypatch.setattr(Engine, "_step", interrupted)
    code, out, _ = chat(*options, *SHORT, lines=["hello", "again", "/exit"])
    first, second = out.splitlines()
    assert code == 0 and second
    assert first and whole.startswith(first) and len(first) < len(whole) - 1
    assert f"[assistant]{first};[user]again;" in tokenizer().decode(asked[1][0])


def test_a_message_interrupted_before_its_answer_is_taken_back(
    chat: Any, chat_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, real = [0], Engine._step

    def interrupted(self: Engine) -> Any:
        steps[0] += 1
        if steps[0] == 1:
            raise KeyboardInterrupt
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_step", interrupted)
        code, out, _ = chat(*SHORT, lines=["oops", "hello"])
    assert (code, out) == (0, "\n" + printed(talk(chat_models, ["hello"])))


def test_an_interrupt_at_the_prompt(
    chat: Any, chat_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Conversation.take, []

    def take(self: Conversation, entry: Any) -> None:
        calls.append(entry)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(self, entry)

    monkeypatch.setattr(Conversation, "take", take)
    code, out, err = chat(*SHORT, lines=["x", "hello"], tty=True)
    assert (code, out) == (0, printed(talk(chat_models, ["hello"])))
    assert "/bye or Ctrl-D leaves\n> " in err
    del calls[:]
    assert chat(*SHORT, lines=["x", "hello"]).code == 130  # a script is ended


def test_an_answer_that_fails_is_told_and_forgotten(
    chat: Any, asked: Any, chat_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picks, real = [0], dp.sampling.pick

    def pick(*args: Any) -> int:
        picks[0] += 1
        if picks[0] == 3:
            raise NoCandidate("no token can be picked, the logits are NaN")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr("draftproof.sampling.pick", pick)
        code, out, err = chat(*SHORT, lines=["oops", "hello"])
    _, answer = out.splitlines()
    assert (code, answer) == (0, talk(chat_models, ["hello"])[0])
    assert "error: no token can be picked, the logits are NaN\n" in err
    assert "oops" not in tokenizer().decode(asked[1][0])
