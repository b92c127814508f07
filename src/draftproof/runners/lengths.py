"""How long a text may get, as a configuration says it and a user asks for it."""

from __future__ import annotations

from typing import Any

LENGTHS = "position_embeddings", "target_positions"  # of texts, in a configuration


def check_length(asked: int | None) -> None:
    """Refuse what no model can run, which is known before one is loaded."""
    if asked is not None and asked < 2:
        raise ValueError(
            f"max_length={asked} leaves no room for a prompt and a token: use 2 or more"
        )


def length_limit(config: Any, asked: int | None) -> int:
    """The longest sequence (prompt and output) that is run."""
    known = (getattr(config, f"max_{name}", None) for name in LENGTHS)
    limit = int(next((each for each in known if each), 1 << 20))
    rope = getattr(config, "rope_parameters", None) or {}
    scalings = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    for scaling in scalings:
        # These choose frequencies from the longest position in a call, so that packed neighbours
        # would change one another: only the length before they switch is exact.
        if scaling.get("rope_type") in ("dynamic", "longrope"):
            original = scaling.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            limit = min(limit, int(original or limit))
    if asked is None:
        return limit
    check_length(asked)
    if asked > limit:
        raise ValueError(f"max_length={asked} exceeds the {limit} tokens that the model can run")
    return asked
