"""What a folder says of itself, checked before anything is made after it.

A configuration of a hundred million layers would be built module by module until memory ends, and
an index of weights may name any file of the machine. Knows no weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

MOST = 10_000  # layers, heads and experts of a model; the largest published ones have hundreds
COUNTED = re.compile(r"(^|_)(layers?|heads|experts)$")
INDEX_BYTES = 64 << 20  # of an index of weights
UNSAFE = (
    "its weights are a pickle that holds more than tensors, which would run code of whoever wrote "
    "it: use a copy in safetensors"
)


def checked(config: Any) -> Any:
    """The configuration, if its counts are those of a model. Raises `ValueError` with the field."""
    for name, count in _counts(config.to_dict()):
        if not 0 <= count <= MOST:
            raise ValueError(
                f"config.json says {name}: {count}, and 0 to {MOST:,} can be: fetch the model "
                "again, or use another one"
            )
    if getattr(config.get_text_config(), "num_hidden_layers", None) == 0:
        raise ValueError("config.json says that the model has no layers: fetch it again")
    return config


def _counts(fields: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _counts(value)
        elif isinstance(value, int) and COUNTED.search(str(name)):
            yield str(name), value


def check_index(index: Path) -> None:
    """Refuse an index of weights that leads out of its folder. Raises `ValueError`.

    Links are followed: the cache of the hub is made of them.
    """
    try:
        if (size := index.stat().st_size) > INDEX_BYTES:
            raise ValueError(f"{size:,} bytes, more than any model needs")
        files = {*json.loads(index.read_bytes())["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = error if type(error) is ValueError else "no index of weights"
        raise ValueError(f"{index} cannot be read ({said}): fetch it again") from error
    for file in files:
        path = PurePosixPath(str(file))
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(
                f"{index.name} names {str(file)[:120]!r}, which lies outside of the model's "
                "folder: use another model"
            )
