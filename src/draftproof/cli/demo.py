"""`draftproof demo`: from arguments to a race of the bundled models."""

from __future__ import annotations

from rich.console import Console

from draftproof.bundled.prompts import PROMPTS
from draftproof.cli import options
from draftproof.demo import show


def demo(
    num_prompts: options.NumPrompts = None,
    method: options.Method = None,
    temperature: options.Temperature = 0.0,
    max_tokens: options.MaxTokens = 128,
    seed: options.Seed = 0,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> int:
    """Watch the bundled models write the same Python code, plainly and faster."""
    wanted = show.Options(
        methods=tuple(method or ["draft"]),
        prompts=len(PROMPTS) if num_prompts is None else num_prompts,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed or 0,
        dtype=dtype or "auto",
        runner=runner,
        threads=threads,
        as_json=as_json,
    )
    return show.demo(wanted, Console())
