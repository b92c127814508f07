"""Speculative decoding that does not change one token of the output."""

from foretoken.heads import Heads
from foretoken.hf import custom_generate
from foretoken.llm import LLM
from foretoken.proposers.draft import DraftModel
from foretoken.proposers.early_exit import EarlyExit
from foretoken.proposers.foreign import ForeignDraft
from foretoken.proposers.hybrid import Hybrid
from foretoken.proposers.lookahead import Lookahead
from foretoken.proposers.medusa import Medusa
from foretoken.proposers.ngram import NGram
from foretoken.proposers.specinfer import SpecInfer
from foretoken.proposers.staged import Staged
from foretoken.proposers.suffix import SuffixAutomaton
from foretoken.request import Completion
from foretoken.sampling import SamplingParams
from foretoken.verify import Typical

__version__ = "0.1.0"
__all__ = [
    "Completion",
    "DraftModel",
    "EarlyExit",
    "ForeignDraft",
    "Heads",
    "Hybrid",
    "LLM",
    "Lookahead",
    "Medusa",
    "NGram",
    "SamplingParams",
    "SpecInfer",
    "Staged",
    "SuffixAutomaton",
    "Typical",
    "custom_generate",
]
