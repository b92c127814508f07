"""The native runner: one call of the compiled kernels is one forward pass, on the CPU.

What a row computes does not depend on the rows beside it, on the tree, on how a prompt is cut or
on the number of threads: speculative output equals plain output bit for bit, in every format.
"""

from __future__ import annotations

import os
import threading
import weakref
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from draftproof import native
from draftproof.runners import drawing, lengths, loading, packing
from draftproof.runners.base import Output, Work
from draftproof.runners.committed import Committed
from draftproof.runners.matrix import Linear, check, floats, product
from draftproof.runners.native_rows import NativeRows
from draftproof.runners.outline import Outline
from draftproof.runners.reduced import Reduced
from draftproof.runners.team import Team
from draftproof.runners.weights import LoadedWeights, Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Spans(NamedTuple):
    """Where the rows of one item lie."""

    best: slice  # its nodes, among those whose next token is asked for
    logits: slice
    read: slice  # its committed tokens, among the rows whose hidden states are asked for
    nodes: slice


class NativeRunner(Committed):
    """A `Runner` and `Target` over packed weights.

    precision: bfloat16, int8, int4, or what the blocks of a file are called. release: the model is
    ours, its tensors go when they are packed. weights: of a model that is not loaded. packed: what
    another runner packed from this model. parked: rows that the prefix cache may keep besides.
    cache_weights: see `packing.Packed`.
    Raises `ValueError` at construction, naming the cause, when the model cannot be packed; whether
    its logits are right, `probe` finds.
    """

    encodes = False
    own_threads = True  # see `base.behind`

    def __init__(
        self,
        model: PreTrainedModel | Outline,
        *,
        precision: str = "bfloat16",
        max_batch: int = 8,
        max_length: int | None = None,
        team: Team | None = None,
        trust_remote_code: bool = False,
        prefix_cache: bool = False,
        parked: int = 0,
        release: bool = False,
        kernels: str = "",
        weights: Weights | None = None,
        packed: packing.Packed | None = None,
        cache_weights: bool = False,
    ) -> None:
        model = loading.unwrap(model)
        self.model: Any = model
        self.config = model.config.get_text_config()
        self.precision, self.max_batch, self.parked = precision, max_batch, parked
        self.trust_remote_code, self.cache_weights = trust_remote_code, cache_weights
        self.max_length = lengths.length_limit(self.config, max_length)
        self.team = Team(torch.get_num_threads()) if team is None else team
        if packed is None:
            if weights is None:
                assert not isinstance(model, Outline), "its weights lie in files"
                weights = LoadedWeights(model, release=release)
            packed = packing.Packed(weights, precision, kernels=kernels, cached=cache_weights)
        self.packed = packed
        self._logits = torch.empty(0)
        ids = packed.kept
        self._reduced = None if ids is None else Reduced(ids, packed.shape.vocabulary)
        self._turn = threading.RLock()  # a pass is whole before another thread frees what it uses
        weakref.finalize(self, _stop, self._turn, os.getpid())
        self._cache = NativeRows(self.packed, max_batch + parked, self.max_length)
        super().__init__(self._cache, self._cache, prefix_cache)

    @property
    def name(self) -> str:
        return f"native ({self.packed.kernels})"

    @property
    def threads(self) -> int:
        return self.team.threads

    @property
    def batch_invariant(self) -> bool:
        return True

    @property
    def vocabulary(self) -> int:
        return int(self.packed.shape.vocabulary)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Of keys, values and, unless they are quantised, weights; logits are float32."""
        return torch.bfloat16

    def close(self) -> None:
        """Let go of all keys and values; waits for a pass that runs in another thread."""
        with self._turn:
            rows = self.max_batch + self.parked
            self._cache = NativeRows(self.packed, rows, self.max_length)
            self.forget(self._cache, self._cache)

    def keep(self, key: int, path: Sequence[int]) -> None:
        with self._turn:
            super().keep(key, path)

    def free(self, key: int) -> None:
        with self._turn:
            super().free(key)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (N, V) of post-norm hidden states (N, hidden size)."""
        logits = product(self.packed, self.team, hidden, self.packed.outputs)
        return logits if self._reduced is None else self._reduced.alone(logits)

    def linear(self, weight: Tensor) -> Linear:
        """Another matrix (out, in) on these threads, for what drafts: in four bits or in int8."""
        return Linear(weight, "int4" if self.precision == "int4" else "int8", self.team)

    def again(self, **options: Any) -> NativeRunner:
        """Another runner over the same weights and threads, with room of its own."""
        return NativeRunner(
            self.model,
            precision=self.precision,
            team=self.team,
            packed=self.packed,
            trust_remote_code=self.trust_remote_code,
            **options,
        )

    @property
    def layers(self) -> int:
        return int(self.packed.shape.layers)

    def check_exit(self, layers: int) -> None:
        """A pass can end after any layer."""

    def forward(
        self,
        work: Sequence[Work],
        taps: tuple[int, ...] = (),
        layers: int = 0,
        *,
        head: bool = True,
    ) -> list[Output]:
        """One call; logits are views of one buffer that lives until the next pass.

        Raises `ValueError` for a token that the model does not have, `MemoryError` where there is
        no room; nothing is committed then.
        """
        with self._turn:
            return self._forward(work, taps, layers, head)

    def _forward(
        self, work: Sequence[Work], taps: tuple[int, ...], layers: int, head: bool
    ) -> list[Output]:
        reduced = self._reduced  # then the best of a row is found behind the kernels
        tokens: list[int] = []
        parents: list[int] = []
        wanted: list[int] = []  # packed rows whose next token is asked for
        places: list[int] = []  # of those, where their logits go; -1: only the best is wanted
        full = 0  # rows of logits
        tapped: list[int] = []  # packed rows whose hidden states are asked for
        spans: list[Spans] = []
        segments = (native.Segment * len(work))()
        for number, item in enumerate(work):
            tree, begin, rows = item.tree, len(tokens), 0
            assert not item.first or (not item.new and self.ran(item.key) >= item.first)
            nodes, at = (len(tree.tokens) if tree is not None else 0), len(parents)
            tokens += item.new
            if tree is not None:
                rows = nodes - item.first
                tokens += tree.tokens[item.first :]
                parents += tree.parents
            wanted += range(len(tokens) - rows, len(tokens))
            asked = rows if head and not (item.greedy and reduced is None) else 0
            places += range(full, full + asked) if asked else [-1] * rows
            read = len(item.new) if item.read else 0
            if taps:
                tapped += [*range(begin, begin + read), *range(len(tokens) - rows, len(tokens))]
            spans.append(
                Spans(
                    best=slice(len(places) - rows, len(places)),
                    logits=slice(full, full + asked),
                    read=slice(len(tapped) - rows - read, len(tapped) - rows),
                    nodes=slice(len(tapped) - rows, len(tapped)),
                )
            )
            full += asked
            cached, fresh = self.cached(item.key), len(item.new)
            row = self._cache.reserve(item.key, cached + fresh + nodes)
            segments[number] = native.Segment(
                row, begin, len(tokens), cached, fresh, item.first, nodes, at
            )
        if len(self._logits) < full:
            self._logits = floats(full, self.packed.outputs)
        logits, best = self._logits, array("i", wanted)
        # Without taps nothing is made: an empty tensor, and walking over it, take microseconds.
        hidden = floats(len(taps), len(tapped), self.packed.shape.hidden) if taps else None
        states = dict(zip(taps, hidden, strict=True)) if hidden is not None else {}
        tap_layers = [tap % (self.layers + 1) for tap in taps]
        try:  # in 32 bits; held here while the kernels read them by address
            ids = [array("i", each) for each in (tokens, parents, wanted, places)]
            ids += [array("i", each) for each in (tap_layers, tapped)]
        except OverflowError:
            self._refuse(tokens)
            raise
        for item in work:
            self.passing(item)
        code = self.packed.library.dp_forward(
            self.packed.handle,
            self.team.handle,
            native.Pass(
                rows=len(tokens),
                tokens=ids[0].buffer_info()[0],
                segments=len(work),
                segment=segments,
                parents=ids[1].buffer_info()[0],
                wanted=len(wanted),
                wanted_rows=ids[2].buffer_info()[0],
                logits_rows=ids[3].buffer_info()[0],
                logits=logits.data_ptr(),
                best=best.buffer_info()[0] if head else None,
                taps=len(taps),
                tap_layers=ids[4].buffer_info()[0],
                tapped=len(tapped),
                tapped_rows=ids[5].buffer_info()[0],
                hidden=None if hidden is None else hidden.data_ptr(),
                layers=layers or self.layers,
            ),
        )
        if code == native.BAD_ARGUMENT:
            self._refuse(tokens)
        check(code)
        if reduced is not None and head:
            best = reduced.best(best, places, logits)
            logits = reduced.widened(logits[:full])
        given = [logits[span.logits] for span in spans]
        drawn = drawing.picks(self.team, work, given)  # what fails there leaves nothing committed
        for item in work:
            self.passed(item)
        return [
            Output(
                given[number],
                {tap: some[span.nodes] for tap, some in states.items()},
                best[span.best] if head else None,
                drawn[number],
                {tap: some[span.read] for tap, some in states.items() if item.read},
            )
            for number, (item, span) in enumerate(zip(work, spans, strict=True))
        ]

    def _refuse(self, tokens: Sequence[int]) -> None:
        """Raise if one of them is no token of the model."""
        stranger = next((token for token in tokens if not 0 <= token < self.vocabulary), None)
        if stranger is not None:
            raise ValueError(
                f"token {stranger} is not in the model's vocabulary of {self.vocabulary}: "
                "the tokenizer or the draft is another model's"
            )


def _stop(turn: Any, process: int) -> None:
    """At exit: wait for the pass of a daemon thread, and let it begin no other.

    Torch brings the process down if a thread is in one of its functions when the interpreter goes.
    A forked child waits for nobody: who is in a pass there stayed in the parent.
    """
    if os.getpid() == process:
        turn.acquire()
