"""What the bundled pair has learnt: `python benchmarks/bundled_pair.py`.

On held-out modules: acceptance of a chain at three temperatures, and how many greedy completions
are valid Python. Its speed is measured by `draftproof bench bundled --draft bundled`.
"""

from __future__ import annotations

import ast
import codeop
import textwrap
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import draftproof as dp
from draftproof import analysis, bundled, clock
from draftproof.prompts import held_out


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


def valid_share(llm: dp.LLM, prompts: Sequence[str], tokens: int) -> float:
    """Share of greedy completions that are Python together with their prompt."""
    params = dp.SamplingParams(max_tokens=tokens)
    valid = 0
    for at in track(range(0, len(prompts), 8), "greedy completions"):
        some = prompts[at : at + 8]
        done = llm.generate(some, params)
        valid += sum(parses(text + out.text) for text, out in zip(some, done, strict=True))
    return valid / len(prompts)


def main(
    prompts: Annotated[int, typer.Option(help="prompts whose acceptance is counted")] = 40,
    completions: Annotated[int, typer.Option(help="greedy completions that are parsed")] = 200,
    max_tokens: int = 128,
    length: Annotated[int, typer.Option(help="tokens of the chain that is drafted")] = 5,
) -> None:
    """Measure the bundled pair and print tables."""
    console = Console()
    console.print(clock.machine(), highlight=False)
    chain = dp.DraftModel(bundled.folder("draft"), length, min_confidence=0.0, branch=1)
    llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=chain)
    texts = [prompt.turns[0] for prompt in held_out(llm.tokenizer, prompts + 2 * completions)]
    table = Table("T", "alpha", "by position, given the one before", "tokens/step", "formula")
    for temperature in (0.0, 0.7, 1.0):
        params = dp.SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=7)
        stats = [out.stats for out in llm.generate(texts[:prompts], params)]
        found = analysis.acceptance(stats)
        per_step = sum(each.tokens for each in stats) / sum(each.steps for each in stats)
        table.add_row(
            str(temperature),
            f"{found.alpha:.3f}",
            ", ".join(f"{share:.3f}" for share in found.conditional),
            f"{per_step:.2f}",
            f"{analysis.expected_tokens(found.alpha, length):.2f}",
        )
    console.print(table)
    if completions:
        # A beginning inside a module's docstring cannot become Python, whatever follows.
        whole = [text for text in texts if parses(text + "\n")][:completions]
        llm.use("ngram")
        share = valid_share(llm, whole, max_tokens)
        console.print(f"{share:.1%} of {len(whole)} greedy completions are valid Python")


if __name__ == "__main__":
    typer.run(main)
