"""`draftproof train medusa`: heads on the target's last hidden state, and the tree for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.out_folders import writing
from draftproof.proposers.medusa import Medusa as Proposer
from draftproof.runners import costs
from draftproof.training.data.capture import Captured, capture, key
from draftproof.training.data.pairs import pack
from draftproof.training.data.rows import Document, batch_of
from draftproof.training.data.states import on
from draftproof.training.jobs import job, served
from draftproof.training.jobs.card import Card
from draftproof.training.jobs.job import Job
from draftproof.training.recipes import calibrate, few_tokens, joint
from draftproof.training.recipes.losses import ELEMENTS, at_once
from draftproof.training.recipes.medusa import Medusa, fresh
from draftproof.training.recipes.quantised import quantise
from draftproof.training.trainer import Batch, Plan
from draftproof.vocabularies import end_ids

EXPORTS = {"original": files.export_original, "vllm": files.export_vllm}
GUESSES = 5  # of a head in the card's table


@dataclass(frozen=True)
class Options(job.Options):
    """What is trained, on what, and for how long."""

    num_heads: int = 5
    num_layers: int = 1
    own_head: bool = False
    draft_vocabulary: int | None = None  # tokens that the heads guess; all unless given
    quantize: str | None = None  # the frozen target, "int8"
    joint: bool = False
    full: bool = False  # joint: all of the target, not adapters
    capture: bool = False
    nodes: int = 32  # of the tree, at most
    export: Sequence[str] = ()  # of `EXPORTS`

    def check(self) -> None:
        """See `job.Options.check`."""
        if self.full and not self.joint:
            raise ValueError("--full is for --joint: add that")
        if self.joint and self.quantize is not None:
            raise ValueError("--quantize is for a target that does not learn: drop it, or --joint")
        if self.joint and self.capture:
            raise ValueError("--joint changes the states that --capture keeps: drop one")
        if self.joint and self.draft_vocabulary is not None:
            raise ValueError(
                "--draft-vocabulary gives the heads rows of the LM head as it is, and --joint "
                "changes it: drop one"
            )
        if "original" in self.export and self.draft_vocabulary is not None:
            raise ValueError(
                "--export original has no heads of a part of the vocabulary: drop that, or "
                "--draft-vocabulary"
            )
        for name in self.export:
            if name not in EXPORTS:
                raise ValueError(f"export {name!r} is unknown: use {', '.join(EXPORTS)}")


@dataclass(kw_only=True)
class Report(job.Report):
    """What the heads give; lies beside them in `provenance.json`."""

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

    def lines(self) -> list[str]:
        """What they give, and what the target is afterwards, if it learnt along."""
        lines = [
            f"predicted tokens/step {self.predicted:.2f}, served tokens/step {self.served:.2f} "
            f"(a tree of {self.tree} nodes, greedy, {self.served_tokens:,} tokens that the target "
            "wrote after held-out prompts)"
        ]
        if self.target_loss:
            before, after = self.target_loss
            lines.append(
                f"the target's own loss on held-out text: {before:.3f} nats per token before, "
                f"{after:.3f} after"
            )
        return lines


class HeadsJob(Job):
    """Trains Medusa heads, and makes the tree that suits them, into `options.out`."""

    options: Options
    report: Report
    prompt_sets = 2  # one for the tree, one to judge it by

    def begin(self) -> Proposer:
        """See `Job.begin`."""
        if (count := self.options.draft_vocabulary) is not None:
            few_tokens.check_target(self.target, count)
        if self.options.quantize is not None:
            quantise(self.target, self.options.quantize)
        self.heads = self._heads()
        self.least, self.models = self.heads.heads + 2, [self.target]
        return Proposer(self.heads)

    def _heads(self) -> Heads:
        """The heads before training."""
        options, target = self.options, self.target
        if options.start is None:
            heads = fresh(target, options.num_heads, options.num_layers, options.own_head)
            heads.target = options.target
            return heads
        heads = files.load(options.start)
        if heads.exit is not None:
            raise ValueError(f"{options.start} reads layer {heads.exit}: start from Medusa heads")
        weight = target.get_output_embeddings().weight
        if (heads.vocab_size, heads.hidden_size) != tuple(weight.shape):
            raise ValueError(f"the heads in {options.start} are not of this target: drop them")
        if options.draft_vocabulary is not None and heads.outputs is not None:
            raise ValueError(
                f"the heads in {options.start} have projections of their own: drop "
                "--draft-vocabulary"
            )
        if heads.tokens is not None and (options.joint or "original" in options.export):
            raise ValueError(
                f"the heads in {options.start} guess a part of the tokens: drop --joint and "
                "--export original"
            )
        return heads

    def make_recipe(self, held_out: list[Batch], asked: list[Batch]) -> Medusa:
        """See `Job.make_recipe`."""
        options = self.options
        self.asked, self.loss_before = asked, 0.0
        if options.joint:
            self.loss_before = joint.loss(self.target, asked)
            self.target = joint.learning(self.target, options.full, options.seed)
        else:
            self.target.requires_grad_(False)
        if (count := options.draft_vocabulary) is not None:
            ids = few_tokens.most_frequent(
                self.learnt, count, self.heads.vocab_size, end_ids(self.target, self.tokenizer)
            )
            self.heads = few_tokens.fewer(self.heads, self.target, ids, options.own_head)
        return Medusa(
            self.target,
            self.heads.to(device=self.target.device, dtype=torch.float32),
            held_out,
            rate=options.rate,
            joint=options.joint,
            nodes=options.nodes,
        )

    def memory(self, plan: Plan, length: int) -> str:
        """See `Job.memory`."""
        return memory(self.target, self.heads, plan, length, self.options.joint)

    def prepared(self, rows: Any) -> Any:
        """The rows, with the target's hidden states where they are captured."""
        if not self.options.capture:
            return rows
        folder = self.options.out / f"states-{key(self.target, rows)}"
        self.temporary.append(folder)
        capture(self.target, rows, folder, self.watch)
        return Captured(rows, folder)

    def make_report(self, outcome: dict[str, Any]) -> Report:
        """See `Job.make_report`."""
        parameters = sum(p.numel() for p in self.heads.parameters())
        target = self.options.target
        return Report(heads=self.heads.heads, parameters=parameters, target=target, **outcome)

    def save(self) -> None:
        """See `Job.save`; where the target learnt along, it too."""
        if self.options.joint:
            folder = self.options.out / "target"
            self.target = joint.learnt(self.target, folder, self.tokenizer)
            self.heads.target = self.report.target = str(folder)
        self.heads.to(self.target.dtype)
        self._save_heads()
        if self.options.joint:
            self.report.target_loss = [self.loss_before, joint.loss(self.target, self.asked)]

    def _save_heads(self) -> None:
        with writing(self.options.out / "model.safetensors"):
            files.save(self.options.out, self.heads)

    def judge(self, prompts: Sequence[Sequence[int]], room: int) -> None:
        """The tree, from one half of the target's own texts; on the other half, what it gives.

        What is predicted there by counting is then served by the engine.
        """
        watch, target, heads, report = self.watch, self.target, self.heads, self.report
        recipe = Medusa(target, heads, [])
        watch.phase("the target writes what heads are judged by")
        with served.engine(target.eval(), self.tokenizer) as llm:
            plain = served.completions(llm, prompts, room, tell=watch.share)
            sequences = []
            for ids, one in zip(prompts, plain, strict=True):
                text = served.written(llm, ids, one.token_ids)
                batch = on(
                    batch_of(pack([Document(text.ids, None, text.read)], len(text.ids)), 0),
                    target.device,
                )
                sequences.append(recipe.ranks(batch)[len(text.ids) - len(one.token_ids) - 1 : -1])
            cost = costs.pass_seconds(llm.runner, room, served.PASSES)
            seconds = served.heads_seconds(llm, heads)
            judged = slice(1 if len(prompts) > 1 else 0, None, 2)  # a single text serves for both
            best = calibrate.calibrated(sequences[::2], cost, seconds, self.options.nodes)
            heads.accuracies, heads.tree = best.accuracies, best.tree
            self._save_heads()
            report.tree, report.expected = len(best.tree), round(best.expected, 4)
            report.accuracies = best.accuracies
            report.predicted = round(calibrate.replay(sequences[judged], best.tree)[0], 4)
            watch.phase("the engine serves")
            proposer = Proposer(self.options.out)
            completions = served.completions(
                llm, prompts[judged], room, speculate=proposer, tell=watch.share
            )
        served.pass_on_warnings(completions, watch.line)
        report.served = round(served.tokens_per_step(completions), 4)
        report.served_tokens = sum(one.stats.tokens for one in completions)
        served.compare(report.predicted, report.served, report.served_tokens, watch.line)
        for name in self.options.export:  # where heads share the LM head, others are given it
            weight = target.get_output_embeddings().weight.detach()
            with writing(self.options.out / name):
                EXPORTS[name](self.options.out / name, heads, weight)

    def card(self) -> Card:
        """See `Job.card`."""
        report = self.report
        table = [["head", *(f"guess {rank + 1}" for rank in range(GUESSES))]]
        for k, row in enumerate(report.accuracies, 1):
            table.append([str(k), *(f"{share:.1%}" for share in row[:GUESSES])])

        def draw(axes: Any) -> None:
            for k, row in enumerate(report.accuracies, 1):
                sums = [sum(row[: i + 1]) for i in range(len(row))]
                axes.plot(range(1, len(row) + 1), sums, label=f"head {k}")
            axes.set_xlabel("guesses")
            axes.set_ylabel("share that holds the token")
            axes.set_ylim(0, 1)

        results = "; ".join(report.lines())
        return Card(
            library="draftproof",
            target=report.target,
            title=f"Medusa heads for {report.target}",
            summary=f"{report.heads} heads, {report.parameters:,} parameters: {results}.",
            call='Medusa("this folder")',
            caption="How often each guess of a head was the token that the target wrote:",
            table=table,
            draw=draw,
        )


def memory(target: Any, heads: Heads, plan: Plan, length: int, joint: bool) -> str:
    """What training will take."""
    frozen = [p for p in target.parameters() if not p.requires_grad] + [*target.buffers()]
    weights = sum(p.numel() * p.element_size() for p in frozen)
    learnt = sum(p.numel() for p in [*heads.parameters(), *target.parameters()] if p.requires_grad)
    config = target.config.get_text_config()
    tokens = plan.rows // plan.accumulate * length
    kept = config.num_hidden_layers * 16 if joint else 4 + 4 * heads.heads
    vocabulary = heads.vocab_size if heads.tokens is None else len(heads.tokens)
    logits = min(tokens, at_once(vocabulary, target.device)) * vocabulary
    if joint or (heads.outputs is not None and heads.outputs.requires_grad):
        together = tokens * vocabulary <= ELEMENTS  # then those of all heads are there
        logits = tokens * vocabulary * heads.heads if together else ELEMENTS
    activations = 4 * tokens * kept * config.hidden_size + 12 * logits
    gb = [x / 1e9 for x in (weights, 16 * learnt, activations)]
    return (
        f"memory: about {sum(gb):.2f} GB (target {gb[0]:.2f}, what is trained with gradients and "
        f"moments {gb[1]:.2f}, activations {gb[2]:.2f})"
    )
