"""A row of logits becomes a pick or a law; the names that the rest of the house uses."""

from draftproof.sampling.chain import (
    NoCandidate,
    argmax,
    argmaxes,
    draw,
    draw_distinct,
    law,
    logprobs,
    pick,
    race,
    survivors,
)
from draftproof.sampling.history import History, adjust
from draftproof.sampling.noise import Noise, mix
from draftproof.sampling.params import SamplingParams

__all__ = [
    "History",
    "NoCandidate",
    "Noise",
    "SamplingParams",
    "adjust",
    "argmax",
    "argmaxes",
    "draw",
    "draw_distinct",
    "law",
    "logprobs",
    "mix",
    "pick",
    "race",
    "survivors",
]
