"""Speculative decoding that does not change one token of the output."""

from foretoken.hf import custom_generate
from foretoken.llm import LLM
from foretoken.proposers.draft import DraftModel
from foretoken.proposers.ngram import NGram
from foretoken.request import Completion
from foretoken.sampling import SamplingParams

__version__ = "0.1.0"
__all__ = ["Completion", "DraftModel", "LLM", "NGram", "SamplingParams", "custom_generate"]
