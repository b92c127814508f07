"""transformers' own loop, assistant and prompt lookup as a worker of `cpu_peers.py`.

Always in bfloat16: transformers brings no int8 for the CPU of its own.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from draftproof.bench import sides
from draftproof.bench.sides import How, Side
from worker_loop import NotOffered, Options, serve, some_ids, timed, written


class Transformers:
    """The model as `from_pretrained` gives it, with its default attention (sdpa)."""

    @torch.inference_mode()
    def __init__(self, options: Options) -> None:
        torch.set_num_threads(options.threads)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            options.target, dtype=torch.bfloat16
        ).eval()
        self.assistant: Any = None
        self.temperature = options.temperature
        if options.draft is not None:
            self.assistant = AutoModelForCausalLM.from_pretrained(
                options.draft, dtype=torch.bfloat16
            ).eval()
        self.versions = {name: version(name) for name in ("transformers", "torch")}
        self.plain = sides.transformers("", self.model, ())
        self.cached, self.cache = 0, DynamicCache(config=self.model.config)

    @torch.inference_mode()
    def passes(self, tokens: int, context: int, rounds: int) -> list[float]:
        """See `worker_loop.Worker`; the cache is cropped between the rounds."""
        if self.cached != context:
            self.cache = DynamicCache(config=self.model.config)
            self._forward(torch.tensor([some_ids(context)]))
            self.cached = context
        rows = torch.ones(1, tokens, dtype=torch.long)
        return timed(lambda: self._forward(rows), rounds, lambda: self._crop(context))

    def _forward(self, ids: torch.Tensor) -> None:
        self.model(input_ids=ids, past_key_values=self.cache, use_cache=True)

    def _crop(self, context: int) -> None:
        if added := self.cache.get_seq_length() - context:
            self.cache.crop(-added)

    def prompt(self, tokens: int) -> float:
        """See `worker_loop.Worker`."""
        return float(self._write(self.plain, some_ids(tokens), 1)["seconds"])

    def generate(self, ids: list[int], text: str, max_tokens: int) -> dict[str, Any]:
        """See `worker_loop.Worker`."""
        return self._write(self.plain, ids, max_tokens)

    def speculate(
        self, ids: list[int], text: str, max_tokens: int, method: str, length: int
    ) -> dict[str, Any]:
        """See `worker_loop.Worker`; the assistant always drafts `length` tokens."""
        if method == "lookup":
            lookup = sides.transformers("", self.model, (), prompt_lookup_num_tokens=length)
            return self._write(lookup, ids, max_tokens)
        if method != "draft":
            raise NotOffered(f"transformers has no method {method}")
        assisted = sides.assisted(self.model, self.assistant, (), length)
        return self._write(assisted, ids, max_tokens)

    def _write(self, side: Side, ids: list[int], max_tokens: int) -> dict[str, Any]:
        how = How(temperature=self.temperature, max_tokens=max_tokens, seed=0, ignore_eos=True)
        began = time.perf_counter()
        (done,) = side.write([ids], how)
        return written(done.token_ids, time.perf_counter() - began)


if __name__ == "__main__":
    serve(Transformers)
