"""A small model of width 512, whose weights K-quants fit: `python scripts/wide_model.py`.

Their blocks are of 256 inputs, which divides neither the bundled target's widths nor SmolLM2's. A
few channels of each `down_proj`'s input begin much larger than the rest, because real models have
such and a model that was only trained for minutes has none. It learns what the bundled models did.

It ends after `--steps`, or after `--minutes` of training in all, whichever comes first. A
checkpoint is written every minute, and at Ctrl-C; the same command goes on. Then it is a folder
of transformers, a GGUF file by `draftproof convert`, and one of each of llama.cpp's mixtures of
K-quants, which no Python library writes: llama-quantize does, where it was built
(`benchmarks/peers/setup_peers.sh build/peers`). It is not shipped: tests that want it are skipped
without it.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from train_target import fit, sources
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof.bundled import MODELS
from draftproof.convert import convert
from draftproof.training import checkpoint
from draftproof.training.data.rows import pack
from draftproof.training.jobs import card, setup
from draftproof.training.trainer import Plan, State

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
MIXTURES = ("Q4_K_M", "Q5_K_M", "Q6_K")
PROGRAMS = "llama_cpp_python-*/vendor/llama.cpp/build/bin/llama-quantize"
INTERRUPTED = 130  # the exit code of what an interrupt has ended


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


def mixtures(out: Path, quantize: Path | None) -> list[Path]:
    """GGUF files of the model in folder `out`, beside it."""
    folder = out.with_name(f"{out.name}-gguf")
    folder.mkdir(exist_ok=True)
    numbers = convert(out, folder / "F32.gguf", "float32")
    if quantize is None:
        print("no K-quants: benchmarks/peers/setup_peers.sh build/peers makes llama-quantize")
        return [numbers]
    written = [folder / f"{name}.gguf" for name in MIXTURES]
    for file in written:
        command = [str(quantize), str(numbers), str(file), file.stem]
        subprocess.run(command, check=True, capture_output=True)
    return [numbers, *written]


def main(
    steps: Annotated[int, typer.Option(help="of 2,048 tokens")] = 500,
    minutes: Annotated[float, typer.Option(help="of training, in all")] = 60.0,
    work: Annotated[Path, typer.Option(help="sources and checkpoints")] = Path("build/demo"),
    out: Annotated[Path, typer.Option(help="where the model is written")] = Path("build/wide"),
    peers: Annotated[Path, typer.Option(help="where llama.cpp was built")] = Path("build/peers"),
) -> None:
    """Train it, and write it in float32 and as GGUF files."""
    quantize = next(iter(sorted(peers.glob(PROGRAMS))), None)
    if not (out / "model.safetensors").exists():
        train(steps, minutes, work, out)
    for file in mixtures(out, quantize):
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


def train(steps: int, minutes: float, work: Path, out: Path) -> None:
    """Until one of them is over; what Ctrl-C ends is not written."""
    print("reading the sources", flush=True)
    tokenizer, learnt, held_out = sources(work, MODELS / "target")
    rows, held = pack(learnt, LENGTH), setup.evaluation_batches(pack(held_out[:HELD_OUT], LENGTH))
    plan = Plan(
        steps,
        ROWS,
        warmup=min(20, steps // 10),
        floor=0.1,
        every=50,
        patience=0,
        checkpoint_seconds=60.0,
    )
    model, pressed = beginning(len(tokenizer)), False

    def press(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        print("keeping this step", flush=True)

    def stopped(state: State) -> bool:
        return pressed or state.seconds > 60 * minutes

    before = signal.signal(signal.SIGINT, press)
    try:
        state = fit(model, "nothing", rows, held, plan, 1.0, work / "wide", stopped)
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed and state.reason == "interrupted":
        print(f"kept step {state.step} of {steps}: the same command goes on")
        raise SystemExit(INTERRUPTED)
    provenance = {
        **card.surroundings("python scripts/wide_model.py"),
        "tokens_seen": state.tokens,
        "steps": [state.step, steps],
        "minutes": round(state.seconds / 60, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "outliers": outliers(model.eval(), rows.ids[:1].long()),
        "last_losses": state.losses[-5:],
        "evaluations": state.evaluations,
    }
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    if state.reason == "steps":
        checkpoint.clear(work / "wide")
    else:
        print(
            f"{minutes:g} minutes are over at step {state.step} of {steps}; to go on remove {out}"
        )
    print(json.dumps(provenance, indent=1))


if __name__ == "__main__":
    typer.run(main)
