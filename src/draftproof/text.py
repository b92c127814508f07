"""Tokens become text as they come, up to a stop string; conversations become tokens.

The text of an output is what its tokens add to the text of the prompt: decode(prompt + output)
without decode(prompt), where of the prompt only the last tokens are looked at. It is made by one
incremental decoder, so that pieces and whole agree however the tokens were handed over. Text that
may still change (half a character, the beginning of a stop string) is held back from streaming.
The tokenizer that lies with a model is found here too. Does not know requests, or what a model
computes.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from draftproof import hub
from draftproof.allocator import give_back
from draftproof.detokenizer import CHUNK, Detokenizer
from draftproof.gguf.reader import located
from draftproof.gguf.tokenizer import of_gguf

SECONDS = 10.0  # that a chat template may take


class TextStream:
    """The text of an output, growing; cut before the stop string that is complete first.

    One thread may push while another takes. If the tokenizer's decode raises, the text stays what
    it was before that token, and the error is raised once: by `push` where there are stop strings,
    else by `flush`, so that it does not depend on who takes when. `take` never raises.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._lock = threading.Lock()
        self._pending: list[int] = []
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._tail = ""  # the end of the text, in which a stop string may have begun
        self._stops = True
        self._stopped = self._done = False
        self._fault: Exception | None = None
        self._taken: list[str] = []
        self._waiting: list[str] = []  # behind it, not taken yet

    @property
    def text(self) -> str:
        """What is complete; all there is after `flush`."""
        with self._lock:
            return "".join(self._taken + self._waiting)

    def push(self, tokens: Sequence[int], stops: bool = True) -> None:
        """Append tokens; decoded at once only where a stop string may end the output.

        stops: whether stop strings count in the text of these tokens (not before `min_tokens`).
        """
        with self._lock:
            if not self._done:
                self._pending += tokens
                self._stops = stops
            if self._stop:
                self._advance()
                self._raise()

    def flush(self) -> None:
        """The output has ended: emit what waited, as it is; that too may hold a stop string."""
        with self._lock:
            self._advance()
            if not self._done:
                try:
                    self._emit(self._detokenizer.finish())
                except Exception as error:
                    self._fault = error
                self._done = True
            self._raise()

    def stopped(self) -> bool:
        """Whether a stop string has appeared."""
        return self._stopped

    def take(self) -> str:
        """Text that is new since the last call and can no longer change."""
        with self._lock:
            self._advance()
            fresh = "".join(self._waiting)
            held = 0 if self._done else self._held()
            end = len(fresh) - held
            self._taken.append(fresh[:end])
            self._waiting = [fresh[end:]]
            return fresh[:end]

    def _advance(self) -> None:
        """Emit what is complete; the same for any number of tokens at once."""
        at = singly = 0  # tokens done; further ones to be done one by one
        try:
            while at < len(self._pending) and not self._done:
                tokens = self._pending[at : at + (1 if singly else CHUNK)]
                fresh = self._decoded(tokens)
                if fresh is None:
                    singly = len(tokens)
                    continue
                at, singly = at + len(tokens), max(singly - 1, 0)
                self._emit(fresh)
        except Exception as error:
            self._fault, self._done = error, True
        finally:
            del self._pending[:at]

    def _decoded(self, tokens: list[int]) -> str | None:
        try:
            return self._detokenizer.feed(tokens)
        except Exception:
            if len(tokens) == 1:
                raise
            return None  # one by one, the text before the faulty token is had

    def _emit(self, fresh: str) -> None:
        """Append text; cut it where the first stop string begins."""
        if fresh:
            self._waiting.append(fresh)
        if not self._stop or not fresh:
            return
        tail = self._tail + fresh
        found = [(at + len(stop), at) for stop in self._stop if (at := tail.find(stop)) >= 0]
        if not self._stops:
            self._tail = ""
        elif found:
            whole, (_, at) = "".join(self._waiting), min(found)
            self._waiting = [whole[: len(whole) - len(tail) + at]]
            self._stopped = self._done = True
        else:
            self._tail = tail[max(len(tail) + 1 - self._longest, 0) :]

    def _held(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        for size in range(len(self._tail), 0, -1):
            if any(stop.startswith(self._tail[-size:]) for stop in self._stop):
                return size
        return 0

    def _raise(self) -> None:
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault


def chat_ids(
    tokenizer: Any, messages: Sequence[dict[str, str]], template: Mapping[str, Any] | None = None
) -> list[int]:
    """Token ids of a conversation under the model's own template.

    template: what it is told besides. Raises `ValueError` when the tokenizer has no template, or
    one that cannot take the messages.
    """
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "this model has no chat template: give a plain prompt (to generate in a shell, to "
            "/v1/completions of a server)"
        )
    try:
        ids = rendered(
            tokenizer,
            list(messages),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **(template or {}),
        )
    except ImportError:  # of the library that templates need
        raise
    except Exception as error:  # a template is a program: it may want other roles, in another order
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"the model's chat template cannot take these messages: {said}") from error
    return [int(i) for i in ids]


class TooLong(RuntimeError):
    """A template did not end."""

    def __init__(self) -> None:
        super().__init__(f"it takes more than {SECONDS:g} s")


def rendered(tokenizer: Any, messages: Any, **options: Any) -> Any:
    """What `tokenizer.apply_chat_template` makes, on a thread that is ended where a template loops.

    transformers' sandbox keeps a template from Python's objects and from files; loops in loops it
    lets run. Raises whatever that raises, and `TooLong`.
    """
    made: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            made.append(tokenizer.apply_chat_template(messages, **options))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="draftproof template", daemon=True)
    thread.start()
    thread.join(SECONDS)
    if thread.is_alive():  # raised in the template, between two of its operations
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TooLong)
        )
        thread.join(1.0)
        raise TooLong
    if failed:
        raise failed[0]
    return made[0]


def load_tokenizer(model: Any, tokenizer: Any, options: dict[str, Any]) -> Any:
    """The given tokenizer, or the one that lies with the model; None if there is none."""
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return tokenizer
    name = tokenizer if tokenizer is not None else model
    if not isinstance(name, str | Path):
        return tokenizer  # any object with a tokenizer's calls, or None
    try:
        return _read(name, tokenizer is not None, options)
    finally:
        give_back()  # a vocabulary is much larger on its way


def _read(name: str | Path, asked_for: bool, options: dict[str, Any]) -> Any:
    """asked_for: raise `ValueError` where there is none."""
    if (file := located(hub.fetched(name, options.get("revision")))) is not None:
        return of_gguf(file)
    try:
        made: Any = AutoTokenizer.from_pretrained(str(name), **options, **hub.options(str(name)))
        if Path(name).is_dir() and not _lies_there(made, Path(name)):
            raise ValueError("the folder has no tokenizer")  # and transformers made an empty one
        return made
    except Exception as error:  # of whatever reads the files that are there
        told = isinstance(error, OSError | ValueError | KeyError)
        if told and not asked_for and not (Path(name) / "tokenizer.json").exists():
            return None  # a folder with weights only: token ids in, token ids out
        asked = isinstance(error, OSError) and not Path(name).is_dir()
        reason = hub.reason(error) if asked else " ".join(str(error).split())[:200]
        raise ValueError(f"cannot load the tokenizer {str(name)!r}: {reason}") from error


def _lies_there(tokenizer: Any, folder: Path) -> bool:
    """Whether any file of a tokenizer is in the folder that it was said to come from."""
    names = {*getattr(tokenizer, "vocab_files_names", {}).values()}
    names |= {"tokenizer.json", "tokenizer_config.json"}
    return any((folder / name).exists() for name in names)


def end_ids(model: Any, tokenizer: Any) -> list[int]:
    """End-of-text ids of the generation config and of the tokenizer."""
    listed = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = listed if listed is not None else getattr(model.config, "eos_token_id", None)
    ids = set(listed if isinstance(listed, list) else [] if listed is None else [listed])
    own = getattr(tokenizer, "eos_token_id", None)
    return sorted(ids | (set() if own is None else {own}))
