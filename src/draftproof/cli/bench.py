"""`draftproof bench`: from arguments to a comparison, its table, the verdict and files."""

from __future__ import annotations

import sys
from dataclasses import fields
from types import SimpleNamespace

from rich.console import Console

from draftproof import prompts as prompt_files
from draftproof.bench import files, suite
from draftproof.bench import report as reports
from draftproof.cli import opening
from draftproof.cli.progress import Running
from draftproof.interrupts import INTERRUPTED
from draftproof.methods import given_options, listed
from draftproof.out_folders import check_folder, results_in

FORMATS = ("spec-bench",)


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    for name in given.export or ():
        if name not in FORMATS:
            raise ValueError(f"export {name!r} is unknown: use {', '.join(FORMATS)}")
    if given.profile is not None:
        opening.check_profile(given.profile)
    usual = ["none", "ngram"] if given.profile is None else ["none"]
    names = listed(given.method or usual, {"draft": given.draft, "heads": given.heads})
    same = {field.name for field in fields(suite.Options)} & {*vars(given)}
    wanted = suite.Options(
        **{name: getattr(given, name) for name in same}
        | {
            "profile": None if given.profile is None else str(given.profile),
            "methods": names,
            "against": [part.strip() for part in given.against.split(",") if part.strip()],
            "prompts": given.prompts or (),
            "temperatures": given.temperature or (0.0,),
            "batches": given.batch or (1,),
            "seed": given.seed or 0,
            "dtype": given.dtype or "auto",
            "draft_options": given_options(names, **opening.tuning(given)),
        }
    )
    check_folder(given.out)
    opening.encodes(given)  # which refuses what hears
    with Running() as running:
        report = suite.run(wanted, running)
    found, console = report.as_dict(), Console(highlight=False, markup=False)
    console.print(reports.table(found, console.width))
    console.print(reports.verdict(found), style="bold", soft_wrap=True)
    for line in reports.skipped(found):
        console.print(line)
    for line in prompt_files.too_few(found["prompts"], wanted.batches):
        console.print(line)
    if given.explain:
        for line in reports.notes(found):
            console.print(line)
    with results_in(given.out):
        written = files.write(report, given.out, given.export or ())
    if not any(path.suffix == ".png" for path in written):
        print("no picture: pip install 'draftproof[bench]' brings matplotlib", file=sys.stderr)
    console.print("written:", ", ".join(map(str, written)))
    return INTERRUPTED if report.incomplete else 0
