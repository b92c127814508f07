"""What stands before every training: options, target, rows, plan, provenance."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch

from draftproof import clock
from draftproof.runners import loading
from draftproof.text import load_tokenizer
from draftproof.training import files, trainer
from draftproof.training.rows import Document, Rows, Stream, pack
from draftproof.training.trainer import Batch, Plan, State

CONTEXT = 512  # tokens of a row, unless target or data have less
STEP_TOKENS = 8192  # of a step
EPOCHS = 2  # where the steps are not given
WRITTEN = "written.json"  # what the target wrote
EVALUATED = 32_768  # held-out tokens of an evaluation
FREE = (  # options that may be others when training goes on
    "out",
    "source",
    "resume",
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
    self_distill: bool = False
    resume: bool = False
    calibration_tokens: int = 20_000
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    trust_remote_code: bool = False


class Watch(Protocol):
    """What is told while it runs; the command line shows it."""

    def phase(self, text: str) -> None: ...
    def share(self, done: float) -> None: ...
    def step(self, state: State, shown: dict[str, float], plan: Plan) -> None: ...
    def line(self, text: str) -> None: ...
    def stopped(self) -> bool: ...


def target(options: Options) -> tuple[Any, Any]:
    """The model and its tokenizer; `ValueError` at once if training could not begin."""
    if find_spec("accelerate") is None:
        raise ValueError("training needs accelerate: pip install 'draftproof[train]'")
    files.check_folder(options.out, options.resume)
    if options.threads:
        torch.set_num_threads(options.threads)
    foreign: dict[str, Any] = {"trust_remote_code": options.trust_remote_code}
    device = loading.pick_device(options.device)
    if device.type == "cuda" and device.index is None:  # of several processes each has its own
        device = torch.device("cuda", process())
    if device.type == "cuda":
        torch.cuda.set_device(device)  # accelerate trains on that one
    dtype = loading.pick_dtype(options.dtype)
    model: Any = loading.load(options.source, dtype=dtype, device=device, **foreign)
    return model, load_tokenizer(options.source, None, foreign)


def process() -> int:
    """The number of this process among those that train on this machine."""
    return torch.distributed.get_node_local_rank(fallback_rank=0)


def processes() -> int:
    """How many train together; those who start them say it in the environment."""
    from accelerate.utils import get_int_from_env

    return max(1, int(get_int_from_env(("WORLD_SIZE",), 1)))


def clear(folder: Path, *more: Path) -> None:
    """Remove what a finished training needs no more, and `more` folders."""
    files.clear(folder)
    for other in more:
        shutil.rmtree(other, ignore_errors=True)
    (folder / WRITTEN).unlink(missing_ok=True)


def row_length(options: Options, target: Any, least: int) -> int:
    """Tokens of a row at most; packing takes fewer where there are fewer."""
    most = getattr(target.config.get_text_config(), "max_position_embeddings", None) or CONTEXT
    if options.length is not None and not least <= options.length <= most:
        raise ValueError(f"length {options.length} must be from {least} to the target's {most}")
    return min(options.length or CONTEXT, int(most))


def plan(options: Options, target: Any, rows: Rows, length: int) -> Plan:
    """As much as there is data for, and 300 steps at least."""
    count = options.rows or max(1, min(STEP_TOKENS // length, len(rows)))
    parts = options.accumulate * processes()  # which have equally many each
    count = -(-count // parts) * parts
    steps = options.steps or max(300, EPOCHS * len(rows) // count)
    return Plan(
        steps,
        count,
        options.accumulate,
        warmup=min(40, steps // 10),
        every=max(1, min(250, steps // 6)),
        seed=options.seed,
        precision="bf16" if target.dtype.itemsize == 2 else "no",
    )


def batch_of(rows: Rows, at: int) -> Batch:
    """One row as a batch."""
    return {name: tensor[None] for name, tensor in rows[at].items()}


def whole(ids: Sequence[int]) -> Batch:
    """A text as a row of its own."""
    return batch_of(pack([Document(ids)], len(ids)), 0)


def evaluated(held_out: Rows) -> list[Batch]:
    """What evaluations run on."""
    count = max(1, EVALUATED // held_out.ids.shape[1])
    return [batch_of(held_out, at) for at in range(min(len(held_out), count))]


def trained(
    recipe: Any, source: Any, rows: Rows, plan: Plan, options: Options, device: Any, watch: Watch
) -> State:
    """Train on `source`, which is `rows` with whatever else lies beside them."""
    watch.phase("training")
    return trainer.train(
        recipe,
        lambda count: Stream(source, count, options.seed),
        plan,
        options.out,
        about={"options": settings(options), "data": fingerprint(rows)},
        resume=options.resume,
        keep_rates=options.rate is None,
        cpu=device.type == "cpu",
        show=lambda state, shown: watch.step(state, shown, plan),
        stopped=watch.stopped,
    )


@dataclass(kw_only=True)
class Trained:
    """How training went; reports add what came of it."""

    steps: int
    ended: str  # why: "steps", "no better", or "interrupted"
    process: int  # what came of it is known to process 0 alone
    tokens: int  # learnt from, repetitions counted
    seconds: float
    held_out: dict[str, float]  # at the best step


def told(state: State) -> dict[str, Any]:
    """The fields of `Trained`."""
    best = [found for found in state.evaluations if found["step"] == state.best_step]
    return {
        "steps": state.step,
        "ended": state.reason,
        "process": state.process,
        "tokens": state.tokens,
        "seconds": round(state.seconds, 1),
        "held_out": {name: round(value, 4) for found in best[-1:] for name, value in found.items()},
    }


def settings(options: Options) -> dict[str, Any]:
    """Those of the options that a checkpoint must agree with."""
    kept = asdict(options)
    for name in FREE:
        kept.pop(name, None)
    return kept


def fingerprint(rows: Rows) -> str:
    """Of what is learnt: tokens, where texts end, and which of them count."""
    found = hashlib.sha256()
    for tensor in (rows.ids, rows.segments, rows.taught):
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()[:16]


def provenance(options: Options, rows: Rows, held_out: Rows) -> dict[str, Any]:
    """Command, data, versions and machine."""
    return {
        **surroundings("draftproof"),
        "seed": options.seed,
        "target": options.target,
        "data": [str(source) for source in options.data],
        "data_sha256": fingerprint(rows),
        "train_tokens": rows.tokens,
        "held_out_tokens": held_out.tokens,
    }


def surroundings(program: str) -> dict[str, Any]:
    """Command, date, machine and versions."""
    return {
        "command": shlex.join([*program.split(), *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": clock.machine(),
        **{name: version(name) for name in ("draftproof", "torch", "transformers")},
    }
