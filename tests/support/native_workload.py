"""What users do with the native runner, small: run by test_native_sanitised.py in its library.

Two LLMs over shared weights in two threads, streams that are left, closes, a forked child.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import cache

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.qwen3 import Qwen3Config

import draftproof as dp
import tiny
from draftproof import native
from draftproof.runners.base import Work
from draftproof.runners.native import NativeRunner
from draftproof.tree import TokenTree


def model() -> PreTrainedModel:
    sizes = {**tiny.COMMON, "head_dim": 16, "num_hidden_layers": 2}
    config = Qwen3Config(**sizes, use_sliding_window=True, sliding_window=6)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def prompt(seed: int) -> list[int]:
    return [3 + (seed + 7 * i) % 90 for i in range(6 + seed)] * 2


def write(llm: dp.LLM, texts: dict[int, list[list[int]]], name: int) -> None:
    params = [
        dp.SamplingParams(max_tokens=24, temperature=0.7 * (seed % 2), seed=3, ignore_eos=True)
        for seed in range(4)
    ]
    prompts = [prompt(seed) for seed in range(4)]
    for _ in range(3):
        left = llm.stream(prompts[0], params[0])
        next(left)
        left.close()
        texts[name] = [one.token_ids for one in llm.generate(prompts, params)]


def main(planted: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)
    for dtype in ("bfloat16", "int8"):
        made = model()
        draft = dp.DraftModel(tiny.relative(made), branch=2)
        first = dp.LLM(made, runner="native", dtype=dtype, max_batch=3, speculate=None)
        llms = [first, dp.LLM(first, speculate=draft), dp.LLM(first, speculate="ngram")]
        texts: dict[int, list[list[int]]] = {}
        threads = [
            threading.Thread(target=write, args=(llm, texts, name)) for name, llm in enumerate(llms)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts[0] == texts[1] == texts[2] and len(texts) == 3
        runner = first.runner
        assert isinstance(runner, NativeRunner)
        child = os.fork()
        if child == 0:
            runner.forward([Work(99, prompt(1), TokenTree.chain([5]))])
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        if planted:  # a row of logits that is a number short
            hidden, logits = torch.zeros(runner.config.hidden_size), torch.zeros(96)
            arguments = runner.packed.handle, runner.team.handle, hidden.data_ptr()
            runner.packed.library.dp_head(*arguments, 1, logits.data_ptr())
        for llm in llms:
            llm.close()
    print("whole")


if __name__ == "__main__":
    native.library = cache(lambda: native.load(sys.argv[1]))  # type: ignore[assignment]
    main("overflow" in sys.argv)
