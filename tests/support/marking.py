"""Which of many parameters CI runs; the others are behind `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def all_but_some_slow(names: Iterable[str], *some: str) -> list[Any]:
    """Parameters by name, all of them marked slow except `some`."""
    return [pytest.param(n, marks=[pytest.mark.slow][: n not in some]) for n in names]
