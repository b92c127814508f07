"""Which draft, heads and settings pay for a model: one recorded run of the target, replayed."""

from draftproof.tuning.run import Tuned, tune

__all__ = ["Tuned", "tune"]
