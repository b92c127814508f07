"""The torch runner: a packed pass gives the model's own logits, and gives the model back.

Every row is compared with the model's own forward pass over the plain sequence it stands for.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gpt2 import GPT2Config
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.llama import LlamaConfig

import draftproof as dp
import tiny
from draftproof.runners import choice
from draftproof.runners.base import Work
from draftproof.runners.torch import TorchRunner
from draftproof.tree import TokenTree

V = tiny.VOCABULARY
CONFIGS: dict[str, Any] = {
    **tiny.CONFIGS,
    "gemma2": lambda: Gemma2Config(
        **tiny.COMMON,
        sliding_window=6,
        query_pre_attn_scalar=12,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=9.0,
        tie_word_embeddings=False,
        layer_types=[tiny.KINDS[i % 2] for i in range(4)],
    ),
    "gpt_oss": lambda: GptOssConfig(
        **tiny.COMMON,
        sliding_window=6,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        layer_types=[tiny.KINDS[i % 2] for i in range(4)],
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=V,
        n_embd=48,
        n_layer=3,
        n_head=4,
        n_positions=128,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
    ),
}


def build(config: Any, dtype: torch.dtype = torch.float64, seed: int = 0) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(config, dtype=dtype)
        for name, parameter in made.named_parameters():
            if "sinks" in name:
                torch.nn.init.normal_(parameter, std=1.0)
    return made.eval()


# Of transformers' own passes: experts know no float64, and eager attention's softmax is float32.
TOLERANCES = {"gpt_oss": 1e-3, "gemma2": 1e-4}


@cache
def target(name: str, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """float64 where the architecture has it."""
    config = CONFIGS[name]()
    if name == "gemma3":
        config.tie_word_embeddings = False  # else it repeats itself
    if dtype is None:
        dtype = torch.float32 if name in TOLERANCES else torch.float64
    # seed 0 of the experts has a router that nearly ties: half precision picks another expert
    return build(config, dtype, seed=int(name == "gpt_oss"))


@torch.no_grad()
def own(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """The model's own logits after the last token, (V,)."""
    ids = torch.tensor([list(tokens)])
    return model(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, -1]


def random_tree(rng: Random, root: int, nodes: int) -> TokenTree:
    parents = [-1] + [rng.choice([i - 1, rng.randrange(i)]) for i in range(1, nodes)]
    return TokenTree([root, *(rng.randrange(3, V) for _ in range(nodes - 1))], parents)


def close(got: Tensor, want: Tensor, tolerance: float = 1e-9) -> None:
    assert got.shape == want.shape
    error = (got.double() - want.double()).abs().max().item()
    assert error < tolerance, f"off by {error:.3g}"


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


# --- the user's model ---


def state(model: PreTrainedModel) -> tuple[Any, ...]:
    configs = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    return (
        [(c._attn_implementation, repr(c)) for c in configs.values()],
        sorted(vars(model)),
        [sorted(vars(part)) for part in model.modules()],
        model.training,
        [(name, p.requires_grad, p._version) for name, p in model.named_parameters()],
        [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()],
    )


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
def test_the_model_is_given_back_as_it_was(name: str) -> None:
    model = copy.deepcopy(target(name))
    before, logits = state(model), own(model, [5, 6, 7])
    with dp.LLM(model, speculate="ngram") as llm:
        assert state(model) == before
        for chunk in llm.stream([5, 6, 7, 5, 6], dp.SamplingParams(max_tokens=5)):
            assert chunk.token_ids and state(model) == before  # between the passes of a stream
            close(own(model, [5, 6, 7]), logits, 1e-15)
    assert state(model) == before


def test_the_model_is_given_back_after_an_error() -> None:
    model = copy.deepcopy(target("llama"))
    with dp.LLM(model) as llm:
        before = state(model)
        want = llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=9))[0].token_ids

        def explode(*_: Any) -> None:
            raise KeyboardInterrupt

        for layer in (0, 3):
            hook = model.model.layers[layer].mlp.register_forward_hook(explode)
            with pytest.raises(KeyboardInterrupt):
                llm.generate([[5, 6, 7], [8]], dp.SamplingParams(max_tokens=9))
            hook.remove()
            assert state(model) == before
        assert not llm.engine.scheduler.running
        assert llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=9))[0].token_ids == want


def test_a_refused_model_is_given_back_too() -> None:
    from transformers.models.mamba import MambaConfig

    made = build(MambaConfig(vocab_size=V, hidden_size=16, num_hidden_layers=1), torch.float32)
    before = repr(made.config)
    with pytest.raises(ValueError):
        dp.LLM(made)
    assert repr(made.config) == before


def test_gemma2_runs_in_fp64() -> None:
    """Its own eager attention has a softmax in float32: no reason to refuse it."""
    model = target("gemma2", torch.float64)
    with dp.LLM(model) as llm:
        (out,) = llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=9, ignore_eos=True))
    for i in range(9):
        assert own(model, [5, 6, 7, *out.token_ids[:i]]).argmax().item() == out.token_ids[i]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_users_own_choice_of_attention_comes_back(implementation: str) -> None:
    model = copy.deepcopy(target("gemma3"))
    model.set_attn_implementation(implementation)
    with dp.LLM(model) as llm:
        llm.generate([5, 6], dp.SamplingParams(max_tokens=3))
        assert model.config._attn_implementation == implementation
        copied = copy.deepcopy(model)
    assert copied.config._attn_implementation == implementation
    close(own(copied, [5, 6, 7]), own(model, [5, 6, 7]), 1e-15)


def test_several_llms_share_one_model_and_end_in_any_order() -> None:
    model = copy.deepcopy(target("qwen3"))
    params = dp.SamplingParams(temperature=1.0, seed=1, max_tokens=12, ignore_eos=True)
    first, second = dp.LLM(model, max_batch=1), dp.LLM(model, speculate=dp.DraftModel(model, 3))
    want = first.generate([5, 6, 7], params)[0].token_ids
    streams = [first.stream([5, 6, 7], params), second.stream([5, 6, 7], params)]
    got: list[list[int]] = [[], []]
    for _ in range(3):
        for stream, tokens in zip(streams, got, strict=True):
            tokens += next(stream).token_ids
    got[0] += [t for chunk in streams[0] for t in chunk.token_ids]
    first.close()
    del first, streams[0]
    gc.collect()
    got[1] += [t for chunk in streams[0] for t in chunk.token_ids]
    assert got == [want, want]
    third = dp.LLM(model)
    second.close()
    del second
    gc.collect()
    assert third.generate([5, 6, 7], params)[0].token_ids == want
    ids = torch.tensor([[5, 6, 7]])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=4
    )
    assert made[0, 3:].tolist() == third.generate([5, 6, 7])[0].token_ids[:4]


def test_a_copy_of_a_model_in_use_is_a_model() -> None:
    model = copy.deepcopy(target("llama"))
    with dp.LLM(model) as llm:
        stream = llm.stream([5, 6], dp.SamplingParams(max_tokens=9))
        next(stream)
        copied = copy.deepcopy(model)
        with dp.LLM(copied) as other:
            a = other.generate([5, 6], dp.SamplingParams(max_tokens=9))[0].token_ids
        rest = [t for chunk in stream for t in chunk.token_ids]
        assert a[-len(rest) :] == rest
        assert all(parameter.requires_grad for parameter in copied.parameters())


def test_a_model_in_training_mode_is_run_without_dropout_or_refused() -> None:
    made = build(CONFIGS["gpt2"](), torch.float32)
    with dp.LLM(made) as llm:
        want = llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=12))[0].token_ids
    made.train()
    try:
        llm = dp.LLM(made)
    except ValueError as error:
        assert "eval" in str(error)
        return
    assert llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=12))[0].token_ids == want
    assert made.training


def test_parts_in_training_mode_stay_so() -> None:
    """A user who froze all but some layers finds them as they were."""
    config = CONFIGS["gpt2"]()
    config.resid_pdrop = config.attn_pdrop = config.embd_pdrop = 0.0
    made = build(config, torch.float32)
    made.transformer.h[1].train()
    before = [part.training for part in made.modules()]
    with dp.LLM(made) as llm:
        llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=3))
    assert [part.training for part in made.modules()] == before


def test_the_weights_may_change_between_calls() -> None:
    model = copy.deepcopy(target("llama"))
    with dp.LLM(model) as llm:
        llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=5))
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight.mul_(-1.5)
        a = llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=5))[0].token_ids
        with dp.LLM(copy.deepcopy(model)) as other:
            assert other.generate([5, 6, 7], dp.SamplingParams(max_tokens=5))[0].token_ids == a


@pytest.mark.filterwarnings("default")
def test_a_target_with_adapters_equals_the_merged_one() -> None:
    import peft  # of the development tools: without it this fails, and is not skipped

    model = copy.deepcopy(target("llama"))
    options = {"r": 4, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj", "up_proj"]}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        wrapped = peft.get_peft_model(
            model, peft.LoraConfig(**options, init_lora_weights=False, task_type="CAUSAL_LM")
        ).eval()
    params = dp.SamplingParams(max_tokens=20, ignore_eos=True)
    prompts = [[5, 6, 7], [8, 9, 8, 9, 8]]
    with dp.LLM(wrapped, speculate="ngram") as llm:
        got = [out.token_ids for out in llm.generate(prompts, params)]
        bare = target("llama")
        with dp.LLM(bare) as other:
            plain = [out.token_ids for out in other.generate(prompts, params)]
        with wrapped.disable_adapter():
            assert [out.token_ids for out in llm.generate(prompts, params)] == plain
        again = [out.token_ids for out in llm.generate(prompts, params)]
    assert got != plain and again == got
    merged = wrapped.merge_and_unload()
    with dp.LLM(merged) as llm:
        assert [out.token_ids for out in llm.generate(prompts, params)] == got


# --- precisions ---


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
def test_half_precision_runs_and_is_near(name: str, dtype: torch.dtype) -> None:
    model = target(name, dtype)
    params = dp.SamplingParams(temperature=1.0, seed=1, max_tokens=16, ignore_eos=True)
    with dp.LLM(model, speculate=dp.DraftModel(model, 4), max_batch=2) as llm:
        assert llm.runner.dtype == dtype
        outs = llm.generate([[5, 6, 7], [8], [9] * 20], params)
        assert [len(out.token_ids) for out in outs] == [16] * 3
        assert all(out.warnings == [] and out.finish_reason == "length" for out in outs)
        tree = TokenTree([5, 6, 7, 8], [-1, 0, 0, 1])
        with torch.inference_mode():
            (output,) = llm.runner.forward([Work(99, [9, 10], tree)])
        assert output.logits.dtype == dtype
        for i in range(4):
            want = own(model, [9, 10, *(tree.tokens[j] for j in tree.path(i))]).double()
            error = (output.logits[i].double() - want).abs().max() / want.std()
            assert error < 0.2, f"off by {error:.3g} standard deviations"


# --- refusals: by name, in one sentence ---


def refused(model: Any, *words: str, **options: Any) -> None:
    with pytest.raises(ValueError) as caught:
        dp.LLM(model, **options)
    message = str(caught.value)
    for word in words:
        assert word.lower() in message.lower(), message
    assert "\n" not in message and len(message) < 500


def test_encoder_decoders_are_refused(tmp_path: Any) -> None:
    from transformers.models.t5 import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=V,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    made = T5ForConditionalGeneration(config).eval()
    refused(made, "t5", "encoder")
    made.save_pretrained(tmp_path)
    refused(str(tmp_path), "t5", "encoder")


def test_recurrent_models_are_refused(tmp_path: Any) -> None:
    from transformers.models.mamba import MambaConfig

    made = build(MambaConfig(vocab_size=V, hidden_size=16, num_hidden_layers=1), torch.float32)
    refused(made, "Mamba")
    made.save_pretrained(tmp_path)
    refused(tmp_path, "Mamba")
    refused(target("llama", torch.float32), "Mamba", speculate=dp.DraftModel(made))


def test_models_without_the_attention_interface_are_refused() -> None:
    from transformers.models.bloom import BloomConfig

    made = build(BloomConfig(vocab_size=V, hidden_size=16, n_layer=1, n_head=2), torch.float32)
    refused(made, "Bloom")


def test_chunked_attention_is_refused() -> None:
    from transformers.models.llama4 import Llama4TextConfig

    config = Llama4TextConfig(
        **{**tiny.COMMON, "pad_token_id": 0},
        intermediate_size_mlp=96,
        num_local_experts=2,
        attention_chunk_size=8,
    )
    refused(build(config, torch.float32), "Llama4")


def test_windows_that_live_only_in_the_mask_are_refused() -> None:
    from transformers.models.phimoe import PhimoeConfig

    config = PhimoeConfig(
        **{k: v for k, v in tiny.COMMON.items() if k != "head_dim"},
        sliding_window=6,
        num_local_experts=2,
        num_experts_per_tok=1,
    )
    refused(build(config, torch.float32), "Phimoe")


def test_convolutions_are_refused() -> None:
    from transformers.models.lfm2 import Lfm2Config

    config = Lfm2Config(**tiny.COMMON, layer_types=["conv", "full_attention"] * 2)
    refused(build(config, torch.float32), "Lfm2")


@pytest.mark.filterwarnings("default")
def test_bidirectional_models_are_refused() -> None:
    from transformers.models.bert import BertConfig, BertLMHeadModel

    config = BertConfig(
        vocab_size=V,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=0.3,
    )
    refused(BertLMHeadModel(config).eval(), "Bert")


def test_a_model_without_a_head_is_refused() -> None:
    refused(target("llama").model, "LlamaModel")


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_types_that_look_at_the_longest_position_bound_max_length(kind: str) -> None:
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    if kind == "longrope":
        rope |= {
            "long_factor": [2.0] * 6,
            "short_factor": [1.0] * 6,
            "original_max_position_embeddings": 64,
        }
    positions = 128 if kind == "longrope" else 64
    config = LlamaConfig(
        **{**tiny.COMMON, "max_position_embeddings": positions}, rope_parameters=rope
    )
    model = build(config)
    with dp.LLM(model, max_batch=2) as llm:
        assert llm.max_length <= 64
        prompt = [3 + i % 90 for i in range(50)]
        params = dp.SamplingParams(max_tokens=40, ignore_eos=True)
        outs = llm.generate([prompt, [5, 6]], params)
    assert len(outs[0].token_ids) == llm.max_length - 50
    for out in outs:
        tokens = [*out.prompt_token_ids, *out.token_ids]
        for i in range(len(out.prompt_token_ids), min(len(tokens), 64), 7):
            assert own(model, tokens[:i]).argmax().item() == tokens[i]
    refused(model, "max_length", max_length=100)


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
