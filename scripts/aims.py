"""The table of docs/aims.md: what was aimed for, what was measured, and where it falls short.

An aim of docs/aims/aims.json has one of

- `figures`, a name of `aimed.FIGURES`, and `bars`: the figures of a run's file, judged here;
- `log` and `quote`: the entry of docs/log.md, and the words there that have the figures of
  `measured`, which tests/test_aims.py compares; `holds` says whether that is the aim;
- `tests`: files of tests, which hold or fail at every commit;
- none of these: it was not measured, and `why` says what is missing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from aimed import FIGURES
from measured import load, machine, markdown

VERDICTS = {"no": "**falls short**", "part": "in part", "": "not measured", "yes": "holds"}
BARS = {"<=": operator.le, ">=": operator.ge}
PROCESSORS = {  # of an entry of the log, by the longest beginning of its heading
    "2026-11": "AMD EPYC, AVX-512",
    "2026-12": "AMD EPYC, AVX-512",
    "2026-11-24": "AMD EPYC, AVX2",
    "2026-11-25, twelfth": "AMD EPYC, AVX2",
    "2026-11-25, thirteenth": "AMD EPYC, AVX2",
}
HEADINGS = ("aim", "measured", "verdict", "date", "processor", "command")


def shown(value: float) -> str:
    """Counts and microseconds whole, ratios to two digits behind the point, below 1 to three."""
    if value == int(value) or value >= 10:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def holds(values: Sequence[float], bars: Sequence[str]) -> bool:
    """Whether each figure, to the digits that are shown, keeps its bar ("<= 1.1")."""
    kept = []
    for value, bar in zip(values, bars, strict=True):
        sign, limit = bar.split()
        kept.append(BARS[sign](float(shown(value)), float(limit)))
    return all(kept)


def processor(entry: str) -> str:
    return PROCESSORS[max((b for b in PROCESSORS if entry.startswith(b)), key=len)]


def program(command: str) -> str:
    """Commands as code; words, and what is code in part already, as they are."""
    starts = ("python ", "pytest ", "draftproof ", "make ", "lm_eval ", "wc ")
    return f"`{command}`" if command.startswith(starts) else command


def judged(aim: dict[str, Any]) -> tuple[str, list[str]]:
    """The verdict, and the row of the table."""
    why = aim.get("why", "")
    if "figures" in aim:
        run = FIGURES[aim["figures"]]()
        verdict = "part" if aim.get("part") else "yes"
        verdict = verdict if holds(run.values, aim["bars"]) else "no"
        figures, date, command = ", ".join(map(shown, run.values)), run.date[:10], run.command
        told = ", ".join(machine(run.machine).split(", ")[0:3:2]).replace("AVX512", "AVX-512")
    elif "log" in aim:
        verdict, figures, date = aim["holds"], aim["measured"], aim["log"][:10]
        told, command = aim.get("processor") or processor(aim["log"]), aim["command"]
    elif "tests" in aim:
        verdict, figures, date, told = "yes", "a test", "every commit", "any"
        command = f"pytest {' '.join(aim['tests'])}"
    else:
        verdict, figures, date, told, command = "", "-", "-", "-", aim.get("command", "")
    words = VERDICTS[verdict] + (f": {why}" if why and verdict != "yes" else "")
    return verdict, [aim["aim"], figures, words, date, told, program(command) or "-"]


def subject(number: int) -> str:
    """One subject's table: what falls short first."""
    rows = [judged(aim) for aim in load("aims/aims")["subjects"][number]["aims"]]
    order = list(VERDICTS)
    rows.sort(key=lambda row: order.index(row[0]))
    return markdown(HEADINGS, [row for _, row in rows])


def aims() -> str:
    """All tables, each under its subject, behind a count of the verdicts."""
    subjects = load("aims/aims")["subjects"]
    verdicts = [judged(aim)[0] for each in subjects for aim in each["aims"]]
    count = {verdict: verdicts.count(verdict) for verdict in VERDICTS}
    text = (
        f"Of {len(verdicts)} aims {count['yes']} hold, {count['no']} fall short, {count['part']} "
        f"hold in part, and {count['']} were not measured.\n"
    )
    for number, each in enumerate(subjects):
        text += f"\n## {each['subject']}\n\n{subject(number)}"
    return text


AIMS: dict[str, Callable[[], str]] = {"aims": aims}
