"""A checkpoint of AWQ, GPTQ or compressed-tensors: its four bits as they lie, or as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig

from draftproof import hub
from draftproof.runners import checkpoint, loading
from draftproof.runners.checkpoint import EMBEDDINGS, HEAD, Checkpoint, Stored, opened
from draftproof.runners.four_bits import Groups, Scheme, Unreadable, scheme_of
from draftproof.runners.outline import Outline, outlined, shapes_of
from draftproof.runners.packed_formats import MATRICES, TOGETHER
from draftproof.runners.telling import LOG
from draftproof.runners.weights import Blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHT = ".weight"


@dataclass(frozen=True)
class Plan:
    """What a matrix is packed as. why: not in four bits."""

    format: int | None
    order: Tensor | None = None
    why: str = ""


class QuantisedCheckpoint(Checkpoint):
    """`Weights` of which matrices are quantised. as_they_lie: they stay that, if panels hold them.

    tensors: of the files. shapes: of the model's own tensors.
    """

    def __init__(
        self,
        model: PreTrainedModel | Outline,
        tensors: Mapping[str, Stored],
        shapes: Mapping[str, Sequence[int]],
        scheme: Scheme,
        dtype: torch.dtype,
        as_they_lie: bool,
    ) -> None:
        super().__init__(model, {name: each.file for name, each in tensors.items()}, dtype)
        self.scheme, self.as_they_lie = scheme, as_they_lie
        self.shapes = {name: (shape[0], shape[-1]) for name, shape in shapes.items()}
        self.tied = HEAD not in shapes
        self._plans: dict[str, Plan] = {}
        self._told = False

    @property
    def precision(self) -> str | None:
        """The method's name where some of its matrices are multiplied as they lie."""
        matrices = (name for name in self.shapes if self._quantised(name))
        return self.scheme.method if any(self.format(name) for name in matrices) else None

    def __contains__(self, name: str) -> bool:
        return self._place(name) in self.shapes

    def __getitem__(self, name: str) -> Tensor:
        if not self._quantised(name):
            return super().__getitem__(name)
        return self._groups(name).numbers(self._integers(name)).to(self.dtype)

    def format(self, name: str) -> int | None:
        """None too if other matrices of the same inputs have them in another order."""
        if not self.as_they_lie or not self._quantised(name):
            return None
        plan = self._plan(name)
        if name == HEAD and plan.order is not None:
            plan = Plan(None, why="the head's inputs stand in another order")
        beside = [each for each in _beside(name) if self._quantised(each)]
        if not all(_same(plan.order, self._plan(each).order) for each in beside):
            plan = Plan(None, why="matrices of the same inputs have them in different orders")
        if plan.format is None:
            self._tell(name, plan.why)
        return plan.format

    def order(self, name: str) -> Tensor | None:
        return self._plan(name).order

    def blocks(self, name: str) -> Blocks:
        kind = self.format(name)
        assert kind is not None, "a matrix that no panel holds"
        return self._groups(name).blocks(self._integers(name), kind)

    def loaded(self, device: torch.device) -> PreTrainedModel:
        """The model in memory, of numbers, for torch."""
        loading.refuse_what_has_no_room(loading.parameters(self.config), self.dtype)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(self.config, dtype=self.dtype)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self[name])
        model.tie_weights()
        model.model.rotary_emb = self.model.model.rotary_emb
        model.generation_config = self.model.generation_config
        placed: PreTrainedModel = torch.nn.Module.to(model, device).eval()
        return placed

    def _quantised(self, name: str) -> bool:
        return f"{name.removesuffix(WEIGHT)}.{self.scheme.main}" in self.files

    def _part(self, name: str, part: str) -> Tensor:
        """Of a quantised matrix; empty where it has none."""
        place = f"{name.removesuffix(WEIGHT)}.{part}"
        if place not in self.files:
            return torch.empty(0, dtype=torch.int64)
        with opened(self.files[place]) as file:
            tensor: Tensor = file.get_tensor(place)
        return tensor

    def _groups(self, name: str) -> Groups:
        try:
            return self.scheme.groups(lambda part: self._part(name, part), *self.shapes[name])
        except Unreadable as error:
            raise loading.Refused(
                f"{name.removesuffix(WEIGHT)} has {error}: it is damaged, fetch it again"
            ) from error

    def _integers(self, name: str) -> Tensor:
        return self.scheme.integers(lambda part: self._part(name, part), *self.shapes[name])

    def _plan(self, name: str) -> Plan:
        if name not in self._plans:
            groups = self._groups(name)
            found, why = groups.format(self.scheme.symmetric)
            self._plans[name] = Plan(found, groups.order, why)
        return self._plans[name]

    def _tell(self, name: str, why: str) -> None:
        """Once for a checkpoint."""
        if not self._told:
            LOG.warning("%s and what is like it is computed in bfloat16: %s", name, why)
        self._told = True


def find(
    name: str,
    *,
    dtype: torch.dtype | None,
    as_they_lie: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> QuantisedCheckpoint | None:
    """The checkpoint of a folder or hub id; None: it is another one, or of an unknown class.

    dtype: of its numbers; None is bfloat16 beside four bits, and float32 where all become numbers.
    Raises `ValueError`: a layout that is not read, or a tensor that is not as it should be.
    """
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    config = loading.configuration(name, **options)
    said = getattr(config, "quantization_config", None)
    if not isinstance(said, dict) or not checkpoint.is_known(config):
        return None
    try:
        scheme = scheme_of(said)
    except Unreadable as error:
        raise loading.Refused(
            f"{name} has {error}: take the model's own weights, or four bits of another layout"
        ) from error
    if scheme is None:
        return None
    del config.quantization_config, options["trust_remote_code"]
    options |= hub.options(name)
    tensors = checkpoint.tensors_of(checkpoint.files_of(name, options))
    wanted = dtype or (torch.bfloat16 if as_they_lie else torch.float32)
    model = outlined(config, wanted)
    shapes = shapes_of(model)
    if config.tie_word_embeddings:
        del shapes[HEAD]
    for each, shape in shapes.items():
        _check(name, each, shape, tensors, scheme)
    with suppress(OSError):  # without one the configuration says enough
        model.generation_config = GenerationConfig.from_pretrained(name, **options)
    return QuantisedCheckpoint(model, tensors, shapes, scheme, wanted, as_they_lie)


def _check(
    folder: str, name: str, shape: list[int], tensors: Mapping[str, Stored], scheme: Scheme
) -> None:
    """Raises `ValueError` unless a tensor, or what it is quantised to, is as it should be."""
    if (plain := tensors.get(name)) is not None:
        if plain.dtype is None or plain.shape != shape:
            raise _wrong(name, plain, f"the shape {shape} and numbers")
        return
    path = name.removesuffix(WEIGHT)
    if f"{path}.{scheme.main}" not in tensors or name == EMBEDDINGS or len(shape) != 2:
        raise loading.Refused(f"{folder} lacks {name}: fetch the whole checkpoint again")
    if scheme.main == "qweight" and (shape[0] % 8 or shape[1] % 8):
        raise loading.Refused(f"{path} is {shape[0]} x {shape[1]}: no words hold that")
    for part, is_ in scheme.parts(shape[0], shape[1]).items():
        stored = tensors.get(f"{path}.{part}")
        if stored is None and is_.needed:
            raise loading.Refused(f"{folder} lacks {path}.{part}: fetch the whole checkpoint again")
        if stored is not None and (stored.shape not in is_.shapes or stored.kind not in is_.types):
            shapes = " or ".join(map(str, is_.shapes))
            raise _wrong(
                f"{path}.{part}", stored, f"the shape {shapes} in {' or '.join(is_.types)}"
            )


def _wrong(name: str, found: Stored, wanted: str) -> ValueError:
    return loading.Refused(
        f"{name} in {found.file} has the shape {found.shape} in {found.kind}, and the "
        f"configuration says {wanted}: one of them belongs to another model"
    )


def _beside(name: str) -> list[str]:
    """Matrices that are packed as one with this one, by name, itself included."""
    path = name.removesuffix(WEIGHT)
    for kinds in TOGETHER:
        paths = [MATRICES[kind] for kind in kinds]
        for mine in paths:
            if path.endswith(f".{mine}"):
                return [f"{path.removesuffix(mine)}{each}{WEIGHT}" for each in paths]
    return [name]


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
