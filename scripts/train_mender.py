"""Trains the bundled encoder-decoder, then its draft: `python scripts/train_mender.py [draft]`.

Both learn to write damaged Python without the damage, from the standard library's sources; the
draft learns the target's law in the second half of its steps. At first half of what they copy are
short rows of random tokens, by which attention to the input is found soonest. An interrupted run
goes on where it stopped.
"""

from __future__ import annotations

import json
import platform
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from mender_rows import ROWS, TOKENS, VOCABULARY, Pairs, vocabulary
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer
from transformers import PegasusConfig, PegasusForConditionalGeneration

from draftproof.bundled import MODELS, corpus
from draftproof.bundled.damaged import Damaged, Mended, held_out
from draftproof.training import checkpoint, trainer
from draftproof.training.jobs import card
from draftproof.training.recipes.muon import Muon
from draftproof.training.trainer import Batch, Plan, State

LABELLED = 0.5  # share of the steps before a draft learns the target's law
HELD_OUT = 32  # texts that a model in training is scored on
QUIET = 20.0  # seconds between lines


class Part(StrEnum):
    target = "target"
    draft = "draft"


FOLDERS = {Part.target: MODELS / "mender", Part.draft: MODELS / "mender-draft"}
SHAPES: dict[Part, dict[str, int]] = {
    Part.target: {
        "d_model": 192,
        "encoder_ffn_dim": 768,
        "decoder_ffn_dim": 768,
        "encoder_layers": 3,
        "decoder_layers": 2,
    },
    Part.draft: {
        "d_model": 96,
        "encoder_ffn_dim": 512,
        "decoder_ffn_dim": 512,
        "encoder_layers": 2,
        "decoder_layers": 1,
    },
}
HEAD = 32  # width
POSITIONS = 128  # beyond the texts that are learnt there would be none to trust
MATRICES_RATE, REST_RATE, DECAY = 4e-3, 2e-3, 0.05


class Mender(nn.Module):
    """The loss of clean texts' tokens, nats: cross-entropy, or a teacher's divergence."""

    def __init__(self, model: Any, held_out: Any, rate: float, teacher: Any = None) -> None:
        super().__init__()
        self.model, self.rate = model, rate
        self.texts, self.teacher = held_out, [teacher] if teacher else []  # out of its state

    def optimisers(self) -> list[Optimizer]:
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        rest = [p for name, p in named if p.ndim != 2 or "shared" in name]
        known = {id(p) for p in rest}
        matrices = [p for _, p in named if id(p) not in known]
        return [
            Muon(matrices, MATRICES_RATE * self.rate, DECAY),
            AdamW(rest, REST_RATE * self.rate, weight_decay=0.0, betas=(0.9, 0.98)),
        ]

    def forward(self, batch: Batch, share: float) -> dict[str, Tensor]:
        reads = batch["segments"] >= 0
        # Few different widths: for each a processor's kernels are made anew.
        wide, long = (8 * -(-int(of.sum(1).max()) // 8) for of in (reads, batch["labels"] >= 0))
        labels = batch["labels"][:, :long]
        given = {
            "input_ids": batch["ids"][:, :wide],
            "attention_mask": reads[:, :wide].long(),
            "decoder_input_ids": self.model.prepare_decoder_input_ids_from_labels(labels),
        }
        at = labels >= 0
        logits, wanted = self.model(**given).logits[at].float(), labels[at]
        right = (logits.argmax(-1) == wanted).float().mean()
        loss = F.cross_entropy(logits, wanted)
        shown = {"labels": loss.new_tensor(len(wanted)), "right": right.detach()}
        if self.teacher and share >= LABELLED:
            with torch.no_grad():
                law = self.teacher[0](**given).logits[at].float().log_softmax(-1)
            shown["label_loss"] = loss.detach()
            loss = F.kl_div(logits.log_softmax(-1), law, log_target=True, reduction="batchmean")
        return {"loss": loss, **shown}

    def evaluate(self, device: torch.device) -> dict[str, float]:
        tokenizer, pairs = self.texts
        found = mended(self.model, tokenizer, pairs)
        shares = {"mended": found.mended_share, "kept": found.kept_share}
        return {"score": found.mended_share + found.kept_share, **shares}


def mended(model: Any, tokenizer: Any, pairs: list[Any]) -> Mended:
    """What greedy decoding makes of held-out texts."""
    found = Mended()
    for at in range(0, len(pairs), ROWS):
        some = pairs[at : at + ROWS]
        read = tokenizer([pair.text for pair in some], padding=True, return_tensors="pt")
        read.pop("token_type_ids", None)
        written = model.generate(**read, max_new_tokens=TOKENS + 16, do_sample=False)
        texts = tokenizer.batch_decode(written, skip_special_tokens=True)
        for pair, text in zip(some, texts, strict=True):
            found.add(pair, text)
    return found


def beginning(part: Part) -> Any:
    """A model that knows nothing, but that the decoder looks where the encoder read the like.

    Queries and keys of cross-attention begin alike: what stands at the same place is seen first.
    """
    torch.manual_seed(0)
    heads = SHAPES[part]["d_model"] // HEAD
    config = PegasusConfig(
        vocab_size=VOCABULARY,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        max_position_embeddings=POSITIONS,
        init_std=SHAPES[part]["d_model"] ** -0.5,
        scale_embedding=True,
        activation_function="gelu",
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        **SHAPES[part],
    )
    model = PegasusForConditionalGeneration(config)
    for layer in model.model.decoder.layers:
        across = layer.encoder_attn
        across.k_proj.weight.data.copy_(across.q_proj.weight.data)
    return model


def train(recipe: Mender, learnt: Pairs, plan: Plan, folder: Path) -> State:
    """In place; lines tell how far it is."""
    told = 0.0

    def show(state: State, shown: dict[str, float]) -> None:
        nonlocal told
        if time.monotonic() - told > QUIET or "held-out mended" in shown:
            told = time.monotonic()
            speed = state.tokens / max(1e-9, state.seconds)
            values = "  ".join(f"{name} {value:.3f}" for name, value in shown.items())
            print(
                f"step {state.step} of {plan.steps}  {state.seconds / 60:.1f} min  "
                f"{speed:,.0f} tokens/s  {values}",
                flush=True,
            )

    return trainer.train(
        recipe,
        lambda count: Pairs(learnt.sources, learnt.tokenizer, count, plan.seed),
        plan,
        folder,
        about={"data": len(learnt.sources), "rate": recipe.rate},
        resume=True,
        cpu=not torch.cuda.is_available(),
        show=show,
    )


def main(
    part: Annotated[Part, typer.Argument(help="the draft needs the target")] = Part.target,
    steps: Annotated[int, typer.Option(help="of 32 texts")] = 2000,
    rate: Annotated[float, typer.Option(help="a factor of the learning rates")] = 1.0,
    work: Annotated[Path, typer.Option(help="checkpoints")] = Path("build/mender"),
    threads: Annotated[int, typer.Option(help="of torch")] = 2,
    precision: Annotated[str, typer.Option(help="no or bf16")] = "no",
) -> None:
    """Train a bundled mender and write it into the package."""
    if steps < 10:
        raise typer.BadParameter(f"steps is {steps}, but must be 10 or more")
    torch.set_num_threads(threads)
    learnt = [text for name, text in corpus.modules() if not corpus.is_held_out(name)]
    out = FOLDERS[part]
    tokenizer = vocabulary(learnt, FOLDERS[Part.target])
    teacher = None
    if part is Part.draft:
        teacher = PegasusForConditionalGeneration.from_pretrained(
            FOLDERS[Part.target], dtype=torch.float32
        ).eval()
    model = beginning(part)

    def fits(pair: Damaged) -> bool:
        return max(map(len, tokenizer([pair.text, pair.clean])["input_ids"])) <= TOKENS

    pairs = held_out(HELD_OUT, fits=fits)
    plan = Plan(
        steps,
        ROWS,
        warmup=60,
        floor=0.02,
        every=250,
        patience=0,
        checkpoint_seconds=120.0,
        precision=precision,
    )
    recipe = Mender(model, (tokenizer, pairs), rate, teacher)
    state = train(recipe, Pairs(learnt, tokenizer, 0, 0), plan, work / part)
    model.to(torch.bfloat16)
    model.save_pretrained(out)
    config = json.loads((out / "config.json").read_text()) | {"dtype": "float32"}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")  # what it runs in
    tokenizer.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    model.float()
    found = mended(model, tokenizer, held_out(400, seed=2, fits=fits))
    provenance = {
        **card.surroundings("python scripts/train_mender.py"),
        "data": f"standard library of Python {platform.python_version()}, damaged",
        "seed": plan.seed,
        "steps": state.step,
        "tokens_read": state.tokens,
        "minutes": round(state.seconds / 60, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "held_out": vars(found)
        | {
            "mended_share": round(found.mended_share, 4),
            "kept_share": round(found.kept_share, 4),
            "whole_share": round(found.whole_share, 4),
        },
        "evaluations": state.evaluations,
    }
    (out / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    checkpoint.clear(work / part)
    print(json.dumps({k: v for k, v in provenance.items() if k != "evaluations"}, indent=1))


if __name__ == "__main__":
    typer.run(main)
