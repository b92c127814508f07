"""Medusa: heads that are right by construction, heads that are often right, heads on disk."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from cases import PROMPTS, SAMPLED
from drafters import NATIVE, check_counters
from draftproof import bundled
from draftproof.bundled import prompts
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.heads.placed import Placed
from draftproof.proposers.medusa import Medusa
from draftproof.request import Request
from draftproof.sampling.noise import noise
from draftproof.shapes import best_first
from draftproof.tree import TokenTree
from draftproof.writing import Feedback
from laws import check_law, small

D, V, K = 48, tiny.VOCABULARY, 3
CHAIN = [(0,), (0, 0), (0, 0, 0)]
STATIC = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1)]
TENSORS = "model.safetensors"


def params(**options: Any) -> dp.SamplingParams:
    return dp.SamplingParams(**{"max_tokens": 24, "seed": 7, "ignore_eos": True, **options})


def random(*shape: int, seed: int = 0, scale: float = 0.1) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_heads(heads: int = K, layers: int = 1, bias: bool = True, own: bool = True) -> Heads:
    return Heads(
        random(heads, layers, D, D),
        random(heads, layers, D, seed=1) if bias else None,
        random(heads, V, D, seed=2) if own else None,
        vocab_size=V,
    )


def accepted(outs: Sequence[dp.Completion]) -> int:
    return sum(out.stats.accepted for out in outs)


def tokens_of(outs: Sequence[dp.Completion]) -> list[list[int]]:
    assert all(out.warnings == [] and out.error is None for out in outs)
    return [out.token_ids for out in outs]


# --- heads that are often right: least squares on what the target itself writes ---


@cache
def target(name: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    changes: dict[str, Any] = {"tie_word_embeddings": False}  # else Gemma repeats itself
    return tiny.model(name, dtype=dtype, **changes, **sizes(dtype))


def sizes(dtype: torch.dtype) -> dict[str, Any]:
    """What the native runner asks for."""
    return {"head_dim": 16} if dtype == torch.bfloat16 else {}


def llm_of(name: str, heads: Any = None, dtype: torch.dtype = torch.float64, **more: Any) -> dp.LLM:
    return dp.LLM(target(name, dtype), speculate=heads, **more)


@cache
def plain(name: str, case: str, dtype: torch.dtype = torch.float64) -> list[list[int]]:
    """Decoding without drafts, one prompt at a time."""
    runner = "native" if dtype == torch.bfloat16 else "torch"
    with llm_of(name, dtype=dtype, max_batch=1, runner=runner) as llm:
        return tokens_of(llm.generate(PROMPTS, params(**case_of(case))))


def case_of(case: str) -> dict[str, Any]:
    return {} if case == "greedy" else SAMPLED[case]


@cache
def fitted(name: str, dtype: torch.dtype = torch.float64) -> Heads:
    """W2 of each head by ridge regression, with the accuracies of its ten best guesses."""
    model, states, labels = target(name, dtype), [], []
    for case in ("greedy", "hot"):
        for prompt, output in zip(PROMPTS, plain(name, case, dtype), strict=True):
            ids = torch.tensor([*prompt, *output])
            with torch.no_grad():
                hidden = model(ids[None], output_hidden_states=True).hidden_states[-1][0]
            states.append(hidden[: -K - 1].double())
            labels.append(torch.stack([ids[k + 1 : len(ids) - K + k] for k in range(1, K + 1)]))
    h, y = torch.cat(states), torch.cat(labels, 1)  # (N, d), (K, N)
    onehot = torch.nn.functional.one_hot(y, V).double()  # (K, N, V)
    outputs = onehot.transpose(1, 2) @ h @ torch.linalg.inv(h.T @ h + 0.1 * torch.eye(D))
    best = (h @ outputs.transpose(1, 2)).topk(10).indices
    return Heads(
        torch.zeros(K, 1, D, D),
        None,
        10 * outputs,
        vocab_size=V,
        accuracies=(best == y[..., None]).double().mean(1).tolist(),
    )


KINDS: dict[str, Any] = {"static": STATIC, "calibrated": "calibrated", "grown": "grown"}


def check(name: str, case: str, proposer: Any, dtype: torch.dtype = torch.float64, **more: Any):
    with llm_of(name, proposer, dtype, **more) as llm:
        outs = llm.generate(PROMPTS, params(**case_of(case)))
    assert tokens_of(outs) == plain(name, case, dtype)
    assert 0 < accepted(outs) < sum(out.stats.drafted for out in outs)
    return outs


@pytest.mark.parametrize("max_batch", [1, 4])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("case", ["greedy", "everything"])
def test_heads_do_not_change_a_token(name: str, case: str, max_batch: int) -> None:
    check(name, case, Medusa(fitted(name), "grown"), max_batch=max_batch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["greedy_penalties", "hot"])
def test_every_kind_of_tree(case: str, kind: str) -> None:
    outs = check("llama", case, Medusa(fitted("llama"), KINDS[kind], nodes=8), max_batch=3)
    for out in outs:
        assert out.stats.drafted <= 8 * (out.stats.steps - 1), "the first step has no hidden state"


@NATIVE
@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("case", ["greedy", "everything"])
def test_not_a_bit_on_the_native_runner(name: str, case: str) -> None:
    heads, options = fitted(name, torch.bfloat16), {"runner": "native", "max_batch": 3}
    check(name, case, Medusa(heads, "calibrated"), torch.bfloat16, **options)
    check(name, case, Medusa(heads, "grown", nodes=6), torch.bfloat16, **options)


def test_the_rejection_rule_is_greedy_at_temperature_0() -> None:
    check("llama", "greedy", Medusa(fitted("llama")), rule="rejection", max_batch=4)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_counters_are_those_of_the_trace(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [params(), params(temperature=0.4, stop_token_ids=(30, 31, 32))]
    with llm_of("llama", Medusa(fitted("llama"), "grown"), rule=rule, max_batch=3) as llm:
        check_counters(monkeypatch, llm, PROMPTS, some)


def test_the_law_of_the_rejection_rule() -> None:
    outputs = small(1).lm_head.weight.detach().repeat(2, 1, 1)
    heads = Heads(random(2, 1, 16, 16), None, outputs, vocab_size=4)
    check_law("rejection", Medusa(heads, nodes=5), 600, max_tokens=4)


def test_among_other_methods() -> None:
    parts = [dp.NGram(min_ngram=1), Medusa(fitted("llama"), nodes=6)]
    outs = check("llama", "one", parts, max_batch=4)
    with llm_of("llama", parts[0]) as llm:
        alone = llm.generate(PROMPTS, params(**case_of("one")))
    assert sum(o.stats.steps for o in outs) < sum(o.stats.steps for o in alone)


# --- heads that are right by construction ---


def without_context(dtype: torch.dtype = torch.float64) -> Any:
    """A Llama whose hidden state is its last token's embedding, normalised."""
    model = tiny.model("llama", dtype=dtype, **sizes(dtype))
    model.model.embed_tokens.weight.data.copy_(random(V, D, scale=1.0))  # it has a row of zeros
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    return model


def state_of(model: Any) -> Tensor:
    """The hidden state behind each token, (V, d)."""
    return model.model.norm(model.model.embed_tokens.weight).detach()


def always_right(model: Any, heads: Heads, **options: Any) -> list[dp.Completion]:
    """Whatever is drafted is accepted, and three tokens are drafted in every step but the first."""
    with dp.LLM(model, speculate=Medusa(heads, CHAIN), max_batch=2, **options) as llm:
        outs = llm.generate(PROMPTS, params(max_tokens=1 + 4 * 5, temperature=1.0))
    tokens_of(outs)
    for out in outs:
        assert out.stats.accepted == out.stats.drafted == 3 * 5
        assert out.stats.accepted_per_position == [5, 5, 5]
        assert len(set(out.token_ids)) > 3, "nothing happens"
    return outs


RUNNERS = [
    ("torch", torch.float64),
    pytest.param("native", torch.bfloat16, marks=NATIVE),
]


@pytest.mark.parametrize(("runner", "dtype"), RUNNERS)
def test_heads_race_the_noise_of_the_position_of_their_token(
    runner: str, dtype: torch.dtype
) -> None:
    """One law for all positions: untrained heads have it, and the noise decides."""
    model = without_context(dtype=dtype)
    model.model.embed_tokens.weight.data[:] = model.model.embed_tokens.weight.data[3]
    model.lm_head.weight.data *= 0.2  # nearer to uniform
    heads = Heads(torch.zeros(K, 1, D, D), vocab_size=V)
    always_right(model, heads, runner=runner)


def permuted(shift: int, dtype: torch.dtype) -> tuple[Any, Heads]:
    """A target that writes (token + 5) mod V, and heads that know it, `shift` places off."""
    model = without_context(dtype=dtype)
    rows = torch.nn.functional.normalize(state_of(model).double(), dim=1) * 200
    model.lm_head.weight.data[:] = rows.roll(5, 0)  # token t + 5 has the state of t
    outputs = [rows.roll(5 * (k + 1 + shift), 0) for k in range(1, K + 1)]
    return model, Heads(torch.zeros(K, 1, D, D), None, torch.stack(outputs), vocab_size=V)


@pytest.mark.parametrize(("runner", "dtype"), RUNNERS)
def test_head_k_guesses_the_kth_token_after_the_next(runner: str, dtype: torch.dtype) -> None:
    outs = always_right(*permuted(0, dtype), runner=runner)
    for out in outs:
        text = [out.prompt_token_ids[-1], *out.token_ids]
        assert all(b == (a + 5) % V for a, b in itertools.pairwise(text))


@pytest.mark.parametrize("shift", [-1, 1])
def test_heads_for_another_place_are_never_right(shift: int) -> None:
    model, heads = permuted(shift, torch.float64)
    with dp.LLM(model, speculate=Medusa(heads, CHAIN)) as llm:
        outs = llm.generate(PROMPTS, params())
    assert accepted(outs) == 0 < sum(out.stats.drafted for out in outs)


# --- what is proposed ---


class Fake:
    """A target that was never asked to run, and counts calls of its head."""

    def __init__(self, lm_head: Tensor) -> None:
        self.lm_head, self.rows, self.device = lm_head, [], torch.device("cpu")

    def linear(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda rows: rows @ weight.T

    def head(self, hidden: Tensor) -> Tensor:
        self.rows.append(len(hidden))
        return hidden @ self.lm_head.T


def bound(heads: Heads, *tree: Any, **options: Any) -> tuple[Medusa, Fake]:
    made, fake = Medusa(heads, *tree, **options), Fake(random(V, D, seed=5, scale=0.5))
    made.placed = Placed(heads, fake)  # type: ignore[arg-type]
    return made, fake


def after_a_step(key: int = 0, rule: str = "coupled", **options: Any) -> Request:
    """A request whose last step accepted node 2 of a tree with a side branch."""
    request = Request(key, [3, 4, 5], params(max_tokens=50, **options), seed=key, rule=rule)
    tree, path = TokenTree([5, 6, 7, 8], [-1, 0, 0, 2]), [0, 2]
    for token in (7, 9):
        request.write(token, torch.zeros(4, V), 0)
    request.commit(tree, path, 2)
    request.feedback = Feedback(tree, path, {-1: random(4, D, seed=key, scale=1.0)})
    return request


@torch.no_grad()
def slow_guesses(
    medusa: Medusa, fake: Fake, request: Request, width: int
) -> list[dict[int, float]]:
    """Of each head, the softmax of its best tokens: one head and one layer at a time."""
    assert request.feedback is not None
    found = []
    for k in range(medusa.heads.heads):
        x = request.feedback.hidden[-1][2]
        for layer in range(medusa.heads.layers):
            y = medusa.heads.weights[k, layer] @ x
            if medusa.heads.biases is not None:
                y = y + medusa.heads.biases[k, layer]
            x = x + y * torch.sigmoid(y)
        outputs = medusa.heads.outputs
        p = ((fake.lm_head if outputs is None else outputs[k]) @ x).softmax(0)
        found.append({int(t): float(p[t]) for t in p.argsort(descending=True)[:width]})
    return found


def branches(tree: TokenTree) -> dict[tuple[int, ...], float]:
    """Every node but node 0 by its tokens, and its score."""
    assert tree.scores is not None
    return {tuple(tree.path_tokens(i)): tree.scores[i] for i in range(1, len(tree))}


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_grown_tree_is_the_best_of_all(layers: int, own: bool, bias: bool) -> None:
    medusa, fake = bound(random_heads(3, layers, bias, own), "grown", nodes=9)
    request = after_a_step()
    (tree,) = medusa.propose([request])
    guesses = slow_guesses(medusa, fake, request, 9)
    every = {}
    for depth in range(1, 4):
        for path in itertools.product(*(g.items() for g in guesses[:depth])):
            score = 1.0
            for _, share in path:
                score *= share
            every[tuple(token for token, _ in path)] = score
    best = dict(sorted(every.items(), key=lambda item: -item[1])[:9])
    assert tree.tokens[0] == 9 and tree.laws is None
    assert branches(tree) == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_static_tree_is_made_of_ranks(rule: str) -> None:
    medusa, fake = bound(random_heads(), STATIC)
    request = after_a_step(rule=rule)
    (tree,) = medusa.propose([request])
    ids = [list(guess) for guess in slow_guesses(medusa, fake, request, 3)]
    want = [tuple(ids[k][rank] for k, rank in enumerate(path)) for path in STATIC]
    assert list(branches(tree)) == sorted(want, key=len)


def test_under_the_rejection_rule_noise_has_no_say() -> None:
    medusa, fake = bound(random_heads(), CHAIN)
    request = after_a_step(rule="rejection", temperature=1.5, top_k=4)
    (tree,) = medusa.propose([request])
    guesses = slow_guesses(medusa, fake, request, 1)
    assert list(tree.tokens[1:]) == [next(iter(guess)) for guess in guesses]
    assert tree.laws is None


@pytest.mark.parametrize("temperature", [0.4, 1.0, 60.0])
def test_with_noise_the_heads_answer_for_the_noisy_logits(temperature: float) -> None:
    medusa, fake = bound(random_heads(), [(rank,) for rank in range(6)])
    request = after_a_step(temperature=temperature)
    (tree,) = medusa.propose([request])
    p = slow_guesses(medusa, fake, request, V)[0]
    e = noise(request.seed, 0, len(request.tokens), V)
    logits = torch.tensor([p[token] for token in range(V)]).log()
    best = (logits - temperature * e.log()).argsort(descending=True)[:6]
    assert list(tree.tokens[1:]) == best.tolist() and tree.scores is not None
    g = -(1 - (-e).exp()).log()  # close to -log(E) for what wins among many tokens
    shares = (logits + temperature * g)[best].softmax(0)
    assert tree.scores[1:] == pytest.approx(shares.tolist(), rel=1e-3)


def test_penalties_and_bans_reach_the_heads() -> None:
    medusa, _ = bound(random_heads(), CHAIN)
    (free,) = medusa.propose([after_a_step()])
    best = free.tokens[1:]
    banned, penalised = after_a_step(bad_token_ids=tuple(best)), after_a_step(presence_penalty=2.0)
    penalised.history.append(best)
    for tree in medusa.propose([banned]) + medusa.propose([penalised]):
        assert len(tree) == 4 and not set(tree.tokens[1:]) & set(best)


def test_all_heads_of_all_requests_go_through_the_head_of_the_target_at_once() -> None:
    medusa, fake = bound(random_heads(own=False), nodes=4)
    requests = [after_a_step(key) for key in range(5)]
    requests[2].feedback = None
    together = medusa.propose(requests)
    assert fake.rows == [K * 4]
    for request, tree in zip(requests, together, strict=True):
        (alone,) = medusa.propose([request])
        assert branches(alone) == pytest.approx(branches(tree), rel=1e-5)
    assert [len(tree) for tree in together] == [5, 5, 1, 5, 5]


def stale(change: str) -> Request:
    request = after_a_step()
    if change == "no step yet":
        request.feedback = None
    elif change == "nothing tapped":
        request.feedback = Feedback(TokenTree.chain([9]), [0], {})
    elif change == "a token more":
        request.tokens.append(11)
    elif change == "a token less":
        request.tokens.pop()
    return request


@pytest.mark.parametrize(
    "change", ["no step yet", "nothing tapped", "a token more", "a token less"]
)
def test_nothing_is_drafted_from_a_state_that_is_not_the_last(change: str) -> None:
    medusa, fake = bound(random_heads(own=False))
    request = stale(change)
    (tree,) = medusa.propose([request])
    assert list(tree.tokens) == request.tokens[-1:] and fake.rows == []
    assert len(medusa.propose([stale("")])[0]) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_scores_fall_and_doubtful_nodes_are_left_out(kind: str, temperature: float) -> None:
    heads = copy.deepcopy(random_heads())
    heads.accuracies = [[0.5, 0.2, 0.1]] * K
    requests = [after_a_step(key, temperature=temperature) for key in range(8)]
    every = bound(heads, KINDS[kind], nodes=8)[0].propose(requests)
    some = bound(heads, KINDS[kind], nodes=8, min_confidence=0.1)[0].propose(requests)
    for whole, cut in zip(every, some, strict=True):
        assert whole.scores is not None and len(whole) == 9
        for i in range(1, len(whole)):
            assert 0 < whole.scores[i] <= whole.scores[whole.parents[i]] <= 1
        want = {path: score for path, score in branches(whole).items() if score >= 0.1}
        assert branches(cut) == pytest.approx(want)
    assert sum(map(len, some)) < sum(map(len, every))


def test_heads_that_fail_later_change_nothing() -> None:
    medusa = Medusa(fitted("llama"))
    heads, size = medusa.heads.heads, medusa.heads.hidden_size
    with llm_of("llama", medusa, max_batch=4) as llm:
        medusa.placed.first = lambda rows: torch.full((len(rows), heads * size), torch.nan)
        outs = llm.generate(PROMPTS, params())
    assert [out.token_ids for out in outs] == plain("llama", "greedy")
    assert all("drafting stopped" in warning for out in outs for warning in out.warnings)
    assert all(out.warnings for out in outs)


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), max_size=3), st.integers(1, 12))
def test_best_first_equals_trying_every_path(shares: list[list[float]], nodes: int) -> None:
    every = {}
    for depth in range(1, len(shares) + 1):
        for path in itertools.product(*(range(len(s)) for s in shares[:depth])):
            value = 1.0
            for k, rank in enumerate(path):
                value *= shares[k][rank]
            if value > 0:
                every[path] = value
    got = [path for path, share in best_first(shares, nodes + 1)[1:] if share > 0]
    assert len(set(got)) == len(got) == min(nodes, len(every))
    assert [every[path] for path in got] == sorted(every.values(), reverse=True)[:nodes]
    for i, path in enumerate(got):
        assert len(path) == 1 or path[:-1] in got[:i]


def test_the_default_tree_is_what_lies_with_the_heads() -> None:
    heads = random_heads()
    assert Medusa(heads).paths == []
    heads.accuracies = [[0.9, 0.05], [0.8, 0.1], [0.7, 0.1]]
    assert Medusa(heads, nodes=4).paths == [(0,), (0, 0), (0, 1), (0, 0, 0)]
    heads.tree = [(0,), (1,)]
    assert Medusa(heads).paths == [(0,), (1,)]
    assert Medusa(heads, "grown").paths == []
    assert Medusa(heads, "calibrated", nodes=1).paths == [(0,)]


# --- one set of heads for several ---


def test_heads_are_left_as_they_were() -> None:
    heads = random_heads()
    before = {name: tensor.clone() for name, tensor in heads.state_dict().items()}
    medusa = Medusa(heads)
    for dtype in (torch.float64, torch.float32):
        with llm_of("llama", medusa, dtype) as llm:
            llm.generate(PROMPTS[:1], params(max_tokens=4))
    for name, tensor in heads.state_dict().items():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, before[name])
    assert all(parameter.requires_grad for parameter in heads.parameters())


def test_heads_in_bfloat16_for_a_target_in_float64() -> None:
    half = copy.deepcopy(fitted("llama")).to(torch.bfloat16)
    check("llama", "one", Medusa(half), max_batch=4)


# --- on disk ---


def logits_of(heads: Heads, lm_head: Tensor) -> Tensor:
    with torch.no_grad():
        return heads.logits(random(5, D, seed=9, scale=1.0), lambda x: x @ lm_head.T)


SHAPES = [(1, True, True), (2, False, True), (1, False, False), (3, True, False)]
WRITERS: dict[str, Callable[..., None]] = {
    "ours": lambda folder, heads, lm_head: files.save(folder, heads),
    "original": files.export_original,
    "vllm": files.export_vllm,
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(("layers", "bias", "own"), SHAPES)
def test_what_is_written_is_read(
    writer: str, layers: int, bias: bool, own: bool, tmp_path: Path
) -> None:
    heads, lm_head = random_heads(4, layers, bias, own), random(V, D, seed=8)
    WRITERS[writer](tmp_path / "new" / "folder", heads, lm_head)
    read = files.load(tmp_path / "new" / "folder")
    assert torch.equal(logits_of(read, lm_head), logits_of(heads, lm_head))
    assert (read.heads, read.layers, read.hidden_size, read.vocab_size) == (4, layers, D, V)
    assert (read.outputs is None) == (not own and writer != "original")


def test_our_layout_keeps_the_notes(tmp_path: Path) -> None:
    heads = random_heads()
    heads.target, heads.tree = "some/model", [(0,), (0, 1)]
    heads.accuracies = [[0.5, 0.25]] * K
    files.save(str(tmp_path), heads)
    read = files.load(str(tmp_path))
    assert (read.target, read.tree, read.accuracies) == ("some/model", heads.tree, heads.accuracies)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["format"] == "draftproof-medusa" and config["shared_head"] is False
    assert Medusa(tmp_path).paths == heads.tree
    for name, known in (("foretoken-medusa", True), ("other", False)):
        (tmp_path / "config.json").write_text(json.dumps(config | {"format": name}))
        if known:  # the project's former name
            assert files.load(tmp_path).tree == heads.tree
        else:
            with pytest.raises(ValueError, match="config.json says format: 'other'"):
                files.load(tmp_path)


def test_the_original_names(tmp_path: Path) -> None:
    heads, lm_head = random_heads(2, 2, bias=False, own=False), random(V, D, seed=8)
    heads.target = "lmsys/vicuna-7b-v1.3"
    files.export_original(tmp_path, heads, lm_head)
    tensors = torch.load(tmp_path / "medusa_lm_head.pt", weights_only=True)
    assert sorted(tensors) == sorted(
        [f"{k}.{i}.linear.{kind}" for k in (0, 1) for i in (0, 1) for kind in ("weight", "bias")]
        + ["0.2.weight", "1.2.weight"]
    )
    assert torch.equal(tensors["1.0.linear.weight"], heads.weights[1, 0])
    assert not tensors["1.0.linear.bias"].any() and torch.equal(tensors["1.2.weight"], lm_head)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["medusa_num_heads"] == config["medusa_num_layers"] == 2
    assert files.load(tmp_path).target == "lmsys/vicuna-7b-v1.3"


def test_the_names_of_vllm(tmp_path: Path) -> None:
    files.export_vllm(tmp_path, random_heads(2, 1, bias=True, own=True))
    assert sorted(load_file(tmp_path / "model.safetensors")) == sorted(
        [f"blocks.{k}.layers.0.{kind}" for k in (0, 1) for kind in ("weight", "bias")]
        + ["lm_heads.0.weight", "lm_heads.1.weight"]
    )
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "medusa" and config["medusa_fc_bias"] is True
    files.export_vllm(tmp_path, random_heads(2, 1, own=False), random(V, D))
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")
    assert json.loads((tmp_path / "config.json").read_text())["original_lm_head"] is True


def rename(file: Path, change: Callable[[str], str]) -> None:
    """The same tensors under other names."""
    if file.suffix == ".pt":
        tensors = torch.load(file, weights_only=True)
        torch.save({change(name): tensor for name, tensor in tensors.items()}, file)
    else:
        save_file({change(name): tensor for name, tensor in load_file(file).items()}, file)


def set_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


def in_two_files(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    first = {name: tensors.pop(name) for name in sorted(tensors)[:3]}
    save_file(first, folder / "model-00001-of-00002.safetensors")
    save_file(tensors, folder / "model-00002-of-00002.safetensors")
    (folder / "model.safetensors").unlink()


def as_safetensors(folder: Path) -> None:
    tensors = torch.load(folder / "medusa_lm_head.pt", weights_only=True)
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    (folder / "medusa_lm_head.pt").unlink()


OTHER_COUNTS = {"num_heads": None, "num_hidden_layers": None, "medusa_num_heads": 4}
MODEL = {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 32000}
# Ways in which published files differ from what we write.
VARIANTS: dict[str, Callable[[Path], Any]] = {
    "pt": lambda folder: (folder / "config.json").unlink(),
    "pt with a model": lambda folder: (folder / "config.json").write_text(json.dumps(MODEL)),
    "pt, too few heads said": lambda folder: set_config(folder, medusa_num_heads=2),
    "pt, prefix": lambda folder: rename(folder / "medusa_lm_head.pt", lambda n: f"medusa_head.{n}"),
    "pt, safetensors": as_safetensors,
    "vllm, prefix": lambda folder: rename(folder / TENSORS, lambda n: f"medusa_heads.{n}"),
    "vllm, other counts": lambda folder: set_config(folder, **OTHER_COUNTS, model_type=None),
    "vllm, two files": in_two_files,
    "vllm, first of equal heads": lambda folder: rename(
        folder / TENSORS, lambda n: n.replace("lm_head.", "lm_heads.0.")
    ),
}


@pytest.mark.parametrize("kind", VARIANTS)
def test_what_others_write_is_read(kind: str, tmp_path: Path) -> None:
    heads, lm_head = random_heads(4, own="equal" not in kind), random(V, D, seed=8)
    export = files.export_original if kind.startswith("pt") else files.export_vllm
    export(tmp_path, heads, lm_head)
    VARIANTS[kind](tmp_path)
    alone = tmp_path / "medusa_lm_head.pt"
    for path in [tmp_path, alone] if alone.exists() else [tmp_path]:
        read = files.load(path)
        assert torch.equal(logits_of(read, lm_head), logits_of(heads, lm_head))


def broken(folder: Path, writer: str, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Heads with their tensors changed by `change`."""
    WRITERS[writer](folder, random_heads(), random(V, D, seed=8))
    file = folder / ("medusa_lm_head.pt" if writer == "original" else "model.safetensors")
    tensors = torch.load(file) if writer == "original" else load_file(file)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    (torch.save if writer == "original" else save_file)(tensors, file)


FIRST = {
    "ours": "blocks.1.layers.0.weight",
    "original": "1.0.linear.weight",
    "vllm": "blocks.1.layers.0.weight",
}
LAST = {"ours": "lm_heads.2.weight", "original": "2.1.weight", "vllm": "lm_heads.2.weight"}
FAULTS: dict[str, tuple[Callable[[dict[str, Tensor], str], Any], str]] = {
    "missing": (lambda tensors, name: tensors.pop(name), "{name} is missing"),
    "shape": (lambda tensors, name: tensors.update({name: random(7, 7)}), r"{name} is \(7, 7\)"),
    "whole numbers": (lambda t, name: t.update({name: t[name].long()}), "{name} is .* floats"),
    "NaN": (lambda tensors, name: tensors[name].view(-1)[3:4].fill_(torch.nan), "NaN or infinity"),
    "infinity": (lambda t, name: t[name].view(-1)[3:4].fill_(torch.inf), "NaN or infinity"),
    "more": (lambda tensors, name: tensors.update({f"x{name}": random(2)}), "x{name} is no part"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("writer", WRITERS)
def test_faulty_tensors_are_refused_by_name(writer: str, fault: str, tmp_path: Path) -> None:
    change, message = FAULTS[fault]
    for name in (FIRST[writer], LAST[writer]):
        broken(tmp_path, writer, lambda tensors, name=name: change(tensors, name))
        with pytest.raises(ValueError, match=message.format(name=name)) as caught:
            files.load(tmp_path)
        assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("writer", WRITERS)
def test_all_projections_of_another_shape(writer: str, tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            if name in ("0.1.weight", "1.1.weight", "2.1.weight") or "lm_heads" in name:
                tensors[name] = random(V, D + 1)

    broken(tmp_path, writer, change)
    with pytest.raises(ValueError, match=r"outputs is \(3, 97, 49\)"):
        files.load(tmp_path)


@pytest.mark.parametrize(
    ("writer", "changes", "message"),
    [
        ("ours", {"heads": 4}, "says heads: 4, not 3"),
        ("ours", {"layers": 2}, "says layers: 2, not 1"),
        ("ours", {"hidden_size": 64}, "says hidden_size: 64, not 48"),
        ("ours", {"vocab_size": 99}, r"outputs is \(3, 97, 48\)"),
        ("ours", {"shared_head": True, "vocab_size": None}, "vocab_size"),
        ("ours", {"shared_head": True, "vocab_size": "many"}, "vocab_size"),
        ("ours", {"accuracies": [[0.5]]}, "accuracies are"),
        ("ours", {"accuracies": [[0.5], [0.5], [1.5]]}, "accuracies are"),
        ("ours", {"accuracies": "high"}, "accuracies are"),
        ("ours", {"tree": [[0], [0, 0, 0]]}, "add that"),
        ("ours", {"tree": [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]}, "there are 3 heads"),
        ("ours", {"tree": [[0], [-1]]}, "list of paths"),
        ("ours", {"tree": 7}, "list of paths"),
        ("original", {"medusa_num_heads": 5}, "says medusa_num_heads: 5, not 3"),
        ("original", {"medusa_num_heads": "five"}, "says medusa_num_heads: five"),
        ("original", {"medusa_num_layers": 2}, "says medusa_num_layers: 2, not 1"),
        ("vllm", {"num_heads": 5}, "says num_heads: 5, not 3"),
        ("vllm", {"num_hidden_layers": 2}, "says num_hidden_layers: 2, not 1"),
        ("vllm", {"truncated_vocab_size": 50}, "token_map"),
    ],
)
def test_a_config_that_disagrees(
    writer: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    WRITERS[writer](tmp_path, random_heads(), None)
    set_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        files.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_cut_vocabulary(tmp_path: Path) -> None:
    broken(tmp_path, "vllm", lambda tensors: tensors.update(token_map=torch.arange(50)))
    with pytest.raises(ValueError, match="token_map"):
        files.load(tmp_path)


def test_a_tree_of_thousands_of_nodes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    heads = random_heads()
    files.save(tmp_path, heads)
    config = json.loads((tmp_path / "config.json").read_text())
    config["tree"] = [[0] * depth for depth in range(1, 1001)]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config.json cannot be read \(1,.* more than any heads"):
        files.load(tmp_path)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no heads there.*hf download"):
        files.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="no heads there"):
        files.load(tmp_path)
    with pytest.raises(ValueError, match="a model is there, and no heads"):
        files.load(bundled.folder("draft"))
    (tmp_path / "model.safetensors").write_bytes(b"no tensors at all")
    with pytest.raises(ValueError, match="model.safetensors cannot be read"):
        Medusa(tmp_path)
    files.save(tmp_path, random_heads())
    for text in ("{", "[1, 2]", "7", None):
        if text is None:
            (tmp_path / "config.json").unlink()
        else:
            (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match="config.json cannot be read"):
            files.load(tmp_path)
    for saved in (b"no tensors at all", [1, 2], {"0.0.linear.weight": "no tensor"}):
        if isinstance(saved, bytes):
            (tmp_path / "medusa_lm_head.pt").write_bytes(saved)
        else:
            torch.save(saved, tmp_path / "medusa_lm_head.pt")
        with pytest.raises(ValueError, match="medusa_lm_head.pt cannot be read"):
            files.load(tmp_path / "medusa_lm_head.pt")


@pytest.mark.parametrize("export", [files.export_original, files.export_vllm])
def test_a_shared_head_must_be_given_to_others(export: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lm_head="):
        export(tmp_path, random_heads(own=False))
    with pytest.raises(ValueError, match=r"lm_head is \(9, 48\)"):
        export(tmp_path, random_heads(own=False), random(9, D))


# --- refusals ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 0}, "nodes=0"),
        ({"min_confidence": 1.5}, "min_confidence"),
        ({"min_confidence": -0.1}, "min_confidence"),
        ({"tree": "dense"}, "'dense' is unknown"),
        ({"tree": "calibrated"}, "without accuracies"),
        ({"tree": []}, "list of paths"),
        ({"tree": [()]}, "list of paths"),
        ({"tree": [(0,), (1, 0)]}, r"not \(1,\)"),
        ({"tree": [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]}, "4 deep and there are 3 heads"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Medusa(random_heads(), **options)


@pytest.mark.parametrize("shape", [(3, 1, D), (0, 1, D, D), (3, 0, D, D), (3, 1, D, D - 1)])
def test_weights_that_are_no_heads(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="weights"):
        Heads(torch.zeros(shape), vocab_size=V)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("runner", "dtype"), RUNNERS)
def test_heads_of_another_target(runner: str, dtype: torch.dtype, own: bool) -> None:
    for size, vocabulary in ((D + 8, V), (D - 8, V), (D, V + 3), (D, V - 3)):
        outputs = random(K, vocabulary, size) if own else None
        heads = Heads(random(K, 1, size, size), None, outputs, vocab_size=vocabulary)
        with pytest.raises(ValueError, match="heads of this target") as caught:
            llm_of("llama", Medusa(heads), dtype, runner=runner)
        assert f"({size}, {vocabulary})" in str(caught.value)
        assert f"({D}, {V})" in str(caught.value)


def test_the_bundled_heads_draft_for_the_bundled_target() -> None:
    heads = dp.Medusa(bundled.folder("heads"))
    params = dp.SamplingParams(max_tokens=64)
    with dp.LLM(bundled.folder("target"), dtype="float32", runner="torch") as llm:
        plain = llm.generate(prompts.PROMPTS, params)
        llm.use(heads)
        fast = llm.generate(prompts.PROMPTS, params)
    assert [one.token_ids for one in fast] == [one.token_ids for one in plain]
    steps = sum(one.stats.steps for one in fast)
    assert sum(one.stats.tokens for one in fast) > 1.5 * steps
