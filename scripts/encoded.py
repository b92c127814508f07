"""Figures of encoder-decoders: Leviathan's table at another cost, the bundled mender, a pass.

Knows the JSON files that benchmarks/encoder_decoder.py writes.
"""

from __future__ import annotations

import statistics
from typing import Any

from measured import load, machine, markdown, speed, spread


def planted(run: Any | None = None) -> str:
    """Every row of the paper's table, by batch size."""
    run = load("encoder_decoder/planted") if run is None else run

    def cell(values: list[float] | None) -> str:
        return "-" if values is None else spread(values, "x")

    rows = [
        [
            f"{row['task']}, T5-{row['draft']}",
            f"{row['temperature']:g}",
            str(row["gamma"]),
            f"{row['alpha']:.2f}",
            str(row["batch"]),
            f"{row['c']:.2f}",
            f"{row['predicted']:.2f}x",
            f"{row['expected']:.2f}x",
            cell(row["measured"]),
            cell(row["transformers_assisted"]),
            f"{row['published']:.1f}x",
            row["label"],
        ]
        for row in run["rows"]
    ]
    headings = ["task, draft", "T", "γ", "α", "batch", "c", "predicted (Thm 3.8)"]
    headings += ["with measured passes", "measured", "transformers assisted", "published (T5-XXL)"]
    differing = sum(row["differing"] for row in run["rows"])
    threads = "1 thread" if run["threads"] == 1 else f"{run['threads']} threads"
    return (
        markdown([*headings, ""], rows)
        + f"\n{run['date'][:10]}, {run['dtype']}, {threads}, {machine(run['machine'])}; target "
        f"T5-{run['target']}'s shape, random weights, {run['max_tokens']} tokens a text, "
        f"{run['rounds']} rounds, all speeds over our plain decoding; texts that differ: "
        f"{differing}.\n"
    )


def mender(run: Any | None = None) -> str:
    """Every side on the bundled encoder-decoder."""
    run = load("encoder_decoder/bundled-mender") if run is None else run
    rows = [
        [
            row["side"],
            str(row["batch"]),
            "-" if row["tokens_per_step"] is None else f"{row['tokens_per_step']:.2f}",
            speed(statistics.median(row["tokens_per_s"])),
            _of(row["of_plain"]),
            _of(row["of_transformers"]),
        ]
        for row in run["results"]
    ]
    about, options = run["environment"], run["options"]
    headings = ("side", "batch", "tokens/step", "tokens/s", "of plain", "of transformers")
    return (
        markdown(headings, rows)
        + f"\n{about['date'][:10]}, {about['dtype']}, {machine(about['machine'])}; "
        f"{run['prompts']} damaged pieces, at most {options['max_tokens']} tokens each, T=0, "
        f"{options['rounds']} rounds.\n"
    )


def passes(run: Any | None = None) -> str:
    """A step taken apart: what rules cost, and what native kernels could save of a pass."""
    run = load("encoder_decoder/pass") if run is None else run
    about = f"{run['date'][:10]}, {machine(run['machine'])}, {run['threads']} threads"
    ruled = [
        [
            row["model"],
            str(row["batch"]),
            ", ".join(f"`{rule}`" for rule in row["rules"]),
            f"{row['ms_a_step']:.2f}",
            f"{statistics.median(row['share']):.1%} "
            f"({min(row['share']):.1%} to {max(row['share']):.1%})",
        ]
        for row in run["rules"]
    ]
    parts = ("whole", "products", "attention", "rest", "native_products")
    apart = [
        [row["model"], str(row["texts"]), row["dtype"]]
        + [f"{row[part]:.2f}" for part in parts]
        + [f"{row['saved']:.0%}"]
        for row in run["passes"]
    ]
    return (
        markdown(("shape", "batch", "rules", "ms a step", "of which rules"), ruled)
        + "\n"
        + markdown(
            ("shape", "texts", "precision", "pass, ms", "products", "attention", "rest")
            + ("products, native", "would be saved"),
            apart,
        )
        + f"\n{about}; random weights, T=0, plain decoding; rules: {run['tokens']} tokens a text, "
        f"{run['rounds']} rounds in turn. Native products: a pass of the native runner in bfloat16 "
        "over a Llama of that width and depth, by weight.\n"
    )


def _of(ratio: Any) -> str:
    if ratio is None:
        return "-"
    return f"{ratio['median']:.2f}x ({ratio['low']:.2f}-{ratio['high']:.2f})"


ENCODED = {
    "encoder-decoder-table": planted,
    "encoder-decoder-mender": mender,
    "encoder-decoder-pass": passes,
}
