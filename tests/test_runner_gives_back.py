"""The torch runner: the user's model is given back as it was."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import draftproof as dp
from draftproof.runners.base import Work
from draftproof.tree import TokenTree
from forwarding import CONFIGS, V, build, close, own, target

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
    with dp.LLM(model, speculate=None) as llm:
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
        dp.LLM(made, speculate=None)
    assert repr(made.config) == before


def test_gemma2_runs_in_fp64() -> None:
    """Its own eager attention has a softmax in float32: no reason to refuse it."""
    model = target("gemma2", torch.float64)
    with dp.LLM(model, speculate=None) as llm:
        (out,) = llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=9, ignore_eos=True))
    for i in range(9):
        assert own(model, [5, 6, 7, *out.token_ids[:i]]).argmax().item() == out.token_ids[i]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_users_own_choice_of_attention_comes_back(implementation: str) -> None:
    model = copy.deepcopy(target("gemma3"))
    model.set_attn_implementation(implementation)
    with dp.LLM(model, speculate=None) as llm:
        llm.generate([5, 6], dp.SamplingParams(max_tokens=3))
        assert model.config._attn_implementation == implementation
        copied = copy.deepcopy(model)
    assert copied.config._attn_implementation == implementation
    close(own(copied, [5, 6, 7]), own(model, [5, 6, 7]), 1e-15)


def test_several_llms_share_one_model_and_end_in_any_order() -> None:
    model = copy.deepcopy(target("qwen3"))
    params = dp.SamplingParams(temperature=1.0, seed=1, max_tokens=12, ignore_eos=True)
    first, second = (
        dp.LLM(model, max_batch=1, speculate=None),
        dp.LLM(model, speculate=dp.DraftModel(model, 3)),
    )
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
    third = dp.LLM(model, speculate=None)
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
    with dp.LLM(model, speculate=None) as llm:
        stream = llm.stream([5, 6], dp.SamplingParams(max_tokens=9))
        next(stream)
        copied = copy.deepcopy(model)
        with dp.LLM(copied, speculate=None) as other:
            a = other.generate([5, 6], dp.SamplingParams(max_tokens=9))[0].token_ids
        rest = [t for chunk in stream for t in chunk.token_ids]
        assert a[-len(rest) :] == rest
        assert all(parameter.requires_grad for parameter in copied.parameters())


def test_a_model_in_training_mode_is_run_without_dropout_or_refused() -> None:
    made = build(CONFIGS["gpt2"](), torch.float32)
    with dp.LLM(made, speculate=None) as llm:
        want = llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=12))[0].token_ids
    made.train()
    try:
        llm = dp.LLM(made, speculate=None)
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
    with dp.LLM(made, speculate=None) as llm:
        llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=3))
    assert [part.training for part in made.modules()] == before


def test_the_weights_may_change_between_calls() -> None:
    model = copy.deepcopy(target("llama"))
    with dp.LLM(model, speculate=None) as llm:
        llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=5))
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight.mul_(-1.5)
        a = llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=5))[0].token_ids
        with dp.LLM(copy.deepcopy(model), speculate=None) as other:
            assert other.generate([5, 6, 7], dp.SamplingParams(max_tokens=5))[0].token_ids == a


# Of peft, which asks transformers by the old name.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
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
        with dp.LLM(bare, speculate=None) as other:
            plain = [out.token_ids for out in other.generate(prompts, params)]
        with wrapped.disable_adapter():
            assert [out.token_ids for out in llm.generate(prompts, params)] == plain
        again = [out.token_ids for out in llm.generate(prompts, params)]
    assert got != plain and again == got
    merged = wrapped.merge_and_unload()
    with dp.LLM(merged, speculate=None) as llm:
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
