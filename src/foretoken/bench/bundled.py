"""What the bundled pair is worth: `python -m foretoken.bench.bundled`.

On held-out modules: speed of plain decoding, of the draft and of transformers' `generate` in turn;
acceptance alpha and cost ratio c; loss; and how many greedy completions are valid Python.
"""

from __future__ import annotations

import ast
import codeop
import statistics
import textwrap
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM

import foretoken as ft
from foretoken.bench import timing
from foretoken.demo import bundled, corpus
from foretoken.runners.base import Work
from foretoken.tree import TokenTree


def held_out_prompts(tokenizer: Any, count: int, length: int = 128) -> list[list[int]]:
    """Token ids of `count` beginnings, each cut at a line end inside a held-out module."""
    sources = [text for path, text in corpus.modules() if corpus.is_held_out(path)]
    prompts: list[list[int]] = []
    for turn in range(100):
        for source in sources:
            lines = source.splitlines(keepends=True)
            at = (7 + 61 * turn) % max(1, len(lines))
            # Back to a line that begins a top-level statement, so that the prompt parses with it.
            while at and not lines[at][:1].isalpha():
                at -= 1
            ids = tokenizer("".join(lines[at : at + 12]))["input_ids"][:length]
            if len(ids) >= 24 and ids not in prompts:
                prompts.append(ids)
            if len(prompts) == count:
                return prompts
    return prompts


def parses(text: str) -> bool:
    """Whether `text`, which ends anywhere, is Python up to the statement that its end cuts off.

    The last line may have been cut in the middle and goes. Of the rest, the longest part that
    parses must reach to one unfinished statement: open brackets, an open block, or a block
    without a body.
    """
    lines = text.splitlines()[:-1]
    whole = next(end for end in range(len(lines), -1, -1) if _is_python(lines[:end]))
    tail = lines[whole:]
    if not any(line.strip() for line in tail):
        return True
    indent = len(tail[-1]) - len(tail[-1].lstrip())
    if _is_python([*lines, " " * (indent + 4) + "pass"]):
        return True
    try:
        return codeop.compile_command(textwrap.dedent("\n".join(tail)) + "\n") is None
    except (SyntaxError, ValueError, OverflowError):
        return False


def _is_python(lines: list[str]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape is still Python
            ast.parse("\n".join(lines) + "\n")
    except (SyntaxError, ValueError):
        return False
    return True


def valid_share(llm: ft.LLM, prompts: list[list[int]], tokens: int) -> float:
    """Share of greedy completions that are Python together with their prompt."""
    params = ft.SamplingParams(max_tokens=tokens)
    valid = 0
    for prompt in track(prompts, "greedy completions"):
        (out,) = llm.generate(prompt, params)
        valid += parses(llm.tokenizer.decode(prompt, skip_special_tokens=True) + out.text)
    return valid / len(prompts)


def acceptance(llm: ft.LLM, prompts: list[list[int]], temperature: float, tokens: int) -> Any:
    """(share of first drafts accepted, tokens per step) of whatever `llm` drafts with."""
    params = ft.SamplingParams(temperature=temperature, max_tokens=tokens, seed=7)
    stats = [out.stats for out in llm.generate(prompts, params)]
    first = sum((*each.accepted_per_position, 0)[0] for each in stats)
    alpha = first / sum(each.drafting_steps for each in stats)
    return alpha, sum(each.tokens for each in stats) / sum(each.steps for each in stats)


def speed(
    prompts: list[list[int]], tokens: int, temperature: float, draft: ft.DraftModel, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[list[int]]]]:
    """Tokens per second of each side, round by round, and what each side wrote."""
    params = ft.SamplingParams(temperature=temperature, max_tokens=tokens, seed=7, ignore_eos=True)
    plain = ft.LLM(bundled("target"), dtype="float32", max_batch=1)
    fast = ft.LLM(bundled("target"), dtype="float32", max_batch=1, speculate=draft)
    model = AutoModelForCausalLM.from_pretrained(bundled("target"), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    written: dict[str, list[list[int]]] = {}

    def ours(name: str, llm: ft.LLM) -> None:
        written[name] = [llm.generate(prompt, params)[0].token_ids for prompt in prompts]

    def theirs() -> None:
        sampled = {"do_sample": temperature > 0, "temperature": temperature or None, "top_k": 0}
        if not temperature:
            sampled = {"do_sample": False}
        written["transformers"] = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                pad_token_id=0,
                **sampled,
            )
            written["transformers"].append(out[0, len(prompt) :].tolist())

    sides: dict[str, Callable[[], object]] = {
        "plain": lambda: ours("plain", plain),
        "draft": lambda: ours("draft", fast),
        "transformers": theirs,
    }
    seconds = timing.interleaved(sides, rounds)
    total = tokens * len(prompts)
    return {name: [total / each for each in took] for name, took in seconds.items()}, written


def pass_ms(llm: ft.LLM, context: int, rows: int) -> float:
    """Median milliseconds of one pass over `rows` tokens after `context`."""
    runner, tree = llm.runner, TokenTree.chain([1] * rows)
    runner.forward([Work(-1, list(range(100, 100 + context)), None)])
    took = timing.interleaved({"pass": lambda: runner.forward([Work(-1, [], tree)])}, 31, warm=5)
    runner.free(-1)
    return 1e3 * statistics.median(took["pass"])


def main(
    prompts: Annotated[int, typer.Option(help="prompts that are timed")] = 16,
    completions: Annotated[int, typer.Option(help="greedy completions that are parsed")] = 200,
    max_tokens: int = 128,
    rounds: int = 5,
    num_draft_tokens: int = 5,
    min_confidence: float = 0.1,
    branch: int = 2,
) -> None:
    """Measure the bundled pair and print tables."""
    console = Console()
    console.print(timing.machine(), highlight=False)

    def draft(confidence: float = min_confidence, branches: int = branch) -> ft.DraftModel:
        return ft.DraftModel(
            bundled("draft"), num_draft_tokens, min_confidence=confidence, branch=branches
        )

    target = ft.LLM(bundled("target"), dtype="float32", speculate=draft())
    small = ft.LLM(bundled("draft"), dtype="float32")
    ids = held_out_prompts(target.tokenizer, max(prompts, completions))
    timed = ids[:prompts]
    one, cost = pass_ms(target, 128, 1), pass_ms(small, 128, 1)
    console.print(f"target pass {one:.2f} ms, draft pass {cost:.2f} ms, c = {cost / one:.3f}")
    table = Table("tokens in a pass", "ms", "of one", title="target, context 128")
    for rows in (1, 2, 4, 5, 7, 8, 12, 16):
        many = pass_ms(target, 128, rows)
        table.add_row(str(rows), f"{many:.2f}", f"{many / one:.2f}")
    console.print(table)
    table = Table(
        "temperature", "alpha (first draft)", "tokens per step", title="no confidence stop"
    )
    every = ft.LLM(bundled("target"), dtype="float32", speculate=draft(0.0, 1))
    for temperature in (0.0, 0.7, 1.0):
        alpha, per_step = acceptance(every, timed, temperature, max_tokens)
        table.add_row(str(temperature), f"{alpha:.3f}", f"{per_step:.2f}")
    console.print(table)
    table = Table("T", "side", "tokens/s", "of plain", "of hf", "identical")
    for temperature in (0.0, 0.7):
        rates, written = speed(timed, max_tokens, temperature, draft(), rounds)
        for name, took in rates.items():
            same = sum(a == b for a, b in zip(written[name], written["plain"], strict=True))
            table.add_row(
                str(temperature),
                name,
                f"{statistics.median(took):.0f} ({min(took):.0f}-{max(took):.0f})",
                f"{timing.median_ratio(took, rates['plain']):.2f}",
                f"{timing.median_ratio(took, rates['transformers']):.2f}",
                f"{same} of {len(timed)}",
            )
    console.print(table)
    console.print(timing.machine(), highlight=False)
    if completions:
        share = valid_share(target, ids[:completions], max_tokens)
        console.print(f"{share:.1%} of {completions} greedy completions are valid Python")


if __name__ == "__main__":
    typer.run(main)
