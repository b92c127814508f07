"""`dp.tune` from prompts to a profile: write once, record, replay, try the best.

What is recorded lies in a folder until a run is complete, so that an interrupted one goes on.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from draftproof import clock
from draftproof.heads.files import exit_of
from draftproof.llm import LLM
from draftproof.profiles import FORMAT, Choice, fingerprint
from draftproof.runners import kept
from draftproof.sampling import SamplingParams
from draftproof.tuning import ranking, recording, sources, trying
from draftproof.tuning.reading import read
from draftproof.tuning.records import Text, bytes_of
from draftproof.tuning.replay import Machine, Tape
from draftproof.tuning.sources import Source
from draftproof.tuning.timing import Loaded, of_machine
from draftproof.tuning.trying import Tick

LEAST, BEST = 2, 3  # tokens of a prompt; settings that are run for real
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
            "table": [row.as_dict() for row in self.rows],
        }

    def save(self, path: str | Path) -> None:
        """Write the profile, whole or not at all. Raises `ValueError` where it cannot be."""
        path = Path(path)
        part = path.with_name(path.name + ".part")
        try:
            part.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise ValueError(f"cannot write the profile {path}: {error.strerror}") from error

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
    drafts: Sequence[str] = (),
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
    "int4", each draft in each. heads: folders of Medusa's or exit heads. groups: of each prompt, a
    name for tables. rounds: of the real runs of the best three; 0: none. minutes: time that it may
    take, about. records: a folder for what is recorded, so that an interrupted run goes on from
    there; it is removed in the end. The LLM drafts with nothing afterwards; its text is never
    another. Raises `ValueError`, in one sentence, for what cannot be tuned.
    """
    job = _Job(llm, seed, max_tokens, Path(records) if records is not None else None, tick)
    _check(max_tokens, temperatures, batches, rounds, minutes)
    began = time.monotonic()
    until = began + 60 * minutes if minutes is not None else float("inf")
    given = listed(drafts, draft_dtypes, heads)
    named_prompts = job.fitting(prompts, groups or ["all"] * len(prompts))
    llm.use(None)
    for source in given:  # refused before anything is written
        job.try_out(source)
    rows: list[ranking.Row] = []
    machine: Machine | None = None
    told: list[dict[str, Any]] = []
    written: list[Text] = []
    for number, temperature in enumerate(temperatures):
        share = SHARE * (number + 1) / len(temperatures)
        texts = job.texts(named_prompts, given, temperature, began + (until - began) * share)
        written += texts
        if machine is None:
            tick("measuring what passes cost", None)
            machine = of_machine(llm, texts, given, job.load, max(batches))
        tape = Tape(texts, given)
        told += [_told(tape, source, machine, temperature) for source in given]
        for batch in batches:
            tick(f"replaying at T={temperature:g}, batch {batch}", None)
            found = ranking.ranked(tape, machine, batch, temperature)
            rows += found
            if time.monotonic() > until:
                job.untried.append(f"real runs at T={temperature:g}, batch {batch}")
            elif rounds:
                job.measure(found, texts, temperature, batch, rounds, until)
    first = [r for r in rows if (r.temperature, r.batch) == (temperatures[0], batches[0])]
    assert machine is not None
    made = Tuned(
        rows=rows,
        choice=_fastest(first),
        machine=kept.description(llm.runner) | {"versions": clock.machine()},
        model={"name": job.name, "fingerprint": fingerprint(llm.runner)},
        costs=machine.passes.learnt(),
        sources=told,
        prompts={
            "used": len({*map(tuple, (text.prompt for text in written))}),
            "tokens": sum(map(len, written)),
            "max_tokens": max_tokens,
            "left_out": job.left_out,
        },
        bytes_per_position=dict(bytes_of(written)),
        untried=job.untried,
    )
    job.forget()
    return made


def listed(drafts: Sequence[str], dtypes: Sequence[str], heads: Sequence[str]) -> list[Source]:
    """The sources: look-ups, each draft in each precision, heads. Raises `ValueError`."""
    for dtype in dtypes:
        if dtype not in ("auto", "int8", "int4"):
            raise ValueError(f"a draft's dtype {dtype!r} is unknown: use auto, int8 or int4")
    found = sources.look_ups()
    for draft in drafts:
        place, name = _place(draft), Path(draft).name
        found += [
            sources.draft(place, name, None if dtype == "auto" else dtype) for dtype in dtypes
        ]
    for folder in heads:
        place = _place(folder)
        found.append(sources.heads(place, Path(folder).name, exit_of(place) is not None))
    return list(sources.named(found).values())


def _place(model: str) -> str:
    """Whole paths of what lies here, so that a profile can tell that it has moved."""
    return str(Path(model).resolve()) if Path(model).exists() else model


class _Job:
    """The state of one run."""

    def __init__(
        self, llm: LLM, seed: int, max_tokens: int, folder: Path | None, tick: Tick
    ) -> None:
        self.llm, self.seed, self.max_tokens, self.folder = llm, seed, max_tokens, folder
        self.tick, self.load = tick, Loaded()
        self.untried: list[str] = []
        self.left_out: list[str] = []
        self.name = Path(str(getattr(llm.runner.config, "_name_or_path", ""))).name or "a model"

    def fitting(
        self, prompts: Sequence[str | Sequence[int]], groups: Sequence[str]
    ) -> list[tuple[list[int], str]]:
        """Token ids of the prompts that can be written behind; the others are named."""
        found: list[tuple[list[int], str]] = []
        for number, (prompt, group) in enumerate(zip(prompts, groups, strict=True), 1):
            ids = self.llm.intake.ids(prompt)
            if len(ids) < LEAST:
                self.left_out.append(f"prompt {number} is too short ({len(ids)} tokens)")
            elif len(ids) + self.max_tokens > self.llm.max_length:
                self.left_out.append(f"prompt {number} is too long ({len(ids)} tokens)")
            else:
                found.append((ids, group))
        if not found:
            why = f": {'; '.join(self.left_out[:3])}" if self.left_out else ""
            raise ValueError(f"there are no prompts to tune on{why}")
        return found

    def try_out(self, source: Source) -> None:
        """Raises `ValueError` for a source that cannot draft for this target."""
        from draftproof.drafting.adopting import adopt

        self.tick(f"loading {source.name}", None)
        drafter = adopt(source.part.proposer())
        drafter.bind(self.llm.runner, self.load)
        drafter.close()

    def params(self, temperature: float) -> SamplingParams:
        return SamplingParams(temperature=temperature, max_tokens=self.max_tokens, seed=self.seed)

    def texts(
        self,
        prompts: Sequence[tuple[list[int], str]],
        given: Sequence[Source],
        temperature: float,
        until: float,
    ) -> list[Text]:
        """The answers with what the sources draft in them; those that were recorded are read."""
        params, texts = self.params(temperature), list[Text]()
        live = [source for source in given if source.method != "draft"]
        wide = self.llm.engine.scheduler.max_batch
        for at in range(0, len(prompts), wide):
            some = prompts[at : at + wide]
            self.tick(f"T={temperature:g}: answers {at + 1} to {at + len(some)}", at / len(prompts))
            files = [self.file(ids, given, temperature) for ids, _ in some]
            if (known := _known(files)) is not None:
                texts += known
                continue
            if texts and time.monotonic() > until:
                self.untried.append(f"{len(prompts) - at} of {len(prompts)} prompts")
                break
            ids, groups = [ids for ids, _ in some], [group for _, group in some]
            made = recording.write(self.llm, ids, groups, params, live)
            for number, text in enumerate(made):
                self.tick(
                    f"T={temperature:g}: drafts in answer {at + number + 1}",
                    (at + number / 2) / len(prompts),
                )
                for source in given:
                    if source.method == "draft":
                        self.read(source, text, params)
            self.keep(made, files)
            texts += made
        return texts

    def read(self, source: Source, text: Text, params: SamplingParams) -> None:
        quantize = dict(source.part.options).get("quantize")
        runner = self.load(self.llm.runner, source.part.model, quantize)
        trees = read(runner, self.llm.runner.vocabulary, text, params, sources.recorded_paths())
        recording.keep(text, source, [trees])

    def file(self, ids: list[int], given: Sequence[Source], temperature: float) -> Path | None:
        """Where a text is kept, by all that it hangs on."""
        if self.folder is None:
            return None
        parts = [[each.as_dict() for each in (s.part, *s.asis)] for s in given]
        of = [metadata.version("draftproof"), self.name, kept.description(self.llm.runner), ids]
        text = json.dumps([*of, parts, temperature, self.max_tokens, self.seed], default=str)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.npz"

    def keep(self, texts: Sequence[Text], files: Sequence[Path | None]) -> None:
        for text, file in zip(texts, files, strict=True):
            if file is None:
                continue
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                text.save(file)
            except OSError as error:
                raise ValueError(
                    f"cannot keep what was recorded in {file.parent}: {error.strerror}"
                ) from error

    def forget(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def measure(
        self,
        rows: Sequence[ranking.Row],
        texts: Sequence[Text],
        temperature: float,
        batch: int,
        rounds: int,
        until: float,
    ) -> None:
        """Run the best settings for real, and note what became of each."""
        best = [row for row in rows if row.choice.parts][:BEST]
        trials = trying.run(
            self.llm,
            texts,
            [row.choice for row in best],
            self.params(temperature),
            self.load,
            batch,
            rounds,
            self.tick,
            until,
        )
        plain = trials[0]
        for row, trial in zip(best, trials[1:], strict=True):
            row.measured = trial.speedup(plain)
            row.measured_tokens_per_step = trial.tokens / max(1, trial.steps)
            row.differing = trial.differing


def _known(files: Sequence[Path | None]) -> list[Text] | None:
    """What an earlier run recorded, if all of it is there and whole."""
    with suppress(OSError, ValueError, KeyError, TypeError, EOFError):
        if all(file is not None and file.exists() for file in files):
            return [Text.load(file) for file in files if file is not None]
    return None


def _fastest(rows: Sequence[ranking.Row]) -> Choice:
    """Of what was run, the fastest; plain where nothing was faster than that."""
    best = max(rows, key=lambda row: row.measured or 0.0)
    if best.measured is None:
        return min(rows, key=lambda row: row.seconds).choice
    return best.choice if best.measured > 1 else Choice()


def _told(tape: Tape, source: Source, machine: Machine, temperature: float) -> dict[str, Any]:
    drafting = machine.drafting[source.name]
    return {
        "name": source.name,
        "model": source.part.model,
        "method": source.method,
        "temperature": temperature,
        "first_right": ranking.first_right(tape, source),
        "survival": ranking.survival(tape, source),
        "ms": 1e3 * (drafting.level or drafting.text),
        "of_a_pass": (drafting.level or drafting.text) / machine.passes.seconds(1),
        "grows": source.grows,
    }


def _check(
    max_tokens: int,
    temperatures: Sequence[float],
    batches: Sequence[int],
    rounds: int,
    minutes: float | None,
) -> None:
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
