"""Blocks of files in panels: no weight changes, and nothing beside a row changes its bits."""

from __future__ import annotations

import ctypes

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

import emulated
from draftproof import native
from draftproof.runners import matrix
from draftproof.runners.matrix import product
from draftproof.runners.team import Team
from draftproof.runners.weights import Blocks
from grouped import in_groups
from native_models import SETS, sets

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")

OUTPUTS, INPUTS = 70, 512
FOURS = {  # that no GGUF file has: format, inputs of a block, bytes before its integers
    "S4_128": (native.S4_128, 128, 2),
    "Z4_32": (native.Z4_32, 32, 4),
    "Z4_128": (native.Z4_128, 128, 4),
}
KINDS = [*native.BLOCKS, *FOURS]
FP4 = "MXFP4"  # whose scale is a power of two, in one byte
HALVES: dict[str, tuple[int, ...]] = {
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
}


def sizes(kind: str) -> tuple[int, int]:
    """Elements and bytes of a block."""
    if kind in FOURS:
        _, elements, head = FOURS[kind]
        return elements, head + elements // 2
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]


def random_blocks(kind: str, seed: int = 0) -> Tensor:
    """(outputs, bytes of a row) Any bytes, but for scales, which are numbers of usual size."""
    generator = torch.Generator().manual_seed(seed)
    elements, size = sizes(kind)
    shape = OUTPUTS * INPUTS // elements, size
    data = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    if kind == FP4:
        data[:, 0] = torch.randint(115, 125, (len(data),), generator=generator)
        return data.view(OUTPUTS, -1)
    for at in HALVES.get(kind, (0,)):
        scales = torch.randn(len(data), 1, generator=generator).half() / 50
        data[:, at : at + 2] = scales.view(torch.uint8)
    if kind in FOURS and FOURS[kind][2] == 4:
        zeros = torch.randint(0, 17, (len(data), 1), generator=generator).short()
        data[:, 2:4] = zeros.view(torch.uint8)
    return data.view(OUTPUTS, -1)


def numbers(kind: str, data: Tensor) -> Tensor:
    """(outputs, inputs) What the library of the format's makers says; of ours, draftproof.h."""
    if kind in FOURS:
        _, elements, head = FOURS[kind]
        made = []
        for block in data.reshape(-1, head + elements // 2):
            scale = block[:2].view(torch.float16).item()
            zero = block[2:4].view(torch.int16).item() if head == 4 else 8
            for group in block[head:].view(-1, 16).tolist():
                integers = [byte & 15 for byte in group] + [byte >> 4 for byte in group]
                made += [scale * (integer - zero) for integer in integers]
        return torch.tensor(made, dtype=torch.float64).float().view(OUTPUTS, INPUTS)
    return torch.from_numpy(gguf.dequantize(data.numpy(), gguf.GGMLQuantizationType[kind]))


class Head:
    """Blocks as the head of a model without layers."""

    def __init__(self, kind: str, data: Tensor, kernels: str = "") -> None:
        self.library = native.library()
        number = FOURS[kind][0] if kind in FOURS else native.BLOCKS[kind]
        self.blocks = Blocks(number, data, (OUTPUTS, INPUTS))
        shape = native.Shape(
            hidden=INPUTS, heads=1, kv_heads=1, head_dim=2, intermediate=1, vocabulary=OUTPUTS
        )
        formats = (ctypes.c_int32 * 2)(self.blocks.format, -1)
        name = (kernels or native.kernels()).encode()
        self.handle = self.library.dp_model_new(ctypes.byref(shape), formats, name)
        native.owned(self, self.library.dp_model_free, self.handle)

    def pack(self) -> int:
        return matrix.pack(self.handle, native.HEAD, 0, self.blocks)

    def weights(self) -> Tensor:
        made = torch.empty(OUTPUTS, INPUTS)
        for output, row in enumerate(made):
            args = self.handle, native.HEAD, 0, output, row.data_ptr()
            assert self.library.dp_model_weights(*args) == native.OK
        return made


@pytest.mark.parametrize("kind", KINDS)
def test_no_weight_changes(kind: str) -> None:
    data = random_blocks(kind)
    head = Head(kind, data)
    assert head.pack() == native.OK
    assert torch.equal(head.weights(), numbers(kind, data))


def test_every_power_of_two_that_fp4_may_have() -> None:
    """Also those that are no normal float; three are more than a float can be, or no number."""
    data = random_blocks(FP4)
    blocks = data.view(-1, 17)
    blocks[:253, 0] = torch.arange(253)
    head = Head(FP4, data)
    assert head.pack() == native.OK
    assert torch.equal(head.weights(), numbers(FP4, data))
    for wrong in (253, 254, 255):
        blocks[41, 0] = wrong
        assert Head(FP4, data).pack() == native.NOT_FINITE


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_weights(kind: str, kernels: str) -> None:
    if kernels not in sets():
        pytest.skip(f"no {kernels} on this machine")
    head = Head(kind, random_blocks(kind), kernels)
    assert head.pack() == native.OK
    rows = torch.randn(29, INPUTS, generator=torch.Generator().manual_seed(1))
    rows[:, 100] *= 1000
    got = product(head, Team(2), rows, OUTPUTS)
    integers, scales = in_groups(rows, in_halves=False)
    rounded = (integers * scales[..., None]).flatten(1)
    weights = head.weights().double()
    terms = rounded.abs() @ weights.abs().T
    assert ((got - rounded @ weights.T).abs() <= 1e-6 * terms + 1e-6).all()
    for count in range(1, 14):  # whatever stands beside it
        assert torch.equal(product(head, Team(1), rows[:count], OUTPUTS), got[:count])


@pytest.mark.parametrize("build", ["here", "emulated"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_kernels_with_fused_sums_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, kind: str, build: str
) -> None:
    if build == "emulated":
        library = emulated.libraries()[0]
        monkeypatch.setattr(native, "library", lambda: library)
    rows = torch.randn(37, INPUTS, generator=torch.Generator().manual_seed(2))
    fused = [name for name in sets() if name != "portable"]
    assert build == "here" or fused == ["avx2", "avx512", "amx"]
    made: list[Tensor] = []
    for kernels in fused:
        head = Head(kind, random_blocks(kind), kernels)
        assert head.pack() == native.OK
        made.append(product(head, Team(1), rows, OUTPUTS))
        for count in (*range(1, 14), 16, 17, 31, 33):
            assert torch.equal(product(head, Team(1), rows[:count], OUTPUTS), made[0][:count])
    assert all(torch.equal(one, made[0]) for one in made)


@pytest.mark.parametrize("kind", KINDS)
def test_the_compiled_tiles_give_these_bits(kind: str) -> None:
    """The instructions that a processor with AMX will run, one by one."""
    number = FOURS[kind][0] if kind in FOURS else native.BLOCKS[kind]
    rows = torch.randn(32, INPUTS, generator=torch.Generator().manual_seed(3))
    library, blocks = emulated.trapped(), random_blocks(kind)[: emulated.PANEL]
    tile = emulated.FileProduct(number, blocks.numpy(), rows.numpy())
    want = np.concatenate([tile(slice(r, r + 1), "avx512") for r in range(len(rows))])
    for count in (9, 13, 16, 17, 24, 32):
        got = tile(slice(0, count), library=library)
        assert got.tobytes() == want[:count].tobytes(), count


@pytest.mark.parametrize("wrong", [0x7C00, 0xFC00, 0x7E01])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != FP4])
def test_a_scale_that_is_not_finite_is_refused(kind: str, wrong: int) -> None:
    for at in HALVES.get(kind, (0,)):
        data = random_blocks(kind)
        size = sizes(kind)[1]
        data[41, size + at], data[41, size + at + 1] = wrong & 255, wrong >> 8
        assert Head(kind, data).pack() == native.NOT_FINITE


def test_what_is_no_source_of_a_format() -> None:
    data = random_blocks("Q4_K")
    head = Head("Q4_K", data)
    assert matrix.pack(head.handle, native.HEAD, 0, torch.zeros(OUTPUTS, INPUTS)) != native.OK
    cut = Blocks(native.Q4_K, data, (OUTPUTS, INPUTS - 32))
    assert matrix.pack(head.handle, native.HEAD, 0, cut) == native.BAD_ARGUMENT
    floats = Head("Q4_1", random_blocks("Q4_1"))
    assert matrix.pack(floats.handle, native.HEAD, 0, torch.zeros(OUTPUTS, INPUTS)) == native.OK
