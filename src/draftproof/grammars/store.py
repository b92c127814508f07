"""The grammars of one model: compiled when they are asked for, the latest kept."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from draftproof.request import Request
from draftproof.sampling.grammars import Grammar

KEPT = 64  # grammars
END = "<|no token of this model ends a text|>"


class Grammars:
    """tokenizer: None: there are no grammars. vocabulary: ids that the model has rows for.

    Any number of threads may use it.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, end_ids: Sequence[int]) -> None:
        self.tokenizer, self.vocabulary, self.end_ids = tokenizer, vocabulary, end_ids
        self._lock = threading.Lock()
        self._compiler: Any = None
        self._kept: OrderedDict[Grammar, Any] = OrderedDict()

    def compile(self, grammar: Grammar) -> Any:
        """A matcher, not to be moved. Raises `ValueError`, in a second at most."""
        with self._lock:
            if self._compiler is None:
                self._compiler = _compiler(self.tokenizer, self.vocabulary, self.end_ids)
            if (found := self._kept.get(grammar)) is not None:
                self._kept.move_to_end(grammar)
                return found
        found = self._compiler.matcher(grammar)
        with self._lock:
            self._kept[grammar] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def guide(self, requests: Sequence[Request], grammar: Grammar) -> None:
        """Let the requests follow a grammar, each for itself. Raises `ValueError`."""
        from draftproof.grammars.guide import Guide

        matcher = self.compile(grammar)
        for request in requests:
            if not request.finished:
                with self._lock:
                    guide = Guide(matcher, self.end_ids, self._compiler.table.eos_tokens)
                request.follow_grammar(guide)


def _compiler(tokenizer: Any, vocabulary: int, end_ids: Sequence[int]) -> Any:
    """The table of what each token says takes up to a second, once."""
    if tokenizer is None:
        raise ValueError("a grammar needs a tokenizer: pass tokenizer=")
    try:
        from draftproof.grammars.compiling import Compiler
        from draftproof.grammars.judge import Judge
        from draftproof.grammars.trial import table_of
    except ImportError as error:
        raise ValueError("a grammar needs llguidance: pip install 'draftproof[grammar]'") from error
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is None:
        raise ValueError(
            "a grammar needs a fast tokenizer, with a tokenizer.json: this model's is none"
        )
    backend = copy.copy(backend)
    backend.no_padding()
    backend.no_truncation()
    ends = [end for end in end_ids if 0 <= end < vocabulary]
    if not ends:  # a table has one, so it gets a token of its own, which is never allowed
        backend.add_special_tokens([END])
        ends = [backend.token_to_id(END)]
    parts = backend.to_str(), max(vocabulary, *(end + 1 for end in ends)), ends
    judge = Judge(parts)  # which makes its table meanwhile
    try:
        return Compiler(table_of(*parts), judge)
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"this model's tokenizer cannot follow a grammar: {said}") from error
