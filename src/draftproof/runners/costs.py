"""What a pass costs: learnt from every pass that is made, and measured where somebody asks for it.

Everything that weighs drafts against time reckons with this: which nodes a step runs, how much of a
prompt is read beside writers, tree shapes, comparisons, training.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from draftproof import clock
from draftproof.runners import kept
from draftproof.runners.base import KEY, Target, Work
from draftproof.runners.curves import GRID, KNEES, MOST, ROWS, along, between, rising, shipped
from draftproof.runners.slices import Slices
from draftproof.runners.takeover import on_threads
from draftproof.tree import TokenTree

SMALL, GAIN = 0.03, 1.15  # seconds of a pass, and what more threads must bring to be worth it
CURVE = (1, 2, 4, 6, 8, 12, 16)  # tokens in a pass
ATTENTION = 0.1  # passes over one row that the first row of a text takes to attend to 1,000 tokens
NOISE = 0.06  # of one pass, a share of its seconds
# How far apart this machine and the shipped curve may be, of all costs alike and from an octave of
# rows to the next, and how much all costs may change from a pass to the next. Squares of shares.
LEVEL, OCTAVE, LEVEL_DRIFT = 25.0, 0.06, 9e-4
FADES, FADES_BETWEEN = 1e-4, 0.3  # the share of the curve that is forgotten at a look, at a start
TOGETHER, FIRST = 16, 16  # passes that are learnt from at once; the first ones each at once
# Passes that halve what wider ones seem to cost more, how often at most; rows that those have more.
UNTRIED, HALVED, NEAR = 256, 2.0, 16
OUTLIER = 3.0  # standard deviations beyond which a pass counts no more


class PassCosts:
    """Seconds of a runner's pass by its rows and by what they attend to.

    The logarithm of the cost at each number of rows is a hidden state that drifts, and every pass
    is a noisy look at it (an extended Kalman filter). It starts from a shipped curve. What changes
    all costs alike, a neighbour or a clock rate, is found within a few passes and moves no ratio
    between them; what changes the curve is found within some dozens. What no pass confirms fades
    towards the shipped curve: a busy hour that made wide passes look dear would else turn drafts
    off, and with them what could tell otherwise. Never falls with the rows.

    knee: rows at which arithmetic takes as long as reading the weights.
    """

    def __init__(self, knee: float = KNEES["torch"]) -> None:
        size = len(ROWS)
        octaves = np.log2(ROWS)
        walk = np.minimum.outer(octaves, octaves)  # what differs at 8 rows differs at 16 too
        self._shipped = np.log(shipped(knee))
        self._state = np.zeros(size + 1)  # last: the logarithm of attention's share
        self._state[:size] = math.log(0.01)
        self._state[size] = math.log(ATTENTION)
        self._unknown = np.zeros((size + 1, size + 1))  # of the curve and of attention, at first
        self._unknown[:size, :size] = OCTAVE * walk
        self._unknown[size, size] = 4 * OCTAVE
        self._spread = self._unknown.copy()
        self._spread[:size, :size] += LEVEL
        self.passes, self.keep = 0, False  # keep: for other processes, however few there are
        self.rows, self.attended, self.texts = 0, 0.0, 0  # see `plan`
        self.slices = Slices(self)
        self._held: list[tuple[int, float, float]] = []
        self._table: list[float] | None = None
        self._hopeful: dict[int, list[float]] = {}
        self._ran = [0] * (MOST + NEAR + 1)  # the last pass over so many rows
        self._unsure: tuple[Any, Any] | None = None  # at each number of rows, of this table

    def plan(self, rows: int, attended: float, texts: int = 0) -> None:
        """Rows that the next pass runs whatever is drafted, what they attend to, requests."""
        self.rows, self.attended, self.texts = rows, attended, texts
        self.slices.plan()

    def observe(self, rows: int, attended: float, seconds: float) -> None:
        """A pass took so long. Seconds that no clock that goes can tell are left out."""
        if rows < 1 or not 1e-7 < seconds < 1e4:
            return
        self.slices.end(rows, attended, seconds)
        self.passes += 1
        if rows < len(self._ran):
            self._ran[rows] = self.passes
        self._held.append((rows, attended, math.log(seconds)))
        if len(self._held) == TOGETHER or self.passes < FIRST:
            self._held.sort()
            for size, alike in groupby(self._held, itemgetter(0)):
                _, tokens, logs = zip(*alike, strict=True)
                self._take(size, statistics.fmean(tokens), statistics.median(logs), len(logs))
            self._held.clear()

    def learnt(self) -> dict[str, Any]:
        """What passes taught, fit for JSON."""
        costs = {rows: self.seconds(rows) for rows in ROWS if rows <= MOST}
        return {"costs": costs, "state": self._state.tolist(), "spread": self._spread.tolist()}

    def restore(self, learnt: dict[str, Any]) -> None:
        """Go on from what another process learnt, when the machine may have been less busy."""
        state, spread = np.array(learnt["state"], float), np.array(learnt["spread"], float)
        same = (state.shape, spread.shape) == (self._state.shape, self._spread.shape)
        sound = (np.abs(state) < 30).all() and (np.abs(spread) < 1000).all()
        if not (same and sound) or np.linalg.eigvalsh(spread).min() < -1e-9:
            raise ValueError("no costs of a pass")
        self._state, self._spread = state, spread
        self._fade(FADES_BETWEEN, 1.0)
        self.passes, self._table = 1, None

    def seconds(self, rows: int, attended: float = 0) -> float:
        """Of a pass over `rows` rows; attended: `curves.attended` of all its texts, added up."""
        return (self._share(rows) + self.attention * attended) * self.one

    def hopeful(self, rows: int) -> list[float]:
        """As `curve`, but beyond `rows` a standard deviation less, where little is known of it.

        What decides by it tries what may be cheap, and finds out; by a curve that is too steep it
        would run so few rows that it never did. The more rows, the less: each pays for the try.
        And the longer no pass of some rows more ran, the cheaper they are thought to be: what
        made them look dear, as a slow hour, may be over, and nothing else would tell.
        """
        curve, rows = self.curve(), min(rows, MOST)
        found = self._hopeful.get(rows)
        if found is None:
            if self._unsure is None:
                spread = GRID @ self._spread[:-1, :-1]
                self._unsure = spread, np.einsum("ij,ij->i", spread, GRID)
            spread, own = self._unsure
            at = rows - 1
            sure = own[at:] + own[at] - GRID[at:] @ (2 * spread[at])
            costs = self._costs[at:] * np.exp(-np.sqrt(np.maximum(sure, 0, out=sure) / rows))
            costs[0] = curve[rows]
            beyond = np.maximum.accumulate(costs)
            ran = max(self._ran[rows + 1 : rows + NEAR + 1])
            halved = min((self.passes - ran) / UNTRIED, HALVED)
            beyond += (beyond - curve[rows]) * (0.5**halved - 1)
            found = self._hopeful[rows] = [*curve[:rows], *beyond.tolist()]
        return found

    def _share(self, rows: int) -> float:
        curve = self.curve()
        return curve[rows] if rows <= MOST else math.exp(along(self._logs, rows))

    def _ratios(self) -> Any:
        """At each of `ROWS`: the logarithm of the cost in passes over one row, never falling.

        Where more rows seem cheaper than fewer, both are the mean of what is known of them, the
        surer one counting more: one pass over three rows that was held up says nothing of eight.
        """
        logs, spread = self._shipped + self._state[:-1], self._spread[:-1, :-1]
        unsure = np.diag(spread) + spread[0, 0] - 2 * spread[0]
        return rising(logs - logs[0], 1 / np.maximum(unsure, 1e-9))

    @property
    def one(self) -> float:
        """Seconds of a pass over one row that attends to nothing."""
        self.curve()
        return self._one

    @property
    def attention(self) -> float:
        """Of the first row of a text and a token that it attends to, in passes over one row."""
        self.curve()
        return self._attention

    def curve(self) -> list[float]:
        """[n]: what a pass over n rows costs, in passes over one; 0 at 0. Up to `MOST` rows."""
        if self._table is None:
            self._logs = self._ratios()
            self._costs = np.exp(GRID @ self._logs)
            self._table = [0.0, *self._costs.tolist()]
            self._one = math.exp(self._shipped[0] + self._state[0])
            self._attention = math.exp(self._state[-1]) / 1000
            self._hopeful.clear()
            self._unsure = None
        return self._table

    def _take(self, rows: int, attended: float, log: float, passes: int) -> None:
        """Learn from passes over equally many rows: the middle of their logarithms."""
        self._table = None
        base = math.exp(self._at(rows))
        extra = math.exp(self._at(1) + self._state[-1]) * attended / 1000
        look = np.zeros(len(self._state))
        low, share = between(rows)
        look[low] = (1 - share) * base / (base + extra)
        look[low + 1] += share * base / (base + extra)
        look[0] += extra / (base + extra)
        look[-1] = extra / (base + extra)
        towards = self._spread @ look
        variance = float(look @ towards) + NOISE**2 / passes
        surprise = log - math.log(base + extra)
        if self.passes > FIRST:
            most = OUTLIER * math.sqrt(variance)
            surprise = min(most, max(-most, surprise))
        self._state += towards * (surprise / variance)
        self._spread -= np.outer(towards, towards) / variance
        self._fade(FADES, LEVEL_DRIFT if self._spread[0, 0] < LEVEL else 0.0)

    def _fade(self, share: float, level: float) -> None:
        """This share of what is known of the curve, not of its level, is what was shipped again."""
        onwards = (1 - share) * np.eye(len(self._state))
        onwards[:-1, 0] += share  # towards the level, which is the first
        self._state = onwards @ self._state
        self._state[-1] += share * math.log(ATTENTION)
        self._spread = onwards @ self._spread @ onwards.T + share * (2 - share) * self._unknown
        self._spread[:-1, :-1] += level

    def _at(self, rows: int) -> float:
        """Logarithm of the seconds over `rows` rows, attention left out."""
        return along(self._shipped + self._state[:-1], rows)


def of(runner: Any) -> PassCosts:
    """The costs of a runner, the same for all who ask."""
    found = getattr(runner, "pass_costs", None)
    if not isinstance(found, PassCosts):
        found = PassCosts(knee_of(runner))
        kept.keep(found, runner)
        with suppress(AttributeError):  # of slots: then each who asks learns for itself
            runner.pass_costs = found
    return found


def knee_of(runner: Any) -> float:
    """By what the runner computes with; a runner that says nothing counts as torch."""
    name = f"{getattr(runner, 'name', 'torch')} {getattr(runner, 'precision', '')}"
    if getattr(getattr(runner, "device", None), "type", "cpu") != "cpu":
        return KNEES["cuda"]
    if "amx" in name:
        return KNEES["amx"]
    if "avx2" in name:
        return KNEES["avx2" if "bfloat16" in name else "avx2 integers"]
    if "int8" in name and "native" in name:
        return KNEES["int8"]
    return KNEES["avx512"] if "avx512" in name else KNEES["torch"]


def context_ids(runner: Target, length: int) -> list[int]:
    """Token ids to stand behind; which ones does not matter."""
    return [(7 * i) % runner.vocabulary for i in range(length)]


def passes(runner: Target, context: int) -> Callable[[int], Callable[[], object]]:
    """Reads `context` tokens under `KEY`; then tokens -> a pass over so many nodes behind them."""
    runner.forward([Work(KEY, context_ids(runner, context), None)])

    def over(tokens: int) -> Callable[[], object]:
        tree = TokenTree.chain([1] * tokens)
        return lambda: runner.forward([Work(KEY, [], tree)])

    return over


def pass_seconds(
    runner: Target, context: int, sizes: Sequence[int] = CURVE, *, rounds: int = 15, warm: int = 3
) -> dict[int, float]:
    """Median seconds of a pass over each number of tokens, behind `context` tokens or what fits."""
    over = passes(runner, min(context, max(1, runner.max_length - max(sizes))))
    try:
        took = clock.interleaved({str(size): over(size) for size in sizes}, rounds, warm)
    finally:
        runner.free(KEY)
    return {int(size): statistics.median(seconds) for size, seconds in took.items()}


def threads_of_torch(runner: Target) -> int | None:
    """The threads that passes of this runner are worth: 1, or None: as many as torch has.

    Threads wait for one another after every operation: beside a process that keeps a core busy two
    take three times as long as one. So a small pass gets a second one only if it is faster by it:
    a pass over 8 tokens, as many as a step with a draft reads.
    """
    threads = torch.get_num_threads()
    if runner.device.type != "cpu" or threads == 1:
        return None
    nodes = min(8, runner.max_length - 1)
    over = passes(runner, min(16, runner.max_length - nodes))(nodes)
    alone, together = partial(on_threads, 1, over), partial(on_threads, threads, over)
    try:
        if min(*clock.interleaved({"alone": alone}, 2)["alone"]) > SMALL:
            return None
        took = clock.interleaved({"alone": alone, "together": together}, 3)
    finally:
        runner.free(KEY)
    return None if clock.median_ratio(took["alone"], took["together"]) > GAIN else 1
