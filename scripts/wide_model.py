"""A small model of width 512, whose weights K-quants fit: `python scripts/wide_model.py`.

Their blocks are of 256 inputs, which divides neither the bundled target's widths nor SmolLM2's. A
few channels of each `down_proj`'s input begin much larger than the rest, because real models have
such and a model that was only trained for minutes has none. It is not shipped: tests that want it
are skipped without it. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from train_target import fit, sources
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof.bundled import MODELS
from draftproof.training import checkpoint
from draftproof.training.data.rows import pack
from draftproof.training.jobs import card, setup
from draftproof.training.trainer import Plan

LENGTH, ROWS = 512, 4  # of a step
HELD_OUT = 16  # documents
SHAPE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 1024,
}
OUTLIERS, FACTOR = 4, 12.0  # channels of a layer; what gate and up are multiplied by


def beginning(size: int) -> LlamaForCausalLM:
    """A model that knows nothing, its outliers planted: what training makes of them is its own."""
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=size, tie_word_embeddings=True, **ends, **SHAPE)
    )
    with torch.no_grad():
        for number, layer in enumerate(model.model.layers):
            channels = [
                (37 * number + 251 * i) % SHAPE["intermediate_size"] for i in range(OUTLIERS)
            ]
            layer.mlp.gate_proj.weight[channels] *= FACTOR
            layer.mlp.up_proj.weight[channels] *= FACTOR
            layer.mlp.down_proj.weight[:, channels] /= FACTOR
    return model


def outliers(model: LlamaForCausalLM, ids: Tensor) -> list[float]:
    """Of each layer: the largest input of `down_proj` over the median of its row."""
    found: list[float] = []

    def look(module: Any, inputs: tuple[Tensor, ...]) -> None:
        sizes = inputs[0].abs()
        found.append(float((sizes.amax(-1) / sizes.median(-1).values).max()))

    hooks = [layer.mlp.down_proj.register_forward_pre_hook(look) for layer in model.model.layers]
    with torch.inference_mode():
        model(ids)
    for hook in hooks:
        hook.remove()
    return found


def main(
    steps: Annotated[int, typer.Option(help="of 2,048 tokens")] = 250,
    work: Annotated[Path, typer.Option(help="sources and checkpoints")] = Path("build/demo"),
    out: Annotated[Path, typer.Option(help="where the model is written")] = Path("build/wide"),
) -> None:
    """Train it, and write it in float32."""
    if (out / "model.safetensors").exists():
        print(f"{out} is there")
        return
    tokenizer, learnt, held_out = sources(work, MODELS / "target")
    rows, held = pack(learnt, LENGTH), setup.evaluation_batches(pack(held_out[:HELD_OUT], LENGTH))
    plan = Plan(steps, ROWS, warmup=20, floor=0.1, every=100, patience=0, precision="no")
    model = beginning(len(tokenizer))
    state = fit(model, "nothing", rows, held, plan, 1.0, work / "wide")
    provenance = {
        **card.surroundings("python scripts/wide_model.py"),
        "tokens_seen": state.tokens,
        "minutes": round(state.seconds / 60, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "outliers": outliers(model.eval(), rows.ids[:1].long()),
        "evaluations": state.evaluations,
    }
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    checkpoint.clear(work / "wide")
    print(json.dumps(provenance, indent=1))


if __name__ == "__main__":
    typer.run(main)
