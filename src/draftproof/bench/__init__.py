"""Measurements: ratios, both sides interleaved in one run, medians of warm repetitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.bench.inflation import inflate as inflate


def __getattr__(name: str) -> Any:
    """`inflate`, imported when asked for: `python -m` runs the modules of this package."""
    if name == "inflate":
        from draftproof.bench.inflation import inflate

        return inflate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
