"""The torch runner: a packed pass gives the model's own logits.

Every row is compared with the model's own forward pass over the plain sequence it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama import LlamaConfig

import tiny
from all_trees import random_tree
from draftproof.runners import choice
from draftproof.runners.base import Work
from draftproof.runners.torch import TorchRunner
from draftproof.tree import TokenTree
from forwarding import CONFIGS, TOLERANCES, V, build, close, own, target


def nodes_are_right(
    model: PreTrainedModel, committed: Sequence[int], tree: TokenTree, logits: Tensor
) -> None:
    assert len(logits) == len(tree)
    for i in range(len(tree)):
        path = [tree.tokens[j] for j in tree.path(i)]
        tolerance = TOLERANCES.get(model.config.model_type, 1e-9)
        close(logits[i], own(model, [*committed, *path]), tolerance)


class Rows:
    """Several requests on one runner, with the books of what is committed."""

    def __init__(self, runner: TorchRunner, rng: Random, count: int) -> None:
        self.runner, self.rng = runner, rng
        self.tokens = {
            key: [rng.randrange(3, V) for _ in range(rng.choice([1, 2, 7, 23]))]
            for key in range(count)
        }

    @torch.inference_mode()
    def step(self, model: PreTrainedModel) -> None:
        """One pass with slices and trees; every node is checked, a random path is kept."""
        rng, work = self.rng, []
        for key, tokens in self.tokens.items():
            if rng.random() < 0.2:
                continue  # not in every pass
            new = tokens[self.runner.cached(key) : -1]
            if len(new) > 4 and rng.random() < 0.6:
                work.append(Work(key, new[: rng.randrange(1, len(new))], None))
            else:
                tree = random_tree(rng, tokens[-1], rng.choice([1, 1, 4, 12]))
                work.append(Work(key, new, tree))
        rng.shuffle(work)
        if not work:
            return
        before = {w.key: self.runner.cached(w.key) for w in work}
        outputs = self.runner.forward(work)
        assert len(outputs) == len(work)
        for item, output in zip(work, outputs, strict=True):
            tokens = self.tokens[item.key]
            assert self.runner.cached(item.key) == before[item.key] + len(item.new)
            if item.tree is None:
                continue
            nodes_are_right(model, tokens[:-1], item.tree, output.logits)
            if rng.random() < 0.15:
                continue  # nothing kept: the same root again, other children
            path = item.tree.path(rng.randrange(len(item.tree)))
            self.runner.keep(item.key, path)
            bonus = rng.randrange(3, V)
            tokens += [*(item.tree.tokens[i] for i in path[1:]), bonus]
            assert self.runner.cached(item.key) == len(tokens) - 1


def check_rows(name: str, seed: int, steps: int) -> None:
    model, rng = target(name), Random(seed)
    runner = choice.on_torch(model, max_batch=3)
    rows = Rows(runner, rng, 3)
    for i in range(steps):
        rows.step(model)
        if i % 4 == 3:  # somebody leaves, another takes the row
            key = min(rows.tokens)
            runner.free(key)
            assert runner.cached(key) == 0
            del rows.tokens[key]
            rows.tokens[100 + i] = [rng.randrange(3, V) for _ in range(5)]
        for key in [key for key, tokens in rows.tokens.items() if len(tokens) > 100]:
            runner.free(key)
            rows.tokens[key] = rows.tokens[key][:3]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_node_has_the_logits_of_the_plain_pass_over_its_path(name: str) -> None:
    check_rows(name, seed=0, steps=6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", CONFIGS)
def test_every_node_everywhere(name: str, seed: int) -> None:
    check_rows(name, seed, steps=30)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_a_tree_that_grows_in_one_step(name: str) -> None:
    """`first`: earlier nodes lie in their scratch slots; then a path that is no chain is kept."""
    model, rng = target(name), Random(1)
    runner = choice.on_torch(model, max_batch=2)
    tokens = {0: [5, 6, 7, 8, 9, 10, 11, 12], 1: [20, 21]}
    full = {key: random_tree(rng, tokens[key][-1], 14) for key in tokens}
    rows: dict[int, list[Tensor]] = {0: [], 1: []}
    with torch.inference_mode():
        for begin, end in ((0, 1), (1, 4), (4, 9), (9, 14)):
            work = [
                Work(
                    key,
                    tokens[key][:-1] if begin == 0 else [],
                    TokenTree(tree.tokens[:end], tree.parents[:end]),
                    begin,
                )
                for key, tree in full.items()
            ]
            for item, output in zip(work, runner.forward(work), strict=True):
                assert len(output.logits) == end - begin
                rows[item.key].append(output.logits.clone())
    for key, tree in full.items():
        nodes_are_right(model, tokens[key][:-1], tree, torch.cat(rows[key]))
        path = max(
            (tree.path(i) for i in range(14)), key=lambda p: (p != list(range(len(p))), len(p))
        )
        runner.keep(key, path)
        tokens[key] += [*(tree.tokens[i] for i in path[1:]), 50]
        assert runner.cached(key) == len(tokens[key]) - 1
        after = random_tree(rng, 50, 5)
        with torch.inference_mode():
            (output,) = runner.forward([Work(key, [], after)])
        nodes_are_right(model, tokens[key][:-1], after, output.logits)


def test_a_tree_deeper_than_the_window_and_wider() -> None:
    model = target("mistral")  # window 5
    runner = choice.on_torch(model)
    deep = TokenTree.chain(list(range(10, 30)))
    wide = TokenTree(list(range(30, 60)), [-1] + [0] * 20 + [20] * 9)
    with torch.inference_mode():
        for key, (tree, prompt) in enumerate(((deep, [3, 4]), (wide, [3, 4, 5, 6, 7, 8, 9]))):
            (output,) = runner.forward([Work(key, prompt, tree)])
            nodes_are_right(model, prompt, tree, output.logits)


def test_the_last_position_of_the_context_can_be_run() -> None:
    model = target("llama")
    runner = choice.on_torch(model, max_batch=1)
    assert runner.max_length == 128
    prompt = [3 + i % 90 for i in range(126)]
    with torch.inference_mode():
        (output,) = runner.forward([Work(0, prompt, TokenTree.chain([5]))])
    nodes_are_right(model, prompt, TokenTree.chain([5]), output.logits)


def test_neighbours_do_not_change_a_row() -> None:
    model = target("qwen3")
    runner = choice.on_torch(model, max_batch=4)
    tree = TokenTree([5, 6, 7, 8], [-1, 0, 0, 1])
    with torch.inference_mode():
        (alone,) = runner.forward([Work(0, [9, 10, 11], tree)])
        work = [
            Work(1, [12] * 40, None),
            Work(2, [9, 10, 11], tree),
            Work(3, [], TokenTree.chain([1] * 9)),
        ]
        beside = runner.forward(work)[1]
    close(beside.logits, alone.logits, 1e-12)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_taps_are_the_models_hidden_states(name: str) -> None:
    model = target(name)
    runner = choice.on_torch(model)
    tokens = [5, 6, 7, 8, 9]
    layers = (0, 2, -1)
    with torch.inference_mode():
        work = [
            Work(1, [], TokenTree.chain([4, 4])),
            Work(0, tokens[:2], TokenTree.chain(tokens[2:])),
        ]
        outputs = runner.forward(work, layers)
        want = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    assert set(outputs[1].hidden) == set(layers)
    for layer in layers:
        close(outputs[1].hidden[layer], want[layer][0, 2:])
    close(runner.head(outputs[1].hidden[-1]), outputs[1].logits)


def test_static_rotary_scalings_run() -> None:
    ropes: list[dict[str, Any]] = [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "llama3",
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ]
    for rope in ropes:
        model = build(LlamaConfig(**tiny.COMMON, rope_parameters={"rope_theta": 10000.0, **rope}))
        runner = choice.on_torch(model)
        tree = TokenTree([5, 6, 7, 8], [-1, 0, 0, 1])
        prompt = [3 + i for i in range(90)]
        with torch.inference_mode():
            (output,) = runner.forward([Work(0, prompt, tree)])
        nodes_are_right(model, prompt, tree, output.logits)
