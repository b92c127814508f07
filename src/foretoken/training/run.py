"""`foretoken train medusa` from options to heads: training, calibration, service, card."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch

from foretoken import checkpoints
from foretoken.bench import timing
from foretoken.bench.compare import pass_seconds
from foretoken.proposers.medusa import Medusa as Proposer
from foretoken.training import calibrate, card, prepare, served, trainer
from foretoken.training.capture import Captured, capture
from foretoken.training.data import Document
from foretoken.training.medusa import Medusa, check
from foretoken.training.prepare import Options, Watch
from foretoken.training.rows import Rows, Stream, pack
from foretoken.training.trainer import Batch

EVALUATED = 32_768  # held-out tokens of an evaluation


@dataclass
class Report:
    """What came of it; lies beside the heads as `provenance.json`."""

    heads: int
    parameters: int
    steps: int
    ended: str  # why: "steps", "no better", or "interrupted"
    process: int  # all below is of process 0 alone
    tokens: int  # learnt from, repetitions counted
    seconds: float
    held_out: dict[str, float] = field(default_factory=dict)  # at the best step
    tree: int = 0  # nodes
    expected: float = 0.0  # tokens per step, if steps began anywhere
    predicted: float = 0.0  # on the target's own texts
    served: float = 0.0  # by the engine, on the same prompts
    served_tokens: int = 0
    accuracies: list[list[float]] = field(default_factory=list)


def heads(options: Options, watch: Watch) -> Report:
    """Heads for a target, written to `options.out`; raises `ValueError` and `OSError`.

    If `watch` asks to stop there is a checkpoint and the report says "interrupted".
    """
    watch.phase("loading")
    target, tokenizer = prepare.target(options)
    device = target.device
    learnt, held_out = prepare.documents(options, target, tokenizer, watch)
    length = prepare.row_length(options, target)
    rows, held = pack(learnt, length), pack(held_out, length)
    options.out.mkdir(parents=True, exist_ok=True)
    made = prepare.heads(options, target)
    check(target, held[0])
    length = rows.ids.shape[1]
    plan = prepare.plan(options, target, rows, length)
    watch.line(prepare.memory(options, target, made, plan, length))
    if options.joint:
        target = prepare.learning(target, options.full)
    else:
        target.requires_grad_(False)
    evaluated = [_batch(held, i) for i in range(min(len(held), max(1, EVALUATED // length)))]
    recipe = Medusa(
        target,
        made.to(device=device, dtype=torch.float32),
        evaluated,
        rate=options.rate or (2e-3 if options.joint else 1e-3),
        joint=options.joint,
        nodes=options.nodes,
    )
    source: Any = rows
    if options.capture:
        folder = options.out / f"states-{prepare.fingerprint(rows)}"
        capture(target, rows, folder, watch)
        source = Captured(rows, folder)
    watch.phase("training")
    state = trainer.train(
        recipe,
        lambda count: Stream(source, count, options.seed),
        plan,
        options.out,
        about={"options": prepare.settings(options), "data": prepare.fingerprint(rows)},
        resume=options.resume,
        cpu=device.type == "cpu",
        show=lambda state, shown: watch.step(state, shown, plan),
        stopped=watch.stopped,
    )
    report = Report(
        made.heads,
        sum(p.numel() for p in made.parameters()),
        state.step,
        state.reason,
        state.process,
        state.tokens,
        round(state.seconds, 1),
    )
    if state.reason == "interrupted" or state.process:
        return report
    best = [found for found in state.evaluations if found["step"] == state.best_step]
    report.held_out = {name: round(value, 4) for name, value in best[-1].items()} if best else {}
    if options.joint:
        target = prepare.learnt(target, options.out / "target", tokenizer)
        made.target = str(options.out / "target")
    _serve(options, Medusa(target, made, []), tokenizer, held_out, report, watch)
    card.write(options.out, report, state, _provenance(options, rows, held))
    trainer.clear(options.out)
    return report


def _whole(ids: Sequence[int]) -> Batch:
    """A text as a row of its own."""
    return _batch(pack([Document(ids)], len(ids)), 0)


def _batch(rows: Any, i: int) -> Batch:
    return {name: tensor[None] for name, tensor in rows[i].items()}


def _serve(
    options: Options,
    recipe: Medusa,
    tokenizer: Any,
    held_out: Sequence[Document],
    report: Report,
    watch: Watch,
) -> None:
    """The tree, from one half of the target's own texts; on the other half, what it gives.

    What is predicted there by counting is then served by the engine.
    """
    watch.phase("the target writes what heads are judged by")
    made, target = recipe.heads, recipe.target
    device = target.device
    with served.engine(target.eval(), tokenizer) as llm:
        size = min(128, llm.max_length // 2)
        prompts = served.prompts_of(held_out, 2 * -(-options.calibration_tokens // size), size)
        done = served.written(llm, prompts, size, tell=watch.share)
        sequences = []
        half = target.dtype != torch.float32
        for ids, one in zip(prompts, done, strict=True):
            batch = {k: t.to(device) for k, t in _whole([*ids, *one.token_ids]).items()}
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                sequences.append(recipe.ranks(batch)[len(ids) - 1 : -1])
        cost = pass_seconds(llm.runner, size)
        seconds = served.heads_seconds(llm, made)
        found = calibrate.calibrated(
            calibrate.whole(torch.cat(sequences[::2])), cost, seconds, options.nodes
        )
        made.accuracies, made.tree = found.accuracies, found.tree
        checkpoints.save(options.out, made.to(target.dtype))
        report.tree, report.expected = len(found.tree), round(found.expected, 4)
        report.accuracies = found.accuracies
        report.predicted = round(calibrate.replay(sequences[1::2], found.tree), 4)
        watch.phase("the engine serves")
        done = served.written(
            llm, prompts[1::2], size, speculate=Proposer(options.out), tell=watch.share
        )
        report.served = round(served.tokens_per_step(done), 4)
        report.served_tokens = sum(one.stats.tokens for one in done)


def _provenance(options: Options, rows: Rows, held: Rows) -> dict[str, Any]:
    return {
        "command": shlex.join(["foretoken", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seed": options.seed,
        "target": options.target,
        "data": [str(source) for source in options.data],
        "data_sha256": prepare.fingerprint(rows),
        "train_tokens": rows.tokens,
        "held_out_tokens": held.tokens,
        "machine": timing.machine(),
        **{name: version(name) for name in ("foretoken", "torch", "transformers")},
    }
