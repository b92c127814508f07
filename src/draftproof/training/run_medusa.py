"""`draftproof train medusa` from options to heads: training, calibration, service, card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from draftproof.clock import pass_seconds
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.proposers.medusa import Medusa as Proposer
from draftproof.training import calibrate, card_medusa, joint, material, prepare, served
from draftproof.training.capture import Captured, capture, key
from draftproof.training.files import writing
from draftproof.training.losses import ELEMENTS, at_once
from draftproof.training.medusa import Medusa, fresh
from draftproof.training.prepare import Watch
from draftproof.training.quantised import quantise
from draftproof.training.rows import pack
from draftproof.training.states import check, on
from draftproof.training.trainer import Plan

EXPORTS = {"original": files.export_original, "vllm": files.export_vllm}


@dataclass(frozen=True)
class Options(prepare.Options):
    """What is trained, on what, and for how long."""

    heads: int = 5
    layers: int = 1
    own_head: bool = False
    quantize: str | None = None  # the frozen target, "int8"
    joint: bool = False
    full: bool = False  # joint: all of the target, not adapters
    capture: bool = False
    nodes: int = 32  # of the tree, at most
    export: Sequence[str] = ()  # of `EXPORTS`


@dataclass(kw_only=True)
class Report(prepare.Trained):
    """What came of it; lies beside the heads as `provenance.json`."""

    heads: int
    parameters: int
    target: str  # where it learnt along, what it is now
    tree: int = 0  # nodes
    expected: float = 0.0  # tokens per step, on the texts that the tree was made from
    predicted: float = 0.0  # on the target's own texts
    served: float = 0.0  # by the engine, on the same prompts
    served_tokens: int = 0
    accuracies: list[list[float]] = field(default_factory=list)
    target_loss: list[float] = field(default_factory=list)  # joint: held out, before and after


def heads(options: Options, watch: Watch) -> Report:
    """Heads for a target, written to `options.out`; raises `ValueError` and `OSError`.

    If `watch` asks to stop there is a checkpoint and the report says "interrupted".
    """
    _refuse(options)
    watch.phase("loading")
    target, tokenizer = prepare.target(options)
    if options.quantize is not None:
        quantise(target, options.quantize)
    device = target.device
    made = _heads(options, target)
    least = made.heads + 2
    length = prepare.row_length(options, target, least)
    room = served.tried(target, tokenizer, Proposer(made))
    texts = material.gathered(options, target, tokenizer, watch, least, length)
    prompts = served.prompts_of(texts.asked, 2 * -(-options.calibration_tokens // room), room)
    rows, held = pack(texts.learnt, length), pack(texts.held_out, length)
    evaluated = prepare.evaluated(held)
    options.out.mkdir(parents=True, exist_ok=True)
    check(target, held[0])
    length = rows.ids.shape[1]
    plan = prepare.plan(options, target, rows, length)
    before, judged = 0.0, prepare.evaluated(pack(texts.asked, length))
    if options.joint:
        before = joint.loss(target, judged)
        target = joint.learning(target, options.full, options.seed)
    else:
        target.requires_grad_(False)
    watch.line(_memory(options, target, made, plan, length))
    recipe = Medusa(
        target,
        made.to(device=device, dtype=torch.float32),
        evaluated,
        rate=options.rate,
        joint=options.joint,
        nodes=options.nodes,
    )
    source: Any = rows
    kept = []
    if options.capture:
        kept = [options.out / f"states-{key(target, rows)}"]
        capture(target, rows, kept[0], watch)
        source = Captured(rows, kept[0])
    state = prepare.trained(recipe, source, rows, plan, options, device, watch)
    parameters = sum(p.numel() for p in made.parameters())
    report = Report(
        heads=made.heads, parameters=parameters, target=options.target, **prepare.told(state)
    )
    if state.reason == "interrupted" or state.process:
        return report
    if options.joint:
        target = joint.learnt(target, options.out / "target", tokenizer)
        made.target = report.target = str(options.out / "target")
    made.to(target.dtype)  # as it serves it is judged
    _save(options, made)  # before anything else can fail
    if options.joint:
        report.target_loss = [before, joint.loss(target, judged)]
    _serve(options, Medusa(target, made, []), tokenizer, prompts, room, report, watch)
    for name in options.export:  # where heads share the LM head, others are given it
        with writing(options.out / name):
            EXPORTS[name](options.out / name, made, target.get_output_embeddings().weight.detach())
    card_medusa.write(options.out, report, state, prepare.provenance(options, rows, held))
    prepare.clear(options.out, *kept)
    return report


def _refuse(options: Options) -> None:
    if options.full and not options.joint:
        raise ValueError("--full is for --joint: add that")
    if options.joint and options.quantize is not None:
        raise ValueError("--quantize is for a target that does not learn: drop it, or --joint")
    if options.joint and options.capture:
        raise ValueError("--joint changes the states that --capture keeps: drop one")
    for name in options.export:
        if name not in EXPORTS:
            raise ValueError(f"export {name!r} is unknown: use {', '.join(EXPORTS)}")


def _heads(options: Options, target: Any) -> Heads:
    if options.start is None:
        made = fresh(target, options.heads, options.layers, options.own_head)
        made.target = options.target
        return made
    made = files.load(options.start)
    if made.exit is not None:
        raise ValueError(f"{options.start} reads layer {made.exit}: start from Medusa heads")
    weight = target.get_output_embeddings().weight
    if (made.vocab_size, made.hidden_size) != tuple(weight.shape):
        raise ValueError(f"the heads in {options.start} are not of this target: drop them")
    return made


def _memory(options: Options, target: Any, made: Heads, plan: Plan, length: int) -> str:
    """What training will take, said before it begins."""
    frozen = [p for p in target.parameters() if not p.requires_grad] + [*target.buffers()]
    weights = sum(p.numel() * p.element_size() for p in frozen)
    learnt = sum(p.numel() for p in [*made.parameters(), *target.parameters()] if p.requires_grad)
    config = target.config.get_text_config()
    tokens = plan.rows // plan.accumulate * length
    kept = config.num_hidden_layers * 16 if options.joint else 4 + 4 * made.heads
    logits = min(tokens, at_once(made.vocab_size, target.device)) * made.vocab_size
    if options.joint or made.outputs is not None:
        whole = tokens * made.vocab_size <= ELEMENTS  # then those of all heads are there at once
        logits = tokens * made.vocab_size * made.heads if whole else ELEMENTS
    activations = 4 * tokens * kept * config.hidden_size + 12 * logits
    gb = [x / 1e9 for x in (weights, 16 * learnt, activations)]
    return (
        f"memory: about {sum(gb):.2f} GB (target {gb[0]:.2f}, what is trained with gradients and "
        f"moments {gb[1]:.2f}, activations {gb[2]:.2f})"
    )


def _save(options: Options, made: Heads) -> None:
    with writing(options.out / "model.safetensors"):
        files.save(options.out, made)


def _serve(
    options: Options,
    recipe: Medusa,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    room: int,
    report: Report,
    watch: Watch,
) -> None:
    """The tree, from one half of the target's own texts; on the other half, what it gives.

    What is predicted there by counting is then served by the engine.
    """
    watch.phase("the target writes what heads are judged by")
    made, target = recipe.heads, recipe.target
    with served.engine(target.eval(), tokenizer) as llm:
        done = served.written(llm, prompts, room, tell=watch.share)
        sequences = []
        for ids, one in zip(prompts, done, strict=True):
            batch = on(prepare.whole([*ids, *one.token_ids]), target.device)
            sequences.append(recipe.ranks(batch)[len(ids) - 1 : -1])
        cost = pass_seconds(llm.runner, room)
        seconds = served.heads_seconds(llm, made)
        judged = slice(1 if len(prompts) > 1 else 0, None, 2)  # a single text serves for both
        found = calibrate.calibrated(sequences[::2], cost, seconds, options.nodes)
        made.accuracies, made.tree = found.accuracies, found.tree
        _save(options, made)
        report.tree, report.expected = len(found.tree), round(found.expected, 4)
        report.accuracies = found.accuracies
        report.predicted = round(calibrate.replay(sequences[judged], found.tree)[0], 4)
        watch.phase("the engine serves")
        proposer = Proposer(options.out)
        done = served.written(llm, prompts[judged], room, speculate=proposer, tell=watch.share)
        served.told(done, watch.line)
        report.served = round(served.tokens_per_step(done), 4)
        report.served_tokens = sum(one.stats.tokens for one in done)
        served.compared(report.predicted, report.served, report.served_tokens, watch.line)
