"""What is written in a comparison: prompt files, and beginnings of held-out modules.

A file is JSON lines with `prompt` (text to continue) or `turns` (a user's messages), as in
HumanEval, MT-bench and Spec-Bench, plain or gzipped; any other file is one prompt of text.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.bundled import corpus
from draftproof.text import chat_ids


@dataclass(frozen=True)
class Prompt:
    """A text to continue, or a conversation that is answered turn by turn."""

    id: str
    turns: tuple[str, ...]
    chat: bool = False
    category: str = "all"

    def ids(self, tokenizer: Any, answers: Sequence[str]) -> list[int]:
        """Token ids before the next answer; `answers` are those to the turns before it."""
        turns = self.turns[: len(answers) + 1]
        if not self.chat:
            parts = [part for pair in zip(turns, answers, strict=False) for part in pair]
            return [int(i) for i in tokenizer("".join([*parts, turns[-1]]))["input_ids"]]
        messages = [{"role": "user", "content": turns[0]}]
        for answer, turn in zip(answers, turns[1:], strict=True):
            messages += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": turn},
            ]
        return chat_ids(tokenizer, messages)


def read(files: Sequence[Path], count: int | None, tokenizer: Any) -> list[Prompt]:
    """The first `count` prompts of each file (None: all); without files, of held-out code (10)."""
    if not files:
        return held_out(tokenizer, count or 10)
    templated = bool(getattr(tokenizer, "chat_template", None))
    return [prompt for file in files for prompt in load(file, templated)[:count]]


def load(path: Path, templated: bool) -> list[Prompt]:
    """The prompts of a file; `turns` become chats where the model is `templated`.

    Raises `ValueError` naming file and line.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"cannot read the prompts {path}: {reason}") from error
    if not text.strip():
        raise ValueError(f"{path} is empty: give at least one prompt")
    if ".jsonl" not in path.suffixes:
        return [Prompt(path.name, (text,))]
    lines = enumerate(text.splitlines(), 1)
    return [_parsed(path, number, line, templated) for number, line in lines if line.strip()]


def _parsed(path: Path, number: int, line: str, templated: bool) -> Prompt:
    where = f"{path}, line {number}"
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error.msg}") from error
    if not isinstance(entry, dict) or not ("prompt" in entry or "turns" in entry):
        raise ValueError(f"{where} has neither a field `prompt` nor `turns`")
    turns = entry["turns"] if "turns" in entry else [entry["prompt"]]
    if not (isinstance(turns, list) and turns and all(t and isinstance(t, str) for t in turns)):
        raise ValueError(f"{where}: `prompt` must be text, `turns` a list of texts, none empty")
    name = str(entry.get("question_id", entry.get("task_id", number)))
    chat = templated and "turns" in entry
    return Prompt(name, tuple(turns), chat, str(entry.get("category", "all")))


def held_out(tokenizer: Any, count: int, length: int = 128) -> list[Prompt]:
    """`count` beginnings from held-out modules of the running Python's standard library.

    Each is 12 lines from the beginning of a top-level statement on, so that it parses with what
    follows it, cut at `length` tokens; those under 24 tokens are left out.
    """
    sources = corpus.modules(only_held_out=True)
    found: dict[str, str] = {}  # text -> id
    for turn in range(100):
        for path, source in sources:
            lines = source.splitlines(keepends=True)
            at = (7 + 61 * turn) % max(1, len(lines))
            while at and not lines[at][:1].isalpha():
                at -= 1
            ids = tokenizer("".join(lines[at : at + 12]))["input_ids"][:length]
            text = tokenizer.decode(ids, skip_special_tokens=True).removesuffix("\ufffd")
            if len(ids) >= 24:
                found.setdefault(text, f"{path}:{at + 1}")
            if len(found) == count:
                return [Prompt(name, (text,)) for text, name in found.items()]
    return [Prompt(name, (text,)) for text, name in found.items()]
