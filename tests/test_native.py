"""The native runner: right against transformers, and the same bits however a pass is made up."""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

import draftproof as dp
import tiny
from draftproof import bundled, methods, native
from draftproof.bundled import corpus
from draftproof.runners import choice, packing
from draftproof.runners.base import Output, Work
from draftproof.runners.matrix import Linear
from draftproof.runners.native import NativeRunner
from draftproof.runners.team import Team
from draftproof.runners.torch import TorchRunner
from draftproof.runners.weights import LoadedWeights
from draftproof.tree import TokenTree

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")

V = 99
SETS = ("portable", "avx2", "avx512")
PRECISIONS = ("bfloat16", "int8")
SIZES: dict[str, Any] = {
    **tiny.COMMON,
    "vocab_size": V,
    "hidden_size": 54,  # no multiple of a step, a lane or a panel
    "num_attention_heads": 6,
    "intermediate_size": 90,
    "head_dim": 16,
}
KINDS = [tiny.KINDS[i % 2] for i in range(4)]
ROPE = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ROPE}
CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**SIZES, tie_word_embeddings=False),
    "llama biases": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama3 rope": lambda: LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "linear rope": lambda: LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", **ROPE}),
    "yarn rope": lambda: LlamaConfig(**SIZES, rope_parameters={"rope_type": "yarn", **ROPE}),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=5),
    "qwen2": lambda: Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=7, layer_types=KINDS
    ),
    "qwen3": lambda: Qwen3Config(
        **{**SIZES, "num_key_value_heads": 1, "head_dim": 80},
        tie_word_embeddings=True,
        use_sliding_window=True,
        sliding_window=6,
        layer_types=KINDS,
    ),
}


# Contexts longer than what attention takes at a time, and more heads on one key than go together.
LONG: dict[str, Any] = {**SIZES, "max_position_embeddings": 512, "num_hidden_layers": 2}
FAR: dict[str, Any] = {
    "many heads": lambda: LlamaConfig(
        **{**LONG, "hidden_size": 72, "num_attention_heads": 36, "num_key_value_heads": 1}
    ),
    "wide window": lambda: MistralConfig(**LONG, sliding_window=150),
    "narrow window": lambda: MistralConfig(**LONG, sliding_window=9),
}


def sets() -> list[str]:
    """The instruction sets that this machine has."""
    return [name for name in SETS if native.library().dp_kernels(name.encode())]


@cache
def model(name: str, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Biases and norms are random too: a fresh model has zeros and ones there."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = AutoModelForCausalLM.from_config({**CONFIGS, **FAR}[name](), dtype=torch.bfloat16)
        for path, parameter in made.named_parameters():
            if path.endswith("bias") or "norm" in path:
                torch.nn.init.normal_(parameter, mean=float("norm" in path), std=0.2)
    if dtype != torch.bfloat16:  # .to(bfloat16) would round the rotary frequencies too
        made = made.to(dtype)
    return made.eval()


@cache
def team(threads: int) -> Team:
    return Team(threads)


@cache
def packed(name: str, precision: str, kernels: str = "") -> packing.Packed:
    kind = native.INT8 if precision == "int8" else native.BF16
    return packing.Packed(LoadedWeights(model(name)), kind, kernels=kernels)


def runner(
    name: str = "llama",
    precision: str = "bfloat16",
    kernels: str = "",
    threads: int = 2,
    **more: Any,
) -> NativeRunner:
    return NativeRunner(
        model(name),
        precision=precision,
        team=team(threads),
        packed=packed(name, precision, kernels),
        **more,
    )


def tokens(seed: int, count: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(3, V) for _ in range(count)]


def random_tree(rng: Random, root: int, nodes: int) -> TokenTree:
    parents = [-1] + [rng.choice([i - 1, rng.randrange(i)]) for i in range(1, nodes)]
    return TokenTree([root, *(rng.randrange(3, V) for _ in range(nodes - 1))], parents)


def one_by_one(made: NativeRunner, ids: Sequence[int]) -> Tensor:
    """Plain decoding: the logits after each token, (T, V)."""
    key, rows = 10**6, []
    for token in ids:
        (output,) = made.forward([Work(key, [], TokenTree.chain([token]))])
        rows.append(output.logits[0].clone())
        made.keep(key, [0])
    made.free(key)
    return torch.stack(rows)


def spread_error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / (want - want.mean(-1, keepdim=True)).norm())


# --- right ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, precision: str, kernels: str) -> None:
    if kernels not in sets():
        pytest.skip(f"no {kernels} on this machine")
    ids = tokens(1, 40)
    with torch.no_grad():
        want = model(name, torch.float32)(torch.tensor([ids])).logits[0]
        rounded = model(name)(torch.tensor([ids])).logits[0].float()
    (output,) = runner(name, precision, kernels).forward([Work(0, [], TokenTree.chain(ids))])
    error = spread_error(output.logits, want)
    # Of what torch's own bfloat16 is off.
    assert error < spread_error(rounded, want) * {"bfloat16": 1.0, "int8": 5.0}[precision]
    sure = want.topk(2).values.diff().abs()[:, 0] > 6 * error * want.std()  # no near-tie
    assert sure.any() and torch.equal(output.logits.argmax(-1)[sure], want.argmax(-1)[sure])


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_hidden_states_and_head(name: str) -> None:
    ids, made = tokens(2, 20), runner(name)
    with torch.no_grad():
        want = model(name, torch.float32)(torch.tensor([ids]), output_hidden_states=True)
    (output,) = made.forward([Work(0, ids[:-6], TokenTree.chain(ids[-6:]))], taps=(0, 3, -1, 4))
    for tap, rows in output.hidden.items():
        assert rows.shape == (6, 54)
        assert spread_error(rows, want.hidden_states[tap][0, -6:]) < 0.04, tap
    logits = output.logits.clone()
    assert torch.equal(made.head(output.hidden[-1]), logits)


def test_the_best_is_the_argmax() -> None:
    made, ids = runner(), tokens(3, 30)
    (full,) = made.forward([Work(0, [], TokenTree.chain(ids))])
    assert list(full.argmaxes or ()) == full.logits.argmax(-1).tolist()
    rest = [Work(1, [], TokenTree.chain(ids), greedy=True), Work(2, [], TokenTree.chain(ids[:9]))]
    first, second = made.forward(rest)
    assert len(first.logits) == 0 and list(first.argmaxes or ()) == list(full.argmaxes or ())
    assert len(second.logits) == 9 and list(second.argmaxes or ()) == list(full.argmaxes or ())[:9]


# --- the same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CONFIGS)
def test_bits_do_not_depend_on_the_pass(name: str, precision: str, kernels: str) -> None:
    """Chains, chunks of a prompt, batches, trees, growing trees, threads: one answer."""
    if kernels not in sets():
        pytest.skip(f"no {kernels} on this machine")
    rng, ids = Random(4), tokens(4, 41)
    plain = one_by_one(runner(name, precision, kernels, threads=1), ids)
    for threads in (1, 2):
        made = runner(name, precision, kernels, threads)
        assert torch.equal(one_by_one(made, ids), plain)
        for length in (2, 7, 12, 13, 29, 41):  # a tile, more than one, all
            (output,) = made.forward(
                [Work(0, ids[: 41 - length], TokenTree.chain(ids[41 - length :]))]
            )
            assert torch.equal(output.logits, plain[41 - length :])
            made.free(0)
        at = 0
        for size in (1, 16, 3, 20):
            made.forward([Work(0, ids[at : at + size], None)])
            at += size
        (output,) = made.forward([Work(0, [], TokenTree.chain([ids[40]]))])
        assert torch.equal(output.logits[0], plain[40])
        _trees(made, rng, ids)


def _trees(made: NativeRunner, rng: Random, ids: list[int]) -> None:
    """Two requests with trees in one pass, each node against its path alone; then a roll-back."""
    trees = [random_tree(rng, ids[20], 14), random_tree(rng, ids[30], 9)]
    work = [Work(1, ids[:20], trees[0]), Work(2, ids[:30], trees[1])]
    kept = [output.logits.clone() for output in made.forward(work)]
    for item, rows in zip(work, kept, strict=True):
        assert item.tree is not None
        for node in range(len(item.tree)):
            path = [*item.new, item.tree.tokens[0], *item.tree.path_tokens(node)]
            assert torch.equal(rows[node], one_by_one(made, path)[-1])
    tree = trees[0]
    path = tree.path(len(tree) - 1)
    made.keep(1, path)
    sequence = [*ids[:20], *(tree.tokens[node] for node in path), 5]
    grown = TokenTree.chain([5, 6, 7])
    first = made.forward([Work(1, [], TokenTree.chain([5]))])[0].logits[0].clone()
    more = made.forward([Work(1, [], grown, first=1)])[0].logits.clone()
    want = one_by_one(made, [*sequence, 6, 7])
    assert torch.equal(first, want[-3]) and torch.equal(more, want[-2:])
    for key in (1, 2):
        made.free(key)


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("name", FAR)
def test_bits_far_into_a_context(name: str, kernels: str) -> None:
    if kernels not in sets():
        pytest.skip(f"no {kernels} on this machine")
    ids, made = tokens(6, 300), runner(name, kernels=kernels)
    plain = one_by_one(made, ids)
    (output,) = made.forward([Work(0, [], TokenTree.chain(ids))])
    assert torch.equal(output.logits, plain)
    tree = random_tree(Random(6), ids[270], 24)
    (output,) = made.forward([Work(1, ids[:270], tree)])
    rows = output.logits.clone()
    for node in (0, 11, 23):
        path = [*ids[:270], ids[270], *tree.path_tokens(node)]
        assert torch.equal(rows[node], one_by_one(made, path)[-1])


def test_a_cache_that_grows_keeps_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tokens(5, 100)
    (output,) = runner("qwen3").forward([Work(0, [], TokenTree.chain(ids))])
    want = output.logits.clone()
    monkeypatch.setattr("draftproof.runners.kv.FIRST_SLOTS", 16)
    made = runner("qwen3")
    for at in range(0, 96, 12):
        made.forward([Work(0, ids[at : at + 12], None)])
    (output,) = made.forward([Work(0, [], TokenTree.chain(ids[96:]))])
    assert torch.equal(output.logits, want[96:])


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([*CONFIGS]), st.sampled_from(PRECISIONS))
def test_every_set_is_near_the_portable_one(seed: int, name: str, precision: str) -> None:
    """Random prompts, trees and chunks, in kernels that share no arithmetic but the order."""
    rng = Random(seed)
    ids = tokens(seed, rng.randrange(1, 60))
    cut = rng.randrange(len(ids))
    tree = random_tree(rng, ids[cut], rng.randrange(1, 40))
    outputs: dict[str, Output] = {}
    for kernels in sets():
        made = runner(name, precision, kernels, threads=rng.choice([1, 2, 3]))
        made.forward([Work(0, ids[:cut], None)])
        (outputs[kernels],) = made.forward([Work(0, [], tree)])
    for output in outputs.values():
        bound = {"bfloat16": 0.02, "int8": 0.1}[precision]
        assert spread_error(output.logits, outputs["portable"].logits) < bound


METHODS: dict[str, Any] = {
    "ngram": lambda: "ngram",
    "draft": lambda: dp.DraftModel(tiny.relative(model("llama")), num_draft_tokens=4),
    "branches": lambda: dp.DraftModel(tiny.relative(model("llama")), branch=3),
    "both": lambda: ["ngram", dp.DraftModel(tiny.relative(model("llama"), 0.3))],
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("method", METHODS)
def test_speculation_changes_no_token(method: str, precision: str) -> None:
    plain = dp.LLM(model("llama"), runner="native", dtype=as_dtype(precision), max_batch=4)
    llm = dp.LLM(plain, speculate=METHODS[method](), max_batch=3)
    prompts = [tokens(seed, 3 + seed % 20) * 2 for seed in range(8)]
    accepted = 0
    for temperature in (0.0, 1.0):
        params = dp.SamplingParams(temperature=temperature, seed=5, max_tokens=40, ignore_eos=True)
        want = [plain.generate([prompt], params)[0].token_ids for prompt in prompts]
        got = llm.generate(prompts, params)
        assert [one.token_ids for one in got] == want
        assert not any(one.warnings for one in got)
        accepted += sum(one.stats.accepted for one in got)
        assert llm.generate(prompts[0], params)[0].token_ids == want[0]
    assert accepted > 0


def as_dtype(precision: str) -> str:
    return "int8" if precision == "int8" else "auto"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_penalties_logprobs_and_filters(temperature: float) -> None:
    """Whatever looks at a row gets the row; the rejection rule too."""
    plain = dp.LLM(model("llama"), runner="native")
    llm = dp.LLM(plain, speculate=METHODS["draft"]())
    params = dp.SamplingParams(
        temperature=temperature,
        top_p=0.9,
        repetition_penalty=1.2,
        logprobs=3,
        seed=1,
        max_tokens=24,
        ignore_eos=True,
    )
    (a,), (b,) = plain.generate([tokens(1, 9)], params), llm.generate([tokens(1, 9)], params)
    assert a.token_ids == b.token_ids and a.logprobs == b.logprobs
    rejection = dp.LLM(plain, speculate=METHODS["draft"](), rule="rejection")
    (c,) = rejection.generate([tokens(1, 9)], params)
    assert len(c.token_ids) == 24 and (temperature or c.token_ids == a.token_ids)


def test_the_prefix_cache_changes_no_bit() -> None:
    llm = dp.LLM(model("qwen3"), runner="native", prefix_cache=True)
    params = dp.SamplingParams(max_tokens=8, ignore_eos=True)
    first, prompt = llm.generate(tokens(1, 30), params)[0], tokens(1, 30)
    again = llm.generate([*prompt, *first.token_ids, 7], params)[0]
    fresh = dp.LLM(model("qwen3"), runner="native").generate(
        [*prompt, *first.token_ids, 7], params
    )[0]
    assert again.token_ids == fresh.token_ids


# --- who gets it ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("native") / "m"
    copy.deepcopy(model("llama")).save_pretrained(path)
    return str(path)


def test_a_folder_in_bfloat16_runs_natively_and_holds_its_weights_once(folder: str) -> None:
    llm = dp.LLM(folder)
    assert isinstance(llm.runner, NativeRunner) and llm.runner.precision == "bfloat16"
    assert sum(p.numel() for p in llm.runner.model.model.layers.parameters() if p.ndim > 1) == 0
    want = dp.LLM(model("llama"), runner="native").generate(tokens(1, 5))[0].token_ids
    assert llm.generate(tokens(1, 5))[0].token_ids == want
    assert dp.LLM(folder, dtype="int8").runner.precision == "int8"
    for options in ({"dtype": "float32"}, {"runner": "torch"}):
        assert isinstance(dp.LLM(folder, **options).runner, TorchRunner)
    assert isinstance(dp.LLM(model("llama")).runner, TorchRunner)  # its owner may change it


def test_a_draft_of_another_shape_runs_on_torch(caplog: pytest.LogCaptureFixture) -> None:
    config = Gemma3TextConfig(**{**tiny.COMMON, "vocab_size": V}, query_pre_attn_scalar=12)
    draft = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with caplog.at_level(logging.WARNING):
        llm = dp.LLM(model("llama"), runner="native", speculate=dp.DraftModel(draft))
    assert "the draft runs on torch: Gemma3ForCausalLM" in caplog.text
    plain = dp.LLM(model("llama"), runner="native")
    prompt, params = tokens(3, 8), dp.SamplingParams(max_tokens=12, ignore_eos=True)
    assert llm.generate(prompt, params)[0].token_ids == plain.generate(prompt, params)[0].token_ids


def test_what_auto_cannot_run_is_said_once(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    tiny.model("gemma3", dtype=torch.bfloat16).save_pretrained(tmp_path)
    choice.say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert isinstance(dp.LLM(str(tmp_path)).runner, TorchRunner)
    assert caplog.text.count("the torch runner is used: Gemma3ForCausalLM is not one of") == 1


def test_without_kernels_torch_is_used_and_native_refused(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise native.Missing("the native kernels were not built")

    monkeypatch.setattr(native, "library", missing)
    choice.say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert isinstance(dp.LLM(folder).runner, TorchRunner)
    assert "the torch runner is used: the native kernels were not built" in caplog.text
    for options in ({"runner": "native"}, {"dtype": "int8"}):
        with pytest.raises(ValueError, match="not built"):
            dp.LLM(folder, **options)


def damaged(path: str, value: float) -> PreTrainedModel:
    made = copy.deepcopy(model("llama"))
    with torch.no_grad():
        made.get_parameter(path).view(-1)[3] = value
    return made


def adapted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, about itself
        return get_peft_model(copy.deepcopy(model("llama")), LoraConfig(target_modules=["q_proj"]))


@pytest.mark.parametrize(
    ("made", "options", "words"),
    [
        (lambda: damaged("model.layers.2.mlp.up_proj.weight", float("nan")), {}, "layer 2 mlp.up"),
        (lambda: damaged("lm_head.weight", float("inf")), {"dtype": "int8"}, "lm_head hold NaN"),
        (lambda: damaged("model.norm.weight", float("nan")), {}, "norm hold NaN"),
        (lambda: model("llama", torch.float32), {}, "bfloat16 or int8, and the model is in"),
        (lambda: model("llama"), {"dtype": "float16"}, "not torch.float16"),
        (lambda: model("llama"), {"device": "cuda"}, "cuda"),
        (lambda: tiny.model("llama", dtype=torch.bfloat16), {}, "heads have 12 elements"),
        (lambda: tiny.model("gemma3", dtype=torch.bfloat16), {}, "Gemma3ForCausalLM is not one"),
        (lambda: adapted(), {}, "q_proj is a"),
    ],
)
def test_refusals(made: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dp.LLM(made(), **{"runner": "native", **options})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "its activation is gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", **ROPE}}, "rotary scaling is dynamic"),
    ],
)
def test_refused_configurations(changes: dict[str, Any], words: str) -> None:
    config = LlamaConfig(**{**SIZES, **changes})
    made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with pytest.raises(ValueError, match=words):
        dp.LLM(made, runner="native")


def test_int8_is_not_torch_s() -> None:
    with pytest.raises(ValueError, match="torch runner has no int8"):
        dp.LLM(model("llama"), runner="torch", dtype="int8")


def test_a_model_that_hides_something_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook on a layer is in no configuration; the probe sees its effect."""
    made = copy.deepcopy(model("llama"))
    made.model.layers[1].register_forward_hook(lambda m, args, out: out * 1.5)
    with pytest.raises(ValueError, match="off those of transformers"):
        dp.LLM(made, runner="native")


def test_too_little_memory_is_told_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "available_bytes", lambda device: 1000)
    with pytest.raises(MemoryError, match=r"takes [\d,]+ bytes and 1,000 are free"):
        packing.Packed(LoadedWeights(model("llama")), native.BF16)


def test_more_threads_than_cores_work_and_are_told(caplog: pytest.LogCaptureFixture) -> None:
    before = torch.get_num_threads()
    choice.say_once.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            llm = dp.LLM(model("llama"), runner="native", threads=16)
        want = dp.LLM(model("llama"), runner="native", threads=1).generate(tokens(1, 5))[0]
        assert llm.generate(tokens(1, 5))[0].token_ids == want.token_ids
    finally:
        torch.set_num_threads(before)
    assert "16 threads on" in caplog.text


def test_another_llm_is_shared_as_it_is() -> None:
    first = dp.LLM(model("llama"), runner="native")
    second = dp.LLM(first, speculate="ngram")
    assert isinstance(second.runner, NativeRunner)
    assert second.runner.packed is first.runner.packed  # type: ignore[union-attr]
    first.close()
    assert second.generate(tokens(1, 5))[0].token_ids
    with pytest.raises(ValueError, match="as they are"):
        dp.LLM(second, dtype="int8")


FORK = """
import os, sys
sys.path[:0] = {paths}
import test_native as t
made = t.runner()
ids = t.tokens(1, 30)
want = t.one_by_one(made, ids)
child = os.fork()
if child == 0:
    os._exit(0 if t.torch.equal(t.one_by_one(made, ids), want) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_works_alone() -> None:
    """The threads stay in the parent; a child must neither hang nor write other bits."""
    script = FORK.format(paths=[str(Path(__file__).parent), str(Path(tiny.__file__).parent)])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert done.stdout.split()[-1:] == [b"0"], done.stderr


def test_two_python_threads_share_weights() -> None:
    """A pass of one waits for the other's: they have one room to work in."""
    params = dp.SamplingParams(max_tokens=60, ignore_eos=True)
    first = dp.LLM(model("llama"), runner="native")
    llms = [first, dp.LLM(first, speculate="ngram")]
    want = [first.generate([tokens(i, 9)], params)[0].token_ids for i in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            got = pool.map(lambda i: llms[i].generate([tokens(i, 9)], params), range(2))
            assert [one[0].token_ids for one in got] == want


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("outputs, inputs", [(70, 48), (1600, 320), (33, 7)])
def test_a_matrix_of_its_own(precision: str, outputs: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator).bfloat16()
    rows = torch.randn(5, inputs, generator=generator).bfloat16().float()
    linear = Linear(weight, precision, team(2))
    found, want = linear(rows), rows @ weight.float().T
    assert (found - want).abs().max() <= (0.02 if precision == "int8" else 2e-4) * want.abs().max()
    for i in range(5):  # a row's bits do not depend on the others
        assert torch.equal(linear(rows[i : i + 1])[0], found[i])
    weight[3, 2] = torch.nan
    with pytest.raises(ValueError, match="holds NaN"):
        Linear(weight, precision, team(2))


def test_the_machine_has_limits() -> None:
    library, made = native.library(), team(2)
    assert library.dp_read_rate(made.handle, 1 << 24, 1) > 1e7
    assert library.dp_tile_rate(made.handle, native.INT8, 50) > 1e7


# --- at length ------------------------------------------------------------------------------------


BUNDLED = {"draft": bundled.DRAFT, "heads": bundled.MODELS / "heads"}


@cache
def bundled_target(precision: str) -> dp.LLM:
    dtype = "int8" if precision == "int8" else "bfloat16"
    return dp.LLM(bundled.folder("target"), runner="native", dtype=dtype)


@cache
def written_plainly(precision: str, temperature: float) -> tuple[list[list[int]], list[list[int]]]:
    """200 beginnings of held-out code, and what the target writes after them, one at a time."""
    llm = bundled_target(precision)
    held_out = [text for path, text in corpus.modules(only_held_out=True)]
    prompts = []
    for i in range(200):
        text = held_out[i % len(held_out)]
        ids = llm.tokenizer(text)["input_ids"]
        at = 61 * i % max(1, len(ids) - 200)
        prompts.append(ids[at : at + 5 + i % 150])
    params = long_params(temperature)
    return prompts, [llm.generate([each], params)[0].token_ids for each in prompts]


def long_params(temperature: float) -> dp.SamplingParams:
    return dp.SamplingParams(temperature=temperature, max_tokens=256, seed=11, ignore_eos=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["none", *methods.possible(BUNDLED), "both"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_200_prompts_of_256_tokens(precision: str, temperature: float, method: str) -> None:
    prompts, want = written_plainly(precision, temperature)
    names = ["ngram", "draft"] if method == "both" else [method]
    drafter = [methods.named(name, BUNDLED) for name in names]
    with dp.LLM(bundled_target(precision), speculate=drafter, max_batch=5) as llm:
        got = llm.generate(prompts, long_params(temperature))
    assert sum(len(one.token_ids) for one in got) == 200 * 256
    assert [one.token_ids for one in got] == want
