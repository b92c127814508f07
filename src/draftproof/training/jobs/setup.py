"""What stands before every training: the target, the length of rows, the plan."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import default_collate

from draftproof.out_folders import check_folder
from draftproof.runners import choice, encoders, half, loading
from draftproof.training import checkpoint
from draftproof.training.data import sources
from draftproof.training.data.pairs import PairRows
from draftproof.training.data.rows import Rows, batch_of
from draftproof.training.trainer import Batch, Plan
from draftproof.vocabularies import load_tokenizer

if TYPE_CHECKING:
    from draftproof.training.jobs.job import Options

CONTEXT = 512  # tokens of a row, unless target or data have less
STEP_TOKENS = 8192  # of a step
EPOCHS = 2  # where the steps are not given
EVALUATED = 32_768  # held-out tokens of an evaluation
TOGETHER = 16  # pairs of a batch of them
ANSWERS = "written.json"  # what the target wrote,
PARTS = "written.jsonl", "written_held_out.jsonl"  # and what it has written so far


def target(options: Options) -> tuple[Any, Any]:
    """The model and its tokenizer; `ValueError` at once if training could not begin."""
    if find_spec("accelerate") is None:
        raise ValueError("training needs accelerate: pip install 'draftproof[train]'")
    if options.out.resolve() == Path(options.source).resolve():
        raise ValueError(f"{options.out} is the model itself: write to another folder")
    if options.dtype in choice.QUANTISED:
        raise ValueError(
            f"--dtype {options.dtype} is not trained on: drop it; a draft or heads of the model in "
            "bfloat16 serve it in any precision (`train medusa --quantize int8` needs less memory)"
        )
    check_folder(options.out)
    if not options.overwrite:
        checkpoint.check_unfinished(options.out, options.resume, ANSWERS, *PARTS)
        checkpoint.check_result(options.out, options.resume)
    if options.threads:
        torch.set_num_threads(options.threads)
    foreign: dict[str, Any] = {"trust_remote_code": options.trust_remote_code}
    device = loading.pick_device(options.device)
    if device.type == "cuda" and device.index is None:  # of several processes each has its own
        device = torch.device("cuda", process())
    if device.type == "cuda":
        torch.cuda.set_device(device)  # accelerate trains on that one
    dtype = loading.pick_dtype(options.dtype)
    pairs = encoders.is_one(options.source, **foreign)
    own = pairs if options.self_distill is None else options.self_distill
    sources.look([*options.data, *options.held_out], unanswered=own, pairs=pairs)
    model: Any = loaded(options.source, dtype=dtype, device=device, **foreign)
    return model, load_tokenizer(options.source, None, foreign)


def loaded(name: str, **options: Any) -> Any:
    """A decoder or an encoder-decoder by name or folder, in memory."""
    trust = {"trust_remote_code": options["trust_remote_code"]}
    return (encoders if encoders.is_one(name, **trust) else loading).load(name, **options)


def process() -> int:
    """The number of this process among those that train on this machine."""
    return torch.distributed.get_node_local_rank(fallback_rank=0)


def processes() -> int:
    """How many train together; those who start them say it in the environment."""
    from accelerate.utils import get_int_from_env

    return max(1, int(get_int_from_env(("WORLD_SIZE",), 1)))


def clear(folder: Path, *more: Path) -> None:
    """Remove what a finished training needs no more, and `more` folders."""
    checkpoint.clear(folder)
    for other in (*more, *folder.glob("states-*")):  # of other data too
        shutil.rmtree(other, ignore_errors=True)
    for name in (ANSWERS, *PARTS):
        (folder / name).unlink(missing_ok=True)


def row_length(options: Options, models: Sequence[Any], least: int) -> int:
    """Tokens of a row at most; packing takes fewer where there are fewer.

    models: those that read rows, the target first.
    """
    most = context(models[0]) or CONTEXT
    if options.length is not None and not least <= options.length <= most:
        raise ValueError(f"length {options.length} must be from {least} to the target's {most}")
    length = min(options.length or CONTEXT, most)
    for model in models[1:]:
        if (reads := context(model) or length) < length:
            raise ValueError(
                f"the draft reads {reads} tokens and rows have {length}: give --length"
            )
    return length


def context(model: Any) -> int | None:
    """How many tokens a model says that it reads."""
    said = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if said is None else int(said)


def plan(options: Options, target: Any, rows: Rows, length: int) -> Plan:
    """As much as there is data for, and 300 steps at least."""
    wide = length + (rows.read.shape[1] if isinstance(rows, PairRows) else 0)
    count = options.rows or max(1, min(STEP_TOKENS // wide, len(rows)))
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
        precision="bf16" if target.dtype.itemsize == 2 and not half.slow(target) else "no",
    )


def evaluation_batches(held_out: Rows) -> list[Batch]:
    """What evaluations run on."""
    count = max(1, EVALUATED // held_out.ids.shape[1])
    numbers = range(min(len(held_out), count))
    if not isinstance(held_out, PairRows):
        return [batch_of(held_out, at) for at in numbers]
    parts = [numbers[at : at + TOGETHER] for at in numbers[::TOGETHER]]
    return [default_collate([held_out[at] for at in part]) for part in parts]
