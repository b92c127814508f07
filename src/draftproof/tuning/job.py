"""What a run of `dp.tune` does one after another, and what it keeps for an interrupted one.

Texts that were recorded lie in a folder, one file each, named by all that they hang on.
"""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from draftproof.drafting.adopting import adopt
from draftproof.heads.files import exit_of
from draftproof.llm import LLM
from draftproof.profiles import fingerprint
from draftproof.runners import kept
from draftproof.sampling import SamplingParams
from draftproof.tuning import ranking, recording, sources, trying
from draftproof.tuning.reading import read
from draftproof.tuning.records import Text
from draftproof.tuning.sources import Source
from draftproof.tuning.timing import Loaded
from draftproof.tuning.trying import Tick

LEAST = 2  # tokens of a prompt
NAMED = 24  # letters of a record's name
RUN, BEST = 8, 3  # settings that are run for real at first, and in every round


def listed(
    drafts: Sequence[str | tuple[str, str]], dtypes: Sequence[str], heads: Sequence[str]
) -> list[Source]:
    """The sources: look-ups, each draft in each precision, heads. Raises `ValueError`.

    drafts: with a precision of its own, or without.
    """
    pairs = [
        (each, dtype) if isinstance(each, str) else each
        for each in drafts
        for dtype in (dtypes if isinstance(each, str) else ("",))
    ]
    check_dtypes([*dtypes, *(dtype for _, dtype in pairs)])
    found = sources.look_ups()
    names = _names([draft for draft, _ in pairs]) | _names(heads)
    for draft, dtype in pairs:
        quantize = None if dtype == "auto" else dtype
        found.append(sources.draft(_place(draft), names[draft], quantize))
    for folder in heads:
        place = _place(folder)
        found.append(sources.heads(place, names[folder], exit_of(place) is not None))
    sources.check_names(found)
    return found


def check_dtypes(given: Sequence[str]) -> None:
    """Raises `ValueError` for what a draft cannot run in."""
    for dtype in given:
        if dtype not in ("auto", "int8", "int4"):
            raise ValueError(f"a draft's dtype {dtype!r} is unknown: use auto, int8 or int4")


def _names(given: Sequence[str]) -> dict[str, str]:
    """What tables call each: its last part, where no other one ends so."""
    ends = Counter(Path(each).name for each in {*given})
    return {each: name if ends[name := Path(each).name] == 1 else each for each in given}


def _place(model: str) -> str:
    """Whole paths of what lies here, so that a profile can tell that it has moved."""
    return str(Path(model).resolve()) if Path(model).exists() else model


def _written(model: str | None) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a model's files here: other ones where it was trained again."""
    place = Path(model or "")
    files = sorted(place.iterdir()) if model and place.is_dir() else [place]
    told = [(file.name, file.stat()) for file in files if file.is_file()]
    return [(name, status.st_size, status.st_mtime_ns) for name, status in told]


class Job:
    """The state of one run."""

    def __init__(
        self, llm: LLM, seed: int, max_tokens: int, folder: Path | None, tick: Tick
    ) -> None:
        self.llm, self.seed, self.max_tokens, self.folder = llm, seed, max_tokens, folder
        self.tick, self.load = tick, Loaded()
        self.untried: list[str] = []
        self.left_out: list[str] = []
        named = str(getattr(llm.runner.config, "_name_or_path", ""))
        self.name = Path(named).name or "a model"
        self.place = _place(named) if named else None
        self.fingerprint = fingerprint(llm.runner)
        # Of one that lies here its files tell too: it may have been trained again since.
        self._target = [self.fingerprint, self.place, _written(self.place)]

    def fitting(
        self, prompts: Sequence[str | Sequence[int]], groups: Sequence[str]
    ) -> list[tuple[list[int], str]]:
        """Token ids of the prompts that can be written behind; the others are named."""
        found: list[tuple[list[int], str]] = []
        if len(groups) != len(prompts):
            raise ValueError(
                f"there are {len(groups)} groups for {len(prompts)} prompts: give a name for each"
            )
        room = self.llm.max_length - self.max_tokens
        if room < 1:
            runs = "decoder" if self.llm.runner.encodes else "model"
            raise ValueError(
                f"{self.max_tokens} tokens and one to start from exceed the "
                f"{self.llm.max_length} that the {runs} can run: ask for fewer tokens"
            )
        if self.llm.runner.encodes:
            room = int(getattr(self.llm.runner, "longest_input", room))
        for number, (prompt, group) in enumerate(zip(prompts, groups, strict=True), 1):
            ids = self.llm.intake.encoded(prompt)
            if len(ids) < LEAST:
                self.left_out.append(f"prompt {number} is too short ({len(ids)} tokens)")
            elif len(ids) > room:
                self.left_out.append(f"prompt {number} is too long ({len(ids)} tokens)")
            else:
                found.append((ids, group))
        if not found:
            why = f": {'; '.join(self.left_out[:3])}" if self.left_out else ""
            raise ValueError(f"there are no prompts to tune on{why}")
        return found

    def try_out(self, source: Source) -> None:
        """Raises `ValueError` for a source that cannot draft for this target."""
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
        _, model, quantize = source.part.of
        runner = self.load(self.llm.runner, model, quantize)
        trees = read(runner, self.llm.runner.vocabulary, text, params, sources.recorded_paths())
        recording.keep(text, source, [trees])

    def file(self, ids: list[int], given: Sequence[Source], temperature: float) -> Path | None:
        """Where a text is kept, by all that it hangs on."""
        if self.folder is None:
            return None
        parts = [
            [_written(s.part.model), *(each.as_dict() for each in (s.part, *s.asis))] for s in given
        ]
        of = [metadata.version("draftproof"), self._target, kept.description(self.llm.runner), ids]
        text = json.dumps([*of, parts, temperature, self.max_tokens, self.seed], default=str)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:NAMED]}.npz"

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

    def measure(
        self,
        rows: Sequence[ranking.Row],
        texts: Sequence[Text],
        temperature: float,
        batch: int,
        rounds: int,
        until: float,
    ) -> None:
        """Run the best settings for real, and note what became of those that ran to the end.

        Several are foretold within a few hundredths of one another, which is less than a forecast
        is off by: so more are run than can be the best, and the slower ones are dropped soon.
        """
        best = [row for row in rows if row.choice.parts][:RUN]
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
            BEST,
        )
        plain = trials[0]
        for row, trial in zip(best, trials[1:], strict=True):
            row.differing = trial.differing
            if len(trial.seconds) < len(plain.seconds):
                continue
            row.measured = trial.speedup(plain)
            row.measured_tokens_per_step = trial.tokens / max(1, trial.steps)


def _known(files: Sequence[Path | None]) -> list[Text] | None:
    """What an earlier run recorded, if all of it is there and whole."""
    with suppress(OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        if all(file is not None and file.exists() for file in files):
            return [Text.load(file) for file in files if file is not None]
    return None
