"""The table of docs/beside_others.md: every figure that was measured with another engine beside it.

Knows the JSON files under docs/. A row has one run's figures; rows in which another engine is ahead
come first.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from measured import load, machine, markdown, peer_machine, speed

ENGINES = ("draftproof", "transformers", "openvino", "llama.cpp")
TITLES = ("ours", "transformers", "OpenVINO GenAI", "llama.cpp")


class Row(NamedTuple):
    what: str
    unit: str  # "tokens/s", or "ms": of which less is better
    figures: Mapping[str, float]  # by engine
    date: str
    machine: str

    @property
    def ratio(self) -> float:
        """Ours over the best of the others, above 1 where ours is ahead."""
        ours = self.figures["draftproof"]
        others = [value for engine, value in self.figures.items() if engine != "draftproof"]
        return min(others) / ours if self.unit == "ms" else ours / max(others)


def middle(values: Any) -> float:
    return statistics.median(values)


def of_peers() -> Iterator[Row]:
    """The runs of benchmarks/peers/cpu_peers.py: passes, prompts, writing."""
    shape, real = "Qwen3-0.6B's shape", "SmolLM2-135M"
    runs = [
        ("passes-Qwen3-0.6B-bf16", shape, "bfloat16"),
        ("passes-Qwen3-0.6B-int8", shape, "int8"),
        ("passes-Qwen3-0.6B-int4", shape, "int4"),
        ("passes-Qwen3-0.6B-bf16-amx", shape, "bfloat16"),
        ("passes-Qwen3-0.6B-int8-amx", shape, "int8"),
        ("passes-Llama-3.2-1B-bf16", "Llama-3.2-1B's shape", "bfloat16"),
        ("smollm2-bf16", real, "bfloat16"),
        ("smollm2-int8", real, "int8"),
        ("writing-inflated-bf16", "inflated pair", "bfloat16"),
        ("writing-inflated-int8", "inflated pair", "int8"),
    ]
    ways = {"none": "plain writing", "draft": "writing with a draft", "lookup": "with look-up"}
    for name, model, precision in runs:
        run, said = load(f"cpu_peers/{name}"), f"{model}, {precision}"
        about = run["environment"]
        when = about["date"], peer_machine(about)
        passes, prompts = run["pass_medians"], run["prompts"]
        for rows in ("1", "12") if passes else ():
            figures = {side: 1e3 * took[rows] for side, took in passes.items() if took.get(rows)}
            yield Row(f"pass over {rows}, {said}", "ms", figures, *when)
        for tokens in ("512", "2048") if prompts else ():
            figures = {
                side: int(tokens) / middle(took[tokens])
                for side, took in prompts.items()
                if took.get(tokens)
            }
            yield Row(f"prompt of {tokens}, {said}", "tokens/s", figures, *when)
        for method, way in ways.items():
            cases = [case for case in run["cases"] if case["method"] == method]
            figures = {case["side"]: middle(case["tokens_per_s"]) for case in cases}
            if "draftproof" in figures:
                yield Row(f"{way}, {said}", "tokens/s", figures, *when)


def of_files() -> Iterator[Row]:
    run = load("formats/gguf-files")
    for file in run["files"]:
        kind = file["file"].split(".")[-2]
        for key, way in (
            ("tg64", "plain writing"),
            ("pp8", "pass over 8"),
            ("pp512", "prompt of 512"),
        ):
            figures = {side: middle([t[key] for t in file[side]]) for side in ENGINES[::3]}
            yield Row(f"{way}, SmolLM2, {kind}", "tokens/s", figures, run["date"], run["machine"])


def of_servers() -> Iterator[Row]:
    for name in ("servers", "servers-64"):
        run = load(f"serving/{name}")
        for file in run["files"]:
            kind = file["file"].removesuffix(".gguf").split("-")[-1].split(".")[-1].upper()
            sides = {"draftproof": "draftproof plain", "llama.cpp": "llama.cpp"}
            figures = {side: file["settings"][long]["tokens_per_s"] for side, long in sides.items()}
            what = f"server, {run['clients']} clients, SmolLM2, {kind}"
            yield Row(what, "tokens/s", figures, run["date"], run["machine"])


def of_transformers() -> Iterator[Row]:
    run = load("encoder_decoder/bundled-mender")
    when = run["environment"]["date"], run["environment"]["machine"]
    rates = {(r["side"], r["batch"]): middle(r["tokens_per_s"]) for r in run["results"]}
    for ours, theirs, way in (
        ("draftproof none", "transformers", "plain writing"),
        ("draftproof ngram", "transformers lookup", "with look-up"),
    ):
        for batch in (1, 8):
            if (theirs, batch) in rates:
                figures = {"draftproof": rates[ours, batch], "transformers": rates[theirs, batch]}
                what = f"{way}, bundled encoder-decoder, float32, batch {batch}"
                yield Row(what, "tokens/s", figures, *when)
    for name, model in (
        ("bundled-pair-float32", "bundled pair, float32 on torch"),
        ("inflated-pair-bfloat16-HumanEval", "inflated pair, bfloat16, HumanEval"),
        ("inflated-pair-bfloat16-held-out", "inflated pair, bfloat16, held-out code"),
    ):
        run = load(f"benchmarks/{name}")
        when = run["environment"]["date"], run["environment"]["machine"]
        greedy = {r["side"]: r for r in run["results"] if (r["temperature"], r["batch"]) == (0, 1)}
        for ours, theirs, way in (
            ("none", "", "plain writing"),
            ("draft", " assistant", "writing with a draft"),
            ("ngram", " lookup", "with look-up"),
        ):
            (side,) = (
                s
                for s in greedy
                if s.startswith(f"transformers{theirs}") and (theirs or s == "transformers")
            )
            pair = {"draftproof": f"draftproof {ours}", "transformers": side}
            figures = {each: middle(greedy[long]["tokens_per_s"]) for each, long in pair.items()}
            yield Row(f"{way}, {model}", "tokens/s", figures, *when)


def beside() -> str:
    found = [*of_peers(), *of_files(), *of_servers(), *of_transformers()]
    rows = sorted(found, key=lambda row: row.ratio)
    lines = [
        [
            f"{row.what}, {row.unit}",
            *[speed(row.figures[each]) if each in row.figures else "-" for each in ENGINES],
            f"{row.ratio:.2f}",
            row.date[:10],
            ", ".join(machine(row.machine).split(", ")[0:3:2]).replace("AVX512", "AVX-512"),
        ]
        for row in rows
    ]
    behind = sum(row.ratio < 1 for row in rows)
    headings = ("what", *TITLES, "ours over the best", "date", "processor")
    return (
        f"Of {len(rows)} comparisons another engine is ahead in {behind}.\n\n"
        + markdown(headings, lines)
        + "\n2 cores, 2 threads; medians of rounds, temperature 0; all sides of a row in one run "
        "with the same weights and prompts, and in the same precision, but for transformers, which "
        "is in bfloat16 in rows of int8 and int4.\n"
    )


BESIDE: dict[str, Callable[[], str]] = {"beside": beside}
