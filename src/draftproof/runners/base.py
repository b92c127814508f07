"""The seam: what every runner takes and returns.

A runner runs nodes of a token tree on top of committed tokens that it has cached. It does not know
requests, sampling or acceptance. Targets and draft models are both runners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from draftproof.tree import TokenTree

KEY = -1  # of passes that are no request's: what is probed or timed


@dataclass(frozen=True, eq=False)
class EncoderInput:
    """What a request brings besides tokens: what an encoder reads, once for all who have it.

    The completions of one prompt have the same object, and share what is made of it. tokens: ids;
    none where it reads audio. comparable: whether these ids are the decoder's too. states:
    (positions, hidden size), where the encoder of the model `made_by` has run elsewhere; other
    models read the ids or the features. features: of audio, as the encoder takes them, without a
    batch; the encoder makes `length` positions of them.
    """

    tokens: Sequence[int]
    comparable: bool = True
    states: Tensor | None = None
    made_by: Any = None
    features: Tensor | None = None
    length: int = 0

    @property
    def size(self) -> int:
        """Positions that an encoder makes of it."""
        return self.length if self.features is not None else len(self.tokens)


@dataclass(frozen=True, slots=True)
class Draw:
    """Tokens are drawn from a text's rows as they are: by its noise, from what is left of a row.

    floor: the log of `min_p`. position: of the token behind node 0.
    """

    temperature: float  # 1e-3 or more
    top_p: float
    floor: float
    top_k: int
    seed: int
    stream: int
    position: int


@dataclass(frozen=True, slots=True)
class Work:
    """All that a runner sees of a request in one pass."""

    key: int
    new: Sequence[int]  # committed tokens that this runner has not cached yet, node 0 excluded
    tree: TokenTree | None  # None: a slice of a long prompt, no logits wanted
    first: int = 0  # nodes before it ran earlier in this step; what ran behind them is forgotten
    greedy: bool = False  # of every row only the first argmax is of use
    read: bool = False  # the tapped states of `new` are wanted too
    encoder_input: EncoderInput | None = None  # where the model has an encoder
    draw: Draw | None = None  # how the tokens behind its nodes are drawn, for `Output.picks`

    def rows(self) -> int:
        """Tokens that the pass runs for it."""
        return len(self.new) + (len(self.tree.tokens) - self.first if self.tree is not None else 0)


@dataclass(frozen=True, slots=True)
class Output:
    """What one `Work` gave: rows for the nodes `first` and after.

    Tensors may be views of memory that the runner's next pass writes to.
    """

    # (N - first, V), the model's own precision; (0, V) where `argmaxes` stands for it.
    logits: Tensor
    hidden: Mapping[int, Tensor] = field(default_factory=dict)  # layer -> (N - first, hidden size)
    # (N - first): the first argmax of each row, -1 where NaN or +inf is in it or nothing is finite;
    # None from a runner that does not find it on the way.
    argmaxes: Sequence[int] | None = None
    # (N): what is drawn behind each node on the path that this makes, -1 behind all others. None
    # from a runner that draws nothing, and without `Work.draw`.
    picks: Sequence[int] | None = None
    # layer -> (len(new), hidden size), where `Work.read` asks for it. Every committed token is in
    # `new` of one pass, or a kept node of one tree.
    read: Mapping[int, Tensor] = field(default_factory=dict)


class Runner(Protocol):
    """A model with a cache of committed tokens and scratch room for one tree per key.

    Some hooks are optional. Four have each a function below that calls it where it is:
    expect(key, slots) tells how long a new key will likely get, drafted nodes included;
    begin(key, tokens, salt), before the first pass of a key, takes over what was cached for an
    earlier key of that salt; fork(key, source, length) makes a new key begin with a copy of the
    first `length` committed tokens of `source`; hand_over(key, heir, length) gives what is cached
    of a key that ends, up to `length` tokens, to `heir`, and forgets the key. A new key is one that
    ran nothing: what it took over in `begin` makes way. fork raises `MemoryError` where there is no
    room, and leaves the new key with nothing cached. And check(keys) asserts that nothing is held
    of any other key.
    """

    def forward(self, work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
        """One pass: `new` becomes committed, the tree's nodes become scratch."""
        ...

    def cached(self, key: int) -> int:
        """Committed tokens of `key` in the cache."""
        ...

    def keep(self, key: int, path: Sequence[int]) -> None:
        """Commit this path of the last tree (0, ...), drop the rest of its scratch."""
        ...

    def crop(self, key: int, length: int) -> None:
        """Forget the committed tokens from `length` on."""
        ...

    def free(self, key: int) -> None:
        """Forget `key`; its place is free at once."""
        ...


def expect(runner: Runner, key: int, slots: int) -> None:
    """Call the hook if there is one."""
    hook = getattr(runner, "expect", None)
    if hook is not None:
        hook(key, slots)


def behind(runner: Runner) -> AbstractContextManager[None]:
    """What follows a pass, on one of torch's threads where the runner has threads of its own.

    Torch's go on spinning behind what they did together (of a row of 32,768 logits and more), on
    the cores that the next pass needs: it took half as long again. No longer than that, because
    another thread that begins to use torch meanwhile is left with one.
    """
    return of_torch(1 if getattr(runner, "own_threads", False) else None)


@contextmanager
def of_torch(threads: int | None) -> Iterator[None]:
    """So many of torch's threads for what is done inside; None: as many as there are."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    try:
        torch.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(before)


def begin(runner: Runner, key: int, tokens: Sequence[int], salt: str = "") -> None:
    """Call the hook if there is one."""
    hook = getattr(runner, "begin", None)
    if hook is not None:
        hook(key, tokens, salt)


def fork(runner: Runner, key: int, source: int, length: int) -> bool:
    """Call the hook if there is one; else, or if it fails, `key` has to read for itself."""
    return _took(runner, key, getattr(runner, "fork", None), key, source, length)


def hand_over(runner: Runner, key: int, heir: int, length: int) -> bool:
    """Call the hook if there is one; else, or if it fails, `heir` has to read for itself."""
    return _took(runner, heir, getattr(runner, "hand_over", None), key, heir, length)


def _took(runner: Runner, new: int, hook: Any, *given: int) -> bool:
    if hook is None:
        return False
    try:
        hook(*given)
    except Exception:  # no memory for it, say
        runner.free(new)
        return False
    return True


class Target(Runner, Protocol):
    """What a proposer may ask of the target, and of a draft beside it."""

    def forward(
        self,
        work: Sequence[Work],
        taps: tuple[int, ...] = (),
        layers: int = 0,
        *,
        head: bool = True,
    ) -> list[Output]:
        """As a runner's; of the first `layers` layers, then the last norm and the head; 0: all.

        A pass that ends early commits nothing: it takes no `new`. head=False: the head is left
        out, and of the outputs the hidden states alone are of use.
        """
        ...

    def close(self) -> None:
        """Let go of all keys and values."""
        ...

    @property
    def name(self) -> str:
        """Which runner it is, and with which kernels."""
        ...

    @property
    def precision(self) -> str:
        """What it computes in: a dtype's name, or int8."""
        ...

    @property
    def batch_invariant(self) -> bool:
        """Whether the bits of a row never depend on what else is in its pass."""
        ...

    @property
    def encodes(self) -> bool:
        """Whether it is an encoder-decoder, whose requests bring an `EncoderInput`."""
        ...

    @property
    def layers(self) -> int:
        """Decoder layers."""
        ...

    def check_exit(self, layers: int) -> None:
        """Raises `ValueError` where a pass cannot end after so many layers."""
        ...

    @property
    def vocabulary(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def head(self, hidden: Tensor) -> Tensor:
        """The model's logits (N, V) of post-norm hidden states (N, hidden size)."""
        ...

    def linear(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """Rows (N, in) -> their products with `weight` (out, in), on this runner's kernels."""
        ...


class Load(Protocol):
    """Loads another model beside a target; see `choice.beside`."""

    def __call__(self, target: Target, model: Any, quantize: str | None = None) -> Target: ...
