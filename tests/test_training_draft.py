"""Training of drafts: how one begins, what it is taught by, what it writes, what it is worth."""

from __future__ import annotations

import copy
import itertools
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast

import draftproof as dp
import tiny
import zoo
from cyclic import Repeated, V, batch_of, cycle, rows_of
from draftproof.cli.train_draft import draft as command
from draftproof.heads.files import load as load_heads
from draftproof.heads.module import Heads
from draftproof.training import checkpoint
from draftproof.training.data.rows import Document
from draftproof.training.data.states import states_of
from draftproof.training.jobs import material, served
from draftproof.training.jobs.draft import DraftJob, Options, peak_rate
from draftproof.training.recipes import losses
from draftproof.training.recipes.draft import DEPTH, LOSSES, Draft, chances, replay, usual_rate
from draftproof.training.recipes.exit import Exit
from draftproof.training.recipes.student import layers_and_width, spread, student
from draftproof.training.trainer import Plan, train


def random(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scale * made


@cache
def cyclic() -> Any:
    """A model of two layers that knows the cyclic language."""
    model = tiny.model("llama", vocab_size=V, num_hidden_layers=2, initializer_range=0.02)
    rows = torch.tensor([cycle(i, 20) for i in range(V)])
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        logits = model(rows[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        adam.step()
        adam.zero_grad()
    assert float(loss.detach()) < 0.05
    return model.requires_grad_(False)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


# --- how a draft begins ---


@pytest.mark.parametrize("name", list(tiny.CONFIGS))
@torch.no_grad()
def test_all_layers_are_the_target(name: str) -> None:
    target = tiny.model(name)
    made = student(target, range(4))
    ids = torch.arange(3, 23)[None]
    assert torch.equal(made.eval()(ids).logits, target(ids).logits)
    assert made.generation_config.eos_token_id == 2


@pytest.mark.parametrize(("name", "layers"), [("llama", [0, 2, 3]), ("gemma3", [1, 2])])
@torch.no_grad()
def test_a_copy_is_the_target_without_the_other_layers(name: str, layers: list[int]) -> None:
    target = tiny.model(name)
    cut = copy.deepcopy(target)
    cut.model.layers = nn.ModuleList([cut.model.layers[i] for i in layers])
    cut.config.num_hidden_layers = len(layers)
    if name == "gemma3":
        cut.config.layer_types = [tiny.KINDS[i % 2] for i in layers]
    made, ids = student(target, layers).eval(), torch.arange(3, 23)[None]
    assert torch.equal(made(ids).logits, cut(ids, use_cache=False).logits)
    assert made.config.num_hidden_layers == len(layers)
    own = {p.data_ptr() for p in target.parameters()}
    assert not own & {p.data_ptr() for p in made.parameters()}


def test_a_copy_of_half_precision_learns_in_single() -> None:
    target = tiny.model(dtype=torch.bfloat16)
    made = student(target, [0, 3])
    assert made.dtype == torch.float32
    assert torch.equal(made.lm_head.weight, target.lm_head.weight.float())


def test_a_layer_that_would_work_otherwise_is_refused() -> None:
    target = tiny.model()
    target.model.layers[2].self_attn.scaling = 0.5
    assert student(target, [0, 1]) is not None
    with pytest.raises(ValueError, match="layer 2 of LlamaForCausalLM would differ in scaling"):
        student(target, [0, 2])
    target = tiny.model()
    target.model.layers[3].extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="do not fit into a smaller one"):
        student(target, [0, 3])


def test_another_width_is_random_and_a_function_of_the_seed() -> None:
    target, before = tiny.model(), torch.get_rng_state()
    one, two, other = (student(target, [0, 3], 24, seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, one.state_dict().values(), two.state_dict().values()))
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    config = one.config
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim) == (24, 2, 12)
    assert (config.num_attention_heads, config.num_key_value_heads) == (2, 1)
    assert one.lm_head.weight.shape == (tiny.VOCABULARY, 24)
    assert one(torch.arange(9)[None]).logits.shape == (1, 9, tiny.VOCABULARY)


class Stubborn(LlamaForCausalLM):
    def __init__(self, config: Any) -> None:
        if config.hidden_size < 48:
            raise RuntimeError("too narrow\nfor me")
        super().__init__(config)


def test_a_class_that_takes_no_such_shape() -> None:
    target = Stubborn(tiny.CONFIGS["llama"]())
    with pytest.raises(ValueError, match="Stubborn cannot be made with 1 layers of width 24") as it:
        student(target, [0], 24)
    assert "\n" not in str(it.value)


@pytest.mark.parametrize("name", ["gpt_neo", "smollm3"])
@torch.no_grad()
def test_what_is_told_of_every_layer_is_told_of_those_chosen(name: str, tmp_path: Path) -> None:
    made, ids = student(zoo.model(name), [1, 3]).eval(), torch.arange(3, 33)[None]
    made.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(again(ids).logits, made(ids).logits)


@pytest.mark.parametrize("width", [None, 24])
def test_a_configuration_that_cannot_be_cut(width: int | None) -> None:
    with pytest.raises(ValueError, match="Gemma4ForCausalLM cannot be made with 2 layers"):
        student(zoo.model("gemma4_text"), [0, 2], width)


def test_sizes() -> None:
    assert [spread(n, 12) for n in (1, 2, 3, 12)] == [[0], [0, 11], [0, 5, 11], list(range(12))]
    assert layers_and_width("2", None, 12) == ([0, 11], None)
    assert layers_and_width("2x192", None, 12) == ([0, 11], 192)
    assert layers_and_width(None, "0,5,11", 12) == ([0, 5, 11], None)


@pytest.mark.parametrize(
    ("size", "layers", "said"),
    [
        ("13", None, "1 to the target's 12 layers"),
        ("0", None, "1 to the target's 12 layers"),
        ("2x0", None, "and a width"),
        ("2x", None, "is no size"),
        ("big", None, "is no size"),
        ("-1", None, "is no size"),
        (None, "0,12", "different ones of 0 to 11"),
        (None, "5,0", "in their order"),
        (None, "5,5", "different ones"),
        (None, "first", "are no numbers"),
    ],
)
def test_wrong_sizes(size: str | None, layers: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        layers_and_width(size, layers, 12)


# --- what it is taught by ---


def laws(logits: Tensor) -> list[list[float]]:
    found = []
    for row in logits.tolist():
        shares = [math.exp(x) for x in row]
        found.append([x / sum(shares) for x in shares])
    return found


ORACLES: dict[str, Any] = {
    "forward-kl": lambda p, q: p * math.log(p / q),
    "reverse-kl": lambda p, q: q * math.log(q / p),
    "tv": lambda p, q: abs(p - q) / 2,
}


@pytest.mark.parametrize("name", list(ORACLES))
def test_divergences(name: str) -> None:
    teacher, ours = random(6, 9), random(6, 9, seed=1)
    of = losses.DIVERGENCES[name]
    wanted = [sum(map(ORACLES[name], p, q)) for p, q in zip(laws(teacher), laws(ours), strict=True)]
    torch.testing.assert_close(of(teacher, ours), torch.tensor(wanted, dtype=torch.float64))
    assert float(of(teacher, teacher).abs().max()) < 1e-12
    # by finite difference, and not towards the teacher only
    assert torch.autograd.gradcheck(of, (teacher, ours.requires_grad_()))


def test_acceptance_is_what_total_variation_leaves() -> None:
    teacher, ours = random(5, 9), random(5, 9, seed=1)
    shared = torch.minimum(teacher.softmax(-1), ours.softmax(-1)).sum(-1)
    torch.testing.assert_close(1 - losses.total_variation(teacher, ours), shared)


@pytest.mark.parametrize("name", list(ORACLES))
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = random(4, 11).float().requires_grad_(), random(6, 11, seed=1).float()
    states, theirs = random(10, 4, seed=2).float().requires_grad_(), random(10, 6, seed=3).float()

    def found() -> list[Tensor]:
        loss, right = losses.divergence(
            states, theirs, lambda x: x @ heads[0], lambda x: x @ heads[1], losses.DIVERGENCES[name]
        )
        grads = torch.autograd.grad(loss, (states, heads[0]))
        return [loss.detach(), right, *grads]

    whole = found()
    argmaxes = (states @ heads[0]).argmax(-1) == (theirs @ heads[1]).argmax(-1)
    assert int(whole[1]) == int(argmaxes.sum())
    monkeypatch.setattr(losses, "ELEMENTS", 2 * 11 * 3)  # 3 rows at a time
    for one, other in zip(whole, found(), strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_to_learn_is_no_loss() -> None:
    states = torch.zeros(0, 4, requires_grad=True)
    of = losses.forward_kl
    loss, right = losses.divergence(states, torch.zeros(0, 6), lambda x: x, lambda x: x, of)
    loss.backward()
    assert (float(loss.detach()), int(right)) == (0.0, 0)


@pytest.mark.parametrize("loss", LOSSES)
@torch.no_grad()
def test_the_recipe_sees_taught_tokens_of_one_document(loss: str) -> None:
    target, made = tiny.model(), student(tiny.model(seed=3), [0, 3])
    texts = [[5, 6, 7, 8, 9, 10], [11, 12, 13]]
    taught = [[False, False, False, True, True, True], [True, True, True]]
    found = Draft(target, made, [], loss=loss)(batch_of(texts, 12, taught), 0.0)
    sums, right, count = 0.0, 0, 0
    for ids, learnt in zip(texts, taught, strict=True):
        p, q = (m(torch.tensor([ids])).logits[0].detach() for m in (target, made))
        for t in range(len(ids) - 1):
            if learnt[t + 1]:
                count += 1
                if loss == "text":
                    sums -= float(q[t].log_softmax(-1)[ids[t + 1]])
                    right += int(q[t].argmax()) == ids[t + 1]
                else:
                    sums += float(losses.DIVERGENCES[loss](p[t], q[t]))
                    right += int(q[t].argmax() == p[t].argmax())
    assert float(found["loss"]) == pytest.approx(sums / count, rel=1e-4)
    assert float(found["agree"]) == pytest.approx(right / count)


def test_wide_drafts_learn_slower() -> None:
    rates = [
        Draft(tiny.model(), tiny.model(hidden_size=width, intermediate_size=8), []).rate
        for width in (48, 320, 640)
    ]
    assert rates == [1e-3, 1e-3, 5e-4]


@torch.no_grad()
def test_what_one_vocabulary_has_beyond_the_other_is_padding() -> None:
    target, made = tiny.model(), tiny.model(seed=3, vocab_size=90)
    ids = [5, 6, 7, 8]
    found = Draft(target, made, [])(batch_of([ids], 4), 0.0)
    p, q = (m(torch.tensor([ids])).logits[0, :-1, :90] for m in (target, made))
    assert float(found["loss"]) == pytest.approx(float(losses.forward_kl(p, q).mean()), rel=1e-4)


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


def test_the_answers_that_are_learnt_are_the_targets() -> None:
    texts = [Document(cycle(begin, 40)) for begin in range(10, 18)]
    with served.engine(cyclic(), tokenizer()) as llm:
        found = served.own_texts(llm, texts, 32, None, lambda share: None)
    assert len(found) == 8
    for number, (one, text) in enumerate(zip(found, texts, strict=True)):
        assert one.taught == [place >= 20 for place in range(len(one.ids))]
        assert list(one.ids[:20]) == list(text.ids[:20]) and 20 < len(one.ids) <= 32
        if number % 4 < 2:  # greedy; 2 is the end
            rest = list(text.ids[20:32])
            assert list(one.ids[20:]) == rest[: rest.index(2) + 1 if 2 in rest else None]


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


# --- all of it ---


class Watch:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def phase(self, text: str) -> None: ...
    def share(self, done: float) -> None: ...
    def step(self, state: Any, shown: dict[str, float], plan: Plan) -> None: ...
    def line(self, text: str) -> None:
        self.lines.append(text)

    def stopped(self) -> bool:
        return False


def tokenizer(size: int = 53) -> Any:
    vocabulary = {f"t{i}": i for i in range(size)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `target`, and `text.jsonl` of its language."""
    there = tmp_path_factory.mktemp("draft")
    cyclic().save_pretrained(there / "target")
    tokenizer().save_pretrained(there / "target")
    texts = [" ".join(f"t{i}" for i in cycle(begin, 40)) for begin in range(V)]
    lines = [json.dumps({"text": text}) for text in texts]
    (there / "text.jsonl").write_text("\n".join(lines))
    return there


def options(folder: Path, **more: Any) -> Options:
    target = str(folder / "target")
    given: dict[str, Any] = {
        "target": target,
        "source": target,
        "data": [str(folder / "text.jsonl")],
        "out": folder / "out",
        "steps": 60,
        "length": 32,
        "rows": 8,
        "rate": 1e-2,
        "calibration_tokens": 1000,
        "device": "cpu",
    }
    return Options(**{**given, **more})


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
    with dp.LLM(str(folder / "target"), device="cpu") as llm:
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
    with dp.LLM(str(folder / "target"), device="cpu") as llm:
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
        ({"exit_layer": 2}, "no early exit of a model with 2 layers: use 1 to 1"),
        ({"exit_layer": 1, "on_policy": 0.5}, "does not write by itself: drop --on-policy"),
        ({"size": "3"}, "1 to the target's 2 layers"),
        ({"size": "1", "loss": "kl"}, "loss 'kl' is unknown: use forward-kl"),
        ({"size": "1", "on_policy": 1.5}, "--on-policy is 1.5"),
        ({"size": "1", "on_policy": 0.5, "loss": "text"}, "teaches nothing by --loss text"),
        ({"size": "1", "length": 999}, "length 999"),
        ({"start": "nowhere"}, "cannot load the model 'nowhere'"),
        ({"start": "other"}, "has another vocabulary than the target"),
    ],
)
def test_wrong_options(folder: Path, changes: dict[str, Any], said: str) -> None:
    if changes.get("start") == "other":
        there = folder / "other"
        tiny.model("llama", vocab_size=V).save_pretrained(there)
        tokenizer(52).save_pretrained(there)
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
        command("nowhere", ["text"], tmp_path / "out", **{"size": "1", **changes})
    assert not (tmp_path / "out").exists()
