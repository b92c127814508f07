"""Which draft, heads and settings pay for a model: one recorded run of the target, replayed."""
