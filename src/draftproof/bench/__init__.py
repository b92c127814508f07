"""Measurements: ratios, all sides interleaved in one run, medians of warm repetitions."""

from draftproof.bench.inflation import inflate

__all__ = ["inflate"]
