"""Conversations become tokens, by the chat template that comes with a model: a foreign program."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

SECONDS = 10.0  # that a chat template may take


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


def names(tokenizer: Any, word: str) -> bool:
    """Whether a model's own template has a word in quotes or behind a dot, as what it looks for."""
    template = getattr(tokenizer, "chat_template", None) or ""
    return re.search(rf"[.'\"]{re.escape(word)}(?!\w)", str(template)) is not None


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
