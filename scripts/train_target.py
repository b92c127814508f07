"""Trains the bundled target: `python scripts/train_target.py`.

It learns the standard library's sources, first from short rows, then from long ones, for positions
that the short ones have not. Its draft and its heads are trained as anybody's are: docs/training.md
has the commands. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from draftproof.bundled import MODELS, corpus
from draftproof.training import checkpoint, trainer
from draftproof.training.data.rows import Document, Rows, Stream, pack
from draftproof.training.data.sources import documents
from draftproof.training.jobs import card, setup
from draftproof.training.recipes.text import Text
from draftproof.training.trainer import Batch, Plan, State

CONTEXT = 2048
SHORT, LONG = 512, 2048  # tokens of a row
LONG_SHARE, LONG_RATE = 0.12, 0.2  # of the steps; of the learning rate
STEP_TOKENS = 8192
QUIET = 20.0  # seconds between the lines of a run that nobody watches in a terminal
SHAPE: dict[str, Any] = {
    "hidden_size": 320,
    "intermediate_size": 896,
    "num_hidden_layers": 12,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
}


def sources(work: Path, folder: Path) -> tuple[Any, list[Document], list[Document]]:
    """Tokenizer, training documents, held-out documents; the tokenizer is made if there is none."""
    files = work / "sources"
    if not files.exists():
        corpus.write(files)
    if (folder / "tokenizer.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(folder)
    else:
        texts = (file.read_text(encoding="utf-8") for file in sorted(files.glob("train/**/*.py")))
        tokenizer = corpus.train_tokenizer(texts)
        tokenizer.save_pretrained(folder)
    return (
        tokenizer,
        documents([files / "train"], tokenizer),
        documents([files / "held_out"], tokenizer),
    )


def beginning(folder: Path, size: int, from_shipped: bool) -> Any:
    """The shipped model, or one of the same shape that knows nothing."""
    if from_shipped:
        return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        **SHAPE,
    )
    return LlamaForCausalLM(config)


def fit(
    model: Any,
    began: str,
    learnt: Rows,
    held: list[Batch],
    plan: Plan,
    rate: float,
    folder: Path,
    stopped: Callable[[State], bool] = lambda state: False,
) -> State:
    """Train in place on rows of one length; progress is shown. began: from what."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, refresh_per_second=0.5) as progress:
        task = progress.add_task("training", total=plan.steps)
        told, latest = time.monotonic(), State()

        def show(state: State, shown: dict[str, float]) -> None:
            nonlocal told, latest
            latest = state
            speed = state.tokens / max(1e-9, state.seconds)
            text = f"step {state.step}  loss {shown['loss']:.3f}  {speed:,.0f} tokens/s"
            progress.update(task, completed=state.step, description=text)
            if "held-out loss" in shown:
                held_out = f"{text}  held-out {shown['held-out loss']:.3f}"
                progress.console.print(held_out, highlight=False)
            elif not progress.console.is_terminal and time.monotonic() - told > QUIET:
                told = time.monotonic()
                print(f"{text}  of {plan.steps}", flush=True)

        return trainer.train(
            Text(model, held, rate),
            lambda count: Stream(learnt, count, plan.seed),
            plan,
            folder,
            about={"data": learnt.fingerprint(), "began": began, "rate": rate},
            resume=True,
            cpu=not torch.cuda.is_available(),
            show=show,
            stopped=lambda: stopped(latest),
        )


def main(
    steps: Annotated[int, typer.Option(help="of 8,192 tokens")] = 1600,
    work: Annotated[Path, typer.Option(help="sources and checkpoints")] = Path("build/demo"),
    out: Annotated[Path, typer.Option(help="where the model is written")] = MODELS / "target",
    from_shipped: Annotated[bool, typer.Option(help="continue the shipped weights")] = False,
) -> None:
    """Train the bundled target and write it into the package."""
    if steps < 10:
        raise typer.BadParameter(f"steps is {steps}, but must be 10 or more")
    tokenizer, learnt, held_out = sources(work, MODELS / "target")
    model = beginning(MODELS / "target", len(tokenizer), from_shipped)
    began = "shipped" if from_shipped else "nothing"
    long = max(1, round(LONG_SHARE * steps))
    plan = Plan(
        steps - long,
        STEP_TOKENS // SHORT,
        warmup=min(60, steps // 10),
        floor=0.1,
        every=100,
        patience=0,
        precision="bf16",
    )
    states = []
    for length, stage, rate in (
        (SHORT, plan, 1.0),
        (LONG, replace(plan, steps=long, rows=STEP_TOKENS // LONG, warmup=10), LONG_RATE),
    ):
        rows = pack(learnt, length)
        held = setup.evaluation_batches(pack(held_out, length))
        states.append(fit(model, began, rows, held, stage, rate, work / f"target-{length}"))
    provenance = {
        **card.surroundings("python scripts/train_target.py"),
        "data": f"standard library of Python {platform.python_version()}",
        "train_tokens": rows.tokens,
        "tokens_seen": sum(state.tokens for state in states),
        "steps": sum(state.step for state in states),
        "minutes": round(sum(state.seconds for state in states) / 60, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "evaluations": [state.evaluations for state in states],
    }
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    (out / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    for length in (SHORT, LONG):
        checkpoint.clear(work / f"target-{length}")
    print(json.dumps({k: v for k, v in provenance.items() if not isinstance(v, list)}, indent=1))


if __name__ == "__main__":
    typer.run(main)
