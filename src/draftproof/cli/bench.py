"""`draftproof bench`: from arguments to a comparison, its table and its files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from draftproof.bench import report as reports
from draftproof.bench import suite
from draftproof.bundled import BUNDLED
from draftproof.cli import options
from draftproof.cli.options import LOADING, option
from draftproof.methods import given_options, listed

FORMATS = ("spec-bench",)
WHO, WHAT, RESULTS = "Who is compared", "What is written", "Results"


def bench(
    model: options.Model,
    draft: options.Draft = None,
    heads: options.Heads = None,
    methods: Annotated[
        str | None,
        option(
            WHO,
            "Names as of --method, several joined by +; none, ngram and the draft unless given.",
        ),
    ] = None,
    against: Annotated[str, option(WHO, "Peers (default transformers), or nothing.")] = (
        "transformers"
    ),
    num_draft_tokens: options.NumDraftTokens = None,
    min_confidence: options.MinConfidence = None,
    branch: options.Branch = None,
    prompts: Annotated[
        list[Path] | None,
        option(WHAT, "JSON lines (`prompt` or `turns`) or a text; repeatable. Else held-out code."),
    ] = None,
    num_prompts: Annotated[int | None, option(WHAT, "The first so many of each file.")] = None,
    max_tokens: Annotated[int, option(WHAT, "Tokens per answer; 128 unless given.")] = 128,
    temperature: Annotated[list[float] | None, option(WHAT, "0 unless given; repeatable.")] = None,
    batch: Annotated[list[int] | None, option(WHAT, "Prompts at once; repeatable.")] = None,
    seed: Annotated[int, option(WHAT, "Of the sampling.")] = 0,
    ignore_eos: Annotated[bool, option(WHAT, "Write on to --max-tokens.", "--ignore-eos")] = False,
    rounds: Annotated[int, option(WHAT, "Timed rounds, after one to warm up; 5.")] = 5,
    inflate: Annotated[
        str | None,
        option(LOADING, "Give the model the cost of this shape, same output.", metavar="SHAPE"),
    ] = None,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    out: Annotated[Path, option(RESULTS, "Folder for JSON and picture.")] = Path("bench-results"),
    export: Annotated[
        list[str] | None, option(RESULTS, "Also write: spec-bench.", metavar="FORMAT")
    ] = None,
) -> int:
    """Compare draftproof with what you use today, on your model: same weights, same prompts."""
    for name in export or ():
        if name not in FORMATS:
            raise ValueError(f"export {name!r} is unknown: use {', '.join(FORMATS)}")
    sources = {"draft": draft, "heads": heads}
    names = listed([methods or "none,ngram"], sources)
    given = given_options(
        names,
        num_draft_tokens=num_draft_tokens,
        min_confidence=min_confidence,
        branch=branch,
    )
    wanted = suite.Options(
        model=model,
        draft=draft,
        heads=heads,
        methods=names,
        against=_listed(against),
        prompts=prompts or (),
        num_prompts=num_prompts,
        max_tokens=max_tokens,
        temperatures=temperature or (0.0,),
        batches=batch or (1,),
        rounds=rounds,
        seed=seed,
        ignore_eos=ignore_eos,
        runner=runner,
        dtype=dtype or ("float32" if model == BUNDLED else "auto"),
        device=device,
        threads=threads,
        draft_options=given,
        inflate=inflate,
        trust_remote_code=trust_remote_code,
    )
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=1.0)
        found = suite.run(
            wanted, lambda text, done: bar.update(task, description=text, completed=done)
        )
    console = Console()
    told = found.as_dict()
    console.print(reports.table(told))
    for note in reports.notes(told):
        console.print(note, highlight=False, markup=False)
    written = reports.write(found, out, export or ())
    if not any(path.suffix == ".png" for path in written):
        print("no picture: pip install 'draftproof[bench]' brings matplotlib", file=sys.stderr)
    console.print("written:", ", ".join(map(str, written)), highlight=False, markup=False)
    return 0


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
