"""Inputs of several lengths that an encoder reads in one row: each as if it were read alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import draftproof as dp
from draftproof.runners import few_rows, makers, spanning
from draftproof.runners.base import EncoderInput
from encoders import FAMILIES, model, own, prompts

# Their encoders attend in blocks of their own, within windows, or bound what experts take.
ONE_BY_ONE = ("LongT5", "PegasusX", "Switch", "NLLB-MoE", "T5Gemma")


@pytest.mark.parametrize("family", FAMILIES)
def test_states_in_a_row_are_those_of_each_alone(family: str) -> None:
    llm = dp.LLM(model(family), speculate=None)
    runner: Any = llm.runner
    assert runner.reader.packs is (family not in ONE_BY_ONE)
    if not runner.reader.packs:
        return
    given = [EncoderInput(prompt) for prompt in prompts(6)]
    assert len({one.size for one in given}) > 3
    for packed, one in zip(runner.reader.read_row(given), given, strict=True):
        torch.testing.assert_close(packed, runner.reader.read([one]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ["T5", "BART", "Marian"])
def test_one_pass_reads_all_and_the_texts_are_transformers(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a row where there is room, the rest as before; nothing is read twice."""
    made, given = model(family), prompts(8)
    llm = dp.LLM(made, speculate=None)
    llm.generate(given[:1], dp.SamplingParams(max_tokens=1))  # tells who makes keys and values
    runner: Any = llm.runner
    rows: list[int] = []
    runner.reader.read_row = counted(runner.reader.read_row, rows)
    monkeypatch.setattr(spanning, "MOST", sum(map(len, given)) - 1)
    done = llm.generate(given, dp.SamplingParams(max_tokens=8))
    assert rows == [7]
    assert [one.token_ids for one in done] == [own(made, prompt, 8) for prompt in given]


def counted(call: Any, rows: list[int]) -> Any:
    def counting(batch: Any) -> Any:
        rows.append(len(batch))
        return call(batch)

    return counting


def test_an_encoder_that_mixes_inputs_is_found() -> None:
    """Neighbours that leak by a thousandth, besides attention."""
    made = copy.deepcopy(model("BART"))
    last: Any = made.get_encoder().layers[-1]

    def leak(module: Any, args: Any, output: Any) -> Any:
        states = output[0] if isinstance(output, tuple) else output
        mixed = states + 1e-3 * states.mean(1, keepdim=True)
        return (mixed, *output[1:]) if isinstance(output, tuple) else mixed

    last.register_forward_hook(leak)
    runner: Any = dp.LLM(made, speculate=None).runner
    assert not runner.reader.packs


def test_makers_are_found_by_what_they_make_and_followed_by_path() -> None:
    """A part that is exchanged is asked in its stead; two that make the same tell nothing."""
    made = copy.deepcopy(model("BART"))
    llm = dp.LLM(made, speculate=None)
    params = dp.SamplingParams(max_tokens=6)
    llm.generate(prompts(2), params)
    runner: Any = llm.runner
    assert [(each.keys, each.values) for each in runner._makers] == [("k_proj", "v_proj")] * 2

    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return -self.inner(x)

    layer: Any = made.get_decoder().layers[0].encoder_attn
    layer.v_proj = Wrapped(layer.v_proj)
    got = llm.generate(prompts(3)[2:], params)[0].token_ids
    assert got == own(made, prompts(3)[2], 6)

    pair = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)
    flat = [each.transpose(1, 2).flatten(2) for each in pair]
    parts = nn.ModuleDict({"a": nn.Identity(), "b": nn.Identity()})
    a, b = parts["a"], parts["b"]
    (maker,) = makers.found({parts: 0}, {0: pair}, {a: flat[1], b: flat[0]}) or []
    assert (maker.keys, maker.values, maker.heads) == ("b", "a", 2)
    assert makers.found({parts: 0}, {0: (pair[0], pair[0])}, {a: flat[0], b: flat[0]}) is None
    assert makers.found({parts: 0}, {0: pair}, {a: flat[0]}) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_of_few_rows_is_in_use_and_changes_no_text(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it and with torch's alone: the same texts, with and without drafts."""
    calls: list[int] = []
    call = few_rows.attend
    monkeypatch.setattr(few_rows, "attend", lambda *a, **k: calls.append(1) or call(*a, **k))
    given, params = prompts(5), dp.SamplingParams(max_tokens=10)
    for speculate in (None, dp.NGram(min_ngram=1)):
        llm = dp.LLM(model(family), speculate=speculate)
        calls.clear()
        with_it = [one.token_ids for one in llm.generate(given, params)]
        assert calls or few_rows.found() is None
        with monkeypatch.context() as patched:
            patched.setattr(few_rows, "found", lambda: None)
            assert [one.token_ids for one in llm.generate(given, params)] == with_it
