"""The loop that trains: steps, schedule, checkpoints, early stop. It knows no method.

A recipe is a module whose forward turns a batch into a loss. Everything that decides what a step
computes is a function of the seed and the step's number, so a run that was interrupted and resumed
has the losses of one that was not. Devices, precision and processes are accelerate's.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from foretoken.training.files import BEST, CHECKPOINT, check_folder, replacing, writing

Batch = dict[str, Tensor]


class Recipe(Protocol):
    """What is trained, how a batch is scored, and how good the result is.

    An `nn.Module`. Its parameters that require gradients are trained, its state is checkpointed:
    what is frozen and large is kept out of it.
    """

    def __call__(self, batch: Batch, share: float) -> dict[str, Tensor]:
        """Scalars: `loss`, the mean over the labels, and what is worth showing beside it.

        share: of the steps that lie behind, 0 to 1, for ramps and stages.
        """
        ...

    def optimisers(self) -> list[Optimizer]:
        """Over what is trained; the learning rates are their peaks."""
        ...

    def evaluate(self, device: torch.device) -> dict[str, float]:
        """On held-out text; `score`, larger is better, and what is worth showing beside it."""
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
    """How far training is, and what it found; lies in a checkpoint."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    best: float = -math.inf
    best_step: int = 0
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
    cpu: bool = False,
    show: Callable[[State, dict[str, float]], None] = lambda state, shown: None,
    stopped: Callable[[], bool] = lambda: False,
) -> State:
    """Trains `recipe` in place and leaves it with its best weights on held-out text.

    rows(n): n rows of training, in an order that does not depend on n. about: what a checkpoint
    must agree with to be resumed. show: called after every step. stopped: asked after every step;
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
            return loop.run(rows, resume, show, stopped)
        finally:
            accelerator.end_training()
            AcceleratorState._reset_state(True)  # else a process trains in one precision only


class _Loop:
    def __init__(
        self, accelerator: Any, recipe: Any, plan: Plan, folder: Path, about: dict[str, Any]
    ) -> None:
        self.accelerator, self.recipe, self.plan, self.folder = accelerator, recipe, plan, folder
        self.about = {"plan": asdict(plan)} | about
        self.model, *self.optimisers = accelerator.prepare(recipe, *recipe.optimisers())
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["peak"] = group["lr"]
        self.state = State()

    def run(
        self,
        rows: Callable[[int], Dataset[Batch]],
        resume: bool,
        show: Callable[[State, dict[str, float]], None],
        stopped: Callable[[], bool],
    ) -> State:
        plan, state = self.plan, self._begin(resume)
        state.process = self.accelerator.process_index
        self.accelerator.init_trackers("tensorboard")
        self.model.train()
        share = plan.accumulate * self.accelerator.num_processes
        if plan.rows % share:
            raise ValueError(
                f"{plan.rows} rows a step do not divide into {share} equal parts: change one"
            )
        loader = self.accelerator.prepare(
            DataLoader(rows(plan.steps * plan.rows), plan.rows // share)
        )
        if state.step:
            loader = self.accelerator.skip_first_batches(loader, state.step * plan.accumulate)
        batches, saved = iter(loader), time.monotonic()
        while not state.reason:
            began = time.monotonic()
            shown = self._step(batches)
            state.seconds += time.monotonic() - began
            if state.step % plan.every == 0 or state.step == plan.steps:
                shown |= self._evaluate()
            self.accelerator.log(shown, step=state.step)
            show(state, shown)
            if not state.reason and self._agreed(stopped()):
                state.reason = "interrupted"
            if state.reason or time.monotonic() - saved > plan.checkpoint_seconds:
                self._save()
                saved = time.monotonic()
        if state.reason != "interrupted":
            self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
            if (best := self.folder / BEST).exists():
                self.recipe.load_state_dict(torch.load(best, weights_only=True))
        return state

    def _step(self, batches: Any) -> dict[str, float]:
        """One step of the optimisers; what there is to show of it."""
        plan, state, sums = self.plan, self.state, {"loss": 0.0}
        factor = plan.learning_rate(state.step)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * factor
        for _ in range(plan.accumulate):
            batch = next(batches)
            with self.accelerator.accumulate(self.model):
                found = self.model(batch, state.step / plan.steps)
                for name, value in found.items():
                    mean = self.accelerator.reduce(value.detach().float(), "mean")
                    sums[name] = sums.get(name, 0.0) + float(mean) / plan.accumulate
                self._refuse(sums["loss"], "loss")
                self.accelerator.backward(found["loss"])
                if self.accelerator.sync_gradients:
                    norm = self.accelerator.clip_grad_norm_(self.model.parameters(), plan.clip)
                    self._refuse(float(norm), "gradient")
                for optimiser in self.optimisers:
                    optimiser.step()
                    optimiser.zero_grad()
            state.tokens += int((batch["segments"] >= 0).sum()) * self.accelerator.num_processes
        state.step += 1
        state.losses.append(sums["loss"])
        state.reason = "steps" if state.step == plan.steps else ""
        return sums

    def _refuse(self, value: float, what: str) -> None:
        if math.isfinite(value):
            return
        there = self.folder / CHECKPOINT
        kept = f"the last checkpoint is {there}" if there.exists() else "there was no checkpoint"
        raise Diverged(
            f"the {what} is {value} at step {self.state.step + 1} ({kept}): use a lower learning "
            "rate, or look for broken text in the data"
        )

    def _evaluate(self) -> dict[str, float]:
        """Held-out scores; keeps the best weights, and ends what gets no better."""
        state, plan = self.state, self.plan
        self.model.eval()
        with torch.no_grad(), self.accelerator.autocast():
            found: dict[str, float] = self.recipe.evaluate(self.accelerator.device)
        self.model.train()
        state.evaluations.append({"step": float(state.step)} | found)
        if found["score"] > state.best:
            state.best, state.best_step = found["score"], state.step
            if self.accelerator.is_main_process:
                with replacing(self.folder / BEST) as fresh:
                    torch.save(self.recipe.state_dict(), fresh)
        stale = (state.step - state.best_step) // plan.every
        if plan.patience and stale >= plan.patience and state.step >= plan.least:
            state.reason = state.reason or "no better"
        return {f"held-out {name}": value for name, value in found.items()}

    def _agreed(self, flag: bool) -> bool:
        """Whether any process was asked to stop."""
        flags = torch.tensor(float(flag), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flags, "sum") > 0)

    def _begin(self, resume: bool) -> State:
        """A fresh state, or that of the checkpoint."""
        check_folder(self.folder, resume)
        there = self.folder / CHECKPOINT
        if not there.exists():
            return self.state
        said = json.loads((there / "about.json").read_text())
        for name, value in json.loads(json.dumps(self.about)).items():
            if said.get(name) != value:
                raise ValueError(
                    f"{there} was made with another {name}: give the same options and data, or "
                    "write to another folder"
                )
        self.accelerator.load_state(str(there))
        self.state = State(**json.loads((there / "state.json").read_text()))
        if self.state.reason == "interrupted":
            self.state.reason = ""
        return self.state

    def _save(self) -> None:
        """A checkpoint in place of the last one, which stays until this one is whole."""
        there, fresh = self.folder / CHECKPOINT, self.folder / (CHECKPOINT + ".new")
        if self.accelerator.is_main_process:
            shutil.rmtree(fresh, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        with writing(there):
            self.accelerator.save_state(str(fresh))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            (fresh / "about.json").write_text(json.dumps(self.about))
            (fresh / "state.json").write_text(json.dumps(asdict(self.state)))
            old = self.folder / (CHECKPOINT + ".old")
            if there.exists():
                there.rename(old)
            fresh.rename(there)
            shutil.rmtree(old, ignore_errors=True)
        self.accelerator.wait_for_everyone()
