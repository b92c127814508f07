"""`draftproof demo`: from arguments to a race of the bundled models."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from draftproof.bundled.prompts import PROMPTS
from draftproof.demo import show


def demo(
    method: Annotated[
        list[str] | None, typer.Option(help="draft unless given; each of several is raced.")
    ] = None,
    prompts: Annotated[int, typer.Option(help="How many of the prompts.")] = len(PROMPTS),
    max_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    dtype: Annotated[
        str | None, typer.Option(help="Unless given: bfloat16 natively, float32 on torch.")
    ] = None,
    runner: Annotated[str, typer.Option(help="auto, native or torch.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, at the end.")] = False,
) -> int:
    """Watch the bundled models write the same Python code, plainly and faster."""
    return show.demo(
        show.Options(
            tuple(method or ["draft"]),
            prompts,
            max_tokens,
            temperature,
            seed,
            dtype,
            runner,
            threads,
            as_json,
        ),
        Console(),
    )
