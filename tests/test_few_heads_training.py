"""Training heads that guess a part of the vocabulary; how they draft: test_few_heads.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import draftproof as dp
import tiny
from cyclic import V as LANGUAGE
from cyclic import batch_of, cycle
from distilling import Watch, language, options
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.proposers.medusa import Medusa
from draftproof.training.jobs.draft import DraftJob
from draftproof.training.jobs.medusa import HeadsJob, Options
from draftproof.training.recipes import few_tokens, medusa
from few_heads import IDS, not_its_head
from fitted_heads import D, V, random, target
from head_files import TENSORS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language(tmp_path_factory.mktemp("few"))


@pytest.mark.parametrize("own", [False, True])
def test_heads_of_few_tokens_are_trained_and_served(folder: Path, own: bool) -> None:
    out = folder / f"heads-{own}"
    given = options(
        folder, Options, out=out, num_heads=2, own_head=own, draft_vocabulary=40, export=["vllm"]
    )
    report = HeadsJob(given, Watch()).run()
    assert report.predicted == report.served > 1.5
    for place in (out, out / "vllm"):
        heads = files.load(place)
        assert heads.tokens is not None and len(heads.tokens) == 40 and heads.outputs is not None
        assert heads.outputs.shape == (2 if own else 1, 40, D)
    rows = load_file(folder / "target" / TENSORS)
    same = torch.equal(heads.outputs[0], rows["lm_head.weight"][heads.tokens])
    assert same != own  # one copy for all stays as it is
    asked = dp.SamplingParams(max_tokens=24, ignore_eos=True)
    with dp.LLM(str(folder / "target"), device="cpu", speculate=None) as llm:
        (wanted,) = llm.generate(cycle(4, 6), asked)
        llm.use(Medusa(out))
        (drafted,) = llm.generate(cycle(4, 6), asked)
    assert drafted.token_ids == wanted.token_ids and not drafted.warnings
    assert drafted.stats.accepted > 3


def test_an_exit_of_few_tokens_is_served_as_predicted(folder: Path) -> None:
    out = folder / "exit"
    report = DraftJob(
        options(folder, exit_layer=1, blocks=2, draft_vocabulary=40, out=out), Watch()
    ).run()
    greedy = report.served[0]
    assert greedy.predicted == greedy.tokens_per_step > 1.5
    assert greedy.predicted_alpha == greedy.alpha
    heads = files.load(out)
    assert heads.exit == 1 and heads.tokens is not None and len(heads.tokens) == 40


def test_only_labels_among_them_are_learnt_and_the_rest_is_never_right() -> None:
    """The loss is cross-entropy over the part, of the labels in it; ranks tell what is served."""
    model: Any = target("llama", torch.float32).requires_grad_(False)
    batch = batch_of([[3, 5, 4, 7, 9, 11, 2, 13, 15, 17]], 10)
    heads = few_tokens.fewer(medusa.fresh(model, 2), model, IDS)
    recipe = medusa.Medusa(model, heads, [batch])
    got = recipe(batch, 0.0)
    states = model.get_decoder()(batch["ids"]).last_hidden_state[0]
    logits = (states @ model.get_output_embeddings().weight[IDS].T).log_softmax(-1)
    wanted = 0.0
    for k in (1, 2):
        places = [at for at in range(10 - k - 1) if int(batch["ids"][0, at + k + 1]) % 2]
        classes = [int(batch["ids"][0, at + k + 1]) // 2 for at in places]
        wanted -= medusa.DECAY**k * float(logits[places, classes].mean())
        assert len(places) < 10 - k - 1
    assert got["loss"].item() == pytest.approx(wanted, rel=1e-5)
    ranks = recipe.ranks(batch)
    served = heads.logits(states, not_its_head)
    for k in (1, 2):
        for at in range(10 - k - 1):
            token, rank = int(batch["ids"][0, at + k + 1]), int(ranks[at, k - 1])
            row = served[k - 1, at]
            assert rank == (int((row > row[token]).sum()) if token % 2 else V)
    got["loss"].backward()
    assert heads.weights.grad is not None and heads.outputs is not None
    assert heads.outputs.grad is None and heads.weights.grad.abs().sum() > 0
    assert "heads.outputs" not in recipe.state_dict()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"draft_vocabulary": LANGUAGE}, "must be below the target's"),
        ({"draft_vocabulary": 0}, "must be below the target's"),
        ({"draft_vocabulary": 9, "joint": True}, "--joint changes it: drop one"),
        (
            {"draft_vocabulary": 9, "export": ["original"]},
            "original has no heads of a part",
        ),
        ({"draft_vocabulary": 9, "start": "own"}, "have projections of their own"),
        ({"joint": True, "start": "few"}, "guess a part of the tokens: drop --joint"),
        ({"export": ["original"], "start": "few"}, "guess a part of the tokens: drop --joint"),
    ],
)
def test_wrong_options(folder: Path, changes: dict[str, Any], said: str) -> None:
    if "start" in changes:
        whole = Heads(random(1, 1, D, D), None, random(1, LANGUAGE, D), vocab_size=LANGUAGE)
        files.save(folder / "own", whole)
        rows = random(1, 9, D)
        part = Heads(whole.weights, None, rows, vocab_size=LANGUAGE, tokens=torch.arange(9))
        files.save(folder / "few", part)
        read = files.load(folder / "few").outputs
        assert read is not None and not read.requires_grad  # a copy for all, of a single head too
        changes = changes | {"start": str(folder / str(changes["start"]))}
    given = options(folder, Options, out=folder / "wrong", num_heads=1, **changes)
    with pytest.raises(ValueError, match=said):
        HeadsJob(given, Watch()).run()


def test_a_head_that_is_no_plain_matrix() -> None:
    model: Any = tiny.model("llama")
    head = model.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.zeros(len(head.weight)))
    with pytest.raises(ValueError, match="is no plain matrix: drop --draft-vocabulary"):
        few_tokens.check_target(model, 9)


@pytest.mark.parametrize("name", ["logit_scale", "logits_scaling", "final_logit_softcapping"])
def test_a_target_that_scales_its_logits(name: str) -> None:
    model: Any = tiny.model("llama")
    setattr(model.config, name, 1.0)
    few_tokens.check_target(model, 9)
    setattr(model.config, name, 8.0)
    with pytest.raises(ValueError, match=f"{name} is not in its LM head: drop"):
        few_tokens.check_target(model, 9)
