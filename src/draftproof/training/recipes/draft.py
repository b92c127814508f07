"""The recipe that teaches a small model to write what a target would, and what that is worth.

DistillSpec, Zhou et al. 2023 (arXiv 2310.08461); on what the student writes itself: GKD, Agarwal
et al. 2023 (arXiv 2306.13649). Does not know how a student begins, folders or the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer

from draftproof.heads.module import Heads
from draftproof.training import guards
from draftproof.training.data.states import labelled, logits_of, on, states_of
from draftproof.training.recipes import losses
from draftproof.training.recipes.few_tokens import FewTokens
from draftproof.training.recipes.losses import DIVERGENCES, ELEMENTS
from draftproof.training.trainer import Batch

TEXT = "text"  # the loss that asks the text, not the target
LOSSES = (*DIVERGENCES, TEXT)
RATE, WIDE = 1e-3, 320  # the learning rate up to that width; above it falls with the width
DEPTH = 5  # tokens of the chain that a student is judged by
SEEDS = 1 << 64  # of torch's generators
GIVEN = 64  # tokens that its own writing begins with, at most
TEMPERATURES: tuple[float, ...] = (0, 0.7, 1.0)  # at which acceptance is told


def usual_rate(width: int) -> float:
    """The learning rate of fresh weights: as measured at `WIDE`, falling as 1 / width above it.

    Yang et al. 2022 (arXiv 2203.03466), of matrices by Adam.
    """
    return RATE * min(1.0, WIDE / width)


class Draft(nn.Module):
    """The loss of a student beside a frozen target, on texts and on what the student writes.

    loss: of `LOSSES`. rate: at its peak, `usual_rate` unless given. on_policy: the share of passes
    in which the student goes on from the beginnings of the rows and is scored on that.
    ends: ids that end a text. few: the student writes few tokens. held_out: batches to evaluate on.
    """

    passes: Tensor

    def __init__(
        self,
        target: Any,
        student: Any,
        held_out: Sequence[Batch],
        *,
        loss: str = "forward-kl",
        rate: float | None = None,
        on_policy: float = 0.0,
        ends: Sequence[int] = (),
        few: FewTokens | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.student, self.held_out, self.loss = student, held_out, loss
        width = student.config.get_text_config().hidden_size
        self.rate = usual_rate(width) if rate is None else rate
        self.on_policy, self.ends, self.few, self.seed = on_policy, list(ends), few, seed
        self._frozen = (target,)  # no module of this one: not moved, not in checkpoints
        sizes = [m.get_output_embeddings().weight.shape[0] for m in (target, student)]
        self.vocabulary = min(sizes)  # what one has beyond it is padding
        # How often it was trained: a checkpoint has it, so what is written then is not repeated.
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))

    @property
    def target(self) -> Any:
        return self._frozen[0]

    def optimisers(self) -> list[Optimizer]:
        options: dict[str, Any] = {"betas": (0.9, 0.95), "weight_decay": 0.0, "fused": True}
        return [AdamW(self.student.parameters(), self.rate, **options)]

    def forward(self, batch: Batch, share: float) -> dict[str, Tensor]:
        """`agree`: how often the student's argmax is the target's (or the text)."""
        before = int(self.passes)
        self.passes += 1
        if int((before + 1) * self.on_policy) > int(before * self.on_policy):
            batch = self.own_rows(batch, ((self.seed << 32) + before) % SEEDS)
        at, labels = labelled(batch, 1)
        states = states_of(self.student, batch).flatten(0, 1)[at]
        if self.loss == TEXT:
            wanted = labels if self.few is None else self.few.labels(labels)
            loss, right = losses.cross_entropy(states, wanted, self._learning())
        else:
            with torch.no_grad():
                theirs = states_of(self.target, batch).flatten(0, 1)[at]
            teacher = self._head(self.target)
            teacher = teacher if self.few is None else self.few.teacher(teacher)
            heads = self._learning(), teacher
            loss, right = losses.divergence(states, theirs, *heads, DIVERGENCES[self.loss])
        count = max(1, len(labels))
        learnt = loss.new_tensor(len(labels))
        return {"loss": loss / count, "labels": learnt, "agree": right / count}

    def _learning(self) -> Callable[[Tensor], Tensor]:
        """What makes the student's logits while it learns."""
        few = self.few
        return self._head(self.student) if few is None else few.student(self.student)

    def _head(self, model: Any) -> Callable[[Tensor], Tensor]:
        return lambda states: logits_of(model, states)[..., : self.vocabulary]

    def own_rows(self, batch: Batch, seed: int) -> Batch:
        """The beginnings of the rows, and what the student writes after them (GKD, section 3).

        A beginning is what stands before the first answer, or half of the first text, at most
        `GIVEN` tokens.
        """
        ids, segments = batch["ids"], batch["segments"]
        rows, length = ids.shape
        first = segments == segments[:, :1]  # the first piece of every row
        asked = (first & ~batch["taught"]).long().cumprod(1).sum(1)
        half = (first.sum(1) // 2).clamp(1, GIVEN)
        given = torch.where(asked > 0, asked, half).clamp(max=max(1, length - 1))
        generator = torch.Generator(ids.device).manual_seed(seed)
        beginnings = [row[:size] for row, size in zip(ids, given.tolist(), strict=True)]
        with torch.no_grad(), guards.evaluating(list(self.student.modules())):
            fresh = self._continued(beginnings, length - int(given.min()), generator)
        count = fresh.shape[1]
        ended = self._ends(fresh).long().cumsum(1)
        lasting = F.pad(ended[:, :-1], (1, 0)) == 0  # up to and with the end
        place = torch.arange(length, device=ids.device).expand(rows, length)
        own = place - given[:, None]  # of a place, the number of the token written there
        inside = own.clamp(0, count - 1)
        taught = (own >= 0) & (own < count) & lasting.gather(1, inside)
        real = (own < 0) | taught
        return {
            "ids": torch.where(own < 0, ids, fresh.gather(1, inside)) * real,
            "positions": place,
            "segments": torch.where(real, 0, -1),
            "taught": taught,
        }

    def _continued(
        self, beginnings: Sequence[Tensor], count: int, generator: torch.Generator
    ) -> Tensor:
        """`count` tokens (rows, count) of the student's law, fewer where all texts have ended."""
        longest = max(len(row) for row in beginnings)
        left = [(longest - len(row), 0) for row in beginnings]
        ids = torch.stack(list(map(F.pad, beginnings, left)))
        mask = torch.stack(list(map(F.pad, map(torch.ones_like, beginnings), left)))
        columns, cache = [], None
        done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for _ in range(count):
            out = self.student(
                input_ids=ids,
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = out.past_key_values
            law = out.logits[:, -1, : self.vocabulary].float().softmax(-1)
            ids = law.multinomial(1, generator=generator)
            mask = F.pad(mask, (0, 1), value=1)
            columns.append(ids)
            done |= self._ends(ids[:, 0])
            if bool(done.all()):
                break
        return torch.cat(columns, 1)

    def _ends(self, ids: Tensor) -> Tensor:
        return torch.isin(ids, torch.tensor(self.ends, dtype=ids.dtype, device=ids.device))

    def evaluate(self, device: torch.device) -> dict[str, float]:
        """On the held-out text: `score`, tokens per step of a chain of `DEPTH` at temperature 0.

        It is counted from runs of equal argmaxes along that text, which is not the target's own,
        so it is near what will be served, not equal to it. `alpha T`: the mean over positions of
        sum min(p, q), the acceptance of the rejection rule at temperature T (Leviathan et al.
        2022, section 3); at 0 the share of equal argmaxes.
        """
        sums, count, runs = torch.zeros(len(TEMPERATURES)), 0, []
        for held in self.held_out:
            batch = on(held, device)
            at, _ = labelled(batch, 1)
            hits = torch.full((batch["ids"].numel(),), -1)
            for some, p, q in self.logits(batch, at):
                hits[some.cpu()] = (p.argmax(-1) == q.argmax(-1)).long().cpu()
                for i, temperature in enumerate(TEMPERATURES[1:], 1):
                    apart = losses.total_variation(p / temperature, q / temperature)
                    sums[i] += (1 - apart).sum().cpu()
            sums[0] += (hits == 1).sum()
            count += len(at)
            runs.append(hits)
        alphas = (sums / max(1, count)).tolist()
        named = {f"alpha {t}": alpha for t, alpha in zip(TEMPERATURES, alphas, strict=True)}
        return {"score": 1 + _run(torch.cat(runs))} | named

    def logits(self, batch: Batch, at: Tensor) -> Any:
        """Of places (M,) in the flattened rows, in chunks: them, the target's, the student's."""
        theirs = states_of(self.target, batch).flatten(0, 1)
        ours = states_of(self.student, batch).flatten(0, 1)
        for some in at.split(max(1, ELEMENTS // (8 * self.vocabulary))):
            p = self._head(self.target)(theirs[some]).float()
            yield some, p, self._served(ours[some]).float()

    def _served(self, states: Tensor) -> Tensor:
        """The student's logits as it serves: an exit of few tokens says nothing of the others."""
        heads: Heads | None = getattr(self.student, "heads", None)
        if heads is None or heads.outputs is None:
            return self._head(self.student)(states)
        return heads.spread(F.linear(states, heads.outputs[0]))[..., : self.vocabulary]


def _run(hits: Tensor) -> float:
    """Mean length of the runs of 1 in (N,) from every place on, `DEPTH` at most; -1 is no place."""
    windows = F.pad(hits, (0, DEPTH - 1), value=-1).unfold(0, DEPTH, 1)
    windows = windows[windows[:, 0] >= 0]
    whole = windows[(windows >= 0).all(1)]
    windows = (whole if len(whole) else windows).clamp(min=0)
    return float(windows.cumprod(1).sum(1).float().mean()) if len(windows) else 0.0


@torch.no_grad()
def chances(
    recipe: Draft,
    ids: Sequence[int],
    begin: int,
    temperature: float,
    read: Sequence[int] | None = None,
) -> list[float]:
    """Of each token of a text from `begin` on, the chance to be accepted if one is drafted there.

    read: what an encoder has read for it.

    It is drafted and accepted with chance min(p, q), and p is what the target writes it with: so,
    given that it was written, min(1, q / p) (Leviathan et al. 2022, appendix A.1). At temperature
    0 whether it is the draft's argmax.
    """
    row = torch.tensor([list(ids)], device=recipe.target.device)
    places = torch.arange(row.shape[1], device=row.device)
    batch = {"ids": row, "positions": places[None]}
    if read is not None:
        batch["read"] = torch.tensor([list(read)], device=row.device)
    shares: list[float] = []
    for some, p, q in recipe.logits(batch, places[begin - 1 : -1]):
        token = row[0, some + 1][:, None]
        if temperature == 0:
            shares += (q.argmax(-1) == token[:, 0]).float().tolist()
            continue
        logs = [(x / temperature).log_softmax(-1).gather(1, token)[:, 0] for x in (p, q)]
        shares += (logs[1] - logs[0]).clamp(max=0).exp().tolist()
    return shares


def replay(
    texts: Sequence[Sequence[float]], most: Sequence[int], at_once: bool = True
) -> tuple[float, float]:
    """Tokens per step, and acceptance of the first drafted token, of the engine on these texts.

    texts: the `chances` of each; most: how many tokens it might have had, because a step offers
    one less than may still be written. at_once: the pass over the prompt drafts too. Given a text
    the coins are independent, so these are exact expectations over them (at temperature 0: what
    happens). A step begins only behind a token that was not drafted, so the acceptance is no mean
    over all tokens.
    """
    tokens, steps, offered, accepted = 0, 0.0, 0.0, 0.0
    for chances, room in zip(texts, most, strict=True):
        begins = [1.0] + [0.0] * len(chances)  # how likely a step begins before each token
        tokens += len(chances)
        for at, chance in enumerate(chances):
            here = begins[at]
            depth = min(DEPTH, room - at - 1) if at or at_once else 0
            steps += here
            if depth:
                offered, accepted = offered + here, accepted + here * chance
            for place in range(at, min(at + depth, len(chances))):
                begins[place + 1] += here * (1 - chances[place])
                here *= chances[place]
            if at + depth < len(chances):
                begins[at + depth + 1] += here
    return tokens / max(steps, 1e-9), accepted / max(offered, 1e-9)
