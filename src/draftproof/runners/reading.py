"""What an encoder makes of inputs, once for all runners that read with it.

A draft whose encoder is the target's, as distil-whisper's is, and one that has none, go by what the
target's made. Whether an encoder is another's, weights and one pass tell. Does not know decoders'
passes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from draftproof.runners import altering, encoders, spanning
from draftproof.runners.base import EncoderInput
from draftproof.runners.crossing import SELF
from draftproof.runners.loading import Refused
from draftproof.runners.spanning import Spans, Unknown
from draftproof.runners.takeover import Takeover

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Reader:
    """The encoder of one model. lent: others read with it, so what it made is kept for them.

    packs: it may read inputs of several lengths in one row, as `encoder_probe` found out.
    """

    def __init__(self, model: PreTrainedModel, takeover: Takeover, packs: bool = False) -> None:
        self.model, self.takeover, self.lent, self.packs = model, takeover, False, packs
        self._made: WeakKeyDictionary[EncoderInput, Tensor] = WeakKeyDictionary()

    def made(self, given: EncoderInput) -> Tensor | None:
        """States (positions, hidden size) that there are already."""
        if given.states is not None and given.made_by is self.model:
            return given.states
        return self._made.get(given)

    def read(self, batch: Sequence[EncoderInput]) -> Tensor:
        """States (inputs, positions, hidden size) of inputs of one shape, all or none made."""
        known = [made for one in batch if (made := self.made(one)) is not None]
        if known:
            return torch.stack(known)
        encoder, given = self.model.get_encoder(), encoders.given(batch, self.model)
        states: Tensor = self.takeover.look(lambda: encoder(**given)).last_hidden_state
        if self.lent:
            # Copies: each is let go by itself.
            self._made.update((one, row.clone()) for one, row in zip(batch, states, strict=True))
        return states

    def read_row(self, batch: Sequence[EncoderInput]) -> list[Tensor]:
        """The same of inputs of any lengths: (1, positions, hidden size) of each, none made before.

        Raises `ValueError`, and whatever a model has against it.
        """
        encoder: Any = self.model.get_encoder()
        ends = [*accumulate(one.size for one in batch)]
        spans = Spans([*zip([0, *ends], ends, strict=False)])
        device = self.model.device
        row = torch.tensor([[token for one in batch for token in one.tokens]], device=device)
        at = torch.tensor([place for one in batch for place in range(one.size)], device=device)

        def placed() -> Any:
            return altering.placed(encoder, at, lambda: encoder(input_ids=row))

        def read() -> Any:
            return spanning.during(spans, placed)

        states = self.takeover.run(spanning.registered(), read).last_hidden_state
        layers = sum(path.rpartition(".")[2] in SELF for path, _ in encoder.named_modules())
        if not layers or spans.called != layers:
            raise Unknown("its layers do not attend to themselves once each")
        found = [states[:, begin:end] for begin, end in spans.of]
        if self.lent:
            self._made.update((one, own[0].clone()) for one, own in zip(batch, found, strict=True))
        return found

    def drop(self, given: EncoderInput) -> None:
        """Whoever has not read it yet makes a pass again."""
        self._made.pop(given, None)

    def holds(self) -> set[EncoderInput]:
        """Inputs whose states are kept."""
        return {*self._made}


def row_of(unread: Sequence[EncoderInput]) -> list[EncoderInput]:
    """As many inputs of token ids, the shortest first, as one row takes."""
    row, left = [], spanning.MOST
    for given in sorted(unread, key=lambda given: given.size):
        left -= given.size
        if left < 0 or given.features is not None:
            break
        row.append(given)
    return row


def same(model: PreTrainedModel, other: PreTrainedModel, given: EncoderInput) -> bool:
    """Whether their encoders are: class, weights, and what they make of an input of `other`'s."""
    one, two = model.get_encoder(), other.get_encoder()
    if one is two:
        return True
    own, theirs = one.state_dict(), two.state_dict()
    if type(one) is not type(two) or own.keys() != theirs.keys():
        return False
    for name, weight in own.items():
        there = theirs[name]
        if (weight.shape, weight.dtype, weight.device) != (there.shape, there.dtype, there.device):
            return False
        if not torch.equal(weight, there):
            return False
    # What no weight tells: heads, norms, activations.
    return torch.equal(*(Reader(each, Takeover(each)).read([given]) for each in (model, other)))


def adopt(model: PreTrainedModel, other: PreTrainedModel) -> None:
    """Give a model the encoder of another, so that its own, which is the same, takes no memory."""
    model.set_submodule(_path(model, model.get_encoder()), other.get_encoder())


def completed(decoder: Any, whole: PreTrainedModel) -> PreTrainedModel:
    """A decoder without an encoder of its own, as a model that has the encoder of `whole`.

    Both stay as they are. Raises `Refused` where it cannot go by what that encoder makes.
    """
    name, other = type(decoder).__name__, type(whole).__name__
    if type(decoder.get_decoder()) is not type(whole.get_decoder()):
        raise Refused(
            f"{name} goes by what an encoder of its own kind made, and the target is {other}: use "
            "a draft that was made for this target"
        )
    if decoder.dtype != whole.dtype or decoder.device != whole.device:
        raise Refused(
            f"{name} is in {decoder.dtype} on {decoder.device} and the target, whose encoder it "
            f"goes by, in {whole.dtype} on {whole.device}: convert one of them"
        )
    own, theirs = int(decoder.config.hidden_size), int(whole.config.hidden_size)
    if own != theirs:
        raise Refused(
            f"{name} goes by states of {own} numbers and the target's encoder makes {theirs}: use "
            "a draft that was made for this target"
        )
    config = copy.deepcopy(decoder.config)
    config.is_encoder_decoder = True
    for key, value in vars(whole.config).items():
        if key.startswith("encoder_") or key in ("num_mel_bins", "max_source_positions"):
            setattr(config, key, value)
    with torch.device("meta"):
        made: PreTrainedModel = type(whole)(config)
    for role, part in (("encoder", whole.get_encoder()), ("decoder", decoder.get_decoder())):
        made.set_submodule(_path(made, getattr(made, f"get_{role}")()), part)
    made.set_output_embeddings(decoder.get_output_embeddings())
    assert not any(each.is_meta for each in (*made.parameters(), *made.buffers()))
    return made


def _path(model: Any, part: Any) -> str:
    paths: list[str] = [path for path, module in model.named_modules() if module is part]
    return paths[0]
