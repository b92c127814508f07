"""A row of logits becomes a pick or a law; the names that the rest of the house uses."""

from draftproof.sampling.chain import (
    LEAST,
    NoCandidate,
    argmax,
    argmaxes,
    draw,
    draw_distinct,
    healthy,
    law,
    logprobs,
    pick,
    race,
    survivors,
)
from draftproof.sampling.grammars import Busy, Grammar
from draftproof.sampling.history import Guide, History, adjust, allowed
from draftproof.sampling.noise import Noise, mix
from draftproof.sampling.params import PREDICTION, SamplingParams

__all__ = [
    "LEAST",
    "PREDICTION",
    "Busy",
    "Grammar",
    "Guide",
    "History",
    "NoCandidate",
    "Noise",
    "SamplingParams",
    "adjust",
    "allowed",
    "argmax",
    "argmaxes",
    "draw",
    "draw_distinct",
    "healthy",
    "law",
    "logprobs",
    "mix",
    "pick",
    "race",
    "survivors",
]
