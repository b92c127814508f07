"""Drafts that write few tokens: their head's zeros are not multiplied, and change nothing."""

from __future__ import annotations

import copy
import ctypes
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import draftproof as dp
import tiny
from compiled import SHAPE, Raw
from cyclic import V, cycle
from distilling import Watch, cyclic, language, options
from draftproof import native
from draftproof.runners import reduced
from draftproof.training.data.rows import Document
from draftproof.training.jobs.draft import DraftJob
from draftproof.training.recipes.few_tokens import FewTokens, check_target, most_frequent, reduce
from draftproof.training.recipes.losses import forward_kl

BUILT = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
SIZE, KEPT = 500, 70


def sparse(sign: float = 1.0) -> Any:
    """A random model whose head has `KEPT` rows that are not zeros. sign: -1 makes logits low."""
    shape = {"vocab_size": SIZE, "hidden_size": 64, "head_dim": 16, "initializer_range": 0.02}
    model: Any = tiny.model("llama", dtype=torch.bfloat16, tie_word_embeddings=False, **shape)
    with torch.no_grad():
        zeros = torch.ones(SIZE, dtype=torch.bool)
        zeros[torch.randperm(SIZE, generator=torch.Generator().manual_seed(1))[:KEPT]] = False
        model.lm_head.weight *= 20
        model.lm_head.weight[zeros] = 0
        if sign < 0:  # every row points away from the norm's weight, so all logits are below 0
            model.model.norm.weight.fill_(0.0)
            model.model.norm.weight[0] = 1.0
            model.lm_head.weight[~zeros, 0] = 0.0
    return model


def told(model: Any) -> Any:
    """The same model, of whose head it is said that it has zeros."""
    model = copy.deepcopy(model)
    model.config.draft_vocab_size = KEPT
    return model


@BUILT
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_kernels_give_what_the_whole_head_gives(
    dtype: str, sign: float, tmp_path: Path
) -> None:
    model = sparse(sign)
    model.save_pretrained(tmp_path / "whole")
    told(model).save_pretrained(tmp_path / "few")
    written: dict[str, list[Any]] = {}
    for name in ("whole", "few"):
        with dp.LLM(str(tmp_path / name), dtype=dtype, runner="native", speculate=None) as llm:
            packed: Any = llm.runner.packed
            assert packed.shape.outputs == (KEPT if name == "few" else 0)
            for params in (
                dp.SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
                dp.SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logprobs=4),
                dp.SamplingParams(temperature=1, seed=5, max_tokens=20, ignore_eos=True),
                dp.SamplingParams(temperature=1, seed=5, top_p=0.8, max_tokens=9, ignore_eos=True),
            ):
                for done in llm.generate([[1, 2, 3], [4, 5]], params):
                    written.setdefault(name, []).append((done.token_ids, done.logprobs))
            hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
            written[name].append(llm.runner.head(hidden).tolist())
    assert written["few"] == written["whole"]


@BUILT
def test_without_a_word_in_the_configuration_all_rows_are_packed() -> None:
    model = sparse()
    with dp.LLM(model, runner="native", speculate=None) as llm:
        assert llm.runner.packed.kept is None
    model.config.draft_vocab_size = KEPT
    with torch.no_grad():
        model.lm_head.weight += 1.0
    with dp.LLM(model, runner="native", speculate=None) as llm:
        assert llm.runner.packed.kept is None


@BUILT
def test_a_head_that_lacks_rows_is_not_the_embeddings() -> None:
    threads = native.library().dp_team_new(1)
    few = Raw(native.library(), outputs=40)
    code = few.matrix(native.HEAD, 0, 40, SHAPE["hidden"])
    assert (
        code == native.OK and few.codes[0] == native.BAD_ARGUMENT
    )  # which packs as many rows as there are tokens
    row = few.row(8)
    assert few.forward(threads, row, [1, 2])[0] == native.BAD_ARGUMENT
    given = (ctypes.c_uint16 * (SHAPE["vocabulary"] * SHAPE["hidden"]))()
    assert native.library().dp_model_embeddings(few.model, given) == native.OK
    assert few.forward(threads, row, [1, 44])[0] == native.OK
    native.library().dp_row_free(row)
    native.library().dp_team_free(threads)


def test_who_wrote_in_inference_mode_reads_outside_of_it_too() -> None:
    """As whoever measures passes of a draft that has drafted before."""
    made = reduced.Reduced(torch.tensor([1, 3]), 4, rest=-1.0)
    with torch.inference_mode():
        made.widened(torch.ones(2, 2))
    assert made.widened(torch.ones(1, 2)).tolist() == [[-1.0, 1.0, -1.0, 1.0]]


def test_the_most_frequent_tokens_of_what_is_learnt() -> None:
    texts = [Document([5, 5, 5, 7, 7, 2]), Document([9, 9, 9, 9, 1], [False] * 4 + [True])]
    assert most_frequent(texts, 2, 20).tolist() == [5, 7]
    assert most_frequent(texts, 4, 20, [19]).tolist() == [1, 5, 7, 19]
    for count in (0, 97, 98):
        with pytest.raises(ValueError, match="must be below the target's 97 tokens"):
            check_target(tiny.model("llama"), count)


def test_one_class_stands_for_all_other_tokens() -> None:
    """What the student learns is the divergence of its law, with the others taken together."""
    model: Any = copy.deepcopy(cyclic()).float()
    ids = torch.arange(0, V, 3)
    reduce(model, ids)
    few = FewTokens(ids, V)
    states = torch.randn(11, model.config.hidden_size, generator=torch.Generator().manual_seed(2))
    target = nn.Linear(model.config.hidden_size, V, bias=False)
    p, q = target(states).softmax(-1), model.lm_head(states).softmax(-1)
    grouped = []
    for law in (p, q):
        rest = law.index_select(-1, few.others).sum(-1, keepdim=True)
        grouped.append(torch.cat((law[:, ids], rest), -1))
    want = (grouped[0] * (grouped[0] / grouped[1]).log()).sum(-1)
    got = forward_kl(few.teacher(target)(states), few.student(model)(states))
    assert torch.allclose(got, want, atol=1e-5)
    assert few.labels(torch.tensor([0, 1, 3, 52])).tolist() == [0, len(ids), 1, len(ids)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language(tmp_path_factory.mktemp("few"))


@pytest.mark.parametrize("loss", ["forward-kl", "text"])
def test_a_draft_of_few_tokens_is_trained_served_and_goes_on(folder: Path, loss: str) -> None:
    out = folder / loss
    made = DraftJob(options(folder, size="1", draft_vocabulary=40, loss=loss, out=out), Watch())
    report = made.run()
    greedy = report.served[0]
    assert greedy.predicted == greedy.tokens_per_step > 1.5
    head = load_file(out / "model.safetensors")["lm_head.weight"]
    assert head.shape[0] == V and int(head.ne(0).any(1).sum()) == 40
    config = json.loads((out / "config.json").read_text())
    assert config[reduced.FIELD] == 40 and not config["tie_word_embeddings"]
    params = dp.SamplingParams(max_tokens=24, ignore_eos=True)
    with dp.LLM(str(folder / "target"), device="cpu", speculate=None) as llm:
        plain = llm.generate(cycle(4, 6), params)[0]
        llm.use(dp.DraftModel(out))
        drafted = llm.generate(cycle(4, 6), params)[0]
    assert drafted.token_ids == plain.token_ids and not drafted.warnings
    assert drafted.stats.accepted > 3
    more = options(
        folder, start=str(out), draft_vocabulary=40, out=folder / f"more-{loss}", steps=4, rate=1e-4
    )
    again = DraftJob(more, Watch()).run()
    assert again.held_out["score"] == pytest.approx(report.held_out["score"], abs=0.5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": "1", "draft_vocabulary": V}, "must be below the target's"),
        ({"size": "1", "draft_vocabulary": 0}, "must be below the target's"),
        ({"exit_layer": 1, "draft_vocabulary": V}, "must be below the target's"),
    ],
)
def test_wrong_numbers(folder: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DraftJob(options(folder, out=folder / "wrong", **changes), Watch()).run()
    assert not (folder / "wrong").exists()
