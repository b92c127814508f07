"""What `draftproof bench` says: tables, the verdict, and the reasons behind it.

Everything is made of what `Report.as_dict` gives, so that a file of results can be shown again.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from draftproof import tables
from draftproof.methods import needed, takes

OURS = "draftproof "
PLAIN = "draftproof none"
WORTH = 1.03  # a method is named the fastest if it is at least so much faster than plain
NAMES = (
    *("tokens/s", "of\nplain", "of trans-\nformers", "pre-\ndicted"),
    *("tokens\n/step", "alpha", "differ"),
)


def heading(found: dict[str, Any]) -> str:
    """What was measured, on what: model, runner, precision, threads, processor, prompts."""
    about, options = found["environment"], found["options"]
    shape = f", inflated to {options['inflate']}" if options["inflate"] else ""
    texts = ", ".join(options["prompts"]) or "held-out code"
    chat = " as chats" if options.get("chat") else ""
    return (
        f"{options['model']}{shape}: {about.get('runner', 'torch')} runner, {about['dtype']}, "
        f"{threads(about)}, {processor(about)}; "
        f"{found['prompts']} prompt{'s' if found['prompts'] > 1 else ''} of {texts}{chat}, "
        f"{options['max_tokens']} tokens each"
    )


def threads(about: dict[str, Any]) -> str:
    return "1 thread" if about["threads"] == 1 else f"{about['threads']} threads"


def processor(about: dict[str, Any]) -> str:
    """Its name; in older files it is only the beginning of the line about the machine."""
    name: str = about.get("processor") or about["machine"].split(", ")[0]
    return name


def cases(found: dict[str, Any]) -> dict[tuple[float, int], list[dict[str, Any]]]:
    """The results of each temperature and batch size."""
    grouped: dict[tuple[float, int], list[dict[str, Any]]] = {}
    for each in found["results"]:
        grouped.setdefault((each["temperature"], each["batch"]), []).append(each)
    return grouped


def table(found: dict[str, Any], width: int) -> Group:
    """One table per temperature and batch size; stacked where one takes more than `width` columns.

    What a table takes hangs on its figures: a spread of 100% or more takes a column more.
    """
    grouped, prompts = cases(found), found["prompts"]
    rows = [[_row(each, prompts) for each in results] for results in grouped.values()]
    made = [tables.in_columns(NAMES, each, padding=0) for each in rows]
    drawn: list[RenderableType] = [*made]
    if not all(tables.fits(each, width) for each in made):
        drawn = [tables.stacked(NAMES, each) for each in rows]
    legend = "Medians of the rounds ± the farthest one; differ: answers unlike plain's."
    parts: list[RenderableType] = [Text(heading(found))]
    for (temperature, batch), each in zip(grouped, drawn, strict=True):
        parts += [Text(f"\ntemperature {temperature:g}, batch {batch}"), each]
    if found.get("incomplete"):
        parts.append(Text(f"incomplete: {found['incomplete']}", style="bold"))
    return Group(*parts, Text(legend))


def _row(each: dict[str, Any], prompts: int) -> list[str]:
    speed = each["tokens_per_s"]
    median = statistics.median(speed)
    return [
        each["side"].removeprefix(OURS),
        f"{median:.4g}{_around(median, speed)}",
        *(_short(each[name]) for name in ("of_plain", "of_transformers")),
        f"{each['predicted']['speedup']:.2f}x" if each["predicted"] else "-",
        f"{each['tokens_per_step']:.2f}" if each["tokens_per_step"] else "-",
        f"{each['acceptance']['alpha']:.2f}" if each["acceptance"] else "-",
        "-" if each["differing"] is None else f"{each['differing']}/{prompts}",
    ]


def _short(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio['median']:.2f}{_around(ratio['median'], (ratio['low'], ratio['high']))}"


def _around(median: float, values: Sequence[float]) -> str:
    """How far the farthest value is from the median; nothing of a single round."""
    if all(value == median for value in values):
        return ""
    return f" ±{max(abs(value / median - 1) for value in values):.0%}"


def verdict(found: dict[str, Any]) -> str:
    """One line: which method is fastest on these prompts, and the command that uses it.

    Over several temperatures and batch sizes: by the geometric mean of the ratios to plain.
    """
    ratios: dict[str, list[float]] = {}
    for each in found["results"]:
        if each["side"].startswith(OURS) and each["side"] != PLAIN and each["of_plain"]:
            ratios.setdefault(each["side"], []).append(each["of_plain"]["median"])
    if not ratios:
        return "Nothing that drafts was compared: add --method all."
    speed = {side: statistics.geometric_mean(each) for side, each in ratios.items()}
    best = max(speed, key=speed.__getitem__)
    method = best.removeprefix(OURS)
    if speed[best] < WORTH:
        command = _command(found["options"], "none")
        return (
            f"Plain decoding is best here ({method}, the fastest that drafts, takes it to "
            f"{speed[best]:.2f}x): {command}"
        )
    command = _command(found["options"], method)
    return f"Fastest here: {method}, {speed[best]:.2f}x plain decoding: {command}"


def _command(options: dict[str, Any], method: str) -> str:
    """`draftproof generate` as it was measured here."""
    words = ["draftproof", "generate", options["model"]]
    if method == "profile":
        words += ["--profile", options["profile"]]
    elif method != "none":
        words += ["--method", method]
        sources = {kind: options.get(kind) for kind in ("draft", "heads")}
        for kind in sorted(needed([method], sources)):
            words += [f"--{kind}", str(sources[kind])]
        for key, value in options["draft_options"].items():
            if not takes(method, key):
                continue
            words += [f"--{key.replace('_', '-')}", str(value)]
    for key in ("runner", "dtype"):
        if options.get(key, "auto") != "auto":
            words += [f"--{key}", options[key]]
    if options.get("chat"):
        words.append("--chat")
    return shlex.join([*words, "PROMPT"])


def notes(found: dict[str, Any]) -> Iterable[str]:
    """The reasons: what passes cost, and where prediction and measurement part."""
    one = found["pass_seconds"]["1"]
    curve = ", ".join(f"{t}: {s / one:.2f}" for t, s in found["pass_seconds"].items())
    yield f"A pass over one token takes {1e3 * one:.2f} ms; over more, in units of that: {curve}."
    for each in found["results"]:
        if each["why"]:
            yield f"{each['side']}, T={each['temperature']:g}: {each['why']}"


def skipped(found: dict[str, Any]) -> Iterable[str]:
    """Who is missing, and why."""
    return (f"skipped: {text}" for text in found["skipped"])
