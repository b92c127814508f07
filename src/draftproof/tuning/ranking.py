"""Which settings are worth a replay, what each is predicted to bring, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, product
from typing import Any

import numpy as np

from draftproof import shapes
from draftproof.profiles import Choice, Part
from draftproof.tuning.decided import decided, unreplayed
from draftproof.tuning.machine import Array, Machine
from draftproof.tuning.records import FIRST
from draftproof.tuning.replay import Steps, Tape, replay
from draftproof.tuning.sources import LOOK_UPS, Source, owners_of

SAMPLES = 1000  # of the groups, for an interval
SPREAD = 3  # groups at least that an interval is taken from
MERGED = 4  # settings of each source that are merged with those of others
TREES = (4, 6, 8, 12, 16)  # nodes of trees that are fitted to a draft


@dataclass
class Row:
    """A setting at a temperature and a batch size. low, high: a 95% interval of the speed-up."""

    choice: Choice
    temperature: float
    batch: int
    tokens_per_step: float
    seconds: float  # of all texts
    speedup: float  # predicted
    low: float | None = None
    high: float | None = None
    measured: float | None = None
    measured_tokens_per_step: float | None = None
    differing: int | None = None  # texts unlike the recorded ones
    by_group: dict[str, float] | None = None  # predicted speed-up, where prompts are in groups

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"choice": self.choice.as_dict(), "name": self.choice.name}


def ranked(tape: Tape, machine: Machine, batch: int, temperature: float) -> list[Row]:
    """Every setting, the fastest first; plain decoding is among them."""
    alone = [Choice((p,)) for source in tape.sources for p in source.settings()]
    for source in tape.sources:
        if source.method == "draft":
            alone += [Choice((part,)) for part in fitted(tape, source, machine)]
    first = [Choice(), *alone]
    slices = unreplayed(tape, machine, batch)
    steps = replay(tape, first, machine, batch, slices)
    seconds = steps.seconds.sum(1)
    merged = _merged(tape, first, seconds)
    rows = _rows(tape, first, steps, steps.seconds[0], batch, temperature)
    if merged:
        more = replay(tape, merged, machine, batch, slices)
        rows += _rows(tape, merged, more, steps.seconds[0], batch, temperature)
    rows.sort(key=lambda row: row.seconds)
    for choice in deciding(tape.sources, rows):
        by = owners_of(choice, tape.sources)
        found = decided(tape.texts, choice, by, machine, batch)
        rows += _rows(tape, [choice], found, steps.seconds[0], batch, temperature)
    rows.sort(key=lambda row: row.seconds)
    return rows


def fitted(tape: Tape, source: Source, machine: Machine) -> list[Part]:
    """Trees of a draft model by the ranks at which it is right (Sequoia)."""
    ranks = tape.ranks(source)
    rates = [float((ranks == rank).mean()) for rank in range(FIRST)]
    if not any(rates):
        return []
    drafting = machine.drafting[source.name]
    curve = machine.passes.curve()
    cost = {rows: curve[rows] * machine.passes.one for rows in range(1, max(TREES) + 1)}
    best = shapes.best_shape(rates, cost, max(drafting.level, 1e-9), max(TREES), len(TREES))
    found = [best.parents, *(shapes.sequoia(rates, nodes, 6)[0] for nodes in TREES)]
    trees = {tuple(shapes.parents_to_choices(each)) for each in found}
    return [source.grown(tree=tree) for tree in sorted(trees) if tree]


def deciding(sources: Sequence[Source], rows: Sequence[Row]) -> list[Choice]:
    """`Auto` over the look-ups, and with what is best of the other sources."""
    free = [_source_part(s) for s in sources if s.method in LOOK_UPS]
    dear = [s for s in sources if s.method not in LOOK_UPS]
    choices = [Choice(tuple(free), True)]
    if dear:
        kinds = [source.part.of for source in dear]
        parts = [part.of for row in rows for part in row.choice.parts]
        order = [kinds.index(each) for each in parts if each in kinds]
        best = _source_part(dear[order[0] if order else 0])
        choices += [Choice((*free, best), True), Choice((best,), True)]
    return choices


def _source_part(source: Source) -> Part:
    """As `Auto` is given it: it decides on the length by itself."""
    return source.grown() if source.grows else source.part


def _merged(tape: Tape, alone: Sequence[Choice], seconds: Array) -> list[Choice]:
    """Of every subset of two sources or more, the best settings of each with one another."""
    took = dict(zip(alone, seconds, strict=True))
    best = [
        sorted(source.settings(few=True), key=lambda part: took[Choice((part,))])[:MERGED]
        for source in tape.sources
    ]
    return [
        Choice(parts)
        for size in range(2, len(best) + 1)
        for some in combinations(best, size)
        for parts in product(*some)
    ]


def _rows(
    tape: Tape, choices: Sequence[Choice], steps: Steps, plain: Array, batch: int, heat: float
) -> list[Row]:
    per_step, ends = steps.tokens_per_step, _intervals(plain, steps.seconds)
    kinds = [text.group for text in tape.texts]
    rows = []
    for number, choice in enumerate(choices):
        own = steps.seconds[number]
        low, high = ends[number] if ends is not None else (None, None)
        groups = None
        if batch == 1 and len({*kinds}) > 1:
            groups = {
                kind: float(plain[mask].sum() / own[mask].sum())
                for kind in dict.fromkeys(kinds)
                if (mask := np.array([each == kind for each in kinds])).any()
            }
        rows.append(
            Row(
                choice,
                heat,
                batch,
                float(per_step[number]),
                float(own.sum()),
                float(plain.sum() / own.sum()),
                low,
                high,
                by_group=groups,
            )
        )
    return rows


def _intervals(plain: Array, seconds: Array) -> list[tuple[float, float]] | None:
    """95% of the speed-ups over other prompts of the kind: groups drawn again and again."""
    count = len(plain)
    if count < SPREAD:
        return None
    drawn = np.random.default_rng(0).integers(0, count, (SAMPLES, count))
    weights = np.zeros((SAMPLES, count))
    np.add.at(weights, (np.arange(SAMPLES)[:, None], drawn), 1)
    ratios = (weights @ plain)[:, None] / (weights @ seconds.T)
    return [(float(a), float(b)) for a, b in np.quantile(ratios, (0.025, 0.975), axis=0).T]


def survival(tape: Tape, source: Source) -> list[float]:
    """[d]: how often the likeliest d + 1 tokens of a draft are all right."""
    if source.grows:
        run = tape.fares(source, source.grown(num_draft_tokens=8, branch=1, min_confidence=0.0))[0]
    else:
        run = tape.fares(source, source.asis[0])[0]
    return [float((run > depth).mean()) for depth in range(8)]


def first_right(tape: Tape, source: Source) -> float:
    """How often a draft's first token is right, of the positions where there is one."""
    if source.grows:
        return float((tape.ranks(source) == 0).mean())
    accepted, nodes, _ = tape.fares(source, source.asis[0])
    drafted = nodes > 0
    return float((accepted[drafted] > 0).mean()) if drafted.any() else 0.0
