"""Metrics of several engines as one text, in which each has a label of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

ENGINE = re.compile(rb'engine="0"')


def one(texts: Sequence[tuple[str, bytes]]) -> bytes:
    """Each family once, with the samples of all. texts: as `server.metrics` makes them, and whose
    each is.
    """
    families: dict[bytes, list[bytes]] = {}
    for engine, text in texts:
        into: list[bytes] = []
        for line in text.splitlines():
            if line.startswith(b"# HELP "):
                name = line.split(b" ")[2]
                into = families.setdefault(name, [])
            if not line.startswith(b"#"):
                into.append(ENGINE.sub(b'engine="%s"' % engine.encode(), line))
            elif line not in into:
                into.append(line)
    return b"".join(line + b"\n" for lines in families.values() for line in lines)
