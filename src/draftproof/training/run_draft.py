"""`draftproof train draft` from options to a model: its start, training, service, card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from draftproof.drafting.base import Proposer
from draftproof.drafting.beside import PADDING
from draftproof.heads import files
from draftproof.llm import LLM
from draftproof.proposers.draft import DraftModel
from draftproof.proposers.early_exit import EarlyExit
from draftproof.runners import loading
from draftproof.text import end_ids, load_tokenizer
from draftproof.training import card_draft, material, medusa, prepare, served
from draftproof.training.draft import (
    DEPTH,
    LOSSES,
    TEMPERATURES,
    TEXT,
    Draft,
    chances,
    replay,
    usual_rate,
)
from draftproof.training.exit import Exit
from draftproof.training.files import writing
from draftproof.training.losses import ELEMENTS
from draftproof.training.prepare import Watch
from draftproof.training.rows import pack
from draftproof.training.states import check
from draftproof.training.student import chosen, student
from draftproof.training.trainer import Plan

BLOCKS = 4
AGAIN = 0.3  # of the learning rate, where training goes on from a draft (docs/log.md)


@dataclass(frozen=True)
class Options(prepare.Options):
    """What is trained, on what, and for how long.

    One of `size`, `layers`, `exit_layer` and `start` is given.
    """

    size: str | None = None  # layers, or layers x width
    layers: str | None = None  # numbers of layers
    exit_layer: int | None = None  # a head on that layer of the target, not a model
    blocks: int | None = None  # of that head; BLOCKS
    loss: str = "forward-kl"
    on_policy: float = 0.0


@dataclass
class Served:
    """What the engine gave at one temperature, beside what was predicted for the same texts.

    A chain of `DEPTH` tokens, the rejection rule; alpha: acceptance of the first of them.
    """

    temperature: float
    alpha: float
    tokens_per_step: float
    predicted_alpha: float
    predicted: float  # tokens per step
    tokens: int


@dataclass(kw_only=True)
class Report(prepare.Trained):
    """What came of it; lies beside the draft in `provenance.json`."""

    layers: int
    width: int
    parameters: int
    exit: bool  # a head on so many layers of the target
    served: list[Served] = field(default_factory=list)


def draft(options: Options, watch: Watch) -> Report:
    """A draft for a target, written to `options.out`; raises `ValueError` and `OSError`.

    If `watch` asks to stop there is a checkpoint and the report says "interrupted".
    """
    _refuse(options)
    watch.phase("loading")
    target, tokenizer = prepare.target(options)
    target.requires_grad_(False)
    made = _made(options, target, tokenizer)
    on_layer = isinstance(made, Exit)
    room = served.tried(target, tokenizer, EarlyExit(heads=made.heads) if on_layer else None)
    length = prepare.row_length(options, target, 2)
    most = getattr(made.config.get_text_config(), "max_position_embeddings", None) or length
    if most < length:
        raise ValueError(f"the draft reads {most} tokens and rows have {length}: give --length")
    texts = material.gathered(options, target, tokenizer, watch, 2, length)
    prompts = served.prompts_of(texts.asked, -(-options.calibration_tokens // room), room)
    rows, held = pack(texts.learnt, length), pack(texts.held_out, length)
    options.out.mkdir(parents=True, exist_ok=True)
    for model in (target,) if on_layer else (target, made):
        check(model, held[0])
    length = rows.ids.shape[1]
    plan = prepare.plan(options, target, rows, length)
    watch.line(_memory(target, made, plan, length))
    recipe = Draft(
        target,
        made,
        prepare.evaluated(held),
        loss=options.loss,
        rate=_rate(options, made) if options.rate is None else options.rate,
        on_policy=options.on_policy,
        ends=end_ids(target, tokenizer),
        seed=options.seed,
    )
    state = prepare.trained(recipe, rows, rows, plan, options, target.device, watch)
    config = made.config.get_text_config()
    report = Report(
        layers=made.layers if on_layer else config.num_hidden_layers,
        exit=on_layer,
        width=config.hidden_size,
        parameters=sum(p.numel() for p in made.parameters()),
        **prepare.told(state),
    )
    if state.reason == "interrupted" or state.process:
        return report
    made.to(target.dtype).eval()
    with writing(options.out / "model.safetensors"):
        if on_layer:
            files.save(options.out, made.heads)
        else:
            made.save_pretrained(options.out)
            tokenizer.save_pretrained(options.out)
    for file in options.out.glob("*.safetensors"):
        file.chmod(0o644)  # they are written for their owner alone
    _serve(options, recipe, tokenizer, prompts, room, report, watch)
    card_draft.write(options.out, report, state, prepare.provenance(options, rows, held))
    prepare.clear(options.out)
    return report


def _refuse(options: Options) -> None:
    if [options.size, options.layers, options.start, options.exit_layer].count(None) != 3:
        raise ValueError(
            "what a draft starts from is missing, or said twice: give one of --size, --layers, "
            "--exit-layer and --start"
        )
    if options.blocks is not None and options.exit_layer is None:
        raise ValueError("--blocks are of the head of --exit-layer: add that, or drop them")
    if options.on_policy and options.exit_layer is not None:
        raise ValueError("a head on a layer does not write by itself: drop --on-policy")
    if options.loss not in LOSSES:
        raise ValueError(f"loss {options.loss!r} is unknown: use {', '.join(LOSSES)}")
    if not 0 <= options.on_policy <= 1:
        raise ValueError(f"--on-policy is {options.on_policy}, but must be between 0 and 1")
    if options.on_policy and options.loss == TEXT:
        raise ValueError("what the draft wrote itself teaches nothing by --loss text: drop one")


def _made(options: Options, target: Any, tokenizer: Any) -> Any:
    """The draft before training, in fp32 on the target's device."""
    if options.exit_layer is not None:
        heads = medusa.fresh(target, 1, options.blocks or BLOCKS, exit=options.exit_layer)
        heads.target = options.target
        return Exit(target, heads)
    if options.start is None:
        depth = int(target.config.get_text_config().num_hidden_layers)
        layers, width = chosen(options.size, options.layers, depth)
        return student(target, layers, width, options.seed)
    foreign: dict[str, Any] = {"trust_remote_code": options.trust_remote_code}
    made: Any = loading.load(options.start, dtype=torch.float32, device=target.device, **foreign)
    own = load_tokenizer(options.start, None, foreign)
    sizes = [model.get_output_embeddings().weight.shape[0] for model in (target, made)]
    if own is None or tokenizer is None:  # then the sizes are all there is to compare
        same = sizes[0] == sizes[1]
    else:
        same = own.get_vocab() == tokenizer.get_vocab() and abs(sizes[0] - sizes[1]) < PADDING
    if not same:
        raise ValueError(
            f"the draft in {options.start} has another vocabulary than the target: start from one "
            "of the target's family, or use --size"
        )
    return made


def _rate(options: Options, made: Any) -> float:
    """The peak learning rate unless one is given; weights that are trained are shaken by more."""
    if isinstance(made, Exit):
        return medusa.usual_rate(made.heads)
    fresh_rate = usual_rate(made.config.get_text_config().hidden_size)
    return fresh_rate if options.start is None else fresh_rate * AGAIN


def _memory(target: Any, made: Any, plan: Plan, length: int) -> str:
    """What training will take, said before it begins."""
    tokens = plan.rows // plan.accumulate * length
    weights = sum(p.numel() * p.element_size() for p in target.parameters())
    theirs, ours = (model.config.get_text_config() for model in (target, made))
    kept = theirs.num_hidden_layers * theirs.hidden_size * target.dtype.itemsize
    learning = made.heads.layers if isinstance(made, Exit) else 4 * ours.num_hidden_layers
    kept += 16 * learning * ours.hidden_size
    logits = min(tokens * ours.vocab_size, ELEMENTS // 2)
    learnt = 16 * sum(p.numel() for p in made.parameters())
    gb = [x / 1e9 for x in (weights, learnt, tokens * kept + 32 * logits)]
    return (
        f"memory: about {sum(gb):.2f} GB (target {gb[0]:.2f}, the draft with gradients and moments "
        f"{gb[1]:.2f}, activations {gb[2]:.2f})"
    )


def _serve(
    options: Options,
    recipe: Draft,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    room: int,
    report: Report,
    watch: Watch,
) -> None:
    """What the draft gives in the engine on held-out prompts, and what these texts predict."""
    with served.engine(recipe.target, tokenizer) as base, LLM(base, rule="rejection") as llm:
        most = [min(room, llm.max_length - len(ids)) for ids in prompts]
        for temperature in TEMPERATURES:
            watch.phase(f"the engine serves at temperature {temperature:g}")
            proposer = _proposer(options)
            done = served.written(
                llm, prompts, room, (temperature,), speculate=proposer, tell=watch.share
            )
            served.told(done, watch.line)
            texts = [
                chances(recipe, [*ids, *one.token_ids], len(ids), temperature)
                for ids, one in zip(prompts, done, strict=True)
            ]
            predicted, predicted_alpha = replay(texts, most, at_once=options.exit_layer is None)
            found = Served(
                temperature,
                round(_first_accepted(done), 4),
                round(served.tokens_per_step(done), 4),
                round(predicted_alpha, 4),
                round(predicted, 4),
                sum(one.stats.tokens for one in done),
            )
            report.served.append(found)
            served.compared(found.predicted, found.tokens_per_step, found.tokens, watch.line)


def _proposer(options: Options) -> Proposer:
    """The draft as it is judged: a chain, whatever it thinks of it."""
    if options.exit_layer is None:
        return DraftModel(options.out, DEPTH, min_confidence=0.0, branch=1)
    return EarlyExit(None, DEPTH, min_confidence=0.0, branch=1, heads=options.out)


def _first_accepted(done: Sequence[Any]) -> float:
    """Of the steps that drafted, how many accepted their first token."""
    offered = sum(sum(one.stats.offered_per_position[:1]) for one in done)
    return sum(sum(one.stats.accepted_per_position[:1]) for one in done) / max(1, offered)
