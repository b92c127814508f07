"""What stands before training: options, documents, target, heads, plan, and what it will take."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from foretoken import checkpoints
from foretoken.runners import loading
from foretoken.text import load_tokenizer
from foretoken.training import data as texts
from foretoken.training import served
from foretoken.training.losses import ELEMENTS
from foretoken.training.medusa import fresh
from foretoken.training.rows import Rows
from foretoken.training.trainer import Plan, State

CONTEXT = 512  # tokens of a row, unless target or data have less
STEP_TOKENS = 8192  # of a step
EPOCHS = 2  # where the steps are not given
LORA: dict[str, Any] = {"r": 32, "lora_alpha": 16, "lora_dropout": 0.05}  # the paper's


@dataclass(frozen=True)
class Options:
    """What is trained, on what, and for how long."""

    target: str  # hub id or folder, as it is written down
    source: str  # where it lies
    data: Sequence[str]
    out: Path
    held_out: Sequence[str] = ()  # a twentieth of the data unless given
    heads: int = 5
    layers: int = 1
    own_head: bool = False
    start: str | None = None  # heads to go on from
    joint: bool = False
    full: bool = False  # joint: all of the target, not adapters
    steps: int | None = None
    rows: int | None = None  # of a step
    length: int | None = None
    rate: float | None = None
    accumulate: int = 1
    limit: int | None = None  # tokens of data
    self_distill: bool = False
    capture: bool = False
    resume: bool = False
    calibration_tokens: int = 20_000
    nodes: int = 32  # of the tree, at most
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
    """The model and its tokenizer."""
    if options.threads:
        torch.set_num_threads(options.threads)
    foreign: dict[str, Any] = {"trust_remote_code": options.trust_remote_code}
    model: Any = loading.load(
        options.source,
        dtype=loading.pick_dtype(options.dtype),
        device=loading.pick_device(options.device),
        **foreign,
    )
    return model, load_tokenizer(options.source, None, foreign)


def documents(options: Options, target: Any, tokenizer: Any, watch: Watch) -> tuple[Any, Any]:
    """What is learnt and what is held out; the target's own answers, if those are asked for."""
    watch.phase("reading the data")
    if tokenizer is None:
        raise ValueError(f"{options.target} comes without a tokenizer: save it beside the model")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        found = texts.documents(options.data, tokenizer, limit=options.limit)
    for warning in told:  # of what was left out
        watch.line(f"warning: {warning.message}")
    size = target.get_output_embeddings().weight.shape[0]
    worst = max(max(document.ids, default=0) for document in found)
    if worst >= size:
        raise ValueError(
            f"the tokenizer makes id {worst} of the data and the target knows {size}: use the "
            "target's own tokenizer"
        )
    if sum(len(document.ids) for document in found) < options.heads + 2:
        raise ValueError(
            f"the data has less than the {options.heads + 2} tokens that {options.heads} heads "
            "need: give more"
        )
    if options.held_out:
        learnt, held_out = found, texts.documents(options.held_out, tokenizer)
    else:
        learnt, held_out = texts.split(found, seed=options.seed)
    if not options.self_distill:
        return learnt, held_out
    watch.phase("the target writes")
    with served.engine(target, tokenizer) as llm:
        length = row_length(options, target)
        return served.own_texts(llm, learnt, length, options.limit, watch.share), held_out


def row_length(options: Options, target: Any) -> int:
    """Tokens of a row at most; packing takes fewer where there are fewer."""
    most = getattr(target.config.get_text_config(), "max_position_embeddings", None) or CONTEXT
    if options.length is not None and not options.heads + 2 <= options.length <= most:
        raise ValueError(
            f"length {options.length} must be from {options.heads + 2} to the target's {most}"
        )
    return min(options.length or CONTEXT, int(most))


def heads(options: Options, target: Any) -> checkpoints.Heads:
    if options.start is None:
        made = fresh(target, options.heads, options.layers, options.own_head)
        made.target = options.target
        return made
    made = checkpoints.load(options.start)
    weight = target.get_output_embeddings().weight
    if (made.vocab_size, made.hidden_size) != tuple(weight.shape):
        raise ValueError(f"the heads in {options.start} are not of this target: drop them")
    return made


def plan(options: Options, target: Any, rows: Rows, length: int) -> Plan:
    """As much as there is data for, and 300 steps at least."""
    count = options.rows or max(1, min(STEP_TOKENS // length, len(rows)))
    count = -(-count // options.accumulate) * options.accumulate
    steps = options.steps or max(300, EPOCHS * len(rows) // count)
    half = target.dtype != torch.float32
    return Plan(
        steps,
        count,
        options.accumulate,
        warmup=min(40, steps // 10),
        every=max(1, min(250, steps // 6)),
        seed=options.seed,
        precision="bf16" if half else "no",
    )


def memory(options: Options, target: Any, made: checkpoints.Heads, plan: Plan, length: int) -> str:
    """What training will take, said before it begins."""
    weights = sum(p.numel() * p.element_size() for p in target.parameters())
    learnt = sum(p.numel() for p in made.parameters())
    if options.joint and options.full:
        learnt += sum(p.numel() for p in target.parameters())
    config = target.config.get_text_config()
    tokens = plan.rows // plan.accumulate * length
    kept = config.num_hidden_layers * 16 if options.joint else 4 + 4 * made.heads
    whole = tokens * made.vocab_size <= ELEMENTS  # then the logits of all heads are there at once
    logits = tokens * made.vocab_size * made.heads if whole else ELEMENTS
    activations = 4 * tokens * kept * config.hidden_size + 12 * logits
    gb = [x / 1e9 for x in (weights, 16 * learnt, activations)]
    return (
        f"memory: about {sum(gb):.2f} GB (target {gb[0]:.2f}, what is trained with gradients and "
        f"moments {gb[1]:.2f}, activations {gb[2]:.2f})"
    )


def learning(target: Any, full: bool) -> Any:
    """The target with what learns beside the heads: adapters, or all of it."""
    if full:
        return target.float().requires_grad_(True)
    try:
        import peft
    except ImportError:
        raise ValueError(
            "adapters need peft: pip install 'foretoken[train]', or add --full"
        ) from None
    return peft.get_peft_model(target, peft.LoraConfig(target_modules="all-linear", **LORA))


def learnt(target: Any, folder: Path, tokenizer: Any) -> Any:
    """The target as it is after training, written to `folder` in its own precision."""
    merged = target.merge_and_unload() if hasattr(target, "merge_and_unload") else target
    merged = merged.to(getattr(merged.config, "dtype", None) or torch.float32)
    merged.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return merged.eval()


def settings(options: Options) -> dict[str, Any]:
    """Those of the options that a checkpoint must agree with."""
    kept = asdict(options)
    for name in ("out", "source", "resume", "calibration_tokens", "threads", "nodes"):
        kept.pop(name)
    return kept


def fingerprint(rows: Rows) -> str:
    return hashlib.sha256(rows.ids.numpy().tobytes()).hexdigest()[:16]
