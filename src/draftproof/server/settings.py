"""What a server is told when it starts: its limits, whom it lets in, how it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LOADING, READY, DRAINING, DEAD = "loading", "ready", "draining", "dead"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may ask for, and how long; what is above is refused before anything is done.

    queued, queued_tokens: completions that wait for a place, and tokens of their prompts. texts:
    completions of one call. Seconds: seconds of an answer, of a body's arrival (arrival), without a
    byte being taken by a reader (stall), and for answers that run when the server ends (drain).
    """

    queued: int = 256
    queued_tokens: int = 1 << 20
    texts: int = 128
    n: int = 32
    stops: int = 16
    stop_characters: int = 1024
    bad_words: int = 4096  # entries of logit_bias, of bad_token_ids, of stop_token_ids
    body_bytes: int = 8 << 20
    header_bytes: int = 64 << 10
    seconds: float = 3600.0
    arrival: float = 60.0
    stall: float = 60.0
    drain: float = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server is started with.

    names: the model's, the first in answers. keys: digests of the API keys; none lets all in.
    chunk: "step" sends what a step wrote, "token" each token by itself. defaults: sampling
    parameters of clients that do not name them; as_model: behind these come the model's own. share:
    texts of all clients are reused for all. local: only this machine is meant to call, by an
    address, as localhost or by one of `hosts`.
    """

    names: tuple[str, ...]
    keys: tuple[bytes, ...] = ()
    cors: tuple[str, ...] = ()
    chunk: str = "step"
    share: bool = False
    local: bool = False
    hosts: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    as_model: bool = False
    keep_alive: float = 15.0  # seconds without a chunk until a stream sends a comment
    log: bool = True
    limits: Limits = field(default_factory=Limits)


def digest(key: str | bytes) -> bytes:
    """How an API key is kept."""
    raw = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    return hashlib.sha256(raw).digest()
