"""The loop that trains: steps, schedule, checkpoints, early stop. It knows no method.

A recipe is a module whose forward turns a batch into a loss. Everything that decides what a step
computes is a function of the seed and the step's number, so a run that was interrupted and resumed
has the losses of one that was not. Devices, precision and processes are accelerate's.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from draftproof.allocator import give_back
from draftproof.training.checkpoint import BEST, CHECKPOINT, Checkpoint, check_unfinished, replacing

Batch = dict[str, Tensor]
TRIMMED = 8  # steps, whose tensors have many sizes: what was freed of them is given back


class Recipe(Protocol):
    """What is trained, how a batch is scored, and how good the result is.

    An `nn.Module`. Its parameters that require gradients are trained, its state is checkpointed:
    what is frozen and large is kept out of it.
    """

    def __call__(self, batch: Batch, share: float) -> dict[str, Tensor]:
        """Scalars: `labels`, how many are learnt, `loss`, their mean, and other means to show.

        share: of the steps that lie behind, 0 to 1, for ramps and stages.
        """
        ...

    def optimisers(self) -> list[Optimizer]:
        """Over what is trained; the learning rates are their peaks."""
        ...

    def evaluate(self, device: torch.device) -> dict[str, float]:
        """On held-out text; `score`, larger is better, and what is worth showing beside it.

        Without a score, where nothing could be scored, the last weights are the best.
        """
        ...


@dataclass(frozen=True)
class Plan:
    """How long and in what portions; rows and steps are those of all processes together."""

    steps: int
    rows: int  # of a step
    accumulate: int = 1  # passes that a step is made of
    warmup: int = 40  # steps
    floor: float = 0.0  # of the learning rate, at the end of the cosine
    clip: float = 1.0  # norm of the gradient
    every: int = 100  # steps from one evaluation to the next
    patience: int = 3  # evaluations without a better one, after which training stops; 0: never
    least: int = 300  # steps before it may stop early
    checkpoint_seconds: float = 300.0
    seed: int = 0
    precision: str = "no"  # accelerate's: no or bf16

    def learning_rate(self, step: int) -> float:
        """A factor in [floor, 1]: linear warm-up, then a cosine to the floor."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        share = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * min(1.0, share))) / 2


@dataclass
class State:
    """How far training is, and its scores; lies in a checkpoint."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    best: float | None = None  # score
    best_step: int = 0  # the last with that score
    risen: int = 0  # the first with it
    reason: str = ""  # why it ended: "steps", "no better", or "interrupted"
    process: int = 0  # which of those that train this is: 0 writes and tells
    losses: list[float] = field(default_factory=list)  # of every step
    evaluations: list[dict[str, float]] = field(default_factory=list)


class Diverged(ValueError):
    """The loss is not finite any more."""


def train(
    recipe: Any,
    rows: Callable[[int], Dataset[Batch]],
    plan: Plan,
    folder: Path,
    *,
    about: Mapping[str, Any],
    resume: bool = False,
    keep_rates: bool = False,
    cpu: bool = False,
    show: Callable[[State, dict[str, float]], None] = lambda state, shown: None,
    stopped: Callable[[], bool] = lambda: False,
) -> State:
    """Trains `recipe` in place and leaves it with its best weights on held-out text.

    rows(n): n rows of training, in an order that does not depend on n. about: what a checkpoint
    must agree with to be resumed. keep_rates: then learning rates are the checkpoint's, not the
    recipe's. show: called after every step. stopped: asked after every step;
    then a checkpoint is written and the state returned. Raises `Diverged` (the last checkpoint
    stays), `ValueError` for a checkpoint in the way or of something else, and `OSError`.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import is_tensorboard_available

    logging.getLogger("accelerate").setLevel(logging.ERROR)  # it tells of every tied weight
    with torch.random.fork_rng():  # dropout draws from the global generator, and from no other
        torch.manual_seed(plan.seed)
        accelerator = Accelerator(
            mixed_precision=plan.precision,
            gradient_accumulation_steps=plan.accumulate,
            cpu=cpu,
            log_with="tensorboard" if is_tensorboard_available() else None,
            project_dir=folder,
        )
        try:
            loop = _Loop(accelerator, recipe, plan, folder, dict(about))
            return loop.run(rows, resume, keep_rates, show, stopped)
        finally:
            accelerator.end_training()
            AcceleratorState._reset_state(True)  # else a process trains in one precision only


class _Loop:
    def __init__(
        self, accelerator: Any, recipe: Any, plan: Plan, folder: Path, about: dict[str, Any]
    ) -> None:
        self.accelerator, self.recipe, self.plan, self.folder = accelerator, recipe, plan, folder
        self.checkpoint = Checkpoint(accelerator, folder, about | {"plan": asdict(plan)})
        self.model, *self.optimisers = accelerator.prepare(recipe, *recipe.optimisers())
        for group in self._groups():
            group["peak"] = group["lr"]
        self.state = State()

    def run(
        self,
        rows: Callable[[int], Dataset[Batch]],
        resume: bool,
        keep_rates: bool,
        show: Callable[[State, dict[str, float]], None],
        stopped: Callable[[], bool],
    ) -> State:
        plan, state = self.plan, self._begin(resume, keep_rates)
        state.process = self.accelerator.process_index
        self.accelerator.init_trackers("tensorboard")
        self.model.train()
        share = plan.accumulate * self.accelerator.num_processes
        if plan.rows % share:
            raise ValueError(
                f"{plan.rows} rows a step do not divide into {share} equal parts: change one"
            )
        # A loader begins by drawing a number: not from the generator that dropout draws from.
        draws, size = torch.Generator(), plan.rows // share
        data = DataLoader(rows(plan.steps * plan.rows), size, generator=draws)
        loader = self.accelerator.prepare(data)
        if state.step:
            loader = self.accelerator.skip_first_batches(loader, state.step * plan.accumulate)
        batches, saved = iter(loader), time.monotonic()
        while not state.reason:
            began = time.monotonic()
            shown = self._step(batches)
            state.seconds += time.monotonic() - began
            if state.step % plan.every == 0 or state.step == plan.steps:
                shown |= self._evaluate()
            if state.step % TRIMMED == 0:
                give_back()
            self.accelerator.log(shown, step=state.step)
            show(state, shown)
            due = time.monotonic() - saved > plan.checkpoint_seconds
            asked, due = self._agreed(stopped(), due)  # each process has a clock of its own
            if asked and not state.reason:
                state.reason = "interrupted"
            if state.reason or due:
                self.checkpoint.save(asdict(state))
                saved = time.monotonic()
        if state.reason != "interrupted":
            self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
            if (best := self.checkpoint.best()) is not None:
                self.recipe.load_state_dict(best)
        return state

    def _step(self, batches: Any) -> dict[str, float]:
        """One step of the optimisers; what there is to show of it.

        Every label weighs the same, whatever pass and process it is in.
        """
        plan, state = self.plan, self.state
        sums: dict[str, Tensor] = {}
        for _ in range(plan.accumulate):
            batch = next(batches)
            with self.accelerator.accumulate(self.model):
                scores = self.model(batch, state.step / plan.steps)
                weight = scores.pop("labels") / batch["ids"].numel()
                self.accelerator.backward(scores["loss"] * weight)
            for name, value in (scores | {"weight": torch.ones_like(weight)}).items():
                sums[name] = sums.get(name, 0) + weight * value.detach().float()
            state.tokens += int((batch["segments"] >= 0).sum()) * self.accelerator.num_processes
        totals = self.accelerator.reduce(torch.stack([*sums.values()]), "sum").tolist()
        shown = dict(zip(sums, totals, strict=True))
        whole = shown.pop("weight") or 1.0  # of a step without labels nothing is learnt
        shown = {name: total / whole for name, total in shown.items()}
        self._refuse(shown["loss"], "loss")
        # The gradients are a mean over passes and processes of sums over labels.
        self._move(plan.accumulate * self.accelerator.num_processes / whole)
        state.step += 1
        state.losses.append(shown["loss"])
        state.reason = "steps" if state.step == plan.steps else ""
        return shown

    def _move(self, scale: float) -> None:
        """The optimisers take their step, along the gradients times `scale`."""
        factor = self.plan.learning_rate(self.state.step)
        for group in self._groups():
            group["lr"] = group["peak"] * factor
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.plan.clip)
        self._refuse(float(norm), "gradient")
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()

    def _refuse(self, value: float, what: str) -> None:
        if math.isfinite(value):
            return
        there = self.folder / CHECKPOINT
        kept = f"the last checkpoint is {there}" if there.exists() else "there was no checkpoint"
        raise Diverged(
            f"the {what} is {value} at step {self.state.step + 1} ({kept}): use a lower learning "
            "rate, with which a checkpoint goes on too, or look for broken text in the data"
        )

    def _evaluate(self) -> dict[str, float]:
        """Held-out scores; keeps the best weights, and ends what gets no better."""
        state, plan = self.state, self.plan
        self.model.eval()
        with torch.no_grad(), self.accelerator.autocast():
            scores: dict[str, float] = self.recipe.evaluate(self.accelerator.device)
        self.model.train()
        state.evaluations.append({"step": float(state.step)} | scores)
        score = scores.get("score")
        if score is None or state.best is None or score > state.best:
            state.risen = state.step
        if state.risen == state.step or score == state.best:  # of equals those that learnt longer
            state.best, state.best_step = score, state.step
            if self.accelerator.is_main_process:
                with replacing(self.folder / BEST) as fresh:
                    torch.save(self.recipe.state_dict(), fresh)
        stale = (state.step - state.risen) // plan.every
        if plan.patience and stale >= plan.patience and state.step >= plan.least:
            state.reason = state.reason or "no better"
        return {f"held-out {name}": value for name, value in scores.items()}

    def _agreed(self, *flags: bool) -> list[bool]:
        """Of each whether any process says so."""
        own = torch.tensor([float(flag) for flag in flags], device=self.accelerator.device)
        return [count > 0 for count in self.accelerator.reduce(own, "sum").tolist()]

    def _begin(self, resume: bool, keep_rates: bool) -> State:
        """A fresh state, or that of the checkpoint."""
        check_unfinished(self.folder, resume)
        peaks = [group["peak"] for group in self._groups()]
        if (said := self.checkpoint.load()) is not None:
            self.state = State(**said)
            for group, peak in zip(self._groups(), peaks, strict=True):
                group["peak"] = group["peak"] if keep_rates else peak
            if self.state.reason == "interrupted":
                self.state.reason = ""
            if self.checkpoint.best() is None:
                self.state.best = None  # weights that are gone are not better than later ones
        return self.state

    def _groups(self) -> list[dict[str, Any]]:
        """Of parameters, with their learning rates."""
        return [group for optimiser in self.optimisers for group in optimiser.param_groups]
