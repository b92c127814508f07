"""Calls that begin alike go to the same replica, which has read their beginning already.

A session's own name tells it, or a hash of the first tokens of a prompt. Knows no replica.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from draftproof.asked import is_conversation
from draftproof.templates import rendered

TOKENS = 256  # of a prompt
CHARACTERS = 16 * TOKENS  # that are encoded for them: the rest of a long prompt is the engine's


def key(salt: str, session: str, beginning: Sequence[int]) -> str:
    """The name by which a replica is chosen.

    salt: nothing is reused of texts with another one, so that they need not meet. session: what a
    client calls the calls that belong together; "": its prompt tells. beginning: see below.
    """
    parts = [salt, "session", session] if session else [salt, "prompt", *beginning[:TOKENS]]
    return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()


def beginning(tokenizer: Any, prompt: Any) -> list[int]:
    """The first token ids of a prompt: text, token ids, or a list of messages.

    What cannot be encoded has none: an engine will say why.
    """
    try:
        if is_conversation(prompt):
            prompt = rendered(tokenizer, prompt, tokenize=False, add_generation_prompt=True)
        if isinstance(prompt, str):
            prompt = tokenizer(prompt[:CHARACTERS])["input_ids"]
        return [int(token) for token in prompt[:TOKENS]]
    except Exception:  # a template is a program, and the prompt a client's
        return []
