"""Training of heads: the loss, the loop, resumption, what is kept, what is refused."""

from __future__ import annotations

import copy
import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import tiny
from cyclic import Repeated, V, batch_of, cycle
from draftproof.heads.module import Heads
from draftproof.training import checkpoint, trainer
from draftproof.training.data.capture import Captured, capture, key
from draftproof.training.data.rows import Document, Stream, pack
from draftproof.training.data.states import check, labelled, states_of
from draftproof.training.recipes import calibrate, losses
from draftproof.training.recipes.medusa import DECAY, HEADS_RATE, Medusa, fresh
from draftproof.training.trainer import Diverged, Plan, train


@pytest.fixture(scope="module")
def cyclic() -> Any:
    """A model that knows the cyclic language, trained here in a second or two."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=V,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                max_position_embeddings=64,
                bos_token_id=None,
                eos_token_id=None,
                tie_word_embeddings=False,
            )
        )
        rows = torch.tensor([cycle(i, 24) for i in range(V)])
        adam = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(60):
            logits = model(rows[:, :-1]).logits
            loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            loss.backward()
            adam.step()
            adam.zero_grad()
    assert float(loss.detach()) < 0.05
    return model.eval()


# --- the loss ---


def oracle_loss(target: Any, heads: Heads, texts: list[list[int]]) -> float:
    """Medusa-1 of documents run alone: sum over heads of 0.8^k times the mean cross-entropy."""
    total = 0.0
    for k in range(1, heads.heads + 1):
        found = []
        for ids in texts:
            states = target.model(torch.tensor([ids])).last_hidden_state[0]
            w = heads.weights[k - 1, 0]
            for t in range(len(ids) - k - 1):
                x = states[t] + F.silu(w @ states[t])
                found.append(-target.lm_head(x).log_softmax(-1)[ids[t + k + 1]])
        total += 0.8**k * float(torch.stack(found).mean())
    return total


@torch.no_grad()
def test_the_loss_is_the_papers(cyclic: Any) -> None:
    heads = fresh(cyclic, 3)
    heads.weights.normal_(0, 0.2, generator=torch.Generator().manual_seed(0))
    texts = [cycle(3, 20), cycle(8, 9), cycle(20, 11)]
    found = Medusa(cyclic, heads, [])(batch_of(texts, 20), 0.0)["loss"]
    assert float(found) == pytest.approx(oracle_loss(cyclic, heads, texts), rel=1e-5)
    assert DECAY == 0.8


def test_heads_begin_as_the_lm_head(cyclic: Any) -> None:
    for own in (False, True):
        heads = fresh(cyclic, 2, own=own)
        states = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
        wanted = cyclic.lm_head(states)
        torch.testing.assert_close(heads.logits(states, cyclic.lm_head), wanted.expand(2, 5, V))


def test_no_label_lies_in_another_document_or_is_not_learnt() -> None:
    texts = [[1, 2, 3, 4, 5], [6, 7, 8]]
    taught = [[False, False, False, True, True], [True, True, True]]
    batch = batch_of(texts, 10, taught)
    flat = batch["ids"].flatten()
    for ahead in range(1, 6):
        at, labels = labelled(batch, ahead)
        wanted = {
            (ids[t], ids[t + ahead])
            for ids, marks in zip(texts, taught, strict=True)
            for t in range(len(ids) - ahead)
            if marks[t + ahead]
        }
        assert set(zip(flat[at].tolist(), labels.tolist(), strict=True)) == wanted


def test_gradient_of_the_loss_weights(cyclic: Any) -> None:
    """By finite difference, in fp64, through blocks, head and weights."""
    target = copy.deepcopy(cyclic).double().requires_grad_(False)
    heads = fresh(target, 2).double()
    with torch.no_grad():
        heads.weights.normal_(0, 0.1, generator=torch.Generator().manual_seed(2))
    recipe, batch = Medusa(target, heads, []), batch_of([cycle(5, 16)], 16)

    # The loss itself is summed in fp32, so the step is wide.
    recipe(batch, 0.0)["loss"].backward()
    assert heads.weights.grad is not None
    for index in ((0, 0, 3, 4), (1, 0, 7, 1)):
        step, found = 1e-2, []
        for sign in (1, -1):
            with torch.no_grad():
                heads.weights[index] += sign * step
                found.append(float(recipe(batch, 0.0)["loss"]))
                heads.weights[index] -= sign * step
        slope = (found[0] - found[1]) / (2 * step)
        assert float(heads.weights.grad[index]) == pytest.approx(slope, rel=2e-2, abs=1e-4)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(8, V, bias=False)
    with torch.no_grad():
        head.weight.normal_(generator=generator)
    labels = torch.randint(V, (37,), generator=generator)
    found = []
    for elements in (1 << 20, 5 * V):
        monkeypatch.setattr(losses, "ELEMENTS", elements)
        states = torch.randn(37, 8, generator=torch.Generator().manual_seed(3), requires_grad=True)
        loss, right = losses.cross_entropy(states, labels, head)
        loss.backward()
        found.append((loss.detach(), right, states.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("cached", [1 << 20, 5 * V])
def test_a_gradient_taken_at_once_is_the_same(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CACHED", cached)
    monkeypatch.setattr(losses, "LEAST", 1)
    generator = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(V, 8, generator=generator), torch.randn(37, 8, generator=generator))
    labels = torch.randint(V, (37,), generator=generator)
    found = []
    for frozen in (False, True):
        states = rows.clone().requires_grad_()
        loss, right = losses.cross_entropy(states, labels, lambda x: x @ weight.T, frozen)
        (3 * loss).backward()
        found.append((loss.detach(), right, states.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_rows_at_once_are_enough_for_a_large_vocabulary() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert losses.at_once(8192, cpu) == losses.at_once(151_936, cpu) == 128
    assert losses.at_once(97, cpu) == (1 << 20) // 97
    assert losses.at_once(151_936, gpu) == losses.ELEMENTS // 151_936 == 220


# --- the loop ---


def plan(steps: int, **more: Any) -> Plan:
    return Plan(steps, 8, every=50, warmup=10, **more)


def heads_of(
    target: Any, folder: Path, plan: Plan, heads: int = 3, **more: Any
) -> tuple[Medusa, trainer.State]:
    rows = pack([Document(cycle(i, 24)) for i in range(V)], 24)
    recipe = Medusa(target, fresh(target, heads), [rows_batch(rows)], rate=1e-2)
    folder.mkdir(exist_ok=True)
    options = {"about": {"data": "cycle"}, "cpu": True} | more
    return recipe, train(recipe, lambda n: Stream(rows, n, 0), plan, folder, **options)


def rows_batch(rows: Any) -> dict[str, Tensor]:
    return {k: torch.stack([rows[i][k] for i in range(len(rows))]) for k in rows[0]}


def test_every_head_learns_a_cyclic_language_and_the_target_stays(
    cyclic: Any, tmp_path: Path
) -> None:
    before = {name: t.clone() for name, t in cyclic.state_dict().items()}
    recipe, state = heads_of(cyclic, tmp_path, plan(300), heads=5)
    found = state.evaluations[-1]
    assert [found[f"head {k}"] for k in range(1, 6)] == [1.0] * 5
    assert found["score"] == 6.0  # five heads that are always right, and the bonus
    after = cyclic.state_dict()
    assert all(torch.equal(t, after[name]) for name, t in before.items())
    assert state.tokens == 300 * 8 * 24


def test_a_resumed_training_has_the_losses_of_an_uninterrupted_one(
    cyclic: Any, tmp_path: Path
) -> None:
    whole, straight = heads_of(cyclic, tmp_path / "a", plan(60, patience=0))
    count = itertools.count(1)
    _, first = heads_of(
        cyclic, tmp_path / "b", plan(60, patience=0), stopped=lambda: next(count) == 23
    )
    assert (first.step, first.reason) == (23, "interrupted")
    parts, state = heads_of(cyclic, tmp_path / "b", plan(60, patience=0), resume=True)
    assert state.losses == straight.losses and len(state.losses) == 60
    assert torch.equal(parts.heads.weights, whole.heads.weights)


def test_a_checkpoint_is_not_written_over(cyclic: Any, tmp_path: Path) -> None:
    stop: Any = {"stopped": lambda: True}
    heads_of(cyclic, tmp_path, plan(20), **stop)
    with pytest.raises(ValueError, match="--resume"):
        heads_of(cyclic, tmp_path, plan(20))
    with pytest.raises(ValueError, match="made with data cycle, not else"):
        heads_of(cyclic, tmp_path, plan(20), resume=True, about={"data": "else"})
    with pytest.raises(ValueError, match="made with steps 20, not 21"):
        heads_of(cyclic, tmp_path, plan(21), resume=True)
    checkpoint.clear(tmp_path)
    assert heads_of(cyclic, tmp_path, plan(3))[1].step == 3


class Odd(nn.Module):
    """A recipe whose loss and scores are prescribed."""

    def __init__(self, loss: Any, scores: Any = (), rate: float = 0.1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.prescribed, self.scores, self.step = loss, iter(scores), 0
        self.rate = rate
        self.modes: list[bool] = []

    def forward(self, batch: Any, share: float) -> dict[str, Tensor]:
        self.step += 1
        loss = self.weight.sum() * 1.0 + self.prescribed(self.step)
        return {"loss": loss, "labels": torch.tensor(4.0)}

    def optimisers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.parameters(), lr=self.rate)]

    def evaluate(self, device: torch.device) -> dict[str, float]:
        self.modes.append(self.training)
        score = next(self.scores)
        return {} if score is None else {"score": score}


def odd(recipe: Odd, folder: Path, plan: Plan, **more: Any) -> trainer.State:
    rows = pack([Document(cycle(i, 4)) for i in range(4)], 4)
    return train(recipe, lambda n: Repeated(rows, n), plan, folder, about={}, cpu=True, **more)


@pytest.mark.parametrize("kept", [True, False])
def test_a_loss_that_is_not_finite_ends_it_and_keeps_the_checkpoint(
    kept: bool, tmp_path: Path
) -> None:
    often = Plan(50, 2, every=1000, checkpoint_seconds=0.0 if kept else 1e9)
    with pytest.raises(Diverged, match=r"the loss is nan at step 6 \(.*checkpoint"):
        odd(Odd(lambda step: math.nan if step == 6 else 1.0), tmp_path, often)
    assert (tmp_path / "checkpoint").exists() is kept
    if kept:
        said = json.loads((tmp_path / "checkpoint" / "state.json").read_text())
        assert said["step"] == 5 and len(said["losses"]) == 5


def test_it_stops_early_and_keeps_the_best(tmp_path: Path) -> None:
    recipe = Odd(lambda step: 0.0, [1.0, 3.0, 2.0, 2.5, 2.9, 2.8, 2.7])
    state = odd(recipe, tmp_path, Plan(100, 2, every=10, patience=3, least=40, clip=1e9, warmup=0))
    assert (state.reason, state.step, state.best_step) == ("no better", 50, 20)
    # A slope of 1: at step 20 the weight is minus the sum of the rates so far.
    rates = sum(Plan(100, 2, warmup=0).learning_rate(i) * 0.1 for i in range(20))
    assert float(recipe.weight.detach()) == pytest.approx(-rates, rel=1e-4)
    assert recipe.modes == [False] * 5


@pytest.mark.parametrize("scores", [[1.0] * 6, [None] * 6], ids=["equal", "none"])
def test_where_no_score_tells_the_last_weights_stay(scores: list[Any], tmp_path: Path) -> None:
    recipe = Odd(lambda step: 0.0, scores)
    state = odd(recipe, tmp_path, Plan(60, 2, every=10, patience=0, clip=1e9, warmup=0))
    assert (state.reason, state.step, state.best_step) == ("steps", 60, 60)
    rates = sum(Plan(60, 2, warmup=0).learning_rate(i) * 0.1 for i in range(60))
    assert float(recipe.weight.detach()) == pytest.approx(-rates, rel=1e-4)
    assert all(("score" in found) is (scores[0] is not None) for found in state.evaluations)


def test_equal_scores_are_no_better_and_none_are_no_reason_to_stop(tmp_path: Path) -> None:
    often: Any = {"every": 10, "patience": 3, "least": 10}
    same = odd(Odd(lambda step: 0.0, [1.0] * 10), tmp_path / "same", Plan(100, 2, **often))
    assert (same.reason, same.step, same.best_step) == ("no better", 40, 40)
    none = odd(Odd(lambda step: 0.0, [None] * 10), tmp_path / "none", Plan(100, 2, **often))
    assert (none.reason, none.step) == ("steps", 100)


def test_a_gradient_that_is_not_finite_ends_it_too(tmp_path: Path) -> None:
    class Steep(Odd):
        def forward(self, batch: Any, share: float) -> dict[str, Tensor]:
            found = super().forward(batch, share)
            return found | {"loss": (self.weight * 0).sqrt().sum()}  # 0, with a slope of 0 / 0

    recipe = Steep(lambda step: 0.0)
    with pytest.raises(Diverged, match="the gradient is nan at step 1 "):
        odd(recipe, tmp_path, Plan(5, 2))
    assert float(recipe.weight.detach()) == 0.0


@pytest.mark.parametrize(("keep", "second"), [(False, 0.01), (True, 0.1)])
def test_a_checkpoint_goes_on_at_another_rate(keep: bool, second: float, tmp_path: Path) -> None:
    long = Plan(10, 2, every=1000, clip=1e9, warmup=0)
    first = Odd(lambda step: 0.0)
    odd(first, tmp_path, long, stopped=lambda: first.step == 4)
    again = Odd(lambda step: 0.0, [0.0], rate=0.01)
    odd(again, tmp_path, long, resume=True, keep_rates=keep)
    rates = [long.learning_rate(i) * (0.1 if i < 4 else second) for i in range(10)]
    assert float(again.weight.detach()) == pytest.approx(-sum(rates), rel=1e-4)


def test_the_option_that_differs_is_named(cyclic: Any, tmp_path: Path) -> None:
    about = {"options": {"heads": 3, "seed": 0}, "data": "cycle"}
    heads_of(cyclic, tmp_path, plan(20), about=about, stopped=lambda: True)
    about["options"] = {"heads": 3, "seed": 1}
    with pytest.raises(ValueError, match=r"made with seed 0, not 1: give the same options"):
        heads_of(cyclic, tmp_path, plan(21), about=about, resume=True)


def test_the_schedule() -> None:
    found = [Plan(100, 1, warmup=10, floor=0.1).learning_rate(i) for i in range(101)]
    assert found[0] == pytest.approx(1 / 11) and found[10] == 1.0
    assert found[100] == pytest.approx(0.1)
    assert all(a < b for a, b in itertools.pairwise(found[:11]))
    assert all(a > b for a, b in itertools.pairwise(found[10:]))


def test_accumulation_is_one_larger_batch(cyclic: Any, tmp_path: Path) -> None:
    one, _ = heads_of(cyclic, tmp_path / "a", plan(5))
    parts, _ = heads_of(cyclic, tmp_path / "b", plan(5, accumulate=4))
    torch.testing.assert_close(one.heads.weights, parts.heads.weights, rtol=1e-3, atol=1e-5)


def test_every_label_weighs_the_same_in_whatever_pass_it_is(cyclic: Any, tmp_path: Path) -> None:
    """Answers of 2 tokens and of 18: one pass over four of them, or four passes."""
    sizes = [2, 18, 3, 9, 17, 5, 2, 12]
    answers = [[place >= 24 - size for place in range(24)] for size in sizes]
    texts = [Document(cycle(i, 24), marks) for i, marks in enumerate(answers)]
    rows, found = pack(texts, 24), {}
    for parts in (1, 2, 4):
        recipe = Medusa(cyclic, fresh(cyclic, 3), [rows_batch(rows)], rate=1e-2)
        pace = Plan(5, 4, parts, warmup=0, every=1000)
        folder = tmp_path / str(parts)
        folder.mkdir()
        state = train(recipe, lambda n: Stream(rows, n, 0), pace, folder, about={}, cpu=True)
        found[parts] = recipe.heads.weights, torch.tensor(state.losses)
    for parts in (2, 4):
        torch.testing.assert_close(found[parts], found[1], rtol=1e-3, atol=1e-5)


def test_heads_learn_from_a_target_in_half_precision(cyclic: Any, tmp_path: Path) -> None:
    target = copy.deepcopy(cyclic).bfloat16()
    recipe, state = heads_of(target, tmp_path, plan(120, precision="bf16"))
    assert recipe.heads.weights.dtype == torch.float32
    assert state.evaluations[-1]["score"] > 3.5 and state.losses[-1] < 0.2 * state.losses[0]


def test_rows_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 rows a step do not divide into 2 equal parts"):
        odd(Odd(lambda step: 0.0), tmp_path, Plan(5, 3, accumulate=2))


def test_jointly_the_target_learns_slower(cyclic: Any, tmp_path: Path) -> None:
    target = copy.deepcopy(cyclic).requires_grad_(True)
    recipe = Medusa(target, fresh(target, 2), [], rate=8e-3, joint=True)
    heads, backbone = recipe.optimisers()[0].param_groups
    assert heads["lr"] / backbone["lr"] == HEADS_RATE == 4
    batch = batch_of([cycle(5, 16)], 16)
    found = recipe(batch, 0.0)
    torch.testing.assert_close(found["loss"], found["LM"])  # heads do not weigh yet
    found = recipe(batch, 1.0)
    alone = Medusa(target, recipe.heads, [])(batch, 0.0)
    torch.testing.assert_close(found["loss"], found["LM"] + 0.2 * alone["loss"])
    found["loss"].backward()
    assert all(p.grad is not None for p in recipe.parameters() if p.requires_grad)


# --- captured states ---


class Quiet:
    def phase(self, text: str) -> None: ...
    def share(self, done: float) -> None: ...
    def line(self, text: str) -> None: ...


def test_captured_states_are_the_targets(
    cyclic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.training.data.capture.SHARD", 2)
    rows = pack([Document(cycle(i, 6 + i)) for i in range(7)], 12)
    capture(cyclic, rows, tmp_path, Quiet())
    kept = Captured(rows, tmp_path)
    for i in range(len(rows)):
        batch = {name: tensor[None] for name, tensor in kept[i].items()}
        wanted = states_of(cyclic, {k: t for k, t in batch.items() if k != "states"})
        torch.testing.assert_close(states_of(cyclic, batch), wanted)
    # What is there is not made again: a shard that is missing is.
    shards = sorted(tmp_path.iterdir())
    times = [file.stat().st_mtime_ns for file in shards]
    shards[1].unlink()
    capture(cyclic, rows, tmp_path, Quiet())
    again = [file.stat().st_mtime_ns for file in sorted(tmp_path.iterdir())]
    assert [a == b for a, b in zip(times, again, strict=True)].count(False) == 1


def test_states_of_another_target_have_another_name(cyclic: Any) -> None:
    rows = pack([Document(cycle(i, 6)) for i in range(4)], 12)
    moved, other = copy.deepcopy(cyclic), copy.deepcopy(cyclic)
    with torch.no_grad():
        moved.lm_head.weight += 1e-3
    other.config.rope_parameters = other.config.rope_parameters | {"rope_theta": 2e4}
    joined = pack([Document([*cycle(i, 6), *cycle(i + 1, 6)]) for i in (0, 2)], 12)
    assert torch.equal(joined.ids, rows.ids)
    found = [key(target, rows) for target in (cyclic, moved, other, copy.deepcopy(cyclic).half())]
    assert len({*found, key(cyclic, joined)}) == 5
    assert key(copy.deepcopy(cyclic), rows) == found[0]


def test_a_disk_that_is_full_costs_the_shard_it_was_met_at(
    cyclic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library raises neither `OSError` nor `ValueError`, and leaves what it had written."""
    monkeypatch.setattr("draftproof.training.data.capture.SHARD", 2)
    rows = pack([Document(cycle(i, 6 + i)) for i in range(7)], 12)
    honest, written = save_file, []

    def full(tensors: dict[str, Tensor], file: Path) -> None:
        honest(tensors, file)
        written.append(file)
        if len(written) == 2:
            raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("draftproof.training.data.capture.save_file", full)
    with pytest.raises(OSError, match=r"cannot write .*MB are free \(No space left.*: make room"):
        capture(cyclic, rows, tmp_path, Quiet())
    assert [file.name for file in tmp_path.iterdir()] == ["00000000.safetensors"]
    capture(cyclic, rows, tmp_path, Quiet())
    assert len(list(tmp_path.iterdir())) == -(-len(rows) // 2)


def test_states_that_do_not_fit_are_refused_before(
    cyclic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    rows = pack([Document(cycle(0, 12))], 12)
    with pytest.raises(ValueError, match="are free in .*: drop --capture"):
        capture(cyclic, rows, tmp_path, Quiet())


# --- targets ---


@pytest.mark.parametrize("name", sorted(tiny.CONFIGS))
def test_targets_are_tried_before(name: str) -> None:
    target = tiny.model(name)
    ids = torch.randint(3, tiny.VOCABULARY, (24,), generator=torch.Generator().manual_seed(0))
    check(target, {"ids": ids})


def test_a_target_that_packs_wrongly_is_refused() -> None:
    target = tiny.model("llama")
    honest = target.model.forward

    def ignores(input_ids: Any, position_ids: Any = None, **more: Any) -> Any:
        return honest(input_ids=input_ids, **more)

    target.model.forward = ignores
    with pytest.raises(ValueError, match="see each other"):
        check(target, {"ids": torch.arange(3, 27)})


def test_a_target_whose_states_are_not_its_heads_is_refused() -> None:
    target = tiny.model("llama")
    target.model.norm.register_forward_hook(lambda module, given, states: 2 * states)
    honest = target.forward
    target.forward = lambda **more: type(out := honest(**more))(logits=out.logits / 2)
    with pytest.raises(ValueError, match="are not its LM head over its last hidden states"):
        check(target, {"ids": torch.arange(3, 27)})


def test_a_target_without_states_is_refused() -> None:
    with pytest.raises(ValueError, match="gives no hidden states"):
        check(torch.nn.Linear(2, 2), {"ids": torch.arange(3, 27)})


# --- calibration ---


def test_the_tree_is_the_best_by_enumeration() -> None:
    generator = torch.Generator().manual_seed(4)
    ranks = (torch.rand(400, 2, generator=generator) ** 3 * 6).long()
    counted = calibrate.paths(ranks)
    for path, share in counted.items():
        hits = (ranks[:, : len(path)] == torch.tensor(path)).all(1).float().mean()
        assert share == pytest.approx(float(hits), abs=1e-6)
    for nodes in (1, 2, 4):
        chosen = calibrate.tree_of(ranks, nodes)
        assert all(path[:-1] in chosen for path in chosen if len(path) > 1)
        whole = [
            set(some)
            for some in itertools.combinations(list(counted)[:14], nodes)
            if all(path[:-1] in some for path in some if len(path) > 1)
        ]
        best = max(sum(counted[path] for path in some) for some in whole)
        assert sum(chosen.values()) == pytest.approx(best)


def some_text(seed: int, tokens: int = 4000, heads: int = 3) -> Tensor:
    """Ranks of a text in which easy stretches and hard ones take turns."""
    generator = torch.Generator().manual_seed(seed)
    hard = (torch.arange(tokens) // 40 % 2)[:, None]
    ranks = (torch.rand(tokens, heads, generator=generator) ** (6 - 5 * hard) * 5).int()
    for k in range(1, heads + 1):
        ranks[tokens - k :, k - 1] = calibrate.BEYOND
    return ranks


def test_the_size_of_the_tree_follows_what_a_pass_costs() -> None:
    text = some_text(5)
    flat = calibrate.calibrated([text], {1: 1.0, 32: 1.001}, 0.1, 24)
    steep = calibrate.calibrated([text], {1: 1.0, 32: 8.0}, 0.1, 24)
    assert len(flat.tree) == 24 > len(steep.tree) >= 1
    for found in (flat, steep):
        assert found.expected == pytest.approx(calibrate.replay([text], found.tree)[0])
        assert all(path[:-1] in found.tree for path in found.tree if len(path) > 1)
    for rank in range(5):
        share = float((calibrate.complete(text)[:, 0] == rank).float().mean())
        assert flat.accuracies[0][rank] == pytest.approx(share, abs=1e-3)


def test_a_tree_is_made_for_where_steps_begin() -> None:
    """Half of the text is easy, and most of its steps are in the other half."""
    hard = (torch.arange(4000) // 40 % 2)[:, None]
    ranks = hard * torch.randint(1, 4, (4000, 4), generator=torch.Generator().manual_seed(6))
    anywhere = calibrate.tree_of(ranks, 4)
    assert list(anywhere) == [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]
    found = calibrate.calibrated([ranks], {1: 1.0, 32: 1.001}, 0.1, 4)
    assert found.tree == [(0,), (1,), (2,), (3,)]
    assert found.expected > 1.15 * calibrate.replay([ranks], list(anywhere))[0]


def test_heads_that_are_never_right_have_a_tree_all_the_same() -> None:
    found = calibrate.calibrated([torch.full((9, 2), 500)], {1: 1.0}, 0.0, 8)
    assert found.tree == [(0,)] and found.expected == 1.0


def test_replay_counts_steps_by_hand() -> None:
    far = calibrate.BEYOND
    # Six tokens: the first by the prompt's pass; then 0, 0 is in the tree: two and the bonus; the
    # state of the third token knows nothing: one; and the last one.
    ranks = torch.tensor([[0, 0], [9, 9], [9, 9], [5, 0], [0, far], [far, far]])
    tree = [(0,), (1,), (0, 0)]
    tokens, starts = calibrate.replay([ranks], tree)
    assert tokens == pytest.approx(6 / 4) and starts.tolist() == ranks[[0, 3, 4]].tolist()
    assert calibrate.replay([ranks], [(5,)])[0] == pytest.approx(6 / 5)
    assert calibrate.replay([], tree)[0] == 0.0
