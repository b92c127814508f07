"""A request from prompt to completion: its tokens, its randomness, its stop rules, its end.

Cuts the output before anything is committed: end-of-text, stop strings, length. Does not know the
engine, runners or methods.
"""

from __future__ import annotations

import time
import traceback
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from draftproof import sampling
from draftproof.counts import Stats
from draftproof.sampling import History, Noise, SamplingParams
from draftproof.tree import TokenTree

VERIFIER = 1 << 40  # stream of coins and residuals; drafts number theirs from 0


class Text(Protocol):
    """Incremental text of the output; see `text.TextStream`."""

    @property
    def text(self) -> str: ...
    def push(self, tokens: Sequence[int], stops: bool) -> None: ...
    def flush(self) -> None: ...
    def stopped(self) -> bool: ...


@dataclass(slots=True)
class Feedback:
    """What the last step did, for a drafter that wants to learn from it."""

    tree: TokenTree
    path: list[int]
    hidden: Mapping[int, Tensor]  # tapped layer -> (N, hidden size)
    best: Sequence[int] | None = None  # (N,) the target's argmax after each node, if it is wanted


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
    logprobs: list[dict[int, float]] | None = None
    from_draft: list[bool] = field(default_factory=list)  # token by token: drafted and accepted?
    error: str | None = None
    warnings: list[str] = field(default_factory=list)


class Request:
    """One sequence being written."""

    def __init__(
        self,
        key: int,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        seed: int,
        rule: str = "coupled",
        end_ids: Sequence[int] = (),
        max_length: int = 1 << 30,
        text: Text | None = None,
        index: int = 0,
        siblings: Sequence[int] = (),
    ) -> None:
        self.key, self.params, self.rule, self.index = key, params, rule, index
        self.siblings = siblings  # keys of all completions of its prompt, its own too; () for one
        self.seed = sampling.mix(seed, index)
        self.prompt = list(prompt)
        self.tokens = list(prompt)
        self.max_length = max_length
        self.stop_ids = set(params.stop_token_ids) | (set() if params.ignore_eos else set(end_ids))
        self.noise = Noise(self.seed, 0)
        self.history = History(self.prompt, sorted(self.stop_ids))
        self.text = text
        self.stats = Stats(rule == "typical", began=time.monotonic())
        self.feedback: Feedback | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.fault: BaseException | None = None  # what `error` says
        self.warnings: list[str] = []
        self.plain = False  # its drafter failed: one node per step from now on
        self.again = False  # a row was not finite beside drafts: the next step goes without any
        self.torn = False  # in the middle of writing a token
        self.added = False  # to an engine
        self.aborted = False  # somebody wants it to end; the engine ends it
        self.listener: Callable[[Request], object] | None = None  # called when it wrote or ended
        self.ends: Callable[[], bool] | None = None  # a further stop rule, asked after each token
        self.rows: list[Tensor] | None = None  # a list here is given the row (V,) of each token
        self.logprobs: list[dict[int, float]] = []
        self.from_draft: list[bool] = []
        self.rewinds = 0  # how often the text was rolled back: a twin's only
        self._cuts: list[tuple[int, int]] = []  # (number of a roll-back, length), both rising
        self._followed = 0, 0  # rewinds and length of the text that was followed last
        self._generators: dict[int, torch.Generator] = {}
        if params.max_tokens == 0:
            self.finish("length")

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def room(self) -> int:
        """Tokens that may still be written."""
        written = len(self.tokens) - len(self.prompt)
        return min(self.params.max_tokens - written, self.max_length - len(self.tokens))

    @property
    def greedy(self) -> bool:
        """Whether of the target's rows only the first argmax is looked at."""
        params = self.params
        looked_at = params.logprobs is not None or self.rows is not None
        changed = params.adjusts or self.history.process is not None
        return not (params.temperature or changed or looked_at)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def generator(self, stream: int) -> torch.Generator:
        """A generator that only `stream` uses, and that never repeats itself in a request."""
        if stream not in self._generators:
            seed = sampling.mix(self.seed, (1 << 48) + stream) % (1 << 63)
            self._generators[stream] = torch.Generator().manual_seed(seed)
        return self._generators[stream]

    def twin(self) -> Request:
        """The same text and noise with streams of its own, for a draft that is drafted for."""
        made = Request(
            self.key,
            self.prompt,
            self.params,
            seed=sampling.mix(self.seed, VERIFIER),
            rule=self.rule,
            end_ids=sorted(self.stop_ids),
            max_length=self.max_length,
        )
        made.noise, made.siblings = self.noise, self.siblings
        made._followed = self.rewinds, len(self.prompt)
        return made

    def follow(self, other: Request) -> None:
        """Take over the text of `other`, whatever this one had written beyond it."""
        rewinds, length = self._followed
        same = min(length, other.shortest(rewinds), len(self.tokens))
        most = min(len(self.tokens), len(other.tokens))
        while same < most and self.tokens[same] == other.tokens[same]:
            same += 1
        self._followed = other.rewinds, len(other.tokens)
        if same < len(self.tokens):
            self.history.rewind(same - len(self.prompt))
            del self.tokens[same:]
            self.rewinds += 1
            while self._cuts and self._cuts[-1][1] >= same:
                self._cuts.pop()
            self._cuts.append((self.rewinds, same))
        self.tokens += other.tokens[same:]
        self.history.append(other.tokens[same:])
        self.history.process = other.history.process

    def shortest(self, since: int) -> int:
        """The least length, in tokens, that the text had since roll-back number `since`."""
        at = bisect_right(self._cuts, since, key=lambda cut: cut[0])
        return self._cuts[at][1] if at < len(self._cuts) else len(self.tokens)

    def resume(self, written: Sequence[int]) -> None:
        """Go on behind `written` as if it had been written here; before the first step only."""
        self.tokens += written
        self.history.append(written)
        if self.text is not None:
            self.text.push(written, stops=False)

    def stop_drafting(self, error: Exception) -> None:
        """Go on plainly, and say why."""
        self.plain = True
        self.warnings.append(f"drafting stopped: {type(error).__name__}: {error}")

    def fail(self, error: BaseException) -> None:
        """End with `error`, in a sentence."""
        said = " ".join(str(error).split())
        self._keep_fault(error)
        known = isinstance(error, sampling.NoCandidate | MemoryError) and said
        self.finish("error", said if known else f"{type(error).__name__}: {said}".strip(": "))

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
                reason, error = "error", f"{type(failure).__name__}: {failure}"
        finally:
            self.error, self.stats.ended = error, time.monotonic()
            self.finish_reason = reason  # another thread may wait for it, to read what is above
            self.noise.forget()
            self.history.forget()
            self.feedback = self.ends = None
            self._generators.clear()

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
        count, row = self.params.logprobs, None if self.rows is None else logits[node].clone()
        found = None if count is None else sampling.logprobs(logits[node], [token], count)
        self.torn = True
        if found is not None:
            self.logprobs.append(found)
        if self.rows is not None and row is not None:
            self.rows.append(row)
        self.from_draft.append(drafted)
        self.tokens.append(token)
        ended, self.torn = self._stops(token), False
        return ended

    def commit(self, tree: TokenTree, path: Sequence[int], written: int) -> None:
        """Count the last `written` tokens, of which those of `path` behind node 0 were drafted."""
        accepted = min(len(path) - 1, written)
        self.mend()
        self.noise.forget(before=len(self.tokens))
        if written:
            self.stats.count(tree, path[:written], accepted, written)

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
            from_draft=list(self.from_draft),
            error=self.error,
            warnings=list(self.warnings),
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
