"""What each run's file says of an aim of docs/aims.md.

Knows the JSON files under docs/, and nothing of what was aimed for.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from measured import load


class Run(NamedTuple):
    values: list[float]
    date: str
    machine: str
    command: str


def middle(values: Any) -> float:
    return statistics.median(values)


# --- docs/cpu_peers ----------------------------------------------------------------------------


def of_peers(name: str, values: Callable[[Any], list[float]]) -> Run:
    run = load(f"cpu_peers/{name}")
    told, options = run["environment"], run["options"]
    program = f"python benchmarks/peers/cpu_peers.py --target {options['target']}"
    program += f" --precision {options['precision']} --parts {','.join(options['parts'])}"
    return Run(values(run), told["date"], told["machine"], program)


def together(*runs: Run) -> Run:
    return runs[0]._replace(values=[value for run in runs for value in run.values])


def best(run: Any, ours: bool, method: str | None = None) -> float:
    """Tokens per second of the fastest case of ours, or of the fastest peer's."""
    return max(
        middle(case["tokens_per_s"])
        for case in run["cases"]
        if (case["side"] == "draftproof") is ours and method in (None, case["method"])
    )


def inflated(method: str | None, sampled: str = "") -> Run:
    return together(
        *[
            of_peers(
                f"writing-inflated-{precision}{sampled}",
                lambda run: [best(run, True) / best(run, False, method)],
            )
            for precision in ("bf16", "int8")
        ]
    )


def fastest(times: Any) -> float:
    """Seconds of the fastest peer, over ours."""
    return min(times[side] for side in times if side != "draftproof") / times["draftproof"]


def prompts(name: str) -> Run:
    def values(run: Any) -> list[float]:
        sides = run["prompts"]
        return [fastest({side: middle(sides[side][n]) for side in sides}) for n in ("512", "2048")]

    return of_peers(name, values)


def over_one(name: str, *rows: str) -> Run:
    def values(run: Any) -> list[float]:
        ours = run["pass_medians"]["draftproof"]
        return [ours[each] / ours["1"] for each in rows]

    return of_peers(name, values)


def one_row() -> Run:
    def values(run: Any) -> list[float]:
        return [fastest({side: passes["1"] for side, passes in run["pass_medians"].items()})]

    return together(*[of_peers(f"passes-Qwen3-0.6B-{each}", values) for each in ("bf16", "int8")])


def plain_int8() -> Run:
    def values(run: Any) -> list[float]:
        sides = {case["side"]: middle(case["tokens_per_s"]) for case in run["cases"]}
        return [sides["draftproof"] / sides["llama.cpp"]]

    return of_peers("smollm2-int8", values)


# --- docs/benchmarks, docs/encoder_decoder ------------------------------------------------------


def bench(name: str, values: Callable[[Any], list[float]]) -> Run:
    run = load(name)
    told, options = run["environment"], run["options"]
    shown = f"draftproof bench {options['model']} --draft {options['draft']}"
    if name.startswith("encoder"):
        shown = "python benchmarks/encoder_decoder.py --part mender"
    elif options["inflate"]:
        shown += f" --inflate {options['inflate']}"
    return Run(values(run), told["date"], told["machine"], shown)


def rows(run: Any) -> dict[tuple[str, float, int], Any]:
    return {(r["side"], r["temperature"], r["batch"]): r for r in run["results"]}


def ratio(name: str, side: str, *cases: tuple[float, int], of: str = "of_plain") -> Run:
    return bench(name, lambda run: [rows(run)[side, *case][of]["median"] for case in cases])


def of_assistant(name: str) -> Run:
    """The fastest of ours over plain, and over transformers' assistant."""

    def values(run: Any) -> list[float]:
        plain = {r["side"]: r["of_plain"]["median"] for r in run["results"]}
        ours = max(value for side, value in plain.items() if side.startswith("draftproof"))
        return [ours, ours / max(plain[side] for side in plain if "assistant" in side)]

    return bench(name, values)


def batch_8() -> Run:
    def values(run: Any) -> list[float]:
        plain = [middle(rows(run)["draftproof none", 0.0, n]["tokens_per_s"]) for n in (1, 8)]
        return [plain[1] / plain[0]]

    return bench("benchmarks/inflated-pair-bfloat16-native-batches", values)


def of_transformers() -> Run:
    def values(run: Any) -> list[float]:
        alone = {r["side"]: r["of_transformers"]["median"] for r in run["results"][::-1]}
        theirs = [alone[side] for side in alone if side.startswith("transformers")]
        return [alone["draftproof ngram"] / max(theirs)]

    return bench("encoder_decoder/bundled-mender", values)


# --- the others --------------------------------------------------------------------------------


def methods(values: Callable[[Any], float], *names: str) -> Run:
    runs = [load(f"methods/{name}") for name in names]
    first = runs[0]
    found = [values(run["methods"]) for run in runs]
    return Run(found, first["date"], first["machine"], "python benchmarks/methods.py")


def steps(*wanted: str) -> Run:
    runs = [methods(lambda m, w=w: m[w]["tokens_per_step"], "bundled-bfloat16-0") for w in wanted]
    return together(*runs)


def staged(pair: str) -> Run:
    return methods(
        lambda m: m["staged"]["speedup"] / m["draft"]["speedup"],
        f"{pair}-bfloat16-0",
        f"{pair}-bfloat16-0.7",
    )


def hindsight() -> Run:
    cells = load("never_slower/hindsight")["cells"]
    order = sorted(cells, key=lambda name: "smollm2" not in name)
    first = cells[order[0]]
    values = [cells[name]["auto"][0] for name in order]
    program = "python benchmarks/never_slower/hindsight.py"
    return Run(values, first["date"], first["processor"], program)


def deciding() -> Run:
    run = load("never_slower/deciding")
    idle = {r["batch"]: r["deciding"] for r in run["rows"] if r["text"] == "nothing offered"}
    asked = [
        max(r["deciding"] for r in run["rows"] if "offered," in r["text"] and r["batch"] == batch)
        for batch in (1, 16)
    ]
    program = f"python benchmarks/never_slower/deciding.py --rounds {run['rounds']}"
    return Run([idle[1], idle[16], *asked], run["date"], run["machine"], program)


def cells(name: str) -> Run:
    run = load(f"never_slower/{name}")
    below = sum(cell["auto"][2] < 0.98 for cell in run["cells"].values())
    values = [below, run["means"]["auto"], run["means"]["off"]]
    program = "python benchmarks/never_slower/never_slower.py"
    return Run(values, run["dates"][-1], run["processors"][0], program)


def reader(part: str) -> Run:
    run = load(f"never_slower/{part}")
    value = middle([one["gap"] for one in run["runs"]]) if part == "gap" else run["ratio"][0]
    program = f"python benchmarks/never_slower/reader.py {part}"
    return Run([value], run["date"], run["machine"], program)


def gguf(measure: str) -> Run:
    run = load("formats/gguf-files")
    values = [
        middle(
            [
                ours[measure] / theirs[measure]
                for ours, theirs in zip(f["draftproof"], f["llama.cpp"], strict=True)
            ]
        )
        for f in run["files"]
    ]
    return Run(values, run["date"], run["machine"], "python benchmarks/peers/gguf_files.py")


def servers(name: str, values: Callable[[Any], list[float]]) -> Run:
    run = load(f"serving/{name}")
    program = f"python benchmarks/peers/servers.py --clients {run['clients']}"
    return Run(values(run["files"]), run["date"], run["machine"], program)


def of_files(files: Any) -> list[float]:
    two = ("draftproof plain", "draftproof auto")
    return [f["settings"][side]["ratio"] for f in files if "bf16" not in f["file"] for side in two]


def crowds(files: Any) -> list[float]:
    ours = [s for f in files for name, s in f["settings"].items() if "draftproof" in name]
    return [sum(s["failed"] for s in ours), max(s["slowest"] for s in ours)]


def structured(*names: str) -> Run:
    run = load("structured/smollm2")
    values = [middle(run["ratios"][name]) for name in names]
    return Run(values, run["date"], run["machine"], "python benchmarks/structured.py build/smollm2")


TORCH, MENDER = "benchmarks/bundled-pair-float32", "encoder_decoder/bundled-mender"
INFLATED = "benchmarks/inflated-pair-bfloat16"
FIGURES: Mapping[str, Callable[[], Run]] = {
    "best-of-peers": lambda: inflated(None),
    "best-of-peers-sampled": lambda: inflated(None, "-sampled"),
    "best-of-plain": lambda: inflated("none"),
    "prompts-qwen3": lambda: prompts("passes-Qwen3-0.6B-bf16"),
    "flat-bf16": lambda: over_one("passes-Qwen3-0.6B-bf16", "8", "12"),
    "one-row": one_row,
    "plain-int8": plain_int8,
    "batch-8": batch_8,
    "torch-draft-0": lambda: ratio(TORCH, "draftproof draft", (0.0, 1)),
    "torch-draft-07": lambda: ratio(TORCH, "draftproof draft", (0.7, 1)),
    "inflated-humaneval": lambda: of_assistant(f"{INFLATED}-HumanEval"),
    "inflated-held-out": lambda: of_assistant(f"{INFLATED}-held-out"),
    "staged-bundled": lambda: staged("bundled"),
    "staged-inflated": lambda: staged("inflated"),
    "tokens-a-step": lambda: steps("lookahead", "n-gram", "suffix", "early exit"),
    "specinfer": lambda: methods(
        lambda m: m["SpecInfer"]["tokens_per_step"] / m["draft"]["tokens_per_step"],
        "bundled-bfloat16-0",
    ),
    "hindsight": hindsight,
    "deciding": deciding,
    "cells": partial(cells, "cells"),
    "cells_avx2": partial(cells, "cells_avx2"),
    "gap": lambda: reader("gap"),
    "latency": lambda: reader("latency"),
    "gguf-prompts": lambda: gguf("pp512"),
    "gguf-one": lambda: gguf("pp1"),
    "servers-files": lambda: servers("servers", of_files),
    "servers-64": lambda: servers("servers-64", crowds),
    "grammar": lambda: structured("grammar"),
    "forced": lambda: structured("json-forced"),
    "prediction": lambda: structured("prediction-changed", "prediction-unrelated"),
    "mender-plain": lambda: ratio(MENDER, "draftproof none", (0.0, 8), of="of_transformers"),
    "mender-lookup": lambda: ratio(MENDER, "draftproof ngram", (0.0, 1), (0.0, 8)),
    "mender-peers": of_transformers,
    "mender-auto": lambda: ratio(MENDER, "draftproof auto", (0.0, 1), (0.0, 8)),
}
