"""What counts as Python that the bundled pair has learnt to write."""

from __future__ import annotations

import pytest

from bundled_pair import parses


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("x = 1\ny = ", True),
        ("def f(a):\n    if a:\n        return [\n            1,\n   2", True),
        ("class A:\n    def f(self):\n", True),
        ("x = = 1\ny = 2\n", False),
        ("def f(:\n    pass\nx = 1\n", False),
        ("return )\nx\n", False),
    ],
)
def test_what_counts_as_valid(text: str, valid: bool) -> None:
    assert parses(text) is valid
