"""Speculative decoding that does not change one token of the output.

What is public is imported when it is first asked for: torch and transformers take seconds.
"""

from importlib import import_module as _import_module

TYPE_CHECKING = False  # as for type checkers it is not; typing takes longer than all else here
if TYPE_CHECKING:
    from typing import Any

    from draftproof.heads.module import Heads
    from draftproof.hf import custom_generate
    from draftproof.llm import LLM
    from draftproof.proposers.auto import Auto
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
    from draftproof.sampling import Grammar, SamplingParams
    from draftproof.tuning.run import tune
    from draftproof.verify import Typical
else:
    _MODULES = {
        "Auto": "proposers.auto",
        "Completion": "request",
        "DraftModel": "proposers.draft",
        "EarlyExit": "proposers.early_exit",
        "ForeignDraft": "proposers.foreign",
        "Grammar": "sampling",
        "Heads": "heads.module",
        "Hybrid": "proposers.hybrid",
        "LLM": "llm",
        "Lookahead": "proposers.lookahead",
        "Medusa": "proposers.medusa",
        "NGram": "proposers.ngram",
        "SamplingParams": "sampling",
        "SpecInfer": "proposers.specinfer",
        "Staged": "proposers.staged",
        "SuffixAutomaton": "proposers.suffix",
        "Typical": "verify",
        "custom_generate": "hf",
        "tune": "tuning.run",
    }

    def __getattr__(name: str) -> "Any":
        """A public name that was not asked for before."""
        if name not in _MODULES:
            names = _import_module(f"{__name__}.foreign_names")
            raise AttributeError(names.not_of_the_package(name, __all__))
        found = getattr(_import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found  # asked once
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES})


del TYPE_CHECKING

__version__ = "0.2.0"
__all__ = [
    "Auto",
    "Completion",
    "DraftModel",
    "EarlyExit",
    "ForeignDraft",
    "Grammar",
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
    "tune",
]
