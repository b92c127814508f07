"""Training of heads: the loss, the loop, resumption, what is kept, what is refused."""

from __future__ import annotations

import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cyclic import Repeated, V, batch_of, cycle
from draftproof.training import checkpoint, trainer
from draftproof.training.data.rows import Document, Stream, pack
from draftproof.training.recipes.medusa import HEADS_RATE, Medusa, fresh
from draftproof.training.trainer import Diverged, Plan, train

# --- the loss ---


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


def test_freed_memory_is_given_back_now_and_then(
    cyclic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(trainer, "give_back", lambda: given.append(1))
    heads_of(cyclic, tmp_path, plan(2 * trainer.TRIMMED + 1))
    assert len(given) == 2


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


FILES = ["model.safetensors", "optimizer.bin", "state.json", "random_states_0.pkl"]


@pytest.mark.parametrize("raw", [b"", b"PK\x03\x04 cut", "half", "gone"])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_told(
    file: str, raw: bytes | str, cyclic: Any, tmp_path: Path
) -> None:
    heads_of(cyclic, tmp_path, plan(20), stopped=lambda: True)
    damaged = tmp_path / "checkpoint" / file
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2] if isinstance(raw, str) else raw)
    if raw == "gone":
        damaged.unlink()
    with pytest.raises(ValueError, match=r"checkpoint .*damaged.* begin anew with --overwrite"):
        heads_of(cyclic, tmp_path, plan(20), resume=True)


def test_a_state_that_is_no_object_is_damage(cyclic: Any, tmp_path: Path) -> None:
    heads_of(cyclic, tmp_path, plan(20), stopped=lambda: True)
    (tmp_path / "checkpoint" / "about.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"is damaged: about.json cannot be read"):
        heads_of(cyclic, tmp_path, plan(20), resume=True)


def test_best_weights_that_are_damaged_are_told_and_those_that_are_gone_are_not_the_best(
    tmp_path: Path,
) -> None:
    short = Plan(6, 2, every=2, warmup=0)
    first = Odd(lambda step: 0.0, [5.0, 6.0])
    odd(first, tmp_path, short, stopped=lambda: first.step == 4)
    best = tmp_path / "best.pt"
    best.write_bytes(best.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"best.pt cannot be read .*damaged, remove it"):
        odd(Odd(lambda step: 0.0, [1.0]), tmp_path, short, resume=True)
    best.unlink()
    assert odd(Odd(lambda step: 0.0, [1.0]), tmp_path, short, resume=True).best_step == 6


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


# --- targets ---


# --- calibration ---
