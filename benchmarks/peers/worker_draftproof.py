"""draftproof's native runner as a worker of `cpu_peers.py`."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from draftproof import LLM, DraftModel, NGram, SamplingParams
from draftproof.drafting.base import Proposer
from draftproof.runners import costs
from draftproof.runners.base import KEY
from worker_loop import Options, serve, some_ids, timed, written

DTYPES = {"bf16": "bfloat16", "int8": "int8", "int4": "int4"}


class Draftproof:
    """One set of packed weights, an engine per method and draft length."""

    def __init__(self, options: Options) -> None:
        self.draft, self.temperature = options.draft, options.temperature
        self.plain = LLM(
            options.target,
            runner="native",
            dtype="auto" if options.target.endswith(".gguf") else DTYPES[options.precision],
            threads=options.threads,
            speculate=None,
        )
        self.versions = {"draftproof": version("draftproof"), "runner": self.plain.runner.name}
        read, products = self.plain.runner.team.limits(DTYPES[options.precision])
        self.versions["limits"] = f"reads {read / 1e9:.1f} GB/s, {products / 1e9:.0f} G products/s"
        self.engines: dict[tuple[str, int], LLM] = {("none", 0): self.plain}
        self.over: dict[int, Any] = {}  # passes behind a context of so many tokens

    def passes(self, tokens: int, context: int, rounds: int) -> list[float]:
        """See `worker_loop.Worker`; a pass leaves nothing behind unless it is kept."""
        if context not in self.over:
            self.plain.runner.free(KEY)
            self.over = {context: costs.passes(self.plain.runner, context)}
        return timed(self.over[context](tokens), rounds, lambda: None)

    def prompt(self, tokens: int) -> float:
        """See `worker_loop.Worker`."""
        return float(self.generate(some_ids(tokens), "", 1)["seconds"])

    def generate(self, ids: list[int], text: str, max_tokens: int) -> dict[str, Any]:
        """See `worker_loop.Worker`."""
        return self._write(self.plain, ids, max_tokens)

    def speculate(
        self, ids: list[int], text: str, max_tokens: int, method: str, length: int
    ) -> dict[str, Any]:
        """See `worker_loop.Worker`; `merged` is n-grams of the default length with the draft."""
        if (method, length) not in self.engines:
            found: Proposer | list[Proposer] = NGram(num_draft_tokens=length)
            if method != "lookup":
                drafter = DraftModel(self.draft, num_draft_tokens=length)
                found = [NGram(), drafter] if method == "merged" else drafter
            self.engines[method, length] = LLM(self.plain, speculate=found)
        return self._write(self.engines[method, length], ids, max_tokens)

    def _write(self, llm: LLM, ids: list[int], max_tokens: int) -> dict[str, Any]:
        params = SamplingParams(
            temperature=self.temperature, max_tokens=max_tokens, ignore_eos=True, seed=0
        )
        began = time.perf_counter()
        (done,) = llm.generate([ids], params)
        seconds = time.perf_counter() - began
        if done.error is not None:
            raise ValueError(done.error)
        return written(done.token_ids, seconds)


if __name__ == "__main__":
    serve(Draftproof)
