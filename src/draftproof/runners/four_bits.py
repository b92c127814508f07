"""Matrices of four bits in checkpoints of AWQ, GPTQ and compressed-tensors: what their words mean.

A weight is scale * (integer - zero), scale and zero of its group of inputs. Knows no files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from draftproof import native
from draftproof.runners.weights import Blocks

Get = Callable[[str], Tensor]  # a part of a matrix by its name
MIDDLE = 8  # the zero of symmetric integers
ONES = 0x11111111  # what GPTQ's first format takes from eight zeros, as one number
AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # of eight outputs: where each lies in a word
BLOCKS = {  # inputs that a block of a panel may have: less 8, less a zero
    128: (native.S4_128, native.Z4_128),
    native.GROUP: (native.Q4_0, native.Z4_32),
}
MOST = 1 << 20  # inputs of a group
SCALES = ("F16", "BF16", "F32")


class Unreadable(ValueError):
    """What of a checkpoint cannot be read, in words that follow its name and "has"."""


@dataclass(frozen=True)
class Groups:
    """Of a matrix (out, in): what belongs to groups of inputs."""

    scales: Tensor  # (out, groups)
    zeros: Tensor  # (out, groups), 0 to 15, uint8
    of: Tensor  # (in,) each input's group

    def numbers(self, integers: Tensor) -> Tensor:
        """(out, in) in float32, exact but for scales of 24 bits."""
        scales, zeros = self.scales.float()[:, self.of], self.zeros[:, self.of]
        return scales * (integers.float() - zeros.float())

    @cached_property
    def order(self) -> Tensor | None:
        """(in,) Inputs so that groups follow one another, int32; None: they do."""
        if bool((self.of.diff() >= 0).all()):
            return None
        return self.of.argsort(stable=True).int()

    def format(self, symmetric: bool) -> tuple[int | None, str]:
        """Of panels that hold it without rounding; else None, and why there is none."""
        counts = self.of.bincount()
        width = next((each for each in BLOCKS if not bool((counts % each).any())), None)
        if width is None:
            return None, f"groups are not of a multiple of {native.GROUP} inputs"
        if not torch.equal(self.scales.half().float(), self.scales.float()):
            return None, "scales are not of 16 bits (fp16)"
        return BLOCKS[width][not (symmetric and bool((self.zeros == MIDDLE).all()))], ""

    def blocks(self, integers: Tensor, kind: int) -> Blocks:
        """A matrix (out, in) as `native` reads it: see DP_SOURCE_BLOCKS."""
        order, of = self.order, self.of
        if order is not None:
            integers, of = integers[:, order], of[order]
        outputs, inputs = integers.shape
        width = next(each for each, kinds in BLOCKS.items() if kind in kinds)
        halves = integers.view(outputs, inputs // native.GROUP, 2, native.GROUP // 2)
        packed = (halves[:, :, 0] | halves[:, :, 1] << 4).view(outputs, inputs // width, width // 2)
        heads = [self.scales.half(), *([self.zeros.short()] if kind in WITH_ZEROS else [])]
        each = [head[:, of[::width]].unsqueeze(-1).view(torch.uint8) for head in heads]
        return Blocks(kind, torch.cat([*each, packed], -1).flatten(1), (outputs, inputs), order)


WITH_ZEROS = {zeros for _, zeros in BLOCKS.values()}


@dataclass(frozen=True)
class Part:
    """A tensor of a matrix. shapes: (rows, columns) that it may have; types: of safetensors."""

    shapes: tuple[list[int], ...]
    types: tuple[str, ...] = ("I32",)
    needed: bool = True


@dataclass(frozen=True)
class Scheme:
    """How a checkpoint's matrices are quantised. sizes: of groups, 0 is all inputs."""

    method: str
    sizes: frozenset[int]
    symmetric: bool = False
    less_one: bool = False  # GPTQ: zeros are stored less one

    main = "qweight"

    def parts(self, outputs: int, inputs: int) -> dict[str, Part]:
        """What a matrix (outputs, inputs) consists of."""
        raise NotImplementedError

    def integers(self, get: Get, outputs: int, inputs: int) -> Tensor:
        """(out, in) uint8, 0 to 15."""
        raise NotImplementedError

    def groups(self, get: Get, outputs: int, inputs: int) -> Groups:
        """Raises `Unreadable` for groups that are not there."""
        raise NotImplementedError

    def _counts(self, inputs: int) -> list[int]:
        """How many groups there may be."""
        return sorted({-(-inputs // (size or inputs)) for size in self.sizes})

    def _even(self, inputs: int, groups: int) -> Tensor:
        """(in,) Groups of one size."""
        size = inputs // groups
        if inputs % groups or (groups > 1 and size not in self.sizes):
            raise Unreadable(f"{groups} groups for {inputs} inputs")
        return torch.arange(inputs) // size


class Awq(Scheme):
    """The layout `gemm`: words of eight outputs."""

    def parts(self, outputs: int, inputs: int) -> dict[str, Part]:
        counts = self._counts(inputs)
        return {
            "qweight": Part(([inputs, outputs // 8],)),
            "qzeros": Part(tuple([count, outputs // 8] for count in counts)),
            "scales": Part(tuple([count, outputs] for count in counts), SCALES),
        }

    def integers(self, get: Get, outputs: int, inputs: int) -> Tensor:
        return _in_places(get("qweight")).T.contiguous()

    def groups(self, get: Get, outputs: int, inputs: int) -> Groups:
        scales = get("scales").T
        return Groups(scales, _in_places(get("qzeros")).T, self._even(inputs, scales.shape[1]))


class Gptq(Scheme):
    """Words of eight inputs; zeros of eight outputs. `g_idx`: each input's group."""

    def parts(self, outputs: int, inputs: int) -> dict[str, Part]:
        counts = self._counts(inputs)
        return {
            "qweight": Part(([inputs // 8, outputs],)),
            "qzeros": Part(tuple([count, outputs // 8] for count in counts)),
            "scales": Part(tuple([count, outputs] for count in counts), SCALES),
            "g_idx": Part(([inputs],), ("I32", "I64"), needed=False),
        }

    def integers(self, get: Get, outputs: int, inputs: int) -> Tensor:
        return _nibbles(get("qweight").T)

    def groups(self, get: Get, outputs: int, inputs: int) -> Groups:
        scales, zeros = get("scales").T, get("qzeros")
        zeros = _nibbles(zeros + ONES if self.less_one else zeros).T
        (size,) = self.sizes
        of = _indices(get, "g_idx", scales.shape[1])
        return Groups(scales, zeros, torch.arange(inputs) // (size or inputs) if of is None else of)


class PackQuantized(Scheme):
    """compressed-tensors: words of eight inputs, the last one padded; zeros of eight outputs."""

    main = "weight_packed"

    def parts(self, outputs: int, inputs: int) -> dict[str, Part]:
        counts = self._counts(inputs)
        made = {
            "weight_packed": Part(([outputs, -(-inputs // 8)],)),
            "weight_scale": Part(tuple([outputs, count] for count in counts), SCALES),
            "weight_shape": Part(([2],), ("I32", "I64"), needed=False),
            "weight_g_idx": Part(([inputs],), ("I32", "I64"), needed=False),
        }
        if not self.symmetric:
            shapes = tuple([-(-outputs // 8), count] for count in counts)
            made["weight_zero_point"] = Part(shapes)
        return made

    def integers(self, get: Get, outputs: int, inputs: int) -> Tensor:
        return _nibbles(get("weight_packed"))[:, :inputs]

    def groups(self, get: Get, outputs: int, inputs: int) -> Groups:
        shape = get("weight_shape").tolist()
        if shape and shape != [outputs, inputs]:
            raise Unreadable(f"a weight_shape of {shape} and should have {[outputs, inputs]}")
        scales = get("weight_scale")
        zeros = torch.full(scales.shape, MIDDLE, dtype=torch.uint8)
        if not self.symmetric:
            zeros = _nibbles(get("weight_zero_point").T)[:, :outputs].T
        of = _indices(get, "weight_g_idx", scales.shape[1])
        return Groups(scales, zeros, self._even(inputs, scales.shape[1]) if of is None else of)


def scheme_of(said: Mapping[str, Any]) -> Scheme | None:
    """What a configuration's `quantization_config` says; None: another method.

    Raises `Unreadable`.
    """
    method = said.get("quant_method")
    reader = {"awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed}.get(str(method))
    return None if reader is None else reader(said)


def _awq(said: Mapping[str, Any]) -> Scheme:
    version = str(said.get("version", "gemm")).lower()
    if version != "gemm":
        raise Unreadable(f"weights in AWQ's layout {version}, and only gemm is read")
    if said.get("zero_point", True) is not True:
        raise Unreadable("weights without zeros (zero_point), and only those with zeros are read")
    return Awq("awq", _sizes(said.get("bits"), said.get("group_size")))


def _gptq(said: Mapping[str, Any]) -> Scheme:
    layout = str(said.get("checkpoint_format") or "gptq")
    if layout not in ("gptq", "gptq_v2") or said.get("is_marlin_format"):
        raise Unreadable(f"weights in GPTQ's layout {layout}, and only gptq and gptq_v2 are read")
    if said.get("dynamic"):
        raise Unreadable("modules of different bits (dynamic), and only 4 bits are read")
    if said.get("pack_dtype", "int32") != "int32":
        raise Unreadable(f"words of {said['pack_dtype']}, and only int32 is read")
    sizes = _sizes(said.get("bits"), said.get("group_size"))
    return Gptq("gptq", sizes, symmetric=said.get("sym") is True, less_one=layout == "gptq")


def _compressed(said: Mapping[str, Any]) -> Scheme:
    groups = said.get("config_groups")
    listed = [*groups.values()] if isinstance(groups, Mapping) else []
    if said.get("format") != "pack-quantized" or not listed:
        raise Unreadable(f"the format {said.get('format')}, and only pack-quantized is read")
    if (status := said.get("quantization_status", "compressed")) != "compressed":
        raise Unreadable(f"weights that are {status}, and only compressed ones are read")
    for name in ("kv_cache_scheme", "transform_config", "sparsity_config"):
        if said.get(name) and said[name] != {"format": "dense"}:
            raise Unreadable(f"a {name}, which is not read")
    each = [_of_group(group) for group in listed]
    symmetric = {weights.get("symmetric", True) is True for weights, _ in each}
    if len(symmetric) > 1:
        raise Unreadable("modules with zeros and modules without, and only one of both is read")
    sizes = frozenset[int]().union(*(size for _, size in each))
    return PackQuantized("compressed-tensors", sizes, symmetric=symmetric.pop())


def _of_group(group: Any) -> tuple[Mapping[str, Any], frozenset[int]]:
    """What compressed-tensors says of some modules' weights, and the sizes of their groups."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise Unreadable("config_groups without weights, which are not read")
    if group.get("input_activations") or group.get("output_activations"):
        raise Unreadable("activations that are quantised too, and only weights are read")
    if weights.get("type", "int") != "int":
        raise Unreadable(f"weights of type {weights['type']}, and only int is read")
    if (strategy := weights.get("strategy")) not in ("group", "channel"):
        raise Unreadable(f"scales by {strategy}, and only those by group and channel are read")
    size = weights.get("group_size") if strategy == "group" else -1
    return weights, _sizes(weights.get("num_bits"), size)


def _sizes(bits: Any, group: Any) -> frozenset[int]:
    if bits != 4:
        raise Unreadable(f"weights of {bits} bits, and only 4 are read")
    whole = isinstance(group, int) and not isinstance(group, bool)
    if not whole or not (group == -1 or 1 <= group <= MOST):
        raise Unreadable(f"groups of {group} inputs, which cannot be")
    return frozenset({max(group, 0)})


def _nibbles(words: Tensor) -> Tensor:
    """(rows, 8 n) uint8, of (rows, n) words: the lowest four bits first."""
    data = words.contiguous().view(torch.uint8)
    return torch.stack((data & 15, data >> 4), -1).flatten(1)


def _in_places(words: Tensor) -> Tensor:
    """The same, with the eight outputs of a word in AWQ's order."""
    return _nibbles(words).view(len(words), -1, 8)[..., AWQ_PLACES].flatten(1)


def _indices(get: Get, name: str, groups: int) -> Tensor | None:
    """Each input's group, as it is stored; None where it is not."""
    of = get(name).long()
    if not len(of) or bool((of == -1).all()):
        return None
    strange = of[(of < 0) | (of >= groups)]
    if len(strange):
        raise Unreadable(f"a {name} with group {int(strange[0])} of {groups}")
    return of
