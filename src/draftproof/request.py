"""A request from prompt to completion: its tokens, its randomness, its stop rules, its counts.

Cuts the output before anything is committed: end-of-text, stop strings, length. Does not know the
engine, runners or methods.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from draftproof import sampling
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


@dataclass(slots=True)
class Stats:
    """Counts of one request, after stop rules cut the output."""

    lossy: bool = False  # the rule of acceptance changes the law of the output

    steps: int = 0  # target passes that emitted
    drafting_steps: int = 0  # those that had something to verify
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    # How often the walk came to a depth where there was a draft to accept.
    offered_per_position: list[int] = field(default_factory=list)
    began: float = 0.0  # monotonic seconds: added, first token, end
    first_token: float = 0.0
    ended: float = 0.0

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def acceptance_length(self) -> float:
        """1 + accepted / steps that drafted: vLLM's definition."""
        return 1 + self.accepted / self.drafting_steps if self.drafting_steps else 1.0


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
    ) -> None:
        self.key, self.params, self.rule, self.index = key, params, rule, index
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
        self.warnings: list[str] = []
        self.plain = False  # its drafter failed: one node per step from now on
        self.ends: Callable[[], bool] | None = None  # a further stop rule, asked after each token
        self.rows: list[Tensor] | None = None  # a list here is given the row (V,) of each token
        self.logprobs: list[dict[int, float]] = []
        self.from_draft: list[bool] = []
        self.siblings: tuple[int, ...] = ()  # keys of all completions of its prompt, its own too
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
            self.history.remove(self.tokens[same:])
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

    def finish(self, reason: str, error: str | None = None) -> None:
        self.finish_reason, self.error = reason, error
        self.stats.ended = time.monotonic()
        self.noise.forget()  # megabytes, and whoever reads the result may hold the request
        if self.text is not None:
            self.text.flush()

    def accept(self, tree: TokenTree, path: Sequence[int], bonus: int, logits: Tensor) -> list[int]:
        """Write what a step accepted, cut by the stop rules; returns what was written.

        `path` starts with 0; `logits` (N, V) are the target's rows for the tree's nodes.
        """
        offered = [*(tree.tokens[node] for node in path[1:]), bonus]
        written: list[int] = []
        for token in offered:
            written.append(token)
            self.tokens.append(token)
            if self._stops(token):
                break
        drafted = min(len(path) - 1, len(written))
        self.from_draft += [i < drafted for i in range(len(written))]
        whole = len(written) == len(offered)
        self._count(tree, path[: drafted + whole], drafted, len(written))
        self.history.append(written)
        if self.rows is not None:
            self.rows += [logits[node].clone() for node in path[: len(written)]]
        if self.params.logprobs is not None:
            for node, token in zip(path, written, strict=False):
                self.logprobs.append(sampling.logprobs(logits[node], [token], self.params.logprobs))
        return written

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

    def _count(self, tree: TokenTree, asked: Sequence[int], accepted: int, written: int) -> None:
        """`asked`: the nodes whose following token was decided and written."""
        stats = self.stats
        if not stats.tokens:
            stats.first_token = time.monotonic()
        stats.steps += 1
        stats.tokens += written
        if len(tree.tokens) == 1:
            return
        stats.drafting_steps += 1
        stats.drafted += len(tree.tokens) - 1
        stats.accepted += accepted
        parents = set(tree.parents)
        for depth, node in enumerate(asked):
            if node in parents:  # else there was nothing left to accept
                _bump(stats.offered_per_position, depth)
        for depth in range(accepted):
            _bump(stats.accepted_per_position, depth)


def _bump(counts: list[int], at: int) -> None:
    counts += [0] * (at + 1 - len(counts))
    counts[at] += 1
