"""`draftproof tune`: from arguments to a profile, its table and its picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console

from draftproof import clock
from draftproof import prompts as prompt_files
from draftproof.bundled import BUNDLED, MENDER, located
from draftproof.cli import defaults, opening, pairing
from draftproof.cli.files import place
from draftproof.cli.progress import Running
from draftproof.interrupts import INTERRUPTED
from draftproof.llm import LLM
from draftproof.out_folders import results_in
from draftproof.tuning import candidates, report
from draftproof.tuning import run as tuning

OF_ITS_OWN = {BUNDLED: prompt_files.HELD_OUT, MENDER: prompt_files.DAMAGED}
QUICK = {"num_prompts": 6, "max_tokens": 64, "rounds": 2}


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    defaults.quicken(given, QUICK)
    if given.num_prompts < 1:
        raise ValueError("--num-prompts must be 1 or more")
    batches, dtypes = given.batch or tuning.BATCHES, given.draft_dtype or ("auto",)
    temperatures = given.temperature or (0.0,)
    tuning.check(given.max_tokens, temperatures, batches, given.rounds, given.minutes, dtypes)
    path = place(given.out, "profile.json")
    if given.candidates is not None:
        candidates.within(given.candidates)  # refused before anything is loaded
    files = given.prompts or [OF_ITS_OWN.get(given.model, BUNDLED)]
    parsed = prompt_files.files_of(files)
    records = path.with_suffix(".records")
    loaded = SimpleNamespace(rule="coupled", max_length=None, **vars(given))
    console = Console(highlight=False, markup=False)
    with opening.load(loaded, encoders=True, speculate=None, max_batch=max(*batches, 1)) as llm:
        if llm.tokenizer is None:
            raise ValueError(f"{given.model} came without a tokenizer, and prompts are text")
        if llm.runner.encodes and "max_tokens" not in defaults.given(given.context):
            given.max_tokens = min(given.max_tokens, llm.max_length - 1)
        listed = prompt_files.read(
            files, given.num_prompts, llm.tokenizer, given.chat, given.system, parsed
        )
        machine = clock.ran_on(llm.runner)
        judged, drafts, heads = _looked(given, llm, batches, dtypes)
        try:
            with Running() as running:
                found = tuning.tune(
                    llm,
                    [each.ids(llm.tokenizer, ()) for each in listed],
                    drafts=drafts,
                    draft_dtypes=dtypes,
                    heads=heads,
                    max_tokens=given.max_tokens,
                    temperatures=temperatures,
                    batches=batches,
                    groups=[each.category for each in listed],
                    rounds=given.rounds,
                    minutes=given.minutes,
                    seed=given.seed or 0,
                    records=records,
                    tick=running,
                )
        except KeyboardInterrupt:
            if records.is_dir():
                print(f"recorded in {records}: the same command goes on there", file=sys.stderr)
            return INTERRUPTED
    found.candidates = [each.as_dict() for each in judged]
    found.save(path)
    _told(given, found, path, console, machine)
    return 0


def _looked(
    given: SimpleNamespace, llm: LLM, batches: Sequence[int], dtypes: Sequence[str]
) -> tuple[list[candidates.Judged], list[str | tuple[str, str]], list[str]]:
    """The candidates, of whom a line each is told at once; all drafts and heads to be tried."""
    drafts, heads = given.draft or [], [str(located(name, "heads")) for name in given.heads or ()]
    if given.candidates is None:
        return [], drafts, heads
    found, fitting, pays = candidates.look(
        llm, given.candidates, dtypes, batches, given.trust_remote_code
    )
    for each in found:
        print(pairing.listed(each), file=sys.stderr)
    return found, [*drafts, *fitting], [*heads, *pays]


def _told(
    given: SimpleNamespace, found: tuning.Tuned, path: Path, console: Console, machine: str
) -> None:
    """The picture, and on the terminal all that a profile holds, or what matters of it."""
    how = f"{found.machine['runner']}, {found.machine['precision']}, {machine}"
    heading = f"{Path(given.model).name}: {how}, {found.prompts['used']} prompts"
    picture = path.with_suffix(".png")
    if given.as_json:  # what was found is seen, whatever becomes of the picture
        print(json.dumps(found.as_dict()), flush=True)
    else:
        console.print(heading)
        console.print(report.table(found, console.width))
        few = prompt_files.too_few(found.prompts["used"], given.batch or tuning.BATCHES)
        for line in [*found.prompts["left_out"], *few, *report.advice(found)]:
            console.print(line, soft_wrap=True)
    with results_in(path.parent, path.suffix):
        drawn = report.draw(found, picture, heading)
    if given.as_json:
        return
    if not drawn:
        print("no picture: pip install 'draftproof[bench]' brings matplotlib", file=sys.stderr)
    console.print("written:", ", ".join(map(str, [path, *([picture] if drawn else [])])))
    console.print(f"to use it: draftproof generate {given.model} PROMPT --profile {path}")
