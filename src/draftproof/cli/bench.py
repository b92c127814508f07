"""`draftproof bench`: from arguments to a comparison, its table, the verdict and files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from rich.console import Console

from draftproof.bench import files, suite
from draftproof.bench import report as reports
from draftproof.cli import options
from draftproof.cli.options import DRAFTING, LOADING, OUTPUT, SAMPLING, option
from draftproof.cli.progress import Running
from draftproof.methods import given_options, listed

FORMATS = ("spec-bench",)
INTERRUPTED = 130  # the exit code of what an interrupt has ended


def bench(
    model: options.Model,
    prompts: options.Prompts = None,
    num_prompts: options.NumPrompts = None,
    chat: options.Chat = False,
    system: options.System = None,
    method: options.Method = None,
    draft: options.Draft = None,
    heads: options.Heads = None,
    num_draft_tokens: options.NumDraftTokens = None,
    min_confidence: options.MinConfidence = None,
    branch: options.Branch = None,
    against: Annotated[str, option(DRAFTING, "Peers, or '' for none.")] = "transformers",
    temperature: Annotated[list[float] | None, option(SAMPLING, "0 is greedy; repeatable.")] = None,
    max_tokens: options.MaxTokens = 128,
    ignore_eos: options.IgnoreEos = False,
    seed: options.Seed = 0,
    batch: Annotated[list[int] | None, option(SAMPLING, "Prompts at once; repeatable.")] = None,
    rounds: Annotated[int, option(SAMPLING, "Timed rounds, after one to warm up.")] = 5,
    inflate: Annotated[
        str | None,
        option(LOADING, "Give the model the cost of this shape, same output.", metavar="SHAPE"),
    ] = None,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    explain: Annotated[
        bool, option(OUTPUT, "Why: what passes cost, what was predicted.", "--explain")
    ] = False,
    out: options.Out = Path("bench-results"),
    export: options.Export = None,
) -> int:
    """Compare draftproof with what you use today, on your model: same weights, same prompts."""
    for name in export or ():
        if name not in FORMATS:
            raise ValueError(f"export {name!r} is unknown: use {', '.join(FORMATS)}")
    names = listed(method or ["none", "ngram"], {"draft": draft, "heads": heads})
    wanted = suite.Options(
        model=model,
        draft=draft,
        heads=heads,
        methods=names,
        against=[part.strip() for part in against.split(",") if part.strip()],
        prompts=prompts or (),
        num_prompts=num_prompts,
        chat=chat,
        system=system,
        max_tokens=max_tokens,
        temperatures=temperature or (0.0,),
        batches=batch or (1,),
        rounds=rounds,
        seed=seed or 0,
        ignore_eos=ignore_eos,
        runner=runner,
        dtype=dtype or "auto",
        device=device,
        threads=threads,
        draft_options=given_options(
            names,
            num_draft_tokens=num_draft_tokens,
            min_confidence=min_confidence,
            branch=branch,
        ),
        inflate=inflate,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    with Running() as running:
        report = suite.run(wanted, running)
    found, console = report.as_dict(), Console(highlight=False, markup=False)
    console.print(reports.table(found, console.width))
    console.print(reports.verdict(found), style="bold", soft_wrap=True)
    for line in reports.skipped(found):
        console.print(line)
    if explain:
        for line in reports.notes(found):
            console.print(line)
    written = files.write(report, out, export or ())
    if not any(path.suffix == ".png" for path in written):
        print("no picture: pip install 'draftproof[bench]' brings matplotlib", file=sys.stderr)
    console.print("written:", ", ".join(map(str, written)))
    return INTERRUPTED if report.incomplete else 0
