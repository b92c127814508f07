"""Tables of measurements as Markdown, and the two pages that show every run that is kept.

Knows the JSON files under docs/, and nothing of where their figures are quoted.
"""

from __future__ import annotations

import json
import re
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def load(name: str) -> Any:
    """What a run wrote to `docs/NAME.json`."""
    return json.loads((ROOT / "docs" / f"{name}.json").read_text(encoding="utf-8"))


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def speed(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.1f}"


def spread(values: Sequence[float], unit: str = "") -> str:
    """Median of the rounds, and the lowest and the highest of them."""
    return f"{statistics.median(values):.2f}{unit} ({min(values):.2f}-{max(values):.2f})"


def machine(told: str) -> str:
    """Without the load of the moment: it is in the file, and no part of the machine."""
    return re.sub(r", load [\d.]+", "", told)


def peer_machine(about: Mapping[str, Any]) -> str:
    """The machine of a run of benchmarks/peers/cpu_peers.py; torch does not tell of AMX."""
    told = machine(about["machine"])
    amx = about["versions"]["draftproof"].get("runner") == "native (amx)"
    return told.replace("AVX512", "AVX512 and AMX") if amx else told


# --- docs/serving.md ---------------------------------------------------------------------------


def servers() -> str:
    """Every setting of benchmarks/peers/servers.py, by file and number of clients."""
    runs = [load(f"serving/{name}") for name in ("servers", "servers-64")]
    rows = [
        [
            file["file"].removesuffix(".gguf"),
            str(run["clients"]),
            name,
            speed(one["tokens_per_s"]),
            spread(one["ratios"]),
            *[f"{one[key]:.{digits}f}" for key, digits in (("first_token_ms", 0), ("slowest", 2))],
            str(one["failed"]),
        ]
        for run in runs
        for file in run["files"]
        for name, one in file["settings"].items()
    ]
    headings = ["file", "clients", "server", "tokens/s", "of llama.cpp's", "first token, ms"]
    return (
        markdown([*headings, "slowest answer, of the median", "failed"], rows)
        + f"\n{runs[0]['date'].split()[0]}, {machine(runs[0]['machine'])}; HumanEval's prompts, "
        f"{runs[0]['max_tokens']} greedy tokens each, medians of {runs[0]['rounds']} rounds of "
        f"{runs[0]['calls']} calls (of {runs[1]['rounds']} rounds of {runs[1]['calls']} with "
        f"{runs[1]['clients']} clients), 16 places in either server.\n"
    )


# --- docs/structured.md ------------------------------------------------------------------------


def structured() -> str:
    """Every comparison of benchmarks/structured.py."""
    run = load("structured/smollm2")
    sides = {
        "grammar": "free text under a grammar that allows everything, plain beside plain",
        "json-forced": "JSON of a schema with 12 fields, forced tokens alone drafting",
        "json-auto": "the same, `auto`",
        "prediction-changed": "200 tokens, `auto`, predicted but for a tenth of the lines",
        "prediction-unrelated": "200 tokens, `auto`, with another answer as the prediction",
        "prediction-none": "200 tokens, `auto`, without a prediction",
    }
    return (
        markdown(
            ("what is written", "speed, of plain decoding's"),
            ((told, spread(run["ratios"][name], "x")) for name, told in sides.items()),
        )
        + f"\n{run['date'].split()[0]}, {machine(run['machine'])}; {run['model']}, "
        f"{run['runner']}, T = 0, {run['rounds']} rounds, sides in turn.\n"
    )


# --- docs/formats.md ---------------------------------------------------------------------------


def gguf_files() -> str:
    """Every file of benchmarks/peers/gguf_files.py."""
    run, rows = load("formats/gguf-files"), []
    names = ("tg64", "pp1", "pp8", "pp16", "pp512")
    for file in run["files"]:
        ours, theirs = file["draftproof"], file["llama.cpp"]
        ratios = [[a[name] / b[name] for a, b in zip(ours, theirs, strict=True)] for name in names]
        rates = [statistics.median(turn["tg64"] for turn in side) for side in (ours, theirs)]
        flat = [8 * statistics.median(t["pp1"] / t["pp8"] for t in side) for side in (ours, theirs)]
        rows.append(
            [
                f"{file['file']}, {file['bytes'] / 1e6:.0f} MB",
                *map(speed, rates),
                *[f"{each:.1f}" for each in flat],
                *[spread(each) for each in ratios],
            ]
        )
    headings = (
        *("file", "ours, tokens/s", "llama.cpp", "8 over 1 token, ours", "llama.cpp"),
        *("writing", "1 token", "8 tokens", "16 tokens", "prompt of 512"),
    )
    return (
        markdown(headings, rows) + f"\n{run['date'][:10]}, {machine(run['machine'])}; "
        f"{run['rounds']} rounds, sides in turn. The last five columns are our tokens per second "
        "over llama.cpp's.\n"
    )


# --- docs/benchmarks.md ------------------------------------------------------------------------


def runs() -> str:
    """Every run of scripts/measure.py that is kept."""
    found = sorted(load("aims/runs").items())
    cells = ("date", "commit", "processor", "minutes")
    rows = [[f"`{file}`", *[str(run[name]) for name in cells]] for file, run in found]
    return markdown(("file under `docs`", *cells), rows)


def benchmarks() -> str:
    """Every run of `draftproof bench` that is kept."""
    return "\n".join(_run(path) for path in sorted((ROOT / "docs/benchmarks").glob("*.json")))


def _run(path: Path) -> str:
    run = json.loads(path.read_text(encoding="utf-8"))
    about, costs = run["environment"], run["pass_seconds"]
    curve = ", ".join(f"{tokens}: {s / costs['1']:.2f}" for tokens, s in costs.items())
    headings = ("T", "batch", "side", "tokens/s", "of plain", "of transformers", "predicted")
    return (
        f"## {path.stem.replace('-', ' ')}\n\n`{_command(run['options'])}`\n\n"
        f"{about['date'][:10]}, {machine(about['machine'])}, transformers "
        f"{about['transformers']}, {about.get('runner', 'torch')} runner, {about['dtype']}, "
        f"{about['parameters'] / 1e6:.0f} million parameters, {run['prompts']} prompts.\n\n"
        + markdown(
            (*headings, "tokens/step", "differ"),
            (_cells(r, run["prompts"]) for r in run["results"]),
        )
        + f"\nA pass over one token takes {1e3 * costs['1']:.2f} ms; over more, in units of that: "
        f"{curve}.\n\n![Tokens per second of every side](benchmarks/{path.stem}.png)\n"
    )


def _cells(result: Any, prompts: int) -> list[str]:
    def ratio(found: Any) -> str:
        return spread([found["median"], found["low"], found["high"]], "x") if found else "-"

    differing, rate = result["differing"], result["tokens_per_s"]
    return [
        f"{result['temperature']:g}",
        str(result["batch"]),
        result["side"],
        f"{statistics.median(rate):.1f} ({min(rate):.1f}-{max(rate):.1f})",
        ratio(result["of_plain"]),
        ratio(result["of_transformers"]),
        f"{result['predicted']['speedup']:.2f}x" if result["predicted"] else "-",
        f"{result['tokens_per_step']:.2f}" if result["tokens_per_step"] else "-",
        "other noise" if differing is None else f"{differing} of {prompts}",
    ]


def _command(options: Mapping[str, Any]) -> str:
    """The command that runs this again, in today's spelling."""
    words = ["draftproof", "bench", options["model"]]
    words += ["--draft", options["draft"]] if options["draft"] else []
    words += ["--method", ",".join(options["methods"]), "--against", ",".join(options["against"])]
    for option in ("prompts", "temperatures", "batches"):
        for value in options[option]:
            shown = value if isinstance(value, str) else f"{value:g}"
            words += [
                {"temperatures": "--temperature", "batches": "--batch"}.get(option, "--prompts")
            ]
            words += [shown]
    for option in ("num_prompts", "inflate", "max_tokens", "rounds", "dtype", "runner"):
        if options.get(option) and options[option] != "auto":
            words += [f"--{option.replace('_', '-')}", str(options[option])]
    for option, value in options["draft_options"].items():
        words += [f"--{option.replace('_', '-')}", str(value)]
    return shlex.join([*words, *(["--ignore-eos"] if options["ignore_eos"] else [])])


# --- docs/cpu_peers.md -------------------------------------------------------------------------


def peers() -> str:
    """Every run of benchmarks/peers/cpu_peers.py that is kept."""
    return "\n".join(_peer_run(path) for path in sorted((ROOT / "docs/cpu_peers").glob("*.json")))


def _peer_run(path: Path) -> str:
    run = json.loads(path.read_text(encoding="utf-8"))
    about, options = run["environment"], run["options"]
    sampled = f", temperature {options['temperature']:g}" if options.get("temperature") else ""
    versions = {
        f"{name} {version}"
        for side in about["versions"].values()
        for name, version in side.items()
        if name not in ("limits", "runner")
    }
    parts = [
        f"## {path.stem.replace('-', ' ')}{sampled}\n",
        f"`{about['command']}`\n",
        f"{about['date'][:10]}, {peer_machine(about)}. {', '.join(sorted(versions))}. The "
        f"machine: {about['versions']['draftproof']['limits']}.\n",
    ]
    parts += [_passes(run["pass_medians"])] if run["pass_medians"] else []
    parts += [_reading(run["prompts"])] if run["prompts"] else []
    parts += [_writing(run["cases"], options["prompts"])] if run["cases"] else []
    skipped = [f"- Not measured: {what}, because {why}.\n" for what, why in run["skipped"].items()]
    parts += ["".join(skipped)] if skipped else []
    pictures = sorted(path.parent.glob(f"{path.stem}-*.png"))
    own = [p for p in pictures if p.stem.removeprefix(f"{path.stem}-") in ("passes", "writing")]
    parts += [f"![{path.stem.replace('-', ' ')}](cpu_peers/{picture.name})\n" for picture in own]
    return "\n".join(parts)


def _passes(sides: Mapping[str, Mapping[str, float]]) -> str:
    sizes = list(next(iter(sides.values())))
    rows = [
        [side, *(f"{1e3 * s:.2f}<br>{s / costs[sizes[0]]:.2f}x" for s in costs.values())]
        for side, costs in sides.items()
        if costs
    ]
    return "**ms of a pass over so many tokens**\n\n" + markdown(["", *sizes], rows)


def _reading(sides: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    lengths = [f"{length} tokens" for length in next(iter(sides.values()))]
    rows = [
        [side, *(f"{int(n) / statistics.median(took):.0f}" for n, took in each.items())]
        for side, each in sides.items()
        if any(each.values())  # else it ended before, as is said below
    ]
    return "**reading a prompt, tokens/s**\n\n" + markdown(["", *lengths], rows)


def _writing(cases: Sequence[Any], prompts: int) -> str:
    ours = {c["method"]: c["tokens_per_s"] for c in cases if c["side"] == "draftproof"}
    rows = []
    for case in cases:
        rate, differing = case["tokens_per_s"], case["differing"]
        pairs = zip(rate, ours.get(case["method"], ()), strict=case["method"] in ours)
        shares = [a / b for a, b in pairs]
        rows.append(
            [
                case["side"],
                "plain" if case["method"] == "none" else case["method"],
                str(case["length"] or "-"),
                f"{statistics.median(rate):.1f} ({min(rate):.1f}-{max(rate):.1f})",
                f"{statistics.median(shares):.2f}x" if shares else "-",
                "-" if differing is None else f"{differing} of {prompts}",
            ]
        )
    return "**writing**\n\n" + markdown(
        ("", "method", "length", "tokens/s", "of ours", "differ"), rows
    )
