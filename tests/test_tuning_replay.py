"""Replays beside the engine: the same steps, accepted and drafted tokens, whatever the setting."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import draftproof as dp
import tiny
from draftproof.models import beside
from draftproof.profiles import Choice, Part
from draftproof.runners.costs import PassCosts
from draftproof.runners.curves import FURTHER, attended
from draftproof.tuning import job, reading, recording, sources
from draftproof.tuning.decided import Settled, decided, unreplayed
from draftproof.tuning.machine import Drafting, Machine
from draftproof.tuning.records import MOST_BYTES, Text, bytes_of
from draftproof.tuning.replay import Tape, replay

PROMPTS = [[5, 6, 7], [8, 9, 3, 4, 5, 6, 7, 8], [1, 2, 3], [40, 50]]
TREE = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
CASES = [(0.0, 40), (0.8, 23)]


@cache
def models() -> tuple[Any, Any]:
    target = tiny.model(dtype=torch.float64)
    return target, tiny.relative(target)


@cache
def listed() -> tuple[sources.Source, ...]:
    options = (("tree", tuple(sources.recorded_paths())),)
    draft = sources.Source("draft d", Part("draft", options, models()[1]), grows=True)
    return (draft, *sources.look_ups())


def params_of(temperature: float, tokens: int) -> dp.SamplingParams:
    return dp.SamplingParams(temperature=temperature, max_tokens=tokens, seed=3)


@cache
def recorded(temperature: float, tokens: int) -> list[Text]:
    with dp.LLM(models()[0], speculate=None, max_batch=4) as llm:
        params = params_of(temperature, tokens)
        return recording.write(llm, PROMPTS, ["all"] * 4, params, listed())


def machine() -> Machine:
    asked = {"ngram": Drafting(1e-5), "suffix": Drafting(1e-5)}
    asked["draft d"] = Drafting(1e-4, level=1e-3, passes=PassCosts())
    return Machine(PassCosts(), (1e-4, 1e-5), asked)


def settings() -> list[Choice]:
    draft, ngram, suffix = listed()
    alone = [part for source in listed() for part in source.settings()[3::17]]
    both = Choice((ngram.asis[1], draft.grown(num_draft_tokens=4, branch=2, min_confidence=0.1)))
    merged = Choice((ngram.asis[0], suffix.asis[0], draft.grown(num_draft_tokens=12, branch=1)))
    found = [Choice(), *(Choice((part,)) for part in alone), Choice((draft.grown(tree=TREE),))]
    return [*found, both, Choice(merged.parts[:2])]


@pytest.mark.parametrize(("temperature", "tokens"), CASES)
def test_a_replay_makes_the_steps_of_the_engine(temperature: float, tokens: int) -> None:
    texts, choices = recorded(temperature, tokens), settings()
    steps = replay(Tape(texts, listed()), choices, machine(), 1)
    accepted = 0
    with dp.LLM(models()[0], speculate=None) as llm:
        for row, choice in enumerate(choices):
            llm.use(choice.proposer({"suffix": {"corpus": 0}}))
            for column, text in list(enumerate(texts))[1:3]:
                (done,) = llm.generate([text.prompt], params_of(temperature, tokens))
                assert done.token_ids == text.output
                stats = done.stats
                wanted = stats.steps, stats.accepted, stats.drafted
                found = steps.steps, steps.accepted, steps.drafted
                assert tuple(each[row, column] for each in found) == wanted, choice.name
                accepted += stats.accepted
    assert accepted > 20


@pytest.mark.parametrize(("temperature", "tokens"), CASES)
def test_reading_ahead_drafts_what_a_live_run_does(temperature: float, tokens: int) -> None:
    texts, paths = recorded(temperature, tokens), sources.recorded_paths()
    with dp.LLM(models()[0], speculate=None) as llm:
        runner = beside(llm.runner, models()[1])
        for text in texts:
            read = reading.read(runner, 97, text, params_of(temperature, tokens), paths)
            live = text.trees["draft d"]
            for at, tree in enumerate(read):
                wanted = live.tree(at, recording.root(text, at))
                assert (tree.tokens, tree.parents) == (wanted.tokens, wanted.parents)
            mine = Text(text.prompt, text.output, temperature, longest=text.longest)
            recording.keep(mine, listed()[0], [read])
            assert np.array_equal(mine.grown["draft d"], text.grown["draft d"])


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_batch_takes_the_steps_of_its_longest_text(batch: int) -> None:
    texts = recorded(0.0, 40)
    tape = Tape(texts, listed())
    alone = replay(tape, settings(), machine(), 1)
    together = replay(tape, settings(), machine(), batch)
    for column, at in enumerate(range(0, 4, batch)):
        mine = slice(at, at + batch)
        assert np.array_equal(together.steps[:, column], alone.steps[:, mine].max(1))
        assert np.array_equal(together.drafted[:, column], alone.drafted[:, mine].sum(1))
    assert (together.seconds.sum(1) < alone.seconds.sum(1) + 1e-9).all()


def test_seconds_are_those_of_every_step() -> None:
    """Beside a loop that goes step by step through one text."""
    texts, by = recorded(0.0, 40)[1:2], machine()
    draft = listed()[0]
    part = draft.grown(num_draft_tokens=3, branch=2, min_confidence=0.0)
    tape = Tape(texts, listed())
    found = replay(tape, [Choice((part,))], by, 1)
    accepted, nodes, levels = tape.fares(draft, part)
    prompt = len(texts[0].prompt)
    curve = PassCosts()
    # The draft reads it too.
    seconds = 2 * curve.seconds(prompt - 1, FURTHER * (prompt - 1) ** 2 / 2)
    at = 0
    while at < 40:
        drafts = 40 - at > 1
        rows = 1 + int(nodes[at]) * drafts
        seconds += curve.seconds(rows, attended(rows, prompt + at - 1)) + 1.1e-4
        seconds += (1e-4 + 1e-3 * int(levels[at])) * drafts
        at += int(accepted[at]) + 1
    assert found.seconds[0, 0] == pytest.approx(seconds, rel=1e-6)


def test_the_controller_is_replayed_by_itself() -> None:
    """It writes the texts, takes up what is right, and nothing where a pass is for nothing."""
    parts = tuple(each.grown() if each.grows else each.part for each in listed())
    texts = recorded(0.8, 23)
    for batch, groups in ((1, 4), (4, 1)):
        found = decided(texts, Choice(parts, True), listed(), machine(), batch)
        assert found.steps.shape == (1, groups) and found.tokens.sum() == sum(map(len, texts))
        assert found.text_steps.sum() <= found.tokens.sum()
    free = Machine(PassCosts(1e9), (0.0, 0.0), {name: Drafting(0.0) for name in machine().drafting})
    cheap = decided(texts, Choice(parts, True), listed(), free, 1)
    assert cheap.accepted.sum() > 0 and cheap.text_steps.sum() < cheap.tokens.sum()


def test_steps_with_drafts_take_more_beside_their_pass() -> None:
    here = replace(machine(), trees=(1e-3, 1e-4), token=1e-5)
    took = here.beside(np.array([4, 4]), np.array([0, 2]), np.array([0, 7]))
    assert took == pytest.approx([1.4e-4, 1.4e-4 + 1.2e-3 + 7e-5])


def test_a_draft_costs_a_call_each_text_and_each_level_of_them() -> None:
    asked = Drafting(1e-4, call=1e-3, level=1e-2, node=1e-1)
    took = asked.seconds(np.array([0, 0, 1, 3]), np.array([0, 2, 1, 2]))
    assert took == pytest.approx([0.0, 1.2e-3, 1.1e-3 + 0.11, 1.2e-3 + 3 * 0.21])


def test_prompts_in_slices_ask_the_costs_of_the_replay() -> None:
    """Longer prompts than a pass reads: the others write meanwhile, and slices have their price."""
    texts = [replace(text, prompt=text.prompt * 150) for text in recorded(0.8, 23)]
    found = decided(texts, Choice(()), (), machine(), 4)
    assert found.tokens.sum() == sum(map(len, texts))
    costs = PassCosts()
    settled = Settled(costs)
    assert settled.slices.tokens(2, 1, 0, 512) == costs.slices.tokens(2, 1, 0, 512)
    assert settled.slices._costs is settled


def test_replayed_settings_read_prompts_as_the_engine_does() -> None:
    """In a batch it takes longer: those whose prompts were read first end before the others."""
    texts = [replace(text, prompt=text.prompt * 150) for text in recorded(0.8, 23)]
    tape = Tape(texts, listed())
    for batch in (1, 4):
        ran = decided(texts, Choice(), (), machine(), batch)
        more = unreplayed(tape, machine(), batch)
        found = replay(tape, [Choice()], machine(), batch, more)
        assert found.seconds == pytest.approx(ran.seconds)
        assert found.steps.sum() < ran.steps.sum() or batch == 1


def test_records_are_small_and_come_back(tmp_path: Path) -> None:
    texts = recorded(0.8, 23)
    assert max(bytes_of(texts).values()) <= MOST_BYTES
    texts[0].save(tmp_path / "one.npz")
    back = Text.load(tmp_path / "one.npz")
    assert (back.prompt, back.output, back.seconds) == (
        texts[0].prompt,
        texts[0].output,
        texts[0].seconds,
    )
    for name, trees in texts[0].trees.items():
        assert all(np.array_equal(a, vars(back.trees[name])[k]) for k, a in vars(trees).items())
    assert np.array_equal(back.asis["ngram"], texts[0].asis["ngram"])
    assert [*tmp_path.iterdir()] == [tmp_path / "one.npz"]
    whole = (tmp_path / "one.npz").read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 9):  # it is written anew
        (tmp_path / "cut.npz").write_bytes(whole[:size])
        assert job._known([tmp_path / "one.npz", tmp_path / "cut.npz"]) is None
    assert job._known([tmp_path / "one.npz"]) is not None


@pytest.mark.slow
def test_a_thousand_settings_over_ten_thousand_positions() -> None:
    """In processor time, beside the aim of 10 s."""
    text = recorded(0.0, 40)[3]
    draft, ngram, suffix = listed()
    tape = Tape([text] * 250, listed())
    pairs = [(a, b) for a in draft.settings() for b in ngram.asis]
    pairs += [(a, b) for a in draft.settings() for b in suffix.asis]
    choices = [Choice(pair) for pair in pairs[:1000]]
    assert len(tape) == 10_000 and len(choices) == 1000
    began = time.process_time()
    replay(tape, choices, machine(), 8)
    assert time.process_time() - began < 10
