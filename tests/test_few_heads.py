"""Heads that guess a part of the vocabulary: on disk, in drafts, in training; no token changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import draftproof as dp
from cases import PROMPTS
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.heads.placed import placed
from draftproof.proposers.medusa import Medusa
from few_heads import IDS, few, not_its_head, of_part
from fitted_heads import (
    D,
    K,
    V,
    accepted,
    case_of,
    fitted,
    llm_of,
    params,
    plain,
    random,
    tokens_of,
)
from head_files import TENSORS

RUNNERS = [("torch", torch.float64), ("native", torch.bfloat16)]


# --- on disk ---


@pytest.mark.parametrize("write", [files.save, files.export_vllm])
@pytest.mark.parametrize("own", [False, True])
def test_what_is_written_is_read(write: Callable[..., None], own: bool, tmp_path: Path) -> None:
    heads, states = few(own), random(5, D, seed=9)
    write(tmp_path, heads)
    read = files.load(tmp_path)
    with torch.no_grad():
        rows = [each.logits(states, not_its_head) for each in (heads, read)]
    assert torch.equal(*rows) and rows[0].shape == (K, 5, V)
    others = K * 5 * (V - len(IDS))
    assert rows[0][..., IDS].isfinite().all() and rows[0].isneginf().sum() == others
    names = sorted(load_file(tmp_path / TENSORS))
    assert "token_map" in names and ("lm_head.weight" in names) == (not own)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["vocab_size"] == V and config.get("truncated_vocab_size", 48) == len(IDS)


def test_ids_in_any_order_and_rows_of_all_tokens(tmp_path: Path) -> None:
    """As others may have written them; what a map leaves out of whole projections is cut off."""
    heads, states = few(own=True), random(5, D, seed=9)
    assert heads.outputs is not None
    wanted = heads.logits(states, lambda _: _)
    files.export_vllm(tmp_path, heads)
    whole = torch.zeros(K, V, D)
    whole[:, IDS] = heads.outputs.detach()
    order = torch.randperm(len(IDS), generator=torch.Generator().manual_seed(0))
    for outputs in (whole, heads.outputs[:, order]):
        tensors = load_file(tmp_path / TENSORS) | {"token_map": IDS[order]}
        tensors |= {f"lm_heads.{k}.weight": outputs[k].clone() for k in range(K)}
        files.save_file(tensors, tmp_path / TENSORS)
        assert torch.equal(files.load(tmp_path).logits(states, lambda _: _), wanted)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("sorted_", [False, True])
def test_a_map_of_all_tokens_is_none(own: bool, sorted_: bool, tmp_path: Path) -> None:
    """A shared projection is the target's then."""
    outputs, states = random(K, V, D), random(5, D, seed=9)
    heads = Heads(random(K, 1, D, D), outputs=outputs if own else None, vocab_size=V)
    files.export_vllm(tmp_path, heads, None if own else outputs[0])
    order = torch.randperm(V, generator=torch.Generator().manual_seed(0))
    order = torch.arange(V) if sorted_ else order
    tensors = load_file(tmp_path / TENSORS)
    tensors = {n: t[order] if n.startswith("lm_head") else t for n, t in tensors.items()}
    files.save_file(tensors | {"token_map": order}, tmp_path / TENSORS)
    read = files.load(tmp_path)
    assert read.tokens is None and read.shared is not own
    with torch.no_grad():
        rows = [each.logits(states, lambda x: x @ outputs[0].T) for each in (heads, read)]
    assert torch.equal(*rows)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_map": IDS[:5]}, "token_map has 5 ids and not as many as the heads"),
        ({"token_map": IDS.clamp(max=7)}, "token_map is no ascending ids of 97 tokens"),
        ({"token_map": IDS - 5}, "token_map is no ascending ids of 97 tokens"),
        ({"token_map": IDS + 5}, "token_map is no ascending ids of 97 tokens"),
        ({"token_map": IDS + 0.5}, "token_map is no ascending ids of 97 tokens"),
        ({"token_map": IDS[None]}, "token_map"),
        ({"token_map": IDS[:0]}, "token_map"),
        ({"token_map": IDS[0]}, "and should be a row of ids"),
        ({"token_map": None}, "the tensor token_map is missing"),
        ({"lm_head.weight": None}, "the tensor lm_head.weight is missing"),
        ({"lm_head.weight": torch.tensor(0.5)}, "and not as many as the heads"),
        ({"lm_head.weight": torch.zeros(len(IDS))}, "outputs is"),
        ({"lm_head.weight": torch.zeros(len(IDS), D - 1)}, "outputs is"),
        ({"lm_head.weight": torch.full((len(IDS), D), torch.nan)}, "outputs holds NaN"),
    ],
)
def test_files_that_are_wrong(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    files.export_vllm(tmp_path, few())
    tensors = load_file(tmp_path / TENSORS) | changes
    files.save_file({n: t for n, t in tensors.items() if t is not None}, tmp_path / TENSORS)
    with pytest.raises(ValueError, match=said) as caught:
        files.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_the_layout_that_has_no_part_of_a_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no heads of a part of the vocabulary"):
        files.export_original(tmp_path, few())
    with pytest.raises(ValueError, match="have outputs for these"):
        Heads(random(K, 1, D, D), vocab_size=V, tokens=IDS)


# --- drafts ---


@pytest.mark.parametrize(("runner", "dtype"), RUNNERS)
@pytest.mark.parametrize("own", [False, True])
def test_on_a_target_they_are_what_they_are_alone(
    runner: str, dtype: torch.dtype, own: bool
) -> None:
    heads, states = few(own).to(dtype), random(5, D, seed=9).to(dtype)
    with llm_of("llama", dtype=dtype, runner=runner) as llm, torch.no_grad():
        on = placed(heads, llm.runner).logits(states)
        first = placed(heads, llm.runner).logits(states, 1)
    alone = heads.double().logits(states.double(), not_its_head)
    assert torch.equal(on.isneginf(), alone.isneginf())
    at = alone.isfinite()
    off = 0.02 if dtype != torch.float64 else 1e-9
    assert torch.allclose(on.double()[at], alone[at], atol=off)
    assert torch.allclose(first.double()[at[:1]], alone[:1][at[:1]], atol=off)


@pytest.mark.parametrize(("runner", "dtype"), RUNNERS)
@pytest.mark.parametrize("case", ["greedy", "everything"])
def test_heads_do_not_change_a_token(runner: str, dtype: torch.dtype, case: str) -> None:
    """Half of the tokens, those that the texts have most; the others are never guessed."""
    texts = torch.tensor(sum(plain("llama", case, dtype), []))
    ids = torch.bincount(texts, minlength=V).argsort(descending=True)[: V // 2].sort().values
    heads = of_part(fitted("llama", dtype), ids).to(dtype)
    with llm_of("llama", Medusa(heads, "grown"), dtype, runner=runner, max_batch=3) as llm:
        (asked, *_) = requests = [
            each for prompt in PROMPTS for each in llm.submit(prompt, params(**case_of(case)))
        ]
        drafted = set[int]()
        for _ in llm.engine.run(requests):
            if asked.feedback is not None:
                drafted |= {*asked.feedback.tree.tokens[1:]}
        outs = [each.completion() for each in requests]
    assert tokens_of(outs) == plain("llama", case, dtype)
    assert 0 < accepted(outs) < sum(out.stats.drafted for out in outs)
    assert drafted <= {*ids.tolist()}


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("by", ["a rule from outside", "its own parameters"])
def test_a_request_that_allows_none_of_them(temperature: float, rule: str, by: str) -> None:
    def process(ids: Tensor, row: Tensor) -> Tensor:
        return row.index_fill(-1, IDS, -torch.inf)

    exit = Heads(
        torch.zeros(1, 1, D, D),
        None,
        random(1, len(IDS), D),
        vocab_size=V,
        tokens=IDS,
        exit=1,
    )
    texts = []
    with llm_of("llama", rule=rule) as llm:
        for proposer in (None, Medusa(few(), "grown"), dp.EarlyExit(heads=exit)):
            llm.use(proposer)
            banned = tuple(IDS.tolist()) if by == "its own parameters" else ()
            asked = llm.submit(PROMPTS[0], params(temperature=temperature, bad_token_ids=banned))
            if not banned:
                asked[0].history.process = process
            list(llm.engine.run(asked))
            done = asked[0].completion()
            assert done.stats.drafted == 0 and not done.warnings and done.error is None
            assert not {*IDS.tolist()} & {*done.token_ids}
            texts.append(done.token_ids)
    assert texts == texts[:1] * 3
