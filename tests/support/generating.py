"""A model, its inputs, and what `generate` writes with and without drafts."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from draftproof.tree import TokenTree

NEW = 12  # tokens written, if nothing ends them earlier
PROMPTS = ([5, 6, 7, 8, 9, 5, 6, 7, 8], [0, 11, 12, 11], [21, 22])  # 0 is the pad token
WIDTH = len(PROMPTS[0])
GPT2 = {"vocab_size": tiny.VOCABULARY, "n_embd": 48, "n_layer": 3, "n_head": 4}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.3}


@cache
def model(name: str = "llama") -> PreTrainedModel:
    config = transformers.GPT2Config(**GPT2) if name == "gpt2" else tiny.CONFIGS[name]()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def method(kind: str, name: str = "llama") -> Any:
    made = dp.DraftModel(tiny.relative(model(name)), branch=1 if kind == "chain" else 2)
    return {"plain": None, "ngram": dp.NGram(), "both": [dp.NGram(), made]}.get(kind, made)


def inputs(batch: int = 1) -> dict[str, Tensor]:
    """The first prompts, padded on the left."""
    left = [WIDTH - len(prompt) for prompt in PROMPTS[:batch]]
    ids = [[0] * n + prompt for n, prompt in zip(left, PROMPTS, strict=False)]
    mask = [[0] * n + [1] * (WIDTH - n) for n in left]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def theirs(target: PreTrainedModel, batch: int = 1, **options: Any) -> Any:
    """What transformers writes; up to NEW tokens, unless told where to end."""
    defaults = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    return target.generate(**{**inputs(batch), **defaults, **options})


@cache
def whole(batch: int = 1, name: str = "llama") -> Tensor:
    return theirs(model(name), batch)


def ours(target: PreTrainedModel, speculate: Any = None, batch: int = 1, **options: Any) -> Any:
    made = dp.custom_generate(speculate, seed=options.pop("seed", None))
    return theirs(target, batch, custom_generate=made, **options)


def same(got: Tensor, want: Tensor) -> None:
    assert got.tolist() == want.tolist()
    assert got.dtype == want.dtype and got.device == want.device


class Oracle:
    """Drafts the known continuation, a wrong sibling before every token and a wrong leaf."""

    taps: tuple[int, ...] = ()
    calls_left = 99  # then it fails

    def __init__(self, known: Tensor) -> None:
        left = [WIDTH - len(prompt) for prompt in PROMPTS]
        self.known = [row[n:] for n, row in zip(left, known.tolist(), strict=False)]

    def propose(self, requests: Any) -> list[TokenTree]:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise RuntimeError("no idea")
        return [self.tree(list(request.tokens)) for request in requests]

    def tree(self, tokens: list[int]) -> TokenTree:
        nodes, parents, at, n = [tokens[-1]], [-1], 0, len(tokens)
        rest = next((row[n:] for row in self.known if row[:n] == tokens), [])
        for token in rest[:4]:
            nodes, parents = [*nodes, (token + 1) % tiny.VOCABULARY, token], [*parents, at, at]
            at = len(nodes) - 1
        return TokenTree([*nodes, 5], [*parents, at])
