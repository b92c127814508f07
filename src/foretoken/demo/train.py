"""Trains the bundled models: `python -m foretoken.demo.train target`, then `... draft`.

The target learns the standard library's sources; the draft is distilled from the target: for most
of the time from the sources and, in turn, from lessons that the target wrote down once, then on
long rows by forward KL over the whole vocabulary. Both stop by wall clock, write checkpoints that
resume on the same machine, and can start from the shipped weights with a fresh optimiser
(`--from-shipped`).
Matrices are trained by Muon, the rest by AdamW; both are torch's.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from foretoken.demo import corpus, lessons

MODELS = Path(__file__).parent / "models"
CONTEXT = 2048
SHORT, LONG = 512, 2048  # tokens per row; the long rows come last, for positions beyond 512
LONG_SHARE = 0.12  # of the wall clock
TEACHING_SHARE = 0.35  # of the draft's wall clock, before its training begins
ROW_TOKENS = 4096  # tokens per forward pass
STEP_TOKENS = 8192  # tokens per optimiser step
SHAPES: dict[str, dict[str, Any]] = {
    "target": {
        "hidden_size": 320,
        "intermediate_size": 896,
        "num_hidden_layers": 12,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
    },
    "draft": {
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
    },
}


def prepare(work: Path) -> tuple[Any, np.ndarray, np.ndarray, list[str]]:
    """Tokenizer, training ids, held-out ids, held-out paths; made once and kept in `work`."""
    found = corpus.modules()
    train = [text for path, text in found if not corpus.is_held_out(path)]
    held_out = [(path, text) for path, text in found if corpus.is_held_out(path)]
    if (MODELS / "target" / "tokenizer.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    else:
        tokenizer = corpus.train_tokenizer(iter(train))
        tokenizer.save_pretrained(MODELS / "target")
    files = work / "train.npy", work / "held_out.npy"
    if not all(file.exists() for file in files):
        order = np.random.default_rng(0).permutation(len(train))
        np.save(files[0], corpus.encode(tokenizer, [train[i] for i in order]))
        np.save(files[1], corpus.encode(tokenizer, [text for _, text in held_out]))
    return tokenizer, np.load(files[0]), np.load(files[1]), [path for path, _ in held_out]


class Rows:
    """Rows of `length` + 1 ids, each position of the corpus once an epoch, in random order."""

    def __init__(self, ids: np.ndarray, seed: int) -> None:
        self.ids, self.rng = ids, np.random.default_rng(seed)
        self.starts: list[int] = []
        self.length = 0

    def batch(self, count: int, length: int) -> torch.Tensor:
        rows: list[np.ndarray] = []
        while len(rows) < count:
            if not self.starts or self.length != length:
                offset = int(self.rng.integers(length))
                self.starts = list(range(offset, len(self.ids) - length - 1, length))
                self.rng.shuffle(self.starts)
                self.length = length
            at = self.starts.pop()
            rows.append(self.ids[at : at + length + 1].astype(np.int64))
        return torch.from_numpy(np.stack(rows))  # (count, length + 1)


def optimisers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=4e-3, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=3e-3, weight_decay=0.0, betas=(0.9, 0.95)),
    ]


def learning_rate(share: float, step: int) -> float:
    """A factor in (0, 1]: warm-up of 60 steps, level to 45% of the time, then linear to 2%."""
    return min(1.0, (step + 1) / 60, max(0.02, (1.0 - share) / 0.55))


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, ids: np.ndarray, rows: int = 100) -> float:
    """Mean cross-entropy in nats per token over `rows` evenly spaced rows of 512."""
    device = next(model.parameters()).device
    model.eval()
    starts = np.linspace(0, len(ids) - SHORT - 2, rows).astype(int)
    total = 0.0
    for at in np.array_split(starts, max(1, rows // 10)):
        row = torch.from_numpy(np.stack([ids[a : a + SHORT + 1] for a in at]).astype(np.int64))
        row = row.to(device)
        logits = model(row[:, :-1], use_cache=False).logits
        total += float(F.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten())) * len(at)
    model.train()
    return total / rows


def loss_of(model: Any, teacher: Any, row: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the text, or forward KL to the teacher where there is one; a scalar."""
    logits = model(row[:, :-1], use_cache=False).logits.flatten(0, 1)
    if teacher is None:
        return F.cross_entropy(logits.float(), row[:, 1:].flatten())
    with torch.no_grad():
        law = teacher(row[:, :-1], use_cache=False).logits.flatten(0, 1).float().log_softmax(-1)
    return F.kl_div(logits.float().log_softmax(-1), law, log_target=True, reduction="batchmean")


def lesson_loss(model: Any, batch: list[torch.Tensor]) -> torch.Tensor:
    ids, best, logp = batch
    logits = model(ids[:, :-1], use_cache=False).logits
    return lessons.loss(logits.flatten(0, 1), best.flatten(0, 1), logp.flatten(0, 1))


def start(
    name: str, resume: Path, from_shipped: bool, device: str
) -> tuple[Any, list[torch.optim.Optimizer], dict[str, Any]]:
    """Model, optimisers and the state to continue from."""
    state: dict[str, Any] = {"step": 0, "tokens": 0, "elapsed_s": 0.0, "log": []}
    model: Any
    if from_shipped:
        model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32)
    else:
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=8192,
                max_position_embeddings=CONTEXT,
                tie_word_embeddings=True,
                bos_token_id=0,
                eos_token_id=0,
                **SHAPES[name],
            )
        )
    model = model.to(device).train()
    opts = optimisers(model)
    if resume.exists():
        saved = torch.load(resume, weights_only=True, map_location=device)
        model.load_state_dict(saved["model"])
        for opt, old in zip(opts, saved["optimisers"], strict=True):
            opt.load_state_dict(old)
        state = saved["state"]
    return model, opts, state


def save(model: Any, opts: Any, state: dict[str, Any], path: Path) -> None:
    fresh = path.with_suffix(".new")
    torch.save(
        {"model": model.state_dict(), "optimisers": [o.state_dict() for o in opts], "state": state},
        fresh,
    )
    fresh.replace(path)  # an interrupted write never costs the last checkpoint


def export(model: Any, tokenizer: Any, name: str, provenance: dict[str, Any]) -> None:
    model.to(torch.bfloat16).save_pretrained(MODELS / name)
    tokenizer.save_pretrained(MODELS / name)
    (MODELS / name / "model.safetensors").chmod(0o644)
    (MODELS / name / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")


def fit(
    model: Any,
    opts: Any,
    state: dict[str, Any],
    teacher: Any,
    taught: lessons.Lessons | None,
    data: tuple[np.ndarray, np.ndarray],
    minutes: float,
    checkpoint: Path,
) -> None:
    """Trains in place until `minutes` of wall clock are spent, the resumed ones included."""
    device = next(model.parameters()).device
    rows = Rows(data[0], seed=state["step"])
    train_model = lessons.compiled(model)
    train_teacher = lessons.compiled(teacher) if teacher is not None else None
    budget, began, saved_at = minutes * 60, time.monotonic() - state["elapsed_s"], time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, refresh_per_second=0.5) as progress:
        task = progress.add_task("compiling", total=budget)
        while (elapsed := time.monotonic() - began) < budget:
            share = elapsed / budget
            length = LONG if share > 1 - LONG_SHARE else SHORT
            for opt in opts:
                for group in opt.param_groups:
                    group.setdefault("base_lr", group["lr"])
                    group["lr"] = group["base_lr"] * learning_rate(share, state["step"])
            total = 0.0
            for part in range(STEP_TOKENS // ROW_TOKENS):
                count = ROW_TOKENS // length
                with torch.autocast(device.type, torch.bfloat16):
                    if taught is not None and length == SHORT and part % 2:
                        lesson = taught.batch(count, rows.rng)
                        loss = lesson_loss(train_model, [each.to(device) for each in lesson])
                    else:  # with lessons, the text itself teaches as well: there is more of it
                        row = rows.batch(count, length).to(device)
                        own = train_teacher if taught is None or length == LONG else None
                        loss = loss_of(train_model, own, row)
                (loss * ROW_TOKENS / STEP_TOKENS).backward()
                total += float(loss.detach()) * ROW_TOKENS / STEP_TOKENS
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for opt in opts:
                opt.step()
                opt.zero_grad()
            state["step"] += 1
            state["tokens"] += STEP_TOKENS
            state["elapsed_s"] = time.monotonic() - began
            rate = STEP_TOKENS / max(1e-9, state["elapsed_s"] - elapsed)
            text = f"step {state['step']}  loss {total:.3f}  {rate:,.0f} tokens/s"
            progress.update(task, completed=state["elapsed_s"], description=text)
            if state["step"] % 100 == 0:
                held = held_out_loss(model, data[1], 30)
                state["log"].append([state["step"], round(total, 4), round(held, 4)])
                progress.console.print(f"{text}  held-out {held:.3f}", highlight=False)
            if time.monotonic() - saved_at > 300:
                save(model, opts, state, checkpoint)
                saved_at = time.monotonic()
    save(model, opts, state, checkpoint)


def main(
    name: Annotated[str, typer.Argument(help="target or draft")],
    minutes: Annotated[float, typer.Option(help="wall clock to spend, resumed runs included")],
    work: Annotated[Path, typer.Option(help="checkpoints and token ids")] = Path("build/demo"),
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
    from_shipped: Annotated[bool, typer.Option(help="continue the shipped weights")] = False,
) -> None:
    """Train one of the bundled models and write it into the package."""
    if name not in SHAPES:
        raise typer.BadParameter(f"{name!r} is not a bundled model: target or draft")
    if name == "draft" and not (MODELS / "target" / "model.safetensors").exists():
        raise typer.BadParameter("the draft is distilled from the target: train the target first")
    work.mkdir(parents=True, exist_ok=True)
    tokenizer, train_ids, held_ids, held_paths = prepare(work)
    teacher: Any = None
    if name == "draft":
        teacher = AutoModelForCausalLM.from_pretrained(MODELS / "target", dtype=torch.bfloat16)
        teacher = teacher.to(device).eval()
    taught = None
    if teacher is not None:
        if not (work / "lessons.npz").exists():
            share = TEACHING_SHARE * minutes
            lessons.write(teacher, train_ids, share, SHORT, seed=0).save(work / "lessons.npz")
        minutes *= 1 - TEACHING_SHARE
        taught = lessons.Lessons.load(work / "lessons.npz")
    checkpoint = work / f"{name}.pt"
    model, opts, state = start(name, checkpoint, from_shipped, device)
    fit(model, opts, state, teacher, taught, (train_ids, held_ids), minutes, checkpoint)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    provenance = {
        "command": " ".join(["python -m foretoken.demo.train", *sys.argv[1:]]),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seed": 0,
        "data": f"standard library of Python {platform.python_version()}",
        "train_tokens": len(train_ids),
        "lesson_tokens": 0 if taught is None else taught.best[..., 0].size,
        "tokens_seen": state["tokens"],
        "steps": state["step"],
        "minutes": round(state["elapsed_s"] / 60, 1),
        "device": device,
        "parameters": sum(p.numel() for p in model.parameters()),
        "held_out_loss_nats_per_token": round(held_out_loss(model, held_ids), 4),
        "log_step_train_heldout": state["log"],
        "held_out_modules": held_paths,
    }
    export(model, tokenizer, name, provenance)
    print(json.dumps({k: v for k, v in provenance.items() if not isinstance(v, list)}, indent=1))


if __name__ == "__main__":
    typer.run(main)
