"""`draftproof chat`: messages of several lines, at a terminal and on standard input."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from conversing import SHORT, printed, talk
from draftproof.cli import editor
from draftproof.cli.editor import Editor
from draftproof.cli.entry import Entry, is_open, parsed

BEGIN, END = "\x1b[200~", "\x1b[201~"  # around what a terminal pastes


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PipeInput]:
    """What is typed at a terminal; the history lies in a folder of the test."""
    monkeypatch.setattr(editor, "history_file", lambda: tmp_path / "state" / "chat_history")
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("hello", Entry("hello")),
        ("/help", Entry("/help")),
        ('"""one\ntwo"""', Entry("one\ntwo", quoted=True)),
        ('"""\none\n two\n"""', Entry("one\n two", quoted=True)),
        ('"""/help"""', Entry("/help", quoted=True)),
        ('/system """one\ntwo"""', Entry("/system one\ntwo")),
        ('what is """ for?', Entry('what is """ for?')),
        ('"""never closed', Entry("never closed", quoted=True)),
    ],
)
def test_quotation_marks(text: str, wanted: Entry) -> None:
    assert parsed(text) == wanted
    assert is_open(text) == ("never" in text)


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("hello\r", Entry("hello")),
        (f"{BEGIN}one\r\ntwo\n{END}\r", Entry("one\ntwo\n", quoted=True)),
        (f'{BEGIN}"""A module."""\nimport os{END}\r', Entry('"""A module."""\nimport os', True)),
        (f"{BEGIN}/help\nis a command{END}\r", Entry("/help\nis a command", quoted=True)),
        (f"{BEGIN}/help{END}\r", Entry("/help")),
        (f"say: {BEGIN}one\\\ntwo{END}\r", Entry("say: one\\\ntwo")),
        (f'"""{BEGIN}one\ntwo{END}\r"""\r', Entry("one\ntwo", quoted=True)),
        ("one\\\rtwo\r", Entry("one\ntwo")),
        ('"""\rone\r\rtwo"""\r', Entry("one\n\ntwo", quoted=True)),
        (f"{BEGIN}a\nb{END}\x15\x7f\x15/help\r", Entry("/help")),  # erased again
    ],
)
def test_what_is_typed_and_pasted(keys: PipeInput, typed: str, wanted: Entry) -> None:
    keys.send_text(typed)
    assert Editor().read() == wanted


def test_control_c_and_control_d(keys: PipeInput) -> None:
    keys.send_text("\x03")
    with pytest.raises(KeyboardInterrupt):
        Editor().read()
    keys.send_text("\x04")
    with pytest.raises(EOFError):
        Editor().read()


@pytest.mark.parametrize(
    ("typed", "yes"),
    [("\r", True), ("y\r", True), ("YES\r", True), ("n\r", False), ("\x03", False)],
)
def test_a_question(keys: PipeInput, typed: str, yes: bool) -> None:
    keys.send_text(typed)
    assert Editor().confirm("forget? [Y/n] ") is yes


def test_the_history_is_kept_between_runs(keys: PipeInput) -> None:
    keys.send_text(f"first\r{BEGIN}one\ntwo{END}\r")
    earlier = Editor()
    assert [earlier.read().text, earlier.read().text] == ["first", "one\ntwo"]
    file = editor.history_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    later = Editor()
    keys.send_text("\x10\x10\x10\r")  # up: through both lines of the last one, to the first
    assert later.read().text == "first"


def test_no_place_for_a_history(
    keys: PipeInput, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(editor, "history_file", lambda: tmp_path / "file" / "chat_history")
    keys.send_text("hello\r")
    assert Editor().read() == Entry("hello")


def test_a_terminal_is_edited(
    chat: Any, chat_models: Path, keys: PipeInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    keys.send_text(f"hello\r{BEGIN}one\ntwo{END}\r/help\r\x03\x04")
    code, out, err = chat(*SHORT, tty=True)
    words = "".join(talk(chat_models, ["hello", "one\ntwo"]))
    assert (code, out.replace("\n", "")) == (0, words)
    assert "begins a message of several lines" in err and err.count("/bye or Ctrl-D leaves") == 2


def test_several_lines_on_standard_input(chat: Any, chat_models: Path) -> None:
    lines = ["one\\", "two", '"""', "/help", "", "me", '"""', "so", '"""never', "closed"]
    code, out, _ = chat(*SHORT, lines=lines)
    wanted = talk(chat_models, ["one\ntwo", "/help\n\nme", "so", "never\nclosed"])
    assert (code, out) == (0, printed(wanted))


def test_lines_as_an_editor_of_windows_writes_them(chat: Any, chat_models: Path) -> None:
    code, out, err = chat(*SHORT, lines=["\ufeff/help\r", "hello\r"])
    assert (code, out) == (0, printed(talk(chat_models, ["hello"]))) and "this list" in err


def test_bytes_that_are_no_text(chat: Any, chat_models: Path) -> None:
    """A message is refused as a whole, and what was said before and behind it stays."""
    wanted = talk(chat_models, ["hello", "what now?"])
    lines = ["hello", '"""a list', "of \udcff", 'is what?"""', "what now?"]
    code, out, err = chat("--quiet", *SHORT, lines=lines)
    assert (code, out) == (0, printed(wanted))
    assert "error: the message is not UTF-8 text (byte 13): convert it\n" in err


def test_a_full_disk_ends_no_conversation(tmp_path: Path) -> None:
    kept = editor.Kept(tmp_path)  # a folder, which cannot be written to
    kept.append_string("hello")
    assert kept.get_strings() == ["hello"]
