"""The line editor of a conversation at a terminal: prompt_toolkit, with a history between runs.

A bracketed paste is one message, as it is. Imported only where there is a terminal.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from platformdirs import user_state_path
from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from draftproof.cli.entry import BACKSLASH, MORE, SIGN, Entry, is_open, means_yes, parsed


def history_file() -> Path:
    """Where this user's entries are kept."""
    return user_state_path("draftproof") / "chat_history"


class Editor:
    """Entries as a user types, pastes and recalls them."""

    def __init__(self) -> None:
        self._pasted = False  # several lines, into an empty editor: no quotation marks are sought
        keys, typing = KeyBindings(), has_focus(DEFAULT_BUFFER)
        keys.add(Keys.BracketedPaste, filter=typing)(self._paste)
        keys.add("enter", filter=typing)(self._enter)
        self._session: PromptSession[str] = PromptSession(
            SIGN,
            multiline=True,
            prompt_continuation=MORE,
            key_bindings=keys,
            history=_history(history_file()),
        )
        self._session.default_buffer.on_text_changed += self._changed

    def read(self) -> Entry:
        self._pasted = False
        text = self._session.prompt()
        return Entry(text, quoted=True) if self._pasted else parsed(text)

    def confirm(self, question: str) -> bool:
        try:
            answer: str = PromptSession(question).prompt()
        except (EOFError, KeyboardInterrupt):
            return False
        return means_yes(answer)

    def _paste(self, event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        pasted = not event.current_buffer.text and "\n" in text.strip()
        event.current_buffer.insert_text(text)
        self._pasted = self._pasted or pasted

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith(BACKSLASH):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        elif is_open(buffer.text) and not self._pasted:
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    def _changed(self, buffer: Buffer) -> None:
        if not buffer.text:
            self._pasted = False


class Kept(FileHistory):
    """A history in a file, which goes on without it where the disk is full."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _history(path: Path) -> History:
    """Kept in a file that only its user reads; of this run only where there can be none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return Kept(path)
