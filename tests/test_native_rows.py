"""Rows of the native runner: copied, refused, and beside others that overflow: the same bits."""

from __future__ import annotations

import copy
import threading
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama import LlamaConfig
from transformers.models.qwen3 import Qwen3Config

import tiny
from draftproof import native
from draftproof.runners import packing
from draftproof.runners.base import Work
from draftproof.runners.native import NativeRunner
from draftproof.runners.team import Team
from draftproof.runners.weights import LoadedWeights
from draftproof.tree import TokenTree
from native_models import SETS

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")

V, HUGE = 97, 60  # a token that overflows
SIZES: dict[str, Any] = {**tiny.COMMON, "hidden_size": 52, "head_dim": 16, "num_hidden_layers": 3}
CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**SIZES, tie_word_embeddings=False),
    "qwen3": lambda: Qwen3Config(
        **{**SIZES, "num_key_value_heads": 1, "head_dim": 80},
        use_sliding_window=True,
        sliding_window=6,
        layer_types=[tiny.KINDS[i % 2] for i in range(3)],
    ),
}
TEXT = [3 + 7 * i % 50 for i in range(70)]


@cache
def model(name: str) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.bfloat16).eval()


@cache
def overflowing() -> PreTrainedModel:
    """A channel that is 0 for every token but one, of which the norms' weights make infinities."""
    made = copy.deepcopy(model("llama"))
    with torch.no_grad():
        made.model.embed_tokens.weight[:, 0] = 0
        made.model.embed_tokens.weight[HUGE, 0] = 30
        for layer in made.model.layers:
            layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0
            layer.input_layernorm.weight[0] = 3e38
    return made


@cache
def packed(made: PreTrainedModel, precision: str, kernels: str = "") -> packing.Packed:
    return packing.Packed(LoadedWeights(made), precision, kernels=kernels)


def runner(name: str = "llama", precision: str = "bfloat16", **options: Any) -> NativeRunner:
    made = model(name)
    return NativeRunner(
        made, precision=precision, team=Team(2), packed=packed(made, precision), **options
    )


def logits(made: NativeRunner, key: int, new: list[int], tree: TokenTree) -> Tensor:
    (output,) = made.forward([Work(key, new, tree)])
    return output.logits.clone()


# --- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", native.PRECISIONS)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 50])
def test_a_copy_goes_on_as_if_it_had_read_everything(
    length: int, name: str, precision: str
) -> None:
    made, tree = runner(name, precision), TokenTree([9, 4, 5, 6], [-1, 0, 0, 2])
    want = logits(made, 0, TEXT[:length], tree)
    rest = logits(made, 1, TEXT, tree)  # a source that goes further
    made._cache.copy(made._cache.rows[1], 2, length)
    made._cache.lengths[2] = length
    assert torch.equal(logits(made, 2, [], tree), want)
    made.keep(2, [0, 2, 3])
    assert torch.equal(logits(made, 2, [], tree), logits(made, 3, [*TEXT[:length], 9, 5, 6], tree))
    assert torch.equal(logits(made, 1, [], tree), rest)  # and the source is what it was


def test_a_copy_into_a_row_that_was_another_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rows grow for it, long ones hold something else behind it."""
    monkeypatch.setattr("draftproof.runners.rows.FIRST_SLOTS", 16)
    made, tree = runner(max_batch=3), TokenTree.chain([9, 4])
    want = logits(made, 0, TEXT[:40], tree)
    for other in ([7] * 3, [7] * 60):
        logits(made, 1, other, tree)
        made.free(1)
        made._cache.copy(made._cache.rows[0], 2, 40)
        made._cache.lengths[2] = 40
        assert torch.equal(logits(made, 2, [], tree), want)
        made.free(2)


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [-1, V, 2**31, 2**32, 2**32 + 5, -(2**40)])
@pytest.mark.parametrize("place", ["prompt", "tree", "root"])
def test_a_token_that_the_model_does_not_have(place: str, token: int) -> None:
    made, tree = runner(), TokenTree.chain([5, 6, 7])
    want = logits(made, 0, TEXT[:9], tree)
    new = [3, token] if place == "prompt" else [3]
    bad = {"root": [token, 6], "tree": [5, token]}.get(place, [5])
    with pytest.raises(ValueError, match=rf"token {token} is not in .* vocabulary of {V}: "):
        made.forward([Work(0, [], tree), Work(1, new, TokenTree.chain(bad))])
    assert made.cached(0) == 9 and made.cached(1) == 0
    made.free(1)
    assert torch.equal(logits(made, 0, [], tree), want)


# --- overflow -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", SETS)
def test_a_token_that_overflows_changes_no_sibling(kernels: str) -> None:
    """Nor what comes after it: its slots hold NaN until they are written anew."""
    if not native.library().dp_kernels(kernels.encode()):
        pytest.skip(f"no {kernels} on this machine")
    weights = packed(overflowing(), "bfloat16", kernels)
    made = NativeRunner(overflowing(), team=Team(2), packed=weights)
    sound = TokenTree([9, 4, 5, 6, 8], [-1, 0, 0, 1, 2])
    # Its place is before, between and behind the others, and its children overflow with it.
    for place in range(1, 6):
        parents = [parent + (parent >= place) for parent in sound.parents]
        parents[place:place] = [0]
        ids = [*sound.tokens]
        ids[place:place] = [HUGE]
        tree = TokenTree([*ids, 7], [*parents, place])
        others = [node for node in range(6) if node != place]
        for length in (1, 14, 40):
            key = 0
            want = logits(made, key, TEXT[:length], sound)
            found = logits(made, 1, TEXT[:length], tree)
            assert torch.equal(found[others], want) and want.isfinite().all()
            assert not found[[place, 6]].isfinite().any()
            assert found.shape == (7, V)
            made.keep(1, [0, others[1]])
            made.keep(0, [0, 1])
            follow = TokenTree.chain([7, 3, 8, 11, 12])
            assert torch.equal(logits(made, 1, [], follow), logits(made, 0, [], follow))
            made.free(1)
            assert torch.equal(logits(made, 2, TEXT[:length], sound), want)  # in that row
            for each in (0, 2):
                made.free(each)


def test_the_best_of_rows_beside_one_that_overflows() -> None:
    weights = packed(overflowing(), "bfloat16")
    made = NativeRunner(overflowing(), team=Team(2), packed=weights)
    tree = TokenTree([9, HUGE, 5], [-1, 0, 0])
    (output,) = made.forward([Work(0, TEXT[:9], tree, greedy=True)])
    best = list(output.argmaxes or ())
    (plain,) = made.forward([Work(1, TEXT[:9], TokenTree.chain([9, 5]), greedy=True)])
    assert [best[0], best[2]] == list(plain.argmaxes or ()) and best[1] == -1


# --- another thread -------------------------------------------------------------------------------


def test_closing_waits_for_the_pass() -> None:
    made, tree = runner(), TokenTree.chain([9])
    want = logits(made, 0, TEXT, tree)
    entered, order = threading.Event(), list[str]()
    real = made._forward

    def slow(*arguments: Any) -> Any:
        entered.set()
        closing.join(0.05)
        order.append("pass")
        return real(*arguments)

    def close() -> None:
        entered.wait()
        made.close()
        order.append("close")

    closing = threading.Thread(target=close)
    closing.start()
    made._forward = slow  # type: ignore[method-assign]
    assert torch.equal(logits(made, 0, [], tree), want)
    closing.join()
    made._forward = real  # type: ignore[method-assign]
    assert order == ["pass", "close"] and made.cached(0) == 0 and not made._cache.rows
    assert torch.equal(logits(made, 0, TEXT, tree), want)


def test_a_long_row_lets_its_memory_go_and_a_short_one_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("rows", "native_rows"):
        monkeypatch.setattr(f"draftproof.runners.{module}.FIRST_SLOTS", 16)
    made = runner()
    cache = made._cache
    short, long = [3, 4, 5], TEXT
    wanted = logits(made, 1, short, TokenTree.chain([6]))
    handle, slots = cache._handles[0], cache._slots[0]
    made.free(1)
    made.expect(2, slots)
    assert torch.equal(logits(made, 2, short, TokenTree.chain([6])), wanted)
    assert cache._handles == {0: handle}
    made.forward([Work(2, long, None)])
    assert cache._handles[0] == handle and cache._slots[0] > 16
    monkeypatch.setattr("draftproof.runners.rows.SPARE", 0.0)
    made.free(2)
    assert not cache._slots and not cache._handles
    assert torch.equal(logits(made, 3, short, TokenTree.chain([6])), wanted)
