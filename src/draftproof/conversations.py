"""Conversations as the files of many tools hold them, in the one form that chat templates know.

`messages` (OpenAI), `conversations` (ShareGPT), `instruction`, `input` and `output` (Alpaca), and a
`prompt` and `completion` that are lists of messages (TRL). Does not know models or tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHATS = ("messages", "conversations")
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant"}  # ShareGPT's names
ROLES |= {role: role for role in ("user", "assistant", "system", "tool")}


def conversation(where: str, entry: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """Messages with `role` and `content`; None for an entry that holds something else.

    Raises `ValueError` that begins with `where`.
    """
    for field in CHATS:
        if entry.get(field) is not None:
            return messages(where, entry[field])
    if isinstance(prompt := entry.get("prompt"), list):
        answer = entry.get("completion")
        return messages(where, [*prompt, *(answer if isinstance(answer, list) else ())])
    plain = any(entry.get(field) is not None for field in ("prompt", "turns", "text"))
    if plain or entry.get("instruction") is None:
        return None
    asked = [entry["instruction"], *([entry["input"]] if entry.get("input") else [])]
    told = {"system": entry.get("system") or None, "assistant": entry.get("output") or None}
    said = {role: {"role": role, "content": text} for role, text in told.items() if text}
    texts = "\n".join(asked) if all(isinstance(text, str) for text in asked) else None
    turn = {"role": "user", "content": texts}
    return messages(where, [*filter(None, [said.get("system"), turn, said.get("assistant")])])


def messages(where: str, given: Any) -> list[dict[str, str]]:
    """Each message, whatever its keys are called; `ValueError` that begins with `where`."""
    found = []
    for number, message in enumerate(given if isinstance(given, list) else [given], 1):
        known = message if isinstance(message, dict) else {}
        role = known.get("role") or ROLES.get(str(known.get("from")))
        content = _text(known.get("content", known.get("value")))
        if not (isinstance(role, str) and isinstance(content, str)):
            forms = f"`role` and `content`, or `from` ({', '.join(ROLES)}) and `value`"
            raise ValueError(f"{where}: message {number} must be an object of texts, {forms}")
        found.append({"role": role, "content": content})
    return found


def _text(content: Any) -> Any:
    """Parts of text as one, as OpenAI's clients write them; anything else as it is."""
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    whole = len(texts) == len(parts) > 0 and all(isinstance(text, str) for text in texts)
    return "".join(map(str, texts)) if whole else content
