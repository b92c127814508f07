"""Speculative decoding that does not change one token of the output."""

from draftproof.heads.module import Heads
from draftproof.hf import custom_generate
from draftproof.llm import LLM
from draftproof.proposers.draft import DraftModel
from draftproof.proposers.early_exit import EarlyExit
from draftproof.proposers.foreign import ForeignDraft
from draftproof.proposers.hybrid import Hybrid
from draftproof.proposers.lookahead import Lookahead
from draftproof.proposers.medusa import Medusa
from draftproof.proposers.ngram import NGram
from draftproof.proposers.specinfer import SpecInfer
from draftproof.proposers.staged import Staged
from draftproof.proposers.suffix import SuffixAutomaton
from draftproof.request import Completion
from draftproof.sampling import SamplingParams
from draftproof.verify import Typical

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
