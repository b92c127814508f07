"""A text being written, as drafters see it: its tokens, room and randomness, and what was accepted.

A request is one; so is the text of a draft that is itself drafted for. Does not know stop strings,
text or the engine.
"""

from __future__ import annotations

import traceback
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from draftproof import sampling
from draftproof.counts import Decisions, Watched
from draftproof.runners.base import Draw, EncoderInput, Output
from draftproof.sampling import History, Noise, SamplingParams
from draftproof.tree import TokenTree
from draftproof.verify import Ends

PACKAGE = Path(__file__).parent
OPEN = 1024  # tokens that a text may write for which room is taken at first
NODES = 64  # slots behind a text, for drafted nodes
VERIFIER = 1 << 40  # stream of coins and residuals; drafts number theirs from 0
Children = tuple[list[int], list[float], list[Tensor]]  # ids, shares, laws (V,)
Cost = tuple[float, int]  # seconds of a pass, and tokens that it ran


def one_line(error: BaseException) -> str:
    """What was raised, on one line: its kind, and what it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def reason(error: Exception) -> str:
    """What was raised, on one line, and where: the innermost frame that is not the package's."""
    said = one_line(error)
    frames = traceback.extract_tb(error.__traceback__)
    found = [(Path(each.filename), each.lineno) for each in frames]
    # A dataclass's own __init__ is of no file.
    foreign = [(p, n) for p, n in found if not p.is_relative_to(PACKAGE) and p.name != "<string>"]
    return f"{said} ({foreign[-1][0].name}:{foreign[-1][1]})" if foreign else said


@dataclass(slots=True)
class Feedback:
    """What the last step did, for a drafter that wants to learn from it."""

    tree: TokenTree
    path: list[int]
    hidden: Mapping[int, Tensor]  # tapped layer -> (N, hidden size)
    best: Sequence[int] | None = None  # (N,) the target's argmax after each node, if it is wanted
    seconds: float = 0.0  # of the target's pass, which ran `rows` tokens, those of others included
    rows: int = 0
    root: int = 0  # the node that stood for node 0 of what was drafted last

    @property
    def accepted(self) -> int:
        """Tokens of the last draft that were kept."""
        return len(self.path) - 1 - self.path.index(self.root) if self.root in self.path else 0

    def where(self, drafted: TokenTree) -> list[int]:
        """(N,) The nodes in `tree` of the last draft; -1: cut off there."""
        return drafted.within(self.tree, self.root)


class Rule(Protocol):
    """How drafted tokens are accepted, and how a draft draws them; `rules` has all there are."""

    @property
    def name(self) -> str: ...
    @property
    def lossy(self) -> bool:
        """Whether it changes the law of the output."""
        ...

    def races(self, params: SamplingParams) -> bool:
        """Whether the target's tokens are a race of the text's own noise, or greedy.

        A draft can then run the same race, and what it drafts never changes the text. Else another
        tree is another text; as the same seed shall give the same one, neither clocks nor other
        requests may have a say in a tree.
        """
        ...

    def wants_laws(self, params: SamplingParams) -> bool:
        """Whether a draft draws from a stream of its own, and tells the laws it drew from."""
        ...

    def argmax_is_enough(self, writing: Writing) -> bool:
        """Whether of the target's rows only the first argmax is asked for."""
        ...

    def accept(self, writing: Writing, tree: TokenTree, output: Output, ends: Ends) -> int | None:
        """Tells `ends` of every node accepted; the token behind the last, None behind an end.

        output: of the target's pass over the tree. Raises what picking a token raises,
        `NoCandidate` for a row that nothing can be picked from.
        """
        ...

    def children(
        self,
        writing: Writing,
        path: Sequence[int],
        row: Tensor,
        count: int,
        vocabulary: int,
        *,
        stream: int = 0,
        independent: bool = False,
    ) -> Children:
        """At most `count` tokens that a draft puts after `path`, and how likely each is.

        row: the draft's logits (V,), of which there may be more or fewer than the target's
        `vocabulary`: no token is drafted that the draft has no row for. With laws where
        `wants_laws`, drawn from `stream`, without replacement or `independent` of one another.
        Raises `NoCandidate`.
        """
        ...


class Writing:
    """A prompt, what is written behind it, and what drafting for it needs.

    key: of the runner's cache. siblings: keys of all completions of its prompt, its own too; ()
    for one. stop_ids: tokens that end it. salt: whose it is; nothing of a text with another salt is
    reused or looked up for it. encoder_input: what an encoder reads for it; None: there is none.
    """

    def __init__(
        self,
        key: int,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        seed: int,
        rule: Rule,
        stop_ids: Collection[int] = (),
        max_length: int = 1 << 30,
        siblings: Sequence[int] = (),
        salt: str = "",
        encoder_input: EncoderInput | None = None,
    ) -> None:
        self.encoder_input = encoder_input
        self.key, self.params, self.rule, self.siblings = key, params, rule, siblings
        self.seed, self.salt = seed, salt
        self.prompt, self.tokens = list(prompt), list(prompt)
        self.max_length = max_length
        self.stop_ids = set(stop_ids)
        self.noise = Noise(self.seed, 0)
        self.history = History(self.prompt, sorted(self.stop_ids))
        self.feedback: Feedback | None = None
        self.predicted: Sequence[int] = ()  # what it is thought to be like, behind its prompt
        self.warnings: list[str] = []
        self.decisions = Decisions()
        self.watched: list[Watched] | None = None  # a list here is given every step
        self.planned: tuple[Sequence[str], str] = (), ""  # who drafts the next one, and why nobody
        self.passes = 0  # of the target, that wrote
        self.together: Sequence[Writing] = ()  # all whose end somebody waits for at once
        self.speculate: bool | str = params.speculate  # may be changed between any two steps
        self.plain = False  # its drafter failed: one node per step from now on
        self.rewinds = 0  # how often the text was rolled back: a shadow's only
        self._cuts: list[tuple[int, int]] = []  # (number of a roll-back, length), both rising
        self._followed = 0, 0  # rewinds and length of the text that was followed last
        self._generators: dict[int, torch.Generator] = {}

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def before(self) -> Sequence[int]:
        """What stands before its tokens where something is looked up: the encoder's, if alike."""
        given = self.encoder_input
        return () if given is None or not given.comparable else given.tokens

    @property
    def read(self) -> int:
        """Tokens that are read for it: its prompt's, and the positions of what an encoder reads."""
        given = self.encoder_input
        return len(self.prompt) + (0 if given is None else given.size)

    @property
    def begun(self) -> bool:
        """Whether anything was written behind the prompt."""
        return len(self.tokens) > len(self.prompt)

    @property
    def room(self) -> int:
        """Tokens that may still be written."""
        length, most = len(self.tokens), self.params.max_tokens
        room = self.max_length - length
        return room if most is None else min(most - length + len(self.prompt), room)

    @property
    def likely(self) -> int:
        """Slots of a cache that it will likely need: few texts write more than `OPEN` tokens."""
        return len(self.tokens) + min(self.room, OPEN) + NODES

    @property
    def races(self) -> bool:
        """See `Rule.races`."""
        return self.rule.races(self.params)

    @property
    def argmax_is_enough(self) -> bool:
        """See `Rule.argmax_is_enough`."""
        return self.rule.argmax_is_enough(self)

    @property
    def greedy(self) -> bool:
        """Whether its tokens are the first argmax of the target's rows, as they are."""
        params = self.params
        changed = params.adjusts or self.history.process is not None
        return not (params.temperature or changed or params.logprobs is not None)

    @property
    def draw(self) -> Draw | None:
        """How its tokens are drawn from the target's rows, where that is all there is to a pick."""
        params, noise = self.params, self.noise
        if params.temperature < sampling.LEAST or params.adjusts or self.history.ruled:
            return None
        if not self.races:
            return None
        return Draw(
            params.temperature,
            params.top_p,
            params.floor,
            params.top_k,
            noise.seed,
            noise.stream,
            len(self.tokens),
        )

    def generator(self, stream: int) -> torch.Generator:
        """A generator that only `stream` uses, and that never repeats itself in a text."""
        if stream not in self._generators:
            seed = sampling.mix(self.seed, (1 << 48) + stream) % (1 << 63)
            self._generators[stream] = torch.Generator().manual_seed(seed)
        return self._generators[stream]

    def shadow(self) -> Writing:
        """The same text and noise with streams of its own, for a draft that is drafted for."""
        shadow = Writing(
            self.key,
            self.prompt,
            self.params,
            seed=sampling.mix(sampling.mix(self.seed, VERIFIER), 0),
            rule=self.rule,
            stop_ids=self.stop_ids,
            max_length=self.max_length,
            siblings=self.siblings,
            salt=self.salt,
            encoder_input=self.encoder_input,
        )
        shadow.noise, shadow.predicted = self.noise, self.predicted
        shadow._followed = self.rewinds, len(self.prompt)
        return shadow

    def follow(self, other: Writing) -> None:
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
        self.history.ruled_as(other.history)

    def shortest(self, since: int) -> int:
        """The least length, in tokens, that the text had since roll-back number `since`."""
        at = bisect_right(self._cuts, since, key=lambda cut: cut[0])
        return self._cuts[at][1] if at < len(self._cuts) else len(self.tokens)

    def stop_drafting(self, error: Exception) -> None:
        """Go on plainly, and say why."""
        self.plain = True
        self.warnings.append(f"drafting stopped: {reason(error)}")

    def forget(self) -> None:
        """Let go of what only writing needs."""
        self.noise.forget()
        self.history.forget()
        self.feedback, self.predicted = None, ()
        self._generators.clear()
