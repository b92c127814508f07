"""A training from options to the folder that is written: what every kind of job shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from draftproof import interrupts
from draftproof.runners import encoders, half
from draftproof.training import trainer
from draftproof.training.checkpoint import CHECKPOINT
from draftproof.training.data.pairs import pack
from draftproof.training.data.rows import Document, Stream
from draftproof.training.data.states import check
from draftproof.training.guards import in_single
from draftproof.training.jobs import card, material, served, setup
from draftproof.training.trainer import Batch, Plan, State
from draftproof.training.watch import Watch

FREE = (  # options that may be others when training goes on
    "out",
    "source",
    "resume",
    "overwrite",
    "rate",
    "device",
    "threads",
    "calibration_tokens",
    "nodes",
    "export",
)


@dataclass(frozen=True)
class Options:
    """What is trained, on what, and for how long."""

    target: str  # hub id or folder, as it is written down
    source: str  # where it lies
    data: Sequence[str]
    out: Path
    held_out: Sequence[str] = ()  # a twentieth of the data unless given
    start: str | None = None  # weights to go on from
    steps: int | None = None
    rows: int | None = None  # of a step
    length: int | None = None
    rate: float | None = None
    accumulate: int = 1
    limit: int | None = None  # tokens of data
    self_distill: bool | None = None  # where it is not said: an encoder-decoder's answers
    resume: bool = False
    overwrite: bool = False  # whatever lies in `out`
    calibration_tokens: int = 20_000
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    trust_remote_code: bool = False

    def check(self) -> None:
        """Raises `ValueError` for options that exclude one another, before anything is loaded."""


@dataclass(kw_only=True)
class Report:
    """How training went; kinds of jobs add what the result gives."""

    steps: int
    ended: str  # why: "steps", "no better", or "interrupted"
    process: int  # what the result gives is known to process 0 alone
    tokens: int  # learnt from, repetitions counted
    seconds: float
    held_out: dict[str, float]  # at the best step

    def lines(self) -> list[str]:
        """What the result gives, for a reader."""
        raise NotImplementedError


class Job(ABC):
    """One training. `run` is the same for all; what is trained and how it is judged is a kind's.

    `begin` comes first and sets `least` and `models`, which the steps behind it read.
    """

    prompt_sets = 1  # of `calibration_tokens` each, on which the result is judged
    least: int  # tokens of a text without which there is nothing to learn
    models: Sequence[Any]  # those that read rows, the target first
    recipe: Any
    report: Any
    learnt: Sequence[Document]  # texts, which the recipe may look at

    def __init__(self, options: Any, watch: Watch) -> None:
        self.options, self.watch = options, watch
        self.temporary: list[Path] = []  # folders that a finished training needs no more

    @abstractmethod
    def begin(self) -> Any:
        """What is trained, from `self.target`; returns a proposer that serves it, or None."""

    @abstractmethod
    def make_recipe(self, held_out: list[Batch], asked: list[Batch]) -> Any:
        """What the trainer trains. asked: held-out texts of the data itself."""

    @abstractmethod
    def memory(self, plan: Plan, length: int) -> str:
        """What training will take, said before it begins."""

    @abstractmethod
    def make_report(self, outcome: dict[str, Any]) -> Any:
        """A report that says how training went, before the result is judged."""

    @abstractmethod
    def save(self) -> None:
        """The result, in the precision in which it will serve."""

    @abstractmethod
    def judge(self, prompts: Sequence[Sequence[int]], room: int) -> None:
        """What the engine gives on these prompts, `room` tokens each; goes into the report."""

    @abstractmethod
    def card(self) -> card.Card:
        """What a reader of the folder is told."""

    def prepared(self, rows: Any) -> Any:
        """The rows with whatever else is to lie beside them."""
        return rows

    def run(self) -> Any:
        """The report, after all is written to `out`; raises `ValueError` and `OSError`.

        If `watch` asks to stop there is a checkpoint and the report says "interrupted".
        """
        options, watch = self.options, self.watch
        options.check()
        watch.phase("loading")
        with interrupts.kept():
            self.target, self.tokenizer = setup.target(options)
        if options.self_distill is None:
            self.options = options = replace(options, self_distill=encoders.is_one(self.target))
        proposer = self.begin()
        length = setup.row_length(options, self.models, self.least)
        room = served.check_servable(self.target, self.tokenizer, proposer)
        if options.overwrite and not options.resume and not setup.process():
            setup.clear(options.out)
        texts = material.gathered(options, self.target, self.tokenizer, watch, self.least, length)
        self.learnt = texts.learnt
        count = self.prompt_sets * -(-options.calibration_tokens // room)
        prompts = served.prompts_of(texts.asked, count, room)
        rows, held = pack(texts.learnt, length), pack(texts.held_out, length)
        for model in self.models:
            check(model, held[0])
        length = rows.ids.shape[1]
        plan = setup.plan(options, self.target, rows, length)
        asked = setup.evaluation_batches(pack(texts.asked, length))
        self.recipe = self.make_recipe(setup.evaluation_batches(held), asked)
        if half.slow(self.target):
            watch.line("this processor is slow in half precision: training computes in float32")
        with in_single(self.target):
            watch.line(self.memory(plan, length))
            state = self._train(self.prepared(rows), rows, plan)
        self.report = self.make_report(_outcome(state))
        if state.reason == "interrupted" or state.process:
            return self.report
        self.save()  # before anything else can fail
        self.judge(prompts, room)
        provenance = card.provenance(options, rows, held)
        card.write(options.out, self.card(), self.report, state, provenance)
        setup.clear(options.out, *self.temporary)
        return self.report

    def _train(self, source: Any, rows: Any, plan: Plan) -> State:
        """Train on `source`, which is `rows` with whatever else lies beside them."""
        options, watch = self.options, self.watch
        settings = {name: value for name, value in asdict(options).items() if name not in FREE}
        if options.resume and not (options.out / CHECKPOINT).exists():
            watch.line(f"there is no checkpoint in {options.out}: training begins at step 1")
        watch.phase("training")
        return trainer.train(
            self.recipe,
            lambda count: Stream(source, count, options.seed),
            plan,
            options.out,
            about={"options": settings, "data": rows.fingerprint()},
            resume=options.resume,
            keep_rates=options.rate is None,
            cpu=self.target.device.type == "cpu",
            show=lambda state, shown: watch.step(state, shown, plan),
            stopped=watch.stopped,
        )


def _outcome(state: State) -> dict[str, Any]:
    """The fields of `Report`."""
    best = [scores for scores in state.evaluations if scores["step"] == state.best_step]
    return {
        "steps": state.step,
        "ended": state.reason,
        "process": state.process,
        "tokens": state.tokens,
        "seconds": round(state.seconds, 1),
        "held_out": {name: round(x, 4) for scores in best[-1:] for name, x in scores.items()},
    }
