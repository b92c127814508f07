"""Models in half precision on processors that have no products of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import draftproof as dp
import encoders
import tiny
from all_trees import random_tree
from draftproof.runners import half
from draftproof.runners.base import Work
from draftproof.runners.torch import TorchRunner
from draftproof.tree import TokenTree
from forwarding import CONFIGS, V, build
from halves import whole

PARAMS = dp.SamplingParams(max_tokens=4, ignore_eos=True)
LONG = [3 + 7 * i % 50 for i in range(2 * half.ROWS)]
BOTH = pytest.mark.parametrize("dtype", half.HALF)


def made(family: str, dtype: torch.dtype) -> Any:
    """A model of its own: those of encoder-decoders are shared by tests."""
    model = copy.deepcopy(encoders.model(family)) if family == "T5" else tiny.model(family)
    return model.to(dtype)  # type: ignore[call-overload]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """How products were made: by what, of how many rows."""
    seen: list[tuple[str, int]] = []

    def told(name: str) -> Callable[..., Tensor]:
        own = getattr(half, name)

        def product(*given: Any) -> Tensor:
            rows = next(each for each in given if isinstance(each, Tensor))
            seen.append((name, rows.numel() // rows.shape[-1]))
            found: Tensor = own(*given)
            return found

        return product

    for name in ("_by_kernel", "_turned"):
        monkeypatch.setattr(half, name, told(name))
    return seen


def write(family: str, dtype: torch.dtype, prompt: list[int] = LONG) -> None:
    with dp.LLM(made(family, dtype), runner="torch", speculate=None) as llm:
        llm.generate([prompt], PARAMS)


@BOTH
@pytest.mark.parametrize("family", ["llama", "T5"])
def test_models_go_by_the_kernel(
    kernel: None, seen: list[tuple[str, int]], family: str, dtype: torch.dtype
) -> None:
    """The prompt, or what the encoder reads, tokens one by one, and the head."""
    write(family, dtype)
    assert {name for name, _ in seen} == {"_by_kernel"}
    assert {1, len(LONG)} <= {rows for _, rows in seen}


@BOTH
@pytest.mark.parametrize("family", ["llama", "T5"])
def test_without_the_kernel_many_rows_are_turned(
    turned: None, seen: list[tuple[str, int]], family: str, dtype: torch.dtype
) -> None:
    write(family, dtype)
    assert seen and {name for name, _ in seen} == {"_turned"}
    assert min(rows for _, rows in seen) >= half.ROWS


@pytest.mark.parametrize("family", ["llama", "T5"])
def test_where_torch_has_instructions_of_it_few_rows_go_by_the_kernel(
    monkeypatch: pytest.MonkeyPatch, kernel: None, seen: list[tuple[str, int]], family: str
) -> None:
    """And none where it has those of whole tiles, or none of our kernels is as good."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(half, "_best_set", lambda: b"avx512")
    long = [3 + 7 * i % 50 for i in range(half.FEW + 2)]
    write(family, torch.bfloat16, long)
    assert {name for name, _ in seen} == {"_by_kernel"}
    assert max(rows for _, rows in seen) < len(long)
    for best in (b"amx", b"avx2", b""):
        del seen[:]
        monkeypatch.setattr(half, "_best_set", lambda best=best: best)
        write(family, torch.bfloat16)
        assert not seen


def test_float16_is_slow_without_instructions_of_it(
    monkeypatch: pytest.MonkeyPatch, kernel: None, seen: list[tuple[str, int]]
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    for there in (False, True):
        monkeypatch.setattr(half, "_torch_has_float16", lambda there=there: there)
        assert half.slow(made("llama", torch.float16)) is not there
        del seen[:]
        write("llama", torch.float16)
        assert bool(seen) is not there


@pytest.mark.parametrize("family", ["llama", "T5"])
def test_other_processors_and_precisions_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, slow: None, seen: list[tuple[str, int]], family: str
) -> None:
    write(family, torch.float64)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    write(family, torch.bfloat16)
    assert not seen


def test_the_model_is_given_back(kernel: None, seen: list[tuple[str, int]]) -> None:
    """After an error too; and a layer that somebody else changed is theirs."""
    model = made("llama", torch.bfloat16)
    theirs = model.model.layers[0].mlp.up_proj
    calls: list[int] = []

    def changed(rows: Tensor) -> Tensor:
        calls.append(rows.shape[-2])
        return functional.linear(rows, theirs.weight)

    theirs.forward = changed
    layers, ours = half.Layers(model), model.model.layers[1].mlp.up_proj

    def fails() -> None:
        assert "forward" in vars(ours)
        ours(input=torch.ones(2, ours.in_features).bfloat16())
        model(input_ids=torch.tensor([[1, 2, 3]]))
        raise RuntimeError("in a pass")

    with torch.inference_mode(), pytest.raises(RuntimeError, match="in a pass"):
        layers.during(fails)
    left = [each for each in model.modules() if "forward" in vars(each)]
    assert left == [theirs] and calls == [3] and seen


def test_others_have_torchs_products(kernel: None, seen: list[tuple[str, int]]) -> None:
    """Another thread in the middle of a pass, a copy, and what an interrupted pass left."""
    model = made("llama", torch.bfloat16)
    layers, rows = half.Layers(model), torch.ones(2, model.config.hidden_size).bfloat16()
    taken: list[Any] = []

    def trains() -> None:
        found = model.lm_head(rows).sum()
        found.backward()
        taken.append(copy.deepcopy(model))

    def passes() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(trains).result()

    layers.during(passes)
    assert model.lm_head.weight.grad is not None and not seen
    (left,) = taken  # as if it had been interrupted while it was given back
    assert "forward" in vars(left.lm_head)
    assert torch.equal(left.lm_head(rows), model.lm_head(rows)) and not seen
    with torch.inference_mode():
        half.Layers(left).during(lambda: left.lm_head(rows))
    assert seen and "forward" not in vars(left.lm_head)


def test_matrices_of_heads_go_by_the_kernel(kernel: None, seen: list[tuple[str, int]]) -> None:
    with dp.LLM(made("llama", torch.bfloat16), runner="torch", speculate=None) as llm:
        weight = whole(torch.Generator().manual_seed(4), 40, 16, dtype=torch.bfloat16)
        rows = whole(torch.Generator().manual_seed(5), 3, 16, dtype=torch.bfloat16)
        runner: Any = llm.runner
        del seen[:]
        got = runner.linear(weight)(rows)
        assert seen == [("_by_kernel", 3)]
        assert torch.equal(got, (rows.float() @ weight.float().T).bfloat16())
        del seen[:]
        runner.head(torch.ones(2, runner.config.hidden_size).bfloat16())
        assert seen == [("_by_kernel", 2)]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_long_prompts_are_torchs_and_change_nothing_else(
    monkeypatch: pytest.MonkeyPatch, kernel: None, family: str
) -> None:
    """Where torch has instructions too: a prompt with drafts behind it, beside others and alone."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(half, "_best_set", lambda: b"avx512")
    monkeypatch.setattr(half, "FEW", 6)
    config = CONFIGS[family]()
    config.head_dim = 16
    config.final_logit_softcapping = None
    model, rng = build(config, torch.bfloat16), Random(8)
    prompts = [[rng.randrange(3, V) for _ in range(count)] for count in (30, 3, 8, 12)]
    trees = [TokenTree.chain([4, 5, 6]), random_tree(rng, 4, 6), random_tree(rng, 4, 9), None]
    alone, together = TorchRunner(model, max_batch=4), TorchRunner(model, max_batch=4)
    made: list[int] = []
    linear = functional.linear

    def counted(rows: Tensor, *given: Any) -> Tensor:
        made.append(rows.numel() // rows.shape[-1])
        return linear(rows, *given)

    monkeypatch.setattr(functional, "linear", counted)
    works = [Work(key, prompts[key], trees[key]) for key in range(4)]
    with torch.inference_mode():
        outputs = together.forward(works)
        assert set(made) == {30, 8, 12}
        for item, output in zip(works, outputs, strict=True):
            if item.tree is None:
                continue
            (first,) = alone.forward([Work(item.key, item.new, TokenTree.root(4))])
            assert torch.equal(first.logits[0], output.logits[0])
            for i in range(len(item.tree)):
                alone.crop(item.key, len(item.new))
                for token in [item.tree.tokens[j] for j in item.tree.path(i)]:
                    (one,) = alone.forward([Work(item.key, [], TokenTree.root(token))])
                    alone.keep(item.key, [0])
                assert torch.equal(one.logits[0], output.logits[i]), (item.key, i)
