"""A request from prompt to completion: a text being written, its stop rules, its end.

Cuts the output before anything is committed: end-of-text, stop strings, length. Does not know the
engine, runners or methods.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

from torch import Tensor

from draftproof import rules, sampling
from draftproof.counts import OFF, Stats, Watched
from draftproof.foreign_names import no_attribute
from draftproof.runners.base import EncoderInput
from draftproof.sampling import SamplingParams
from draftproof.tree import TokenTree
from draftproof.verify import Typical
from draftproof.writing import Rule, Writing, one_line

LOSSY = "the typical rule is lossy: the model alone may write something else"


class Text(Protocol):
    """Incremental text of the output; see `text.TextStream`."""

    @property
    def text(self) -> str: ...
    def push(self, tokens: Sequence[int], stops: bool) -> None: ...
    def flush(self) -> None: ...
    def stopped(self) -> bool: ...
    def take(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Completion:
    """What `generate` returns for one request."""

    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: str  # stop | length | error | abort
    stats: Stats
    seed: int
    index: int = 0  # which of the n completions of its prompt
    logprobs: list[dict[int, float]] | None = None  # empty of tokens that were resumed
    # Of each prompt token given those before it; None of the first, which has none.
    prompt_logprobs: list[dict[int, float] | None] | None = None
    from_draft: list[bool] = field(default_factory=list)  # token by token: drafted and accepted?
    error: str | None = None
    warnings: list[str] = field(default_factory=list)

    if not TYPE_CHECKING:  # where any attribute would then be taken for one that is there

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("Completion", name)


class Request(Writing):
    """One sequence being written, until it ends.

    rule: as `LLM` takes it. end_ids: of the model; they end the output unless that is ignored.
    """

    def __init__(
        self,
        key: int,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        seed: int,
        rule: str | Typical | Rule = "coupled",
        end_ids: Sequence[int] = (),
        max_length: int = 1 << 30,
        text: Text | None = None,
        index: int = 0,
        siblings: Sequence[int] = (),
        salt: str = "",
        encoder_input: EncoderInput | None = None,
    ) -> None:
        super().__init__(
            key,
            prompt,
            params,
            seed=sampling.mix(seed, index),
            rule=rules.named(rule),
            stop_ids={*params.stop_token_ids, *(() if params.ignore_eos else end_ids)},
            max_length=max_length,
            siblings=siblings,
            salt=salt,
            encoder_input=encoder_input,
        )
        self.text, self.index = text, index
        lossy = self.rule.lossy and params.temperature > 0  # what is greedy stays greedy
        self.stats = Stats(lossy, began=time.monotonic(), decisions=self.decisions)
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.fault: BaseException | None = None  # what `error` says
        self.resumed = self.shown = 0  # tokens written elsewhere; characters shown there
        self.starved = False  # there is no memory behind `max_length`
        self.extends = False  # it may get more than that
        self.again = False  # a row was not finite beside drafts: the next step goes without any
        self.torn = False  # in the middle of writing a token
        self.added = False  # to an engine
        self.aborted = False  # somebody wants it to end; the engine ends it
        self.listener: Callable[[Request], object] | None = None  # called when it wrote or ended
        self.ends: Callable[[], bool] | None = None  # a further stop rule, asked after each token
        # A list here is given the row (V,) of each token.
        self.kept_logits: list[Tensor] | None = None
        self.logprobs: list[dict[int, float]] = []
        self.prompt_logprobs: list[dict[int, float] | None] = [None] if self.scores else []
        self.from_draft: list[bool] = []
        if params.max_tokens == 0:
            self.finish("length")

    @property
    def greedy(self) -> bool:
        return self.kept_logits is None and super().greedy

    @property
    def scores(self) -> bool:
        """Whether rows of its prompt are asked for too, so that it has to read all of it."""
        return self.params.prompt_logprobs is not None and self.index == 0

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def follow_grammar(self, guide: sampling.Guide) -> None:
        """Bind what is written to a grammar; where that is complete the text ends."""
        self.history.guide = guide
        before = self.ends

        def ends() -> bool:
            written = len(self.prompt) + self.history.length  # and behind it what is no history yet
            complete = guide.complete(self.history.output, self.tokens[written:])
            return complete or (before is not None and before())

        self.ends = ends

    def resume(self, written: Sequence[int]) -> None:
        """Go on behind `written` as if it had been written here; before the first step only."""
        self.tokens += written
        self.history.append(written)
        if self.text is not None:
            self.text.push(written, stops=False)

    def rewrite(self, token: int) -> None:
        """Take over a token that was written elsewhere; it may end the text, as if written here."""
        self.tokens.append(token)
        self.history.append([token])
        self.from_draft.append(False)
        self.decisions.by_token.append("")
        if self.params.logprobs is not None:
            self.logprobs.append({})
        self._stops(token)
        self.resumed += 1

    def fail(self, error: BaseException) -> None:
        """End with `error`, in a sentence."""
        said = " ".join(str(error).split())
        self._keep_fault(error)
        known = isinstance(error, sampling.NoCandidate | MemoryError) and said
        self.finish("error", said if known else one_line(error))

    def finish(self, reason: str, error: str | None = None) -> None:
        """End, and let go of what only writing needs: whoever reads the result may hold this."""
        if self.finished:
            return
        try:
            if self.text is not None:
                self.text.flush()
                if reason == "length" and self.text.stopped():
                    reason = "stop"
        except Exception as failure:  # a tokenizer is foreign code
            if reason != "error":
                self._keep_fault(failure)
                reason, error = "error", one_line(failure)
        finally:
            self.error, self.stats.ended = error, time.monotonic()
            self.finish_reason = reason  # another thread may wait for it, to read what is above
            self.ends = None
            self.forget()

    def _keep_fault(self, error: BaseException) -> None:
        """Without its frames, which hold rows and laws; where it was raised stays as a note."""
        if error.__traceback__ is not None:
            error.add_note(
                "raised here:\n" + "".join(traceback.format_tb(error.__traceback__)[-3:])
            )
        self.fault = error.with_traceback(None)
        error.__context__ = error.__cause__ = None

    def write(self, token: int, logits: Tensor, node: int, drafted: bool = False) -> bool:
        """Append a token that was picked from row `node` of `logits`; whether it ends the output.

        logits (N, V) may be empty for a greedy request. Penalties do not count the token before
        `commit`, as verification goes by paths.
        """
        count, kept = self.params.logprobs, self.kept_logits
        row = None if kept is None else logits[node].clone()
        found = None if count is None else sampling.logprobs(logits[node], [token], count)
        self.torn = True
        if found is not None:
            self.logprobs.append(found)
        if kept is not None and row is not None:
            kept.append(row)
        self.from_draft.append(drafted)
        self.tokens.append(token)
        ended, self.torn = self._stops(token), False
        return ended

    def score(self, begin: int, logits: Tensor) -> None:
        """Log-probabilities of the prompt's tokens behind token `begin`, from its rows (N, V)."""
        count = self.params.prompt_logprobs
        assert count is not None
        self.prompt_logprobs[begin + 1 :] = [
            sampling.logprobs(row, [token], count)
            for row, token in zip(logits, self.prompt[begin + 1 :], strict=False)
        ]

    def commit(self, tree: TokenTree, path: Sequence[int], written: int) -> None:
        """Count the last `written` tokens, of which those of `path` behind node 0 were drafted."""
        accepted = min(len(path) - 1, written)
        self.mend()
        self.noise.forget(before=len(self.tokens))
        if written:
            if self.watched is not None:
                self._watch(tree, path, written)
            self.passes += 1
            self.stats.count(tree, path[:written], accepted, written)

    def _watch(self, tree: TokenTree, path: Sequence[int], written: int) -> None:
        assert self.watched is not None
        sources, why = self.planned if self.speculate is not False else ((), OFF)
        drafted = len(tree.tokens) - 1
        known = sources if len(sources) == drafted else ()  # a tree may have been cut since
        self.watched.append(Watched(tree, known, path[: written + 1], written, why * (not drafted)))

    def mend(self) -> None:
        """Let the history have what was written; end a text that an interrupt left in a token."""
        if self.torn and not self.finished:
            self.finish("abort")
        committed = len(self.prompt) + self.history.length
        if committed < len(self.tokens) and not self.finished:
            self.history.append(self.tokens[committed:])

    def completion(self) -> Completion:
        return Completion(
            prompt_token_ids=list(self.prompt),
            text=self.text.text if self.text is not None else "",
            token_ids=self.output,
            finish_reason=self.finish_reason or "abort",
            stats=self.stats,
            seed=self.seed,
            index=self.index,
            logprobs=self.logprobs if self.params.logprobs is not None else None,
            prompt_logprobs=self.prompt_logprobs if self.scores else None,
            from_draft=list(self.from_draft),
            error=self.error,
            warnings=self.warnings + ([LOSSY] if self.stats.lossy and self.stats.drafted else []),
        )

    def _stops(self, token: int) -> bool:
        """Whether the output ends with `token`, just appended."""
        written = len(self.tokens) - len(self.prompt)
        if token in self.stop_ids:
            self.finish("stop")
            return True
        if self.text is not None:
            self.text.push([token], stops=written > self.params.min_tokens)
            if self.text.stopped():
                self.finish("stop")
                return True
        if self.ends is not None and self.ends():
            self.finish("stop")
        elif self.room <= 0:
            self.finish("length")
        return self.finished
