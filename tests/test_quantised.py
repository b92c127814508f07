"""Checkpoints of AWQ, GPTQ and compressed-tensors: four bits as they lie, no weight changes."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

import draftproof as dp
import gguf_files
import quantised_files
from draftproof import native
from draftproof.runners import quantised_checkpoint
from draftproof.runners.base import Work
from draftproof.runners.four_bits import scheme_of
from draftproof.runners.native import NativeRunner
from draftproof.runners.packed_formats import MATRICES
from draftproof.runners.quantised_checkpoint import QuantisedCheckpoint
from draftproof.tree import TokenTree
from native_models import one_by_one, unpacked
from quantised_files import Layout

LAYOUTS = {
    "awq 32": Layout("awq", 32),
    "awq 128": Layout("awq", 128),
    "awq whole": Layout("awq", 0),
    "gptq 64": Layout("gptq", 64),
    "gptq 128 symmetric": Layout("gptq", 128, symmetric=True),
    "gptq 128 in bfloat16": Layout("gptq", 128, scales=torch.bfloat16),
    "gptq_v2 32": Layout("gptq", 32, version=2),
    "gptq whole symmetric": Layout("gptq", 0, symmetric=True),
    "gptq 64 in another order": Layout("gptq", 64, act_order=True),
    "gptq 128 symmetric in another order": Layout("gptq", 128, symmetric=True, act_order=True),
    "packed 32 symmetric": Layout("compressed-tensors", 32, symmetric=True),
    "packed 64": Layout("compressed-tensors", 64),
    "packed 128 symmetric": Layout("compressed-tensors", 128, symmetric=True),
    "packed 128": Layout("compressed-tensors", 128),
    "packed by channel": Layout("compressed-tensors", 0, symmetric=True, scales=torch.bfloat16),
    "packed 32 in another order": Layout("compressed-tensors", 32, act_order=True),
}
ORDERED = [name for name, layout in LAYOUTS.items() if layout.act_order]
WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8}
GREEDY = dp.SamplingParams(max_tokens=12, ignore_eos=True)
with_kernels = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")


@cache
def model() -> PreTrainedModel:
    return gguf_files.model("llama", dtype=torch.bfloat16, **WIDE)


def found(folder: Path, **options: Any) -> QuantisedCheckpoint:
    given = {"dtype": torch.float32, "as_they_lie": True} | options
    made = quantised_checkpoint.find(str(folder), **given)
    assert made is not None
    return made


def getting(stored: dict[str, Tensor]) -> Any:
    return lambda part: stored.get(part, torch.empty(0, dtype=torch.int64))


@pytest.mark.parametrize("name", LAYOUTS)
def test_words_mean_what_the_layouts_definition_says(name: str) -> None:
    """Weight by weight, and again out of the blocks that go into panels."""
    layout, (outputs, inputs) = LAYOUTS[name], (16, 256)
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(3))
    weight[0] = weight[0].abs()  # zeros of 0, which GPTQ's first format stores as less than that
    stored = quantised_files.tensors(quantised_files.rounded(weight, layout), layout)
    want = torch.tensor(
        [
            [quantised_files.decoded(stored, layout, o, i) for i in range(inputs)]
            for o in range(outputs)
        ]
    )
    scheme = scheme_of(layout.config())
    assert scheme is not None
    groups = scheme.groups(getting(stored), outputs, inputs)
    integers = scheme.integers(getting(stored), outputs, inputs)
    assert torch.equal(groups.numbers(integers), want)
    assert layout.symmetric or bool((groups.zeros == 0).any())


@with_kernels
@pytest.mark.parametrize("name", LAYOUTS)
def test_panels_hold_the_weights_of_the_file(tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    says = quantised_files.write(tmp_path, model(), layout)
    weights = found(tmp_path)
    runner = NativeRunner(weights.model, precision="bfloat16", weights=weights)
    kinds = set()
    for which, path in MATRICES.items():
        linear = says.model.layers[1].get_submodule(path)
        assert torch.equal(unpacked(runner.packed, which, 1, linear), linear.weight), path
        kinds.add(runner.packed.formats.of(which, 1))
        assert torch.equal(weights[f"model.layers.1.{path}.weight"], linear.weight)
    wide = layout.group in (0, 128)
    symmetric = {native.S4_128 if wide else native.Q4_0}
    assert kinds == (symmetric if layout.symmetric else {native.Z4_128 if wide else native.Z4_32})


@with_kernels
@pytest.mark.parametrize("name", ["awq 128", "packed 32 symmetric", *ORDERED])
def test_it_computes_what_the_file_says(tmp_path: Path, name: str) -> None:
    """In whatever passes, and beside the same numbers in float32 but for activations of 8 bits."""
    says = quantised_files.write(tmp_path, model(), LAYOUTS[name])
    ids = [5, 9, 33, 21, 60, 3, 3, 41, 17, 80, 12, 7]
    with dp.LLM(tmp_path, speculate=None) as llm:
        assert "native" in llm.runner.name
        assert llm.runner.precision == LAYOUTS[name].method
        assert isinstance(llm.runner, NativeRunner)
        rows = one_by_one(llm.runner, ids)
        (output,) = llm.runner.forward([Work(7, [], TokenTree.chain(ids))])
        assert torch.equal(output.logits, rows)
        plain = [each.token_ids for each in llm.generate([ids], GREEDY)]
    want = says(torch.tensor([ids])).logits[0]
    assert (rows - want).norm() < 0.12 * (want - want.mean(-1, keepdim=True)).norm()
    with dp.LLM(tmp_path, speculate="ngram") as llm:
        assert [each.token_ids for each in llm.generate([ids], GREEDY)] == plain


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_other_precisions_are_of_its_numbers(tmp_path: Path, dtype: str) -> None:
    says = quantised_files.write(tmp_path, model(), LAYOUTS["gptq 64"])
    if dtype != "float32" and native.found() is None:
        pytest.skip("the kernels were not built")
    own = says.to(torch.bfloat16) if dtype == "bfloat16" else says
    given = {"dtype": "int8", "runner": "native"} if dtype == "int8" else {}
    runner = "native" if dtype == "bfloat16" else "auto"
    options: dict[str, Any] = {"speculate": None, "runner": runner} | given
    want = dp.LLM(own, **options).generate([[5, 9, 33]], GREEDY)[0].token_ids
    with dp.LLM(tmp_path, dtype=dtype, speculate=None) as llm:
        assert llm.runner.precision == dtype
        assert llm.generate([[5, 9, 33]], GREEDY)[0].token_ids == want


@with_kernels
def test_what_panels_cannot_hold_is_computed_in_bfloat16(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Scales that fp16 does not have, of one matrix only; told once."""
    says = quantised_files.write(tmp_path, model(), Layout("awq", 32, scales=torch.float32))
    with caplog.at_level(logging.WARNING):
        weights = found(tmp_path)
        assert weights.precision is None
    assert caplog.text.count("bfloat16") == 1 and "fp16" in caplog.text
    runner = NativeRunner(weights.model, precision="bfloat16", weights=weights)
    linear = says.model.layers[0].mlp.down_proj
    got = unpacked(runner.packed, native.DOWN, 0, linear)
    assert torch.equal(got, linear.weight.bfloat16().float())


@with_kernels
def test_orders_that_differ_where_inputs_are_shared(tmp_path: Path) -> None:
    quantised_files.write(tmp_path, model(), LAYOUTS["gptq 64 in another order"])
    held = load_file(tmp_path / "model.safetensors")
    held["model.layers.0.self_attn.v_proj.g_idx"] = torch.arange(128, dtype=torch.int32) // 64
    save_file(held, tmp_path / "model.safetensors", {"format": "pt"})
    weights = found(tmp_path)
    path = "model.layers.0.{}.weight".format
    assert weights.format(path("self_attn.q_proj")) is None
    assert weights.format(path("self_attn.o_proj")) is not None
    assert weights.precision == "gptq"


@with_kernels
def test_an_order_that_is_no_permutation_is_refused(tmp_path: Path) -> None:
    quantised_files.write(tmp_path, model(), LAYOUTS["gptq 64 in another order"])
    weights = found(tmp_path)
    runner = NativeRunner(weights.model, precision="bfloat16", weights=weights)
    library, handle = runner.packed.library, runner.packed.handle
    for wrong in ([0, 0, *range(2, 256)], [*range(255), 256], [-1, *range(1, 256)], range(255)):
        order = torch.tensor(list(wrong), dtype=torch.int32)
        of = handle, native.DOWN, 0, order.data_ptr(), len(order)
        assert library.dp_model_order(*of) == native.BAD_ARGUMENT
    order = torch.arange(128, dtype=torch.int32)
    of = handle, native.HEAD, 0, order.data_ptr(), len(order)
    assert library.dp_model_order(*of) == native.BAD_ARGUMENT


@with_kernels
@pytest.mark.parametrize("name", ORDERED)
def test_what_is_mapped_has_its_inputs_in_the_same_order(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    quantised_files.write(tmp_path / "m", model(), LAYOUTS[name])
    ids, rows = [5, 9, 33, 21, 60, 3, 3, 41], list[Tensor]()
    for kept in (False, True, True):  # packed, kept, mapped
        with dp.LLM(tmp_path / "m", speculate=None, cache_weights=kept) as llm:
            assert isinstance(llm.runner, NativeRunner)
            rows.append(one_by_one(llm.runner, ids))
            mapped = llm.runner.packed.mapped
    assert mapped and torch.equal(rows[0], rows[1]) and torch.equal(rows[0], rows[2])
