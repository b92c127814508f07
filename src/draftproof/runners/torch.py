"""The torch runner: one packed pass of any transformers causal model.

The nodes of all requests stand one after another in one row; only the attention function knows
where a request begins. The user's model is taken over for the length of a pass and given back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from draftproof.runners import attention, half, lengths, loading
from draftproof.runners.attention import Step
from draftproof.runners.base import Output, Work
from draftproof.runners.committed import Committed
from draftproof.runners.kv import KVCache, Pair
from draftproof.runners.segments import Segment
from draftproof.runners.takeover import Takeover, on_threads

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")


class TorchRunner(Committed):
    """A `Runner` and `Target` over a transformers model.

    threads: that torch computes a pass on; None: as many as it has.
    Raises `ValueError` at construction, naming the cause, when the configuration rules it out;
    what only a pass tells, `probe` finds.
    """

    encodes = False
    refuse = staticmethod(loading.refuse_unsupported)

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_batch: int = 8,
        max_length: int | None = None,
        trust_remote_code: bool = False,
        prefix_cache: bool = False,
        parked: int = 0,
        threads: int | None = None,
    ) -> None:
        self.model = loading.unwrap(model)
        self.refuse(self.model)
        self.config = self.model.config.get_text_config()
        self.max_batch, self.parked = max_batch, parked
        self.trust_remote_code = trust_remote_code
        self.threads = threads
        self.max_length = lengths.length_limit(self.config, max_length)
        self._accepts = inspect.signature(self.model.forward).parameters
        self.takeover = Takeover(self.model)
        self._halves = half.Layers(self.model)
        # Read alone: there are fewer while another runner's pass ends early.
        self._depth = self.takeover.alone(lambda: int(self.config.num_hidden_layers))
        self._pairs: Mapping[int, Pair] = {}
        self._cache = KVCache(max_batch + parked, self.max_length)
        super().__init__(self._cache, self._cache, prefix_cache)

    @property
    def name(self) -> str:
        return "torch"

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def batch_invariant(self) -> bool:
        return False

    @property
    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    def head(self, hidden: Tensor) -> Tensor:
        """The model's logits (N, V) of post-norm hidden states (N, hidden size)."""
        with torch.inference_mode():
            return self.at_its_best(lambda: logits_of(self.model, hidden))

    def linear(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """A matrix (out, in) in the model's precision and place; rows (N, in) -> (N, out)."""
        placed = weight.detach().to(self.device, self.dtype)
        multiply = half.by(self.model, placed)
        return lambda rows: on_threads(self.threads, lambda: multiply(rows.to(placed)))

    @property
    def layers(self) -> int:
        return self._depth

    def check_exit(self, layers: int) -> None:
        """Raises `ValueError` where a pass cannot end after so many layers."""
        cache = KVCache(1, 2)
        step = Step([Segment(0, 1, cache.reserve(0, 1), 0, 1, None, 0)], cache, calls=[])
        self.run([0], [0], step, [0], (), layers)
        if [call.layer for call in step.calls or ()] != list(range(layers)):
            name = type(self.model).__name__
            raise loading.Refused(f"{name} cannot stop after {layers} layers: use another method")

    def again(self, **options: Any) -> TorchRunner:
        """Another runner over the same weights, with room of its own."""
        options = {"threads": self.threads, **options}
        made = type(self)(self.model, trust_remote_code=self.trust_remote_code, **options)
        made.learn(self._pairs)
        return made

    def learn(self, pairs: Mapping[int, Pair]) -> None:
        """Empty keys and values of each layer: a row's room is made whole before its first pass."""
        self._pairs = pairs
        self.close()

    def close(self) -> None:
        """Let go of all keys and values."""
        self._cache = KVCache(self.max_batch + self.parked, self.max_length, self._pairs)
        self.forget(self._cache, self._cache)

    def forward(
        self,
        work: Sequence[Work],
        taps: tuple[int, ...] = (),
        layers: int = 0,
        *,
        head: bool = True,
    ) -> list[Output]:
        """One packed pass; shapes as in `Output`, whose rows are views of its tensors."""
        segments: list[Segment] = []
        tokens: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []  # packed rows whose logits are asked for
        for item in work:
            seg = self._segment(item, len(tokens))
            segments.append(seg)
            tokens += item.new
            if item.tree is not None:
                tokens += item.tree.tokens[item.first :]
                wanted += range(seg.begin + seg.fresh, seg.end)
            positions += seg.positions()
        for item in work:
            self.passing(item)
        step = self._step(work, segments)
        logits, hidden = self.run(tokens, positions, step, wanted, taps, layers, head)
        if logits.is_cuda:  # else who times a pass would time its launch
            torch.cuda.synchronize(logits.device)
        outputs, at = [], 0
        for item, seg in zip(work, segments, strict=True):
            nodes = slice(seg.begin + seg.fresh, seg.end)
            read = slice(seg.begin, nodes.start)
            rows = nodes.stop - nodes.start
            outputs.append(
                Output(
                    logits[at : at + rows],
                    {tap: states[nodes] for tap, states in hidden.items()},
                    read={tap: states[read] for tap, states in hidden.items() if item.read},
                )
            )
            at += rows
            self.passed(item)
        return outputs

    def _step(self, work: Sequence[Work], segments: Sequence[Segment]) -> Step:
        return Step(segments, self._cache)

    def run(
        self,
        tokens: list[int],
        positions: list[int],
        step: Step,
        wanted: list[int],
        taps: tuple[int, ...] = (),
        layers: int = 0,
        head: bool = True,
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        """The model itself over packed rows (T): logits (len(wanted), V), tapped states (T, ...).

        Without `head` there may be one row of logits alone: transformers takes no empty choice.
        """
        device = self.device
        options: dict[str, Any] = {"use_cache": False, "draftproof_step": step}
        everything = len(wanted) == len(tokens)
        if "logits_to_keep" in self._accepts and not everything:
            options["logits_to_keep"] = torch.tensor(wanted, dtype=torch.long, device=device)
        if "logits_to_keep" in self._accepts and not head:
            options["logits_to_keep"] = 1
        if taps:
            options["output_hidden_states"] = True
        options["input_ids"] = torch.tensor([tokens], device=device)
        options["position_ids"] = torch.tensor([positions], device=device)

        def taken() -> Any:
            return self.takeover.run(attention.registered(), lambda: self.model(**options), layers)

        most = half.longest(self.dtype)
        long = [
            slice(seg.begin, seg.begin + seg.fresh) for seg in step.segments if seg.fresh > most
        ]
        out = self.at_its_best(taken, len(tokens), long)
        logits = out.logits[0]
        hidden = {tap: out.hidden_states[tap][0] for tap in taps}
        if not everything and "logits_to_keep" not in self._accepts:
            logits = logits[torch.tensor(wanted, dtype=torch.long, device=logits.device)]
        return logits, hidden

    def at_its_best(self, call: Callable[[], T], rows: int = 0, long: Sequence[slice] = ()) -> T:
        """`call`, which multiplies by the model's weights, on the runner's threads.

        rows, long: see `half.Layers.during`.
        """
        if not half.helped(self.model):
            return on_threads(self.threads, call)
        return on_threads(
            self.threads,
            lambda: self.takeover.alone(lambda: self._halves.during(call, rows, long)),
        )

    def _segment(self, item: Work, begin: int) -> Segment:
        cached, nodes = self.cached(item.key), 0
        if item.tree is not None:
            nodes = len(item.tree.tokens)
        if item.first:
            assert not item.new and self.ran(item.key) >= item.first
        row = self._cache.reserve(item.key, cached + len(item.new) + nodes)
        end = begin + len(item.new) + nodes - item.first
        return Segment(begin, end, row, cached, len(item.new), item.tree, item.first)


SCALES = COHERE, GRANITE, GEMMA = ("logit_scale", "logits_scaling", "final_logit_softcapping")


def logits_of(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """The model's logits (..., V) of post-norm hidden states (..., hidden size)."""
    config: Any = model.config.get_text_config()
    logits: Tensor = model.get_output_embeddings()(hidden)
    if scale := getattr(config, COHERE, None):
        logits = logits * scale
    if scale := getattr(config, GRANITE, None):
        logits = logits / scale
    if cap := getattr(config, GEMMA, None):
        logits = torch.tanh(logits / cap) * cap
    return logits
