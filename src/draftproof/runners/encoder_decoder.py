"""The torch runner of an encoder-decoder: packed passes of its decoder, on an unmodified model.

What the encoder makes of an input is turned into keys and values of cross-attention once, and kept
as long as a key that brought the input. Does not know which families there are: `crossing` tells
attention modules apart, and `encoder_probe` compares a pass with the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from draftproof.runners import altering, crossing, encoders, makers
from draftproof.runners.attention import Step
from draftproof.runners.base import KEY, EncoderInput, Output, Work
from draftproof.runners.crossing import Capture, CrossStep, Roles
from draftproof.runners.kv import Pair
from draftproof.runners.loading import Refused
from draftproof.runners.makers import Maker
from draftproof.runners.reading import Reader, row_of
from draftproof.runners.segments import Segment
from draftproof.runners.torch import TorchRunner

AT_ONCE = 4096  # tokens of inputs, all of one length, that one pass of the encoder reads
TIMED = 32  # tokens of the input that passes which are no request's stand behind

Across = Mapping[int, Pair]  # layer -> keys and values (1, heads, input tokens, head size)


class EncoderDecoder(TorchRunner):
    """A `Runner` and `Target` whose requests bring an `EncoderInput`.

    Raises `ValueError` at construction, naming the cause, for what cannot run.
    """

    encodes = True
    refuse = staticmethod(encoders.refuse_unsupported)

    def __init__(self, model: Any, *, prefix_cache: bool = False, **options: Any) -> None:
        if prefix_cache:
            raise Refused(
                "an encoder-decoder has no prefix to share, as all that is cached depends on what "
                "the encoder read: drop prefix_cache"
            )
        super().__init__(model, **options)
        encoders.settle(self.model)
        self.decoder: Any = self.model.get_decoder()
        self._roles = Roles(self.decoder)
        self._depth = len(self._roles.own)
        self.input_vocabulary = encoders.input_vocabulary(self.model)
        self.longest_input = encoders.longest_input(self.config)
        self.comparable = encoders.one_vocabulary(self.model)
        self.ear = encoders.hearing(self.model)
        self.bounded = altering.bounded(self.decoder)
        self._nothing = altering.nothing_read(self.model)
        self._silent: dict[nn.Module, Tensor] = {}  # what reads it, as far as that is known
        self._makers: list[Maker] | None = None  # of each layer, as far as that is known
        self._timed = self.example(TIMED)
        self._inputs: dict[int, EncoderInput] = {}  # key -> what it brought
        self._across: dict[EncoderInput, Across] = {}
        self._input_bytes = self._lent_bytes = 0
        self.reader = Reader(self.model, self.takeover)

    def example(self, length: int, ids: Callable[[int], int] = lambda at: at + 1) -> EncoderInput:
        """An input of no request: so many token ids, or as many positions of audio, if it can."""
        if self.ear is not None:
            return self.ear.example(length)
        count = min(length, self.longest_input)
        return EncoderInput([ids(at) % self.input_vocabulary for at in range(count)])

    @property
    def vocabulary(self) -> int:
        outputs: Any = self.model.get_output_embeddings()
        return int(outputs.weight.shape[0])

    def head(self, hidden: Tensor) -> Tensor:
        logits, _ = self._pass([0], [0], Capture(self._roles), lambda states: hidden[None], 0)
        return logits

    def check_exit(self, layers: int) -> None:
        try:
            altering.stack(self.decoder, self._depth)
        except ValueError as error:
            name = type(self.model).__name__
            raise Refused(f"{name} cannot stop after {layers} layers: {error}") from error

    def again(self, **options: Any) -> EncoderDecoder:
        made = super().again(**options)
        assert isinstance(made, EncoderDecoder)
        made.learn_input(self._input_bytes)
        made.reader.packs = self.reader.packs
        return made

    def learn_from(self, other: EncoderDecoder) -> None:
        """The keys and values of every layer have the shapes that another runner has seen."""
        self.learn(other._cache.layers)
        self.learn_input(other._input_bytes)

    def learn_input(self, size: int) -> None:
        """So many bytes are kept of each token of an input, besides what is kept for others."""
        self._input_bytes = size
        self.held.input_bytes = size + self._lent_bytes

    def read_with(self, other: EncoderDecoder) -> None:
        """From now on the encoder of another runner, which is the same, reads for this one too."""
        self.reader = other.reader
        other.reader.lent = True
        size = int(altering.nothing_read(other.model).last_hidden_state.nbytes)
        other._lent_bytes = size
        other.learn_input(other._input_bytes)

    def close(self) -> None:
        super().close()
        self._inputs.clear()
        self._across.clear()
        self.learn_input(self._input_bytes)

    def free(self, key: int) -> None:
        super().free(key)
        self._let_go(key)

    def hand_over(self, key: int, heir: int, length: int) -> None:
        super().hand_over(key, heir, length)
        if (given := self._inputs.get(key)) is not None:
            self._inputs[heir] = given
        self._let_go(key)

    def _let_go(self, key: int) -> None:
        """What no key brought any more is dropped, whatever an interrupt has left behind."""
        if self._inputs.pop(key, None) is not None:
            held = {*self._inputs.values()}
            for given in [each for each in self._across if each not in held]:
                del self._across[given]
                if self.reader.model is self.model:
                    self.reader.drop(given)

    def check(self, keys: Collection[int]) -> None:
        super().check(keys)
        assert self._inputs.keys() <= set(keys), "an input is held for a key that has ended"
        assert self._across.keys() <= {*self._inputs.values()}, "an input is held for nobody"
        if self.reader.model is self.model:
            kept = self.reader.holds()
            assert kept <= {*self._inputs.values()}, "states of an input are held for nobody"

    def forward(self, work: Sequence[Work], *given: Any, **options: Any) -> list[Output]:
        """One packed pass of the decoder, behind one of the encoder over what is new to it."""
        for item in work:
            if item.key not in self._inputs:
                brought = item.encoder_input
                if brought is None and item.key == KEY:
                    brought = self._timed
                assert brought is not None, "a request of an encoder-decoder brings its input"
                if brought.features is None and brought.size > self.longest_input:
                    raise ValueError(f"the encoder reads at most {self.longest_input} tokens")
                self._inputs[item.key] = brought
        self._encode([self._inputs[item.key] for item in work])
        return super().forward(work, *given, **options)

    def _encode(self, inputs: Sequence[EncoderInput]) -> None:
        """Those that are new, in batches of one shape or in one row: nothing is padded."""
        fresh: dict[tuple[Any, bool], list[EncoderInput]] = {}
        for given in dict.fromkeys(inputs):
            if given not in self._across:
                states = self.reader.made(given)
                seen = given.features if states is None else states
                shape = given.size if seen is None else seen.shape
                fresh.setdefault((shape, states is None), []).append(given)
        if self._makers is not None and self.reader.packs and len(fresh) > 1:
            unread = [each for (_, unread), alike in fresh.items() if unread for each in alike]
            if len(row := row_of(unread)) > 1:
                for given, across in zip(row, self._crossed(row), strict=True):
                    self._across[given] = across
        for alike in fresh.values():
            most = max(1, AT_ONCE // alike[0].size)
            alike = [given for given in alike if given not in self._across]
            for at in range(0, len(alike), most):
                batch = alike[at : at + most]
                for given, across in zip(batch, self._crossed(batch), strict=True):
                    self._across[given] = across

    def _crossed(self, batch: Sequence[EncoderInput]) -> list[Across]:
        """Keys and values of inputs, behind a pass of the encoder where none was made elsewhere."""

        def read() -> list[Across]:
            if len({given.size for given in batch}) > 1:
                pieces = self.reader.read_row(batch)
            else:
                states = self.reader.read(batch)
                if self._makers is None:
                    return self._captured(states)
                pieces = [*states.split(1)]
            known = self._makers
            assert known is not None

            def made() -> list[Across]:
                return [
                    {layer: makers.copied(maker.made(own)) for layer, maker in enumerate(known)}
                    for own in pieces
                ]

            return self.takeover.look(made)

        found = self.at_its_best(read)
        if not self._input_bytes:
            parts = [part for pair in found[0].values() for part in pair]
            self.learn_input(sum(part.nbytes for part in parts) // batch[0].size)
        return found

    def _captured(self, states: Tensor) -> list[Across]:
        """The same by a pass of the decoder, which tells who makes them."""
        pairs, returned = makers.captured(self.decoder, self._roles, self.takeover, states)
        assert len(pairs) == self._depth
        self._silent = {
            part: each.new_zeros(1, 1, *each.shape[2:]) for part, each in returned.items()
        }
        self._makers = makers.found(self._roles.across, pairs, returned)
        return [
            {
                layer: makers.copied((keys[n : n + 1], values[n : n + 1]))
                for layer, (keys, values) in pairs.items()
            }
            for n in range(len(states))
        ]

    def _step(self, work: Sequence[Work], segments: Sequence[Segment]) -> Step:
        across = [self._across[self._inputs[item.key]] for item in work]
        return CrossStep(segments, self._cache, roles=self._roles, across=across)

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
        """The model itself over packed rows (T); shapes as of `TorchRunner.run`."""
        assert isinstance(step, CrossStep)
        rows = torch.tensor(wanted, dtype=torch.long, device=self.device)

        def asked(states: Tensor) -> Tensor:
            if not head:
                return states[:, :0]
            return states if len(wanted) == len(tokens) else states[:, rows]

        return self._pass(tokens, positions, step, asked, layers or self._depth, taps)

    def _pass(
        self,
        tokens: list[int],
        positions: list[int],
        step: CrossStep | Capture,
        asked: Callable[[Tensor], Tensor],
        layers: int,
        taps: tuple[int, ...] = (),
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        """Logits of what `asked` takes of the states behind so many layers, and tapped ones."""
        device = self.device
        options: dict[str, Any] = {
            # Cross-attention goes by what is kept; the model wants some states all the same.
            "encoder_outputs": self._nothing,
            "decoder_input_ids": torch.tensor([tokens], device=device),
            "use_cache": False,
        }
        if {*taps} - {-1}:
            options["output_hidden_states"] = True
        at = torch.tensor(positions, device=device)

        def headed() -> Any:
            return altering.headed(self.decoder, asked, lambda: self.model(**options))

        def packed() -> Any:
            return altering.placed(self.decoder, at, headed)

        def ended() -> Any:
            return altering.ending(self.decoder, self._depth, layers, packed)

        def silenced() -> Any:
            return altering.silent(self._silent, ended)

        def whole() -> Any:
            return altering.unbounded(self.bounded, silenced)

        def taken() -> Any:
            return self.takeover.run(crossing.registered(), lambda: crossing.during(step, whole))

        out, last = self.at_its_best(taken)
        hidden = {tap: (last if tap == -1 else out.decoder_hidden_states[tap])[0] for tap in taps}
        return out.logits[0], hidden
