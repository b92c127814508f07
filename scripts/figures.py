"""The figures of README.md and docs, written from the files of the runs that measured them.

A figure stands in a block between `<!-- figures: NAME -->` and `<!-- end -->`, and this file alone
writes what is in it:

    python scripts/figures.py            writes every block anew
    python scripts/figures.py --check    exit code 1, and the names of the blocks that differ

Knows the JSON files under docs/ and nothing of the package: it runs wherever Python does.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from aims import AIMS
from comparisons import BESIDE
from controlled import CONTROLLED
from encoded import ENCODED
from matrix_page import MATRIX
from measured import (
    ROOT,
    benchmarks,
    gguf_files,
    load,
    machine,
    markdown,
    peers,
    runs,
    servers,
    speed,
    spread,
    structured,
)
from scaled import SCALED

BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PAIRS = {
    "bundled": "The bundled pair",
    "inflated": "The inflated pair (the cost of Qwen3-0.6B, the draft a tenth of it)",
    "bundled-two-drafts": "The bundled pair with two drafts",
    "smollm2": "SmolLM2-135M-Instruct, a published chat model",
    "smollm2-chats": "SmolLM2-135M-Instruct in conversations, by its own template",
}


# --- README.md ---------------------------------------------------------------------------------


def rates(run: Any, side: str, method: str) -> list[float]:
    """Tokens per second, by round, of one side and method of a run beside other engines."""
    (case,) = (c for c in run["cases"] if (c["side"], c["method"]) == (side, method))
    return list(case["tokens_per_s"])


def greedy(run: Any, side: str, batch: int = 1) -> list[float]:
    """Tokens per second, by round, of one side of a run of `draftproof bench`."""
    case = side, 0.0, batch
    (found,) = (r for r in run["results"] if (r["side"], r["temperature"], r["batch"]) == case)
    return list(found["tokens_per_s"])


def row(title: str, plain: Sequence[float], drafted: Sequence[float], words: str) -> list[str]:
    """A row of the README's table; the ratio is the median of the rounds' ratios."""
    ratio = statistics.median(b / a for a, b in zip(plain, drafted, strict=True))
    before, after = statistics.median(plain), statistics.median(drafted)
    return [title, speed(before), speed(after), f"{ratio:.2f}x", words]


def readme() -> str:
    bf16, int8 = load("cpu_peers/writing-inflated-bf16"), load("cpu_peers/writing-inflated-int8")
    sampled = load("cpu_peers/writing-inflated-bf16-sampled")
    batches = load("benchmarks/inflated-pair-bfloat16-native-batches")
    torch = load("benchmarks/bundled-pair-float32")

    def native(title: str, run: Any, method: str, words: str) -> list[str]:
        sides = (rates(run, "draftproof", each) for each in ("none", method))
        return row(title, *sides, words)

    def median(run: Any, side: str, method: str) -> str:
        return speed(statistics.median(rates(run, side, method)))

    def others(method: str, what: str) -> str:
        openvino, llama = (median(bf16, side, method) for side in ("openvino", "llama.cpp"))
        return f"OpenVINO with {what} writes {openvino} tokens/s, llama.cpp {llama}."

    lookup = speed(statistics.median(greedy(torch, "transformers lookup")))
    of_batch = (greedy(batches, f"draftproof {each}", 8) for each in ("none", "draft"))
    of_torch = (greedy(torch, f"draftproof {each}") for each in ("none", "ngram"))
    real, real_int8 = load("cpu_peers/smollm2-bf16"), load("cpu_peers/smollm2-int8")
    ours8, theirs8 = (median(real_int8, side, "none") for side in ("draftproof", "llama.cpp"))
    rows = [
        native("`NGram()`", bf16, "lookup", others("lookup", "look-up")),
        native("`DraftModel`", bf16, "draft", others("draft", "the same draft")),
        native("`DraftModel`, temperature 0.7", sampled, "draft", "Same seed, same tokens."),
        native("`NGram()`, int8", int8, "lookup", "Half the bytes to read: another model."),
        native(
            "`NGram()`, SmolLM2-135M-Instruct, HumanEval",
            real,
            "lookup",
            f"A published model. OpenVINO with look-up writes {median(real, 'openvino', 'lookup')} "
            f"tokens/s. Plain decoding: llama.cpp {median(real, 'llama.cpp', 'none')}; in int8 "
            f"llama.cpp {theirs8}, ours {ours8}.",
        ),
        row("`DraftModel`, batch of 8", *of_batch, "A full batch leaves nothing to gain."),
        row(
            "`NGram()`, bundled pair in float32 on torch",
            *of_torch,
            f"transformers with its prompt lookup writes {lookup} tokens/s.",
        ),
    ]
    about = {
        "inflated pair": (bf16, int8, sampled),
        "SmolLM2": (real, real_int8),
        "batch of 8": (batches,),
        "float32": (torch,),
    }
    when: dict[str, list[str]] = {}
    for name, each in about.items():
        for run in each:
            ran = run["environment"]
            processor, common = machine(ran["machine"]).split(", ", 1)
            names = when.setdefault(f"{processor}, {ran['date'][:10]}", [])
            if name not in names:
                names.append(name)
    where = "; ".join(f"{', '.join(names)}: {there}" for there, names in when.items())
    headings = ("drafts", "plain, tokens/s", "drafted, tokens/s", "ratio", "note")
    return (
        markdown(headings, rows)
        + f"\n{where[0].upper()}{where[1:]}. All: {common}; medians of 3 to 5 rounds, sides in "
        f"turn.\n\n{of_a_file()}"
    )


def of_a_file() -> str:
    """A published GGUF file, written plainly, beside llama.cpp."""
    run = load("formats/gguf-files")
    file, sides = run["files"][0], ("draftproof", "llama.cpp")

    def rates(name: str) -> list[str]:
        return [speed(statistics.median(turn[name] for turn in file[side])) for side in sides]

    (ours, theirs), (reads, their_reads) = rates("tg64"), rates("pp512")
    return (
        f"The published file {file['file']}, as it lies, without drafts: {ours} tokens/s, "
        f"llama.cpp {theirs}; a prompt of 512 tokens is read at {reads} and {their_reads} tokens/s "
        f"({run['date'][:10]}, {machine(run['machine']).split(', torch')[0]}; "
        "[other types](docs/formats.md)).\n"
    )


# --- docs/methods.md ---------------------------------------------------------------------------


def methods(name: str, only: Sequence[str] = ()) -> str:
    """One run of benchmarks/methods.py."""
    run = load(f"methods/{name}")
    rows = [
        [
            method,
            row["settings"],
            f"{row['tokens_per_step']:.2f}",
            "-" if row["accepted"] is None else f"{row['accepted']:.0%}",
            f"{row['step_cost']:.2f}",
            f"{row['tokens_per_s']:,.0f}",
            spread([row["speedup"], *row["spread"]], "x"),
        ]
        for method, row in run["methods"].items()
        if not only or method in only
    ]
    headings = ("method", "best settings", "tokens/step", "accepted", "step cost", "tokens/s")
    return (
        f"**{PAIRS[run['pair']]}, temperature {run['temperature']:g}.** {run['prompts']} "
        f"{run.get('source', 'held-out')} prompts of {run['max_tokens']} tokens, "
        f"{run['rounds']} rounds; {run['date'][:10]}, "
        f"{run['runner']} runner, {run['precision']}, {machine(run['machine'])}.\n\n"
        + markdown((*headings, "speed-up"), rows)
    )


def several_drafts() -> str:
    only = ("none", "draft", "SpecInfer", "SpecInfer, two drafts")
    names = ("bundled-two-drafts-bfloat16-0", "bundled-two-drafts-bfloat16-0.7")
    return "\n".join(methods(name, only) for name in names)


FIGURES: dict[str, Callable[[], str]] = {
    "readme": readme,
    "methods-bundled-0": lambda: methods("bundled-bfloat16-0"),
    "methods-bundled-0-7": lambda: methods("bundled-bfloat16-0.7"),
    "methods-inflated-0": lambda: methods("inflated-bfloat16-0"),
    "methods-inflated-0-7": lambda: methods("inflated-bfloat16-0.7"),
    "methods-smollm2-0": lambda: methods("smollm2-bfloat16-0"),
    "methods-smollm2-chats-0": lambda: methods("smollm2-chats-bfloat16-0"),
    "methods-several-drafts": several_drafts,
    "benchmarks": benchmarks,
    "runs": runs,
    "cpu-peers": peers,
    "gguf-files": gguf_files,
    "servers": servers,
    "structured": structured,
    **AIMS,
    **BESIDE,
    **CONTROLLED,
    **ENCODED,
    **MATRIX,
    **SCALED,
}


def renewed(page: str) -> str:
    """The page with every block as the files have it. Raises `ValueError` for an unknown block."""

    def block(found: re.Match[str]) -> str:
        if found[2] not in FIGURES:
            raise ValueError(f"no figures are called {found[2]}: use {', '.join(FIGURES)}")
        return f"{found[1]}{FIGURES[found[2]]()}{found[3]}"

    return BLOCK.sub(block, page)


def main(arguments: Sequence[str]) -> int:
    differing = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        page = path.read_text(encoding="utf-8")
        if (new := renewed(page)) == page:
            continue
        differing.append(path.relative_to(ROOT).as_posix())
        if "--check" not in arguments:
            path.write_text(new, encoding="utf-8")
    if "--check" in arguments and differing:
        print(f"not as measured: {', '.join(differing)}; run python scripts/figures.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
