"""Measurements: ratios, both sides interleaved in one run, medians of warm repetitions."""
