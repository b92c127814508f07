"""`dp.tune` from prompts to a profile: write once, record, replay, try the best.

Knows the order of things; what each of them does is `job`'s.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from draftproof import clock
from draftproof.llm import LLM
from draftproof.out_folders import whole
from draftproof.profiles import FORMAT, Choice
from draftproof.runners import kept
from draftproof.tuning import ranking
from draftproof.tuning.job import NAMED, Job, check_dtypes, listed
from draftproof.tuning.machine import Machine
from draftproof.tuning.records import Text, bytes_of
from draftproof.tuning.replay import Tape
from draftproof.tuning.sources import Source
from draftproof.tuning.timing import of_machine
from draftproof.tuning.trying import Tick

SHARE = 0.5  # of the time that may go into answers
BATCHES = (1, 8)


@dataclass
class Tuned:
    """What was found. rows: by temperature and batch size, the fastest first."""

    rows: list[ranking.Row]
    choice: Choice  # what was fastest at the first temperature and batch size
    machine: dict[str, Any]
    model: dict[str, Any]
    costs: dict[str, Any]
    sources: list[dict[str, Any]]
    prompts: dict[str, Any]
    bytes_per_position: dict[str, float]
    untried: list[str] = field(default_factory=list)  # for which there was no time
    candidates: list[dict[str, Any]] = field(default_factory=list)  # judged before, see there
    records: Path | None = None  # the folder of what was recorded, until the profile is written

    def as_dict(self) -> dict[str, Any]:
        """Fit for JSON: what a profile holds."""
        return {
            "draftproof_profile": FORMAT,
            "model": self.model,
            "machine": self.machine,
            "versions": {
                name: metadata.version(name) for name in ("draftproof", "torch", "transformers")
            },
            "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "command": " ".join(sys.argv),
            "choice": self.choice.as_dict(),
            "sources": self.sources,
            "costs": self.costs,
            "prompts": self.prompts,
            "bytes_per_position": self.bytes_per_position,
            "untried": self.untried,
            "candidates": self.candidates,
            "table": [row.as_dict() for row in self.rows],
        }

    def save(self, path: str | Path) -> None:
        """Write the profile, whole or not at all, and remove what was recorded for it.

        Raises `ValueError` where it cannot be written; the records stay then.
        """
        path = Path(path)
        try:
            with whole(path) as part:
                part.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            stays = f"; what was recorded stays in {self.records}" if self.records else ""
            raise ValueError(f"cannot write the profile {path}: {error.strerror}{stays}") from error
        if self.records is not None:  # what else lies there is somebody's
            with suppress(OSError):
                for file in self.records.glob(f"{'[0-9a-f]' * NAMED}.npz"):
                    file.unlink()
                self.records.rmdir()

    def cases(self) -> dict[tuple[float, int], list[ranking.Row]]:
        """The rows of each temperature and batch size."""
        found: dict[tuple[float, int], list[ranking.Row]] = {}
        for row in self.rows:
            found.setdefault((row.temperature, row.batch), []).append(row)
        return found


def tune(
    llm: LLM,
    prompts: Sequence[str | Sequence[int]],
    *,
    drafts: Sequence[str | tuple[str, str]] = (),
    draft_dtypes: Sequence[str] = ("auto",),
    heads: Sequence[str] = (),
    max_tokens: int = 128,
    temperatures: Sequence[float] = (0.0,),
    batches: Sequence[int] = BATCHES,
    groups: Sequence[str] | None = None,
    rounds: int = 3,
    minutes: float | None = None,
    seed: int = 0,
    records: str | Path | None = None,
    tick: Tick = lambda text, share: None,
) -> Tuned:
    """Which drafts, heads and settings pay for this model, on these prompts and this machine.

    drafts: hub ids or folders of models with the target's tokenizer; draft_dtypes: "auto", "int8",
    "int4", each draft in each, but for one that is given with its own, (draft, dtype). heads:
    folders of Medusa's or exit heads. groups: of each prompt, a name for tables. rounds: of
    real runs, of eight settings at first and of the best three to the end; 0: none. minutes: time
    that it may take, about. records: a folder for what is recorded, so that an interrupted run goes
    on from there; it is removed when the profile is saved. The LLM drafts with nothing afterwards;
    its text is never another. Raises `ValueError`, in one sentence, for what cannot be tuned.
    """
    job = Job(llm, seed, max_tokens, Path(records) if records is not None else None, tick)
    check(max_tokens, temperatures, batches, rounds, minutes, draft_dtypes)
    llm.memory.check_batch(max(batches), llm.runner.device)
    began = time.monotonic()
    until = began + 60 * minutes if minutes is not None else float("inf")
    given = listed(drafts, draft_dtypes, heads)
    named_prompts = job.fitting(prompts, groups or ["all"] * len(prompts))
    llm.use(None)
    for source in given:  # refused before anything is written
        job.try_out(source)
    rows: list[ranking.Row] = []
    machine: Machine  # of the last temperature and batch size, of which there is one at least
    told: list[dict[str, Any]] = []
    written: list[Text] = []
    for number, temperature in enumerate(temperatures):
        share = SHARE * (number + 1) / len(temperatures)
        texts = job.texts(named_prompts, given, temperature, began + (until - began) * share)
        written += texts
        tape = Tape(texts, given)
        for batch in batches:
            # Anew for each: a machine may be faster or slower by the time that settings are tried.
            tick("measuring what passes cost", None)
            machine = of_machine(llm, texts, given, job.load, batch)
            tick(f"replaying at T={temperature:g}, batch {batch}", None)
            found = ranking.ranked(tape, machine, batch, temperature)
            rows += found
            if time.monotonic() > until:
                job.untried.append(f"real runs at T={temperature:g}, batch {batch}")
            elif rounds:
                job.measure(found, texts, temperature, batch, rounds, until)
        told += [_told(tape, source, machine, temperature) for source in given]
    first = [r for r in rows if (r.temperature, r.batch) == (temperatures[0], batches[0])]
    return Tuned(
        rows=rows,
        choice=_fastest(first),
        machine=kept.description(llm.runner) | {"versions": clock.machine()},
        model={"name": job.name, "place": job.place, "fingerprint": job.fingerprint},
        costs=machine.passes.learnt(),
        sources=told,
        prompts={
            "used": len({tuple(text.asked) for text in written}),
            "tokens": sum(map(len, written)),
            "max_tokens": max_tokens,
            "left_out": job.left_out,
        },
        bytes_per_position=dict(bytes_of(written)),
        untried=job.untried,
        records=job.folder,
    )


def _fastest(rows: Sequence[ranking.Row]) -> Choice:
    """Of what was run, the fastest; plain where nothing was faster than that."""
    best = max(rows, key=lambda row: row.measured or 0.0)
    if best.measured is None:
        return min(rows, key=lambda row: row.seconds).choice
    return best.choice if best.measured > 1 else Choice()


def _told(tape: Tape, source: Source, machine: Machine, temperature: float) -> dict[str, Any]:
    drafting, one = machine.drafting[source.name], machine.passes.seconds(1)
    call, level = drafting.call + drafting.text, drafting.level + drafting.node
    return {
        "name": source.name,
        "model": source.part.model,
        "method": source.method,
        "temperature": temperature,
        "first_right": ranking.first_right(tape, source),
        "survival": ranking.survival(tape, source),
        "ms": 1e3 * (call + level),  # of a first token
        "of_a_pass": level / one,  # for each token, besides what a draft takes whatever its length
        "call_of_a_pass": call / one,
        "grows": source.grows,
    }


def check(
    max_tokens: int,
    temperatures: Sequence[float],
    batches: Sequence[int],
    rounds: int,
    minutes: float | None,
    draft_dtypes: Sequence[str],
) -> None:
    """Raises `ValueError` for what `tune` cannot be asked, before anything is loaded."""
    check_dtypes(draft_dtypes)
    if max_tokens < 2:
        raise ValueError(f"max_tokens is {max_tokens}, but a draft needs answers of 2 or more")
    if not temperatures or min(temperatures) < 0:
        raise ValueError("temperatures must be 0 or more")
    if not batches or min(batches) < 1:
        raise ValueError("a batch size must be 1 or more")
    if rounds < 0:
        raise ValueError(f"rounds is {rounds}, but must be 0 or more")
    if minutes is not None and not minutes > 0:
        raise ValueError(f"minutes is {minutes:g}, but must be above 0")
