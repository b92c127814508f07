"""`draftproof train draft`: what is written is served as predicted, and goes on."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import draftproof as dp
import tiny
from cyclic import V, batch_of, cycle
from distilling import Watch, cyclic, language, options, random, tokenizer
from draftproof.cli.training_arguments import draft as command
from draftproof.heads.files import load as load_heads
from draftproof.heads.files import save
from draftproof.heads.module import Heads
from draftproof.training import checkpoint
from draftproof.training.data.states import states_of
from draftproof.training.jobs import material, setup
from draftproof.training.jobs.draft import DraftJob, peak_rate
from draftproof.training.recipes.draft import Draft, usual_rate
from draftproof.training.recipes.exit import Exit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `target`, and `text.jsonl` of its language."""
    return language(tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="module")
def made(folder: Path) -> Any:
    """A draft as the command writes it."""
    return DraftJob(options(folder, size="1"), Watch()).run()


def test_predicted_is_served(folder: Path, made: Any) -> None:
    assert made.ended == "steps" and made.steps == 60
    assert [one.temperature for one in made.served] == [0, 0.7, 1.0]
    greedy, *sampled = made.served
    # At temperature 0 there are no coins.
    assert greedy.predicted == greedy.tokens_per_step > 2
    assert greedy.predicted_alpha == greedy.alpha
    for one in sampled:
        assert one.tokens_per_step == pytest.approx(one.predicted, rel=0.03)
        assert one.alpha == pytest.approx(one.predicted_alpha, abs=0.03)
    card = (folder / "out" / "README.md").read_text()
    assert "A draft for" in card and "| 0.7 |" in card
    told = json.loads((folder / "out" / "provenance.json").read_text())
    assert told["report"]["served"][0]["alpha"] == greedy.alpha and told["data_sha256"]
    assert not (folder / "out" / checkpoint.CHECKPOINT).exists()


def test_transformers_takes_it_as_an_assistant(folder: Path, made: Any) -> None:
    target = AutoModelForCausalLM.from_pretrained(folder / "target")
    assistant = AutoModelForCausalLM.from_pretrained(folder / "out")
    assert assistant.config.num_hidden_layers == 1
    ids = torch.tensor([cycle(4, 6)])
    asked = {"max_new_tokens": 20, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    plain = target.generate(ids, **asked)
    assert torch.equal(target.generate(ids, assistant_model=assistant, **asked), plain)


def test_the_engine_takes_it(folder: Path, made: Any) -> None:
    params = dp.SamplingParams(max_tokens=24, ignore_eos=True)
    with dp.LLM(str(folder / "target"), device="cpu", speculate=None) as llm:
        plain = llm.generate(cycle(4, 6), params)[0]
        llm.use(dp.DraftModel(folder / "out"))
        drafted = llm.generate(cycle(4, 6), params)[0]
    assert drafted.token_ids == plain.token_ids and not drafted.warnings
    assert drafted.stats.accepted > 8


def test_a_head_on_a_layer_learns_to_say_what_the_target_will(folder: Path) -> None:
    """The first of two layers, which alone knows little of the language; served as predicted."""
    out = folder / "exit"
    found = DraftJob(options(folder, exit_layer=1, blocks=2, out=out), Watch()).run()
    assert found.exit and found.layers == 1 and found.parameters == 2 * 48 * 48
    greedy = found.served[0]
    assert greedy.predicted == greedy.tokens_per_step and greedy.predicted_alpha == greedy.alpha
    head = load_heads(out)
    assert (head.exit, head.heads, head.layers) == (1, 1, 2)
    assert 'EarlyExit(heads="this folder")' in (out / "README.md").read_text()
    params = dp.SamplingParams(max_tokens=24, ignore_eos=True)
    steps = {}
    with dp.LLM(str(folder / "target"), device="cpu", speculate=None) as llm:
        plain = llm.generate(cycle(4, 6), params)[0].token_ids
        for name, heads in (("bare", None), ("trained", out)):
            llm.use(dp.EarlyExit(1, 5, min_confidence=0.0, branch=1, heads=heads))
            (done,) = llm.generate(cycle(4, 6), params)
            assert done.token_ids == plain and not done.warnings
            steps[name] = done.stats.steps
    assert steps["trained"] <= steps["bare"] and greedy.tokens_per_step > 2


def test_a_head_on_a_layer_learns() -> None:
    """What two of four random layers lead to; the bare layer knows little of it."""
    target = tiny.model("llama").requires_grad_(False)
    heads = Heads(torch.zeros(1, 4, 48, 48), vocab_size=tiny.VOCABULARY, exit=2)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 97, (8, 24), generator=generator).tolist()
    batch = batch_of(ids, 24)
    recipe = Draft(target, Exit(target, heads), [batch], rate=1e-2)
    before = recipe.evaluate(target.device)
    (optimiser,) = recipe.optimisers()
    for _ in range(60):
        recipe(batch, 0.0)["loss"].backward()
        optimiser.step()
        optimiser.zero_grad()
    after = recipe.evaluate(target.device)
    assert after["alpha 0"] > before["alpha 0"] + 0.2
    assert after["alpha 1.0"] > before["alpha 1.0"] + 0.05


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_an_exits_states_are_of_its_layer_and_it_alone_learns(name: str) -> None:
    target = tiny.model(name).requires_grad_(False)
    heads = Heads(random(1, 2, 48, 48, scale=0.1).float(), vocab_size=tiny.VOCABULARY, exit=2)
    made, depth = Exit(target, heads), target.config.num_hidden_layers
    batch = batch_of([list(range(3, 23))], 20)
    states = states_of(made, batch)
    cut = copy.deepcopy(target)
    cut.model.layers = cut.model.layers[:2]
    cut.config.num_hidden_layers = 2
    wanted = heads(states_of(cut, batch)[0])
    torch.testing.assert_close(states, wanted)
    states.sum().backward()
    assert heads.weights.grad is not None and {p.requires_grad for p in made.parameters()} == {True}
    assert target.config.num_hidden_layers == depth and set(made.state_dict()) == {"heads.weights"}


def test_a_draft_goes_on(folder: Path, made: Any) -> None:
    more = options(folder, start=str(folder / "out"), out=folder / "more", steps=10, rate=1e-4)
    found = DraftJob(more, Watch()).run()
    assert found.held_out["score"] == pytest.approx(made.held_out["score"], abs=0.5)


def test_who_goes_on_learns_at_a_lower_rate(folder: Path) -> None:
    given = options(folder, size="1", rate=None)
    assert peak_rate(given, cyclic()) == usual_rate(48) == 1e-3
    assert usual_rate(640) == pytest.approx(5e-4)
    again = peak_rate(options(folder, start="bundled", rate=None), cyclic())
    assert again == pytest.approx(3e-4)
    heads = Heads(torch.zeros(1, 1, 48, 48), vocab_size=V, exit=1)
    on_layer = options(folder, exit_layer=1, rate=None)
    assert peak_rate(on_layer, Exit(cyclic(), heads)) == 1e-2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "give one of --size, --layers, --exit-layer and --start"),
        ({"size": "1", "layers": "0"}, "give one of --size, --layers, --exit-layer and --start"),
        ({"size": "1", "exit_layer": 1}, "give one of --size, --layers, --exit-layer and --start"),
        ({"size": "1", "blocks": 2}, "--blocks are of the head of --exit-layer"),
        ({"exit_layer": 2}, "--exit-layer 2 must be from 1 to the target"),
        ({"exit_layer": 1, "on_policy": 0.5}, "does not write by itself: drop --on-policy"),
        ({"size": "3"}, "1 to the target's 2 layers"),
        ({"size": "1", "loss": "kl"}, "loss 'kl' is unknown: use forward-kl"),
        ({"size": "1", "on_policy": 1.5}, "--on-policy is 1.5"),
        ({"size": "1", "on_policy": 0.5, "loss": "text"}, "teaches nothing by --loss text"),
        ({"size": "1", "length": 999}, "length 999"),
        ({"start": "nowhere"}, "cannot load the model 'nowhere'"),
        ({"start": "other"}, "has another vocabulary than the target \\(id 0 is 't1' there"),
    ],
)
def test_wrong_options(folder: Path, changes: dict[str, Any], said: str) -> None:
    if changes.get("start") == "other":
        there = folder / "other"
        tiny.model("llama", vocab_size=V).save_pretrained(there)
        tokenizer([1, 0, *range(2, 53)]).save_pretrained(there)
        changes = {"start": str(there)}
    with pytest.raises(ValueError, match=said) as caught:
        DraftJob(options(folder, out=folder / "wrong", **changes), Watch()).run()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 0}, "--steps is 0, but must be 1 or more"),
        ({"calibration_tokens": 0}, "--calibration-tokens is 0, but must be 1 or more"),
        ({"rate": 1.0}, "--rate is 1.0, but must be between 0 and 1"),
        ({"loss": "kl"}, "loss 'kl' is unknown"),
        ({"on_policy": -0.1}, "--on-policy is -0.1"),
    ],
)
def test_wrong_arguments(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        command("nowhere", ["text"], out=tmp_path / "out", **{"size": "1", **changes})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": ""}, "--layers '' are no numbers"),
        ({"layers": "0,b"}, "--layers '0,b' are no numbers"),
        ({"size": "2x"}, "--size '2x' is no size"),
    ],
)
def test_what_is_written_wrong_is_told_before_anything_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(setup, "target", None)
    with pytest.raises(ValueError, match=said):
        DraftJob(options(folder, out=folder / "wrong", **changes), Watch()).run()


def test_heads_are_no_start_of_a_draft(tmp_path: Path) -> None:
    save(tmp_path, Heads(torch.zeros(1, 1, 48, 48), vocab_size=V))
    with pytest.raises(ValueError, match="holds heads, and no draft: train medusa --start"):
        command("bundled", ["text"], start=str(tmp_path), out=tmp_path / "out")


def test_what_is_held_out_is_the_targets_own_too(folder: Path) -> None:
    given = options(folder, out=folder / "own", self_distill=True, limit=400)
    target: Any = cyclic()
    texts = material.gathered(given, target, tokenizer(), Watch(), 2, 32)
    assert texts.asked and all(document.taught is None for document in texts.asked)
    for written in (texts.learnt, texts.held_out):
        assert written and all(one.taught and not one.taught[0] for one in written)
    asked = {tuple(one.ids[:20]) for one in texts.asked}
    assert all(tuple(one.ids[:20]) in asked for one in texts.held_out)
    kept = json.loads((folder / "own" / "written.json").read_text())
    assert kept["held_out"][0] == [list(texts.held_out[0].ids), 20]


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        ({"text": "t1 t2"}, {}, r"2 tokens to learn and needs 20 at least: give more$"),
        ({"prompt": "t1 " * 40, "completion": "t2"}, {}, r"to learn and needs 20 at least"),
        ({"text": "t1 " * 40}, {"limit": 5}, r"data has 5 tokens .* or a larger --limit$"),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_a_letter_is_too_little_to_learn(
    text: dict[str, str],
    changes: dict[str, Any],
    said: str,
    apart: bool,
    folder: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "few.jsonl").write_text(json.dumps(text))
    changes = changes | ({"held_out": [str(folder / "text.jsonl")]} if apart else {})
    given = options(folder, data=[str(tmp_path / "few.jsonl")], **changes)
    with pytest.raises(ValueError, match=said):
        material.gathered(given, cyclic(), tokenizer(), Watch(), 2, 32)
