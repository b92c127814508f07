"""Conversations become tokens, by the chat template that comes with a model: a foreign program."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

SECONDS = 10.0  # that a chat template may take
ROLES = ("system", "developer", "user", "tool", "assistant", "function")
KEYS = (
    "role", "content", "name", "refusal", "audio", "annotations", "function_call", "tool_calls",
    "tool_call_id", "reasoning_content", "reasoning", "reasoning_details", "thinking",
)  # fmt: skip
MOST = 32  # names that are looked at, as a body may have hundreds of thousands of them


def chat_ids(
    tokenizer: Any, messages: Sequence[dict[str, str]], template: Mapping[str, Any] | None = None
) -> list[int]:
    """Token ids of a conversation under the model's own template.

    template: what it is told besides. Raises `ValueError` when the tokenizer has no template, or
    one that cannot take the messages, and as `check_names` does.
    """
    if tokenizer is None:
        raise ValueError(
            "this model came without a tokenizer, and a conversation is text: give tokenizer=, or "
            "put its tokenizer.json beside the weights"
        )
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "this model has no chat template: give a plain prompt (to llm.generate, to generate in "
            "a shell, to /v1/completions of a server)"
        )
    check_names(messages, tokenizer)
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


def check_names(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> None:
    """Raises `ValueError` for a role or key that looks like a known one misspelt.

    That would be another text than the one that was meant. A template may know names that nobody
    else does: what is like no known one is passed on, and what the template itself has, too.
    """
    looked: dict[tuple[str, str], str] = {}  # what each is taken for
    for number, message in enumerate(messages):
        keys = [name for name, value in message.items() if value is not None]
        for kind, name in [("role", message.get("role")), *(("key", key) for key in keys)]:
            known = ROLES if kind == "role" else KEYS
            if name in known or not isinstance(name, str):
                continue
            if (kind, name) not in looked and len(looked) < MOST:
                near = _near(name, known)
                looked[kind, name] = "" if near and names(tokenizer, name) else near
            near = looked.get((kind, name), "")
            if near and near not in keys:  # beside the known one it is no slip
                raise ValueError(
                    f"messages[{number}] has the {kind} {name!r}, which is unknown: did you mean "
                    f"{near!r}?"
                )


def _near(name: str, known: Collection[str]) -> str:
    """The one that a name is taken for; "" where there is none."""
    if len(name) > 2 * max(map(len, known)):
        return ""
    return next(iter(get_close_matches(name.strip().lower(), known, 1, 0.75)), "")


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
