"""`draftproof train draft`: a small model, or a head on a layer, distilled from the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draftproof.drafting.base import Proposer
from draftproof.drafting.beside import stranger
from draftproof.heads import files
from draftproof.llm import LLM
from draftproof.out_folders import writing
from draftproof.proposers.draft import DraftModel
from draftproof.proposers.early_exit import EarlyExit
from draftproof.runners import encoders
from draftproof.training.jobs import job, served, setup
from draftproof.training.jobs.card import Card
from draftproof.training.jobs.draft_report import Report, Served, card
from draftproof.training.jobs.job import Job
from draftproof.training.recipes import few_tokens, medusa
from draftproof.training.recipes.draft import (
    DEPTH,
    LOSSES,
    TEMPERATURES,
    TEXT,
    Draft,
    chances,
    replay,
    usual_rate,
)
from draftproof.training.recipes.exit import Exit
from draftproof.training.recipes.few_tokens import FewTokens
from draftproof.training.recipes.losses import ELEMENTS
from draftproof.training.recipes.student import depth_of, layers_and_width, student, written
from draftproof.training.trainer import Batch, Plan
from draftproof.vocabularies import end_ids, load_tokenizer

BLOCKS = 4
AGAIN = 0.3  # of the learning rate, where training goes on from a draft (docs/log.md)


@dataclass(frozen=True)
class Options(job.Options):
    """What is trained, on what, and for how long.

    One of `size`, `layers`, `exit_layer` and `start` is given.
    """

    size: str | None = None  # layers, or layers x width
    layers: str | None = None  # numbers of layers
    exit_layer: int | None = None  # a head on that layer of the target, not a model
    blocks: int | None = None  # of that head; BLOCKS
    draft_vocabulary: int | None = None  # tokens that it writes; all unless given
    loss: str = "forward-kl"
    on_policy: float = 0.0

    def check(self) -> None:
        """See `job.Options.check`."""
        if [self.size, self.layers, self.start, self.exit_layer].count(None) != 3:
            raise ValueError(
                "what a draft starts from is missing, or said twice: give one of --size, "
                "--layers, --exit-layer and --start"
            )
        if self.size is not None or self.layers is not None:
            written(self.size, self.layers)
        if self.blocks is not None and self.exit_layer is None:
            raise ValueError("--blocks are of the head of --exit-layer: add that, or drop them")
        if self.on_policy and self.exit_layer is not None:
            raise ValueError("a head on a layer does not write by itself: drop --on-policy")
        if self.loss not in LOSSES:
            raise ValueError(f"loss {self.loss!r} is unknown: use {', '.join(LOSSES)}")
        if not 0 <= self.on_policy <= 1:
            raise ValueError(f"--on-policy is {self.on_policy}, but must be between 0 and 1")
        if self.on_policy and self.loss == TEXT:
            raise ValueError("what the draft wrote itself teaches nothing by --loss text: drop one")


class DraftJob(Job):
    """Distils a draft into `options.out`."""

    options: Options
    report: Report
    recipe: Draft
    least = 2

    def begin(self) -> Proposer | None:
        """See `Job.begin`."""
        self._refuse()
        self.target.requires_grad_(False)
        self.student = self._student()
        self.on_layer = isinstance(self.student, Exit)
        self.models = [self.target] if self.on_layer else [self.target, self.student]
        return EarlyExit(heads=self.student.heads) if self.on_layer else None

    def _refuse(self) -> None:
        """What this target does not allow."""
        if self.options.on_policy and encoders.is_one(self.target):
            raise ValueError(
                "--on-policy goes on from beginnings of texts, and what an encoder-decoder writes "
                "has none: drop it"
            )
        layer, most = self.options.exit_layer, depth_of(self.target) - 1
        if layer is not None and layer > most:
            raise ValueError(f"--exit-layer {layer} must be from 1 to the target's {most}")
        if (count := self.options.draft_vocabulary) is not None:
            few_tokens.check_target(self.target, count)

    def _student(self) -> Any:
        """The draft before training, in fp32 on the target's device."""
        options, target = self.options, self.target
        if options.exit_layer is not None:
            heads = medusa.fresh(target, 1, options.blocks or BLOCKS, exit=options.exit_layer)
            heads.target = options.target
            return Exit(target, heads)
        if options.start is None:
            layers, width = layers_and_width(options.size, options.layers, depth_of(target))
            return student(target, layers, width, options.seed)
        foreign: dict[str, Any] = {"trust_remote_code": options.trust_remote_code}
        encoders.check_kind(options.start, encoders.is_one(target), **foreign)
        draft = setup.loaded(options.start, dtype=torch.float32, device=target.device, **foreign)
        own = load_tokenizer(options.start, None, foreign)
        of_draft, of_target = (
            model.get_output_embeddings().weight.shape[0] for model in (draft, target)
        )
        if said := stranger(of_draft, of_target, own, self.tokenizer):
            raise ValueError(
                f"the draft in {options.start} has another vocabulary than the target ({said}): "
                "start from one of the target's family, or use --size"
            )
        return draft

    def make_recipe(self, held_out: list[Batch], asked: list[Batch]) -> Draft:
        """See `Job.make_recipe`."""
        options, few = self.options, None
        ends = end_ids(self.target, self.tokenizer)
        if (count := options.draft_vocabulary) is not None:
            heads = (each.get_output_embeddings() for each in (self.target, self.student))
            size = min(each.weight.shape[0] for each in heads)  # padding differs
            ids = few_tokens.most_frequent(self.learnt, count, size, ends)
            if self.on_layer:
                self.student.heads = few_tokens.fewer(self.student.heads, self.target, ids)
            else:
                few_tokens.reduce(self.student, ids)
            few = FewTokens(ids, size)
        return Draft(
            self.target,
            self.student,
            held_out,
            loss=options.loss,
            rate=peak_rate(options, self.student),
            on_policy=options.on_policy,
            ends=ends,
            few=few,
            seed=options.seed,
        )

    def memory(self, plan: Plan, length: int) -> str:
        """See `Job.memory`."""
        tokens = plan.rows // plan.accumulate * length
        weights = sum(p.numel() * p.element_size() for p in self.target.parameters())
        models = self.target, self.student
        theirs, ours = (model.config.get_text_config() for model in models)
        kept = theirs.num_hidden_layers * theirs.hidden_size * self.target.dtype.itemsize
        learning = self.student.heads.layers if self.on_layer else 4 * ours.num_hidden_layers
        kept += 16 * learning * ours.hidden_size
        logits = min(tokens * ours.vocab_size, ELEMENTS // 2)
        learnt = 16 * sum(p.numel() for p in self.student.parameters())
        gb = [x / 1e9 for x in (weights, learnt, tokens * kept + 32 * logits)]
        return (
            f"memory: about {sum(gb):.2f} GB (target {gb[0]:.2f}, the draft with gradients and "
            f"moments {gb[1]:.2f}, activations {gb[2]:.2f})"
        )

    def make_report(self, outcome: dict[str, Any]) -> Report:
        """See `Job.make_report`."""
        config = self.student.config.get_text_config()
        return Report(
            layers=self.student.layers if self.on_layer else depth_of(self.student),
            exit=self.on_layer,
            width=config.hidden_size,
            parameters=sum(p.numel() for p in self.student.parameters()),
            **outcome,
        )

    def save(self) -> None:
        """See `Job.save`."""
        out = self.options.out
        self.student.to(self.target.dtype).eval()
        with writing(out / "model.safetensors"):
            if self.on_layer:
                files.save(out, self.student.heads)
            else:
                self.student.save_pretrained(out)
                self.tokenizer.save_pretrained(out)
        for file in out.glob("*.safetensors"):
            file.chmod(0o644)  # they are written for their owner alone

    def judge(self, prompts: Sequence[Sequence[int]], room: int) -> None:
        """See `Job.judge`; at each temperature also what the same texts predict."""
        watch, recipe = self.watch, self.recipe
        with (
            served.engine(self.target, self.tokenizer) as base,
            LLM(base, rule="rejection", speculate=None) as llm,
        ):
            most = [min(room, served.room_behind(llm, ids)) for ids in prompts]
            for temperature in TEMPERATURES:
                watch.phase(f"the engine serves at temperature {temperature:g}")
                completions = served.completions(
                    llm, prompts, room, (temperature,), speculate=self._proposer(), tell=watch.share
                )
                served.pass_on_warnings(completions, watch.line)
                texts = []
                for ids, one in zip(prompts, completions, strict=True):
                    text = served.written(llm, ids, one.token_ids)
                    begin = len(text.ids) - len(one.token_ids)
                    texts.append(chances(recipe, text.ids, begin, temperature, text.read))
                # Behind a decoder's start token nothing is left to read before a draft.
                at_once = not self.on_layer or encoders.is_one(self.target)
                predicted, alpha = replay(texts, most, at_once=at_once)
                result = Served(
                    temperature,
                    round(_first_accepted(completions), 4),
                    round(served.tokens_per_step(completions), 4),
                    round(alpha, 4),
                    round(predicted, 4),
                    sum(one.stats.tokens for one in completions),
                )
                self.report.served.append(result)
                served.compare(result.predicted, result.tokens_per_step, result.tokens, watch.line)

    def _proposer(self) -> Proposer:
        """The draft as it is judged: a chain, whatever it thinks of it."""
        if self.on_layer:
            return EarlyExit(None, DEPTH, min_confidence=0.0, branch=1, heads=self.options.out)
        return DraftModel(self.options.out, DEPTH, min_confidence=0.0, branch=1)

    def card(self) -> Card:
        """See `Job.card`."""
        return card(self.report, self.options.target)


def peak_rate(options: Options, student: Any) -> float:
    """The learning rate that is given, or the usual; trained weights are shaken by more."""
    if options.rate is not None:
        return options.rate
    if isinstance(student, Exit):
        return medusa.usual_rate(student.heads)
    rate = usual_rate(student.config.get_text_config().hidden_size)
    return rate if options.start is None else rate * AGAIN


def _first_accepted(completions: Sequence[Any]) -> float:
    """Of the steps that drafted, how many accepted their first token."""
    offered = sum(sum(one.stats.offered_per_position[:1]) for one in completions)
    accepted = sum(sum(one.stats.accepted_per_position[:1]) for one in completions)
    return accepted / max(1, offered)
