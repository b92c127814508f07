"""Training of drafts: how one begins, what it is taught by, what it writes, what it is worth."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from cyclic import Repeated, V, batch_of, cycle, rows_of
from distilling import cyclic, tokenizer, weights
from draftproof.training.data.rows import Document
from draftproof.training.jobs import served
from draftproof.training.jobs.answers import Answers
from draftproof.training.recipes.draft import DEPTH, Draft, chances, replay
from draftproof.training.recipes.student import student
from draftproof.training.trainer import Plan, train

# --- training ---


def trained(folder: Path, steps: int, on_policy: float = 0.0, **more: Any) -> Any:
    """A narrow student of the cyclic model, and how its training went."""
    rows = rows_of([cycle(i, 20) for i in range(V)], 20)
    held_out = batch_of([cycle(i, 40) for i in range(0, V, 5)], 40)
    recipe = Draft(cyclic(), student(cyclic(), [0], 32), [held_out], rate=1e-2, on_policy=on_policy)
    plan = Plan(steps, 8, warmup=10, every=steps // 2, patience=0)
    stop = more.pop("stop", None)
    done: list[int] = []
    state = train(
        recipe,
        lambda count: Repeated(rows, count),
        plan,
        folder,
        about={},
        cpu=True,
        show=lambda state, shown: done.append(state.step),
        stopped=lambda: len(done) == stop,
        **more,
    )
    return recipe, state


def test_a_toy_language_is_learnt(tmp_path: Path) -> None:
    before = weights(cyclic())
    recipe, state = trained(tmp_path, 200)
    last = state.evaluations[-1]
    assert last["alpha 0"] > 0.95 and last["alpha 1.0"] > 0.9
    assert last["score"] > 1 + 0.9 * DEPTH
    assert state.losses[-1] < 0.1 * state.losses[0]
    after = weights(cyclic())
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(name.startswith("_frozen") for name in recipe.state_dict())
    assert {id(p) for p in recipe.parameters()} == {id(p) for p in recipe.student.parameters()}


def test_resumed_is_uninterrupted(tmp_path: Path) -> None:
    whole, state = trained(tmp_path / "whole", 12, 0.5)
    _, cut = trained(tmp_path / "cut", 12, 0.5, stop=7)
    assert (cut.reason, cut.step) == ("interrupted", 7)
    again, resumed = trained(tmp_path / "cut", 12, 0.5, resume=True)
    assert resumed.losses == state.losses
    others = weights(again)
    assert all(torch.equal(tensor, others[name]) for name, tensor in weights(whole).items())


def test_every_weight_learns_from_what_was_written_in_half_precision() -> None:
    """What was cast for writing, without gradients, must not be what is learnt through."""
    made = student(cyclic(), [0, 1])
    recipe = Draft(cyclic(), made, [], on_policy=1.0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = recipe(batch_of([cycle(i, 20) for i in range(4)], 20), 0.0)["loss"]
    loss.backward()
    assert all(p.grad is not None for p in made.parameters())


# --- what it writes itself ---


def test_the_share_of_passes_that_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Draft(cyclic(), student(cyclic(), [0]), [], on_policy=0.3)
    seeds: list[int] = []
    monkeypatch.setattr(recipe, "own_rows", lambda batch, seed: seeds.append(seed) or batch)
    batch = batch_of([cycle(1, 8)], 8)
    for _ in range(20):
        recipe(batch, 0.0)
    assert len(seeds) == len(set(seeds)) == 6


def test_any_seed_is_one_of_what_it_writes() -> None:
    recipe = Draft(cyclic(), student(cyclic(), [0]), [], on_policy=1.0, seed=1 << 33)
    assert int(recipe(batch_of([cycle(1, 8)], 8), 0.0)["labels"]) > 0


def test_what_is_written_goes_on_from_the_beginnings() -> None:
    # It knows the language, so what it writes tells whether it saw the right tokens and positions.
    made = copy.deepcopy(cyclic())
    texts = [cycle(1, 12), cycle(2, 20), cycle(7, 30)]
    taught = [[i >= 7 for i in range(12)], [True] * 20, [True] * 30]
    batch = batch_of(texts, 30, taught)
    recipe = Draft(cyclic(), made, [])
    found = recipe.own_rows(batch, 3)
    for row in range(len(batch["ids"])):
        given = int((~found["taught"][row]).sum())
        assert given in (7, 10, 15)
        assert torch.equal(found["ids"][row, :given], batch["ids"][row, :given])
        own = found["ids"][row].tolist()
        right = sum(b == (3 * a + 1) % V for a, b in itertools.pairwise(own))
        assert right >= 27  # of 29: it draws
        assert found["positions"][row].tolist() == list(range(30))
        assert found["segments"][row].tolist() == [0] * 30
    assert made.training is False
    same, other = recipe.own_rows(batch, 3), recipe.own_rows(batch, 4)
    assert all(torch.equal(found[name], same[name]) for name in found)
    assert set(other) == set(batch)


def test_what_is_written_ends_with_its_end() -> None:
    end = cycle(1, 12)[-1]
    recipe = Draft(cyclic(), copy.deepcopy(cyclic()), [], ends=[end])
    batch = batch_of([cycle(1, 10), cycle(1, 20)], 30)
    batch["taught"][:] = True
    found = recipe.own_rows(batch, 0)
    for ids, segments, taught in zip(
        found["ids"].tolist(), found["segments"].tolist(), found["taught"].tolist(), strict=True
    ):
        real = segments.count(0)
        assert real < 30 and segments == [0] * real + [-1] * (30 - real)
        learnt = [i for i in range(30) if taught[i]]
        assert learnt == list(range(learnt[0], real))
        assert ids[real - 1] == end and end not in ids[learnt[0] : real - 1]
        assert ids[real:] == [0] * (30 - real)


# --- what the target writes itself ---


def test_beginnings_are_what_stands_before_the_answer_or_windows() -> None:
    ids = list(range(300))
    answered = Document(ids, [i >= 280 for i in ids])
    alternating = Document(ids, [i < 10 or i >= 280 for i in ids])  # cut off within an answer
    assert served.prompts_of([answered], 9, 128) == [ids[152:280]]
    assert served.prompts_of([answered], 9, 1000) == [ids[:280]]
    assert served.prompts_of([alternating], 9, 128) == [ids[:64]]
    assert served.prompts_of([Document(ids[:10])], 9, 128) == [ids[:5]]
    both = [answered, Document(list(range(600)))]
    assert [len(prompt) for prompt in served.prompts_of(both, 9, 100)] == [100, 64, 64, 64]
    assert len(served.prompts_of(both, 2, 100)) == 2


def test_the_answers_that_are_learnt_are_the_targets(tmp_path: Path) -> None:
    texts = [Document(cycle(begin, 40)) for begin in range(10, 18)]
    kept = Answers(tmp_path / "answers", "these", resume=False)
    with served.engine(cyclic(), tokenizer()) as llm, kept as answers:
        found = served.own_texts(llm, texts, 32, None, lambda share: None, answers)
    assert len(found) == 8
    for number, (one, text) in enumerate(zip(found, texts, strict=True)):
        assert one.taught == [place >= 20 for place in range(len(one.ids))]
        assert list(one.ids[:20]) == list(text.ids[:20]) and 20 < len(one.ids) <= 32
        if number % 4 < 2:  # greedy; 2 is the end
            rest = list(text.ids[20:32])
            assert list(one.ids[20:]) == rest[: rest.index(2) + 1 if 2 in rest else None]


# --- what it is worth ---


@torch.no_grad()
def test_evaluation() -> None:
    target = tiny.model()
    made = tiny.relative(target, 0.2)
    texts = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [11, 12, 13]]
    found = Draft(target, made, [batch_of(texts, 14)]).evaluate(torch.device("cpu"))
    shares: dict[float, list[float]] = {0: [], 0.7: [], 1.0: []}
    runs = []
    for ids in texts:
        p, q = (m(torch.tensor([ids])).logits[0, :-1] for m in (target, made))
        hits = (p.argmax(-1) == q.argmax(-1)).tolist()
        shares[0] += [float(hit) for hit in hits]
        for temperature in (0.7, 1.0):
            both = torch.minimum((p / temperature).softmax(-1), (q / temperature).softmax(-1))
            shares[temperature] += both.sum(-1).tolist()
        for at in range(len(hits) - DEPTH + 1):
            window = hits[at : at + DEPTH]
            runs.append(window.index(False) if False in window else DEPTH)
    assert found["score"] == pytest.approx(1 + sum(runs) / len(runs))
    for temperature, values in shares.items():
        assert found[f"alpha {temperature}"] == pytest.approx(sum(values) / len(values), rel=1e-4)


def test_short_texts_are_judged_too() -> None:
    target = tiny.model()
    found = Draft(target, student(target, range(4)), [batch_of([[5, 6, 7]], 3)])
    assert found.evaluate(torch.device("cpu"))["score"] == 2.5  # runs of 2 and of 1


def walked(accepted: list[bool], room: int, at_once: bool) -> tuple[int, int, int]:
    """Steps, first tokens offered and accepted, of an engine whose drafts are right where said."""
    at = steps = offered = first = 0
    while at < len(accepted):
        depth, run = (min(DEPTH, room - at - 1) if at or at_once else 0), 0
        while run < depth and at + run < len(accepted) and accepted[at + run]:
            run += 1
        steps, offered, first = steps + 1, offered + (depth > 0), first + (run > 0)
        at += run + 1
    return steps, offered, first


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("room", [8, 11])
def test_a_replay_is_what_is_expected_over_all_coins(room: int, at_once: bool) -> None:
    text = [0.9, 0.3, 0.8, 1.0, 0.5, 0.95, 0.7, 0.2]
    sums = [0.0, 0.0, 0.0]
    for coins in itertools.product((True, False), repeat=len(text)):
        weight = math.prod(c if coin else 1 - c for c, coin in zip(text, coins, strict=True))
        for i, value in enumerate(walked(list(coins), room, at_once)):
            sums[i] += weight * value
    wanted = len(text) / sums[0], sums[2] / sums[1]
    assert replay([text], [room], at_once) == pytest.approx(wanted)


@torch.no_grad()
def test_chances_of_a_text() -> None:
    target = tiny.model()
    recipe = Draft(target, tiny.relative(target, 0.3), [])
    ids = [5, 6, 7, 8, 9, 10]
    p, q = (m(torch.tensor([ids])).logits[0].softmax(-1) for m in (recipe.target, recipe.student))
    wanted = [min(1.0, float(q[t - 1, ids[t]] / p[t - 1, ids[t]])) for t in range(2, 6)]
    assert chances(recipe, ids, 2, 1.0) == pytest.approx(wanted, rel=1e-4)
    wanted = [float(q[t - 1].argmax() == ids[t]) for t in range(2, 6)]
    assert chances(recipe, ids, 2, 0) == wanted
