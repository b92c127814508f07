"""What the target teaches the draft, written to disk once: its likeliest tokens at every position.

The target's own pass is most of the cost of distillation, so every lesson is used several times.
A share of the rows is text that the target wrote itself, because that is what a draft drafts
(Agarwal et al. 2023, arXiv 2306.13649, on-policy distillation; here of a target that stands still).
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

KEPT = 32  # tokens per position: over 95% of the target's mass
GIVEN = 96  # tokens of a file's text that the target's own writing begins with
OWN = 0.2  # share of the time that goes into the target's own writing
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)  # at which it writes, in turn
ROWS = 64  # rows in a generation
PASS = 8  # rows in a pass that teaches


@dataclass
class Lessons:
    """Rows of token ids and, for every position but the last, the target's law of the next one."""

    ids: np.ndarray  # (N, L + 1) uint16
    best: np.ndarray  # (N, L, KEPT) uint16
    logp: np.ndarray  # (N, L, KEPT) float16

    def __post_init__(self) -> None:
        self._order: list[int] = []

    def batch(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """`count` rows, each once an epoch: ids (n, L + 1), best and logp (n, L, KEPT)."""
        if len(self._order) < count:
            self._order = rng.permutation(len(self.ids)).tolist()
        at = [self._order.pop() for _ in range(count)]
        ids, best = (torch.from_numpy(x[at].astype(np.int64)) for x in (self.ids, self.best))
        return ids, best, torch.from_numpy(self.logp[at].astype(np.float32))

    def save(self, path: Path) -> None:
        np.savez(path, ids=self.ids, best=self.best, logp=self.logp)

    @classmethod
    def load(cls, path: Path) -> Lessons:
        with np.load(path) as found:
            return cls(found["ids"], found["best"], found["logp"])


def loss(logits: Tensor, best: Tensor, logp: Tensor) -> Tensor:
    """Cross-entropy (nats per position) of the target's law over its KEPT tokens, renormalised.

    logits (n, V); best, logp (n, KEPT).
    """
    wide = logits.float()
    q = wide.gather(-1, best) - wide.logsumexp(-1, keepdim=True)
    return -(logp.softmax(-1) * q).sum(-1).mean()


def compiled(model: Any) -> Any:
    """The model compiled, or as it is where there is no compiler: slower, not different."""
    try:
        return torch.compile(model)
    except RuntimeError as error:
        print(f"running without torch.compile: {error}", file=sys.stderr)
        return model


@torch.no_grad()
def write(teacher: Any, ids: np.ndarray, minutes: float, length: int, seed: int) -> Lessons:
    """Lessons of `length` positions from the corpus `ids` (N,), for `minutes` of wall clock."""
    rng, device = np.random.default_rng(seed), teacher.device
    starts = rng.permutation(np.arange(0, len(ids) - length - 1, length)).tolist()
    began, until = time.monotonic(), minutes * 60
    rows: list[np.ndarray] = []
    run = compiled(teacher)
    found: list[tuple[np.ndarray, ...]] = []
    with Progress(refresh_per_second=0.5) as progress:
        task = progress.add_task("the target writes", total=until)
        turn = 0
        while time.monotonic() - began < OWN * until and len(starts) > ROWS:
            given = np.stack([ids[a : a + GIVEN] for a in (starts.pop() for _ in range(ROWS))])
            temperature = TEMPERATURES[turn % len(TEMPERATURES)]
            rows += list(_written(teacher, given.astype(np.int64), length + 1, temperature))
            progress.update(task, completed=time.monotonic() - began)
            turn += 1
        own = len(rows)
        progress.update(task, description="the target teaches")
        rows += [ids[at : at + length + 1] for at in starts]
        while len(rows) >= PASS and (not found or time.monotonic() - began < until):
            some = np.stack([rows.pop(0) for _ in range(PASS)]).astype(np.int64)
            found.append(_taught(run, torch.from_numpy(some).to(device)))
            progress.update(task, completed=time.monotonic() - began)
        progress.console.print(f"{len(found) * PASS} rows, {own} of them the target's own")
    return Lessons(*(np.concatenate(part) for part in zip(*found, strict=True)))


def _taught(teacher: Any, row: Tensor) -> tuple[np.ndarray, ...]:
    logits = teacher(row[:, :-1], use_cache=False).logits
    best = logits.topk(KEPT, dim=-1)
    logp = best.values.float() - logits.float().logsumexp(-1, keepdim=True)
    return (
        row.cpu().numpy().astype(np.uint16),
        best.indices.cpu().numpy().astype(np.uint16),
        logp.half().cpu().numpy(),
    )


def _written(teacher: Any, given: np.ndarray, length: int, temperature: float) -> np.ndarray:
    """The target's own continuations of `given`, (rows, length)."""
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
    ids = torch.from_numpy(given).to(teacher.device)
    new = length - ids.shape[1]
    out = teacher.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        min_new_tokens=new,
        pad_token_id=0,
        **sampling,
    )
    written: np.ndarray = out.cpu().numpy()
    return written
