"""The recipes Medusa-1 and Medusa-2: heads on the target's last hidden state.

Head k (from 1) learns the token at t + k + 1 from the state at t, whose LM head predicts t + 1.
Cai et al. 2024 (arXiv 2401.10774), sections 2.1.1, 2.2.1 and 2.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from draftproof.heads.module import Heads
from draftproof.training.data.states import labelled, logits_of, on, states_of
from draftproof.training.recipes import calibrate
from draftproof.training.recipes.few_tokens import FewTokens
from draftproof.training.recipes.losses import cross_entropy
from draftproof.training.trainer import Batch

DECAY = 0.8  # lambda_k = DECAY^k
# The paper's learning rates; its models are 4,096 wide, and narrower ones learn at higher ones
# (the best tried at 320: docs/log.md).
RATE, WIDTH, MOST_RATE, JOINT_RATE = 1e-3, 4096, 1e-2, 2e-3
ROWS = 256  # whose logits are held at once where nothing is learnt
HEADS_RATE = 4.0  # learning rate of the heads, in that of the backbone (Medusa-2)


def usual_rate(heads: Heads) -> float:
    """The learning rate at which blocks of this width learn well."""
    return min(MOST_RATE, RATE * WIDTH / heads.hidden_size)


def fresh(
    target: Any, heads: int, layers: int = 1, own: bool = False, exit: int | None = None
) -> Heads:
    """Heads of which each repeats the target's LM head: the paper's start.

    own: a projection for each head, a copy of the LM head, instead of the target's for all.
    """
    weight = target.get_output_embeddings().weight.detach()
    V, d = weight.shape
    return Heads(
        torch.zeros(heads, layers, d, d, device=weight.device),
        outputs=weight.float().expand(heads, V, d).clone() if own else None,
        vocab_size=V,
        exit=exit,
    )


def _still(recipe: nn.Module) -> set[str]:
    """Names of what does not learn: of a target with adapters, all but those."""
    named = recipe.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if not parameter.requires_grad}


def _leave_out(recipe: nn.Module, state: dict[str, Any], prefix: str, about: Any) -> None:
    for name in _still(recipe):
        state.pop(prefix + name, None)


def _not_missed(recipe: nn.Module, result: Any) -> None:
    still = _still(recipe)
    result.missing_keys[:] = [
        name for name in result.missing_keys if name.removeprefix("module.") not in still
    ]


class Medusa(nn.Module):
    """The loss of heads on a target: sum of DECAY^k times the cross-entropy of head k.

    joint: Medusa-2: the target learns too, L_LM + weight * L_heads, and `weight` rises from 0 by a
    quarter of a sine over the steps. What of the target requires gradients is trained, so adapters
    are a matter of who made it. held_out: batches to evaluate on.
    """

    def __init__(
        self,
        target: Any,
        heads: Heads,
        held_out: Sequence[Batch],
        *,
        rate: float | None = None,
        joint: bool = False,
        weight: float = 0.2,
        nodes: int = 16,
    ) -> None:
        super().__init__()
        self.heads, self.held_out = heads, held_out
        usual = JOINT_RATE if joint else usual_rate(heads)
        self.rate = usual if rate is None else rate
        self.joint, self.weight, self.nodes = joint, weight, nodes
        self.backbone = target if joint else None
        self._frozen = (target,)  # no module of this one: not moved, not in checkpoints
        tokens = heads.tokens
        self._few = None if tokens is None else FewTokens(tokens.cpu(), heads.vocab_size)
        self.register_state_dict_post_hook(_leave_out)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_not_missed)  # type: ignore[no-untyped-call]

    @property
    def target(self) -> Any:
        return self.backbone if self.backbone is not None else self._frozen[0]

    def optimisers(self) -> list[Optimizer]:
        groups: list[dict[str, Any]] = [{"params": list(self.heads.parameters()), "lr": self.rate}]
        if self.backbone is not None:
            learnt = [p for p in self.backbone.parameters() if p.requires_grad]
            groups.append({"params": learnt, "lr": self.rate / HEADS_RATE})
        return [AdamW(groups, weight_decay=0.0, fused=True)]

    def forward(self, batch: Batch, share: float) -> dict[str, Tensor]:
        shown: dict[str, Tensor] = {}
        with torch.set_grad_enabled(self.joint):
            states = states_of(self.target, batch)
        flat = states.flatten(0, 1)
        total = flat.new_zeros((), dtype=torch.float32)
        counts, weight = [], 1.0
        if self.joint:
            weight = self.weight * math.sin(math.pi / 2 * share)
            at, labels = labelled(batch, 1)
            loss, _ = cross_entropy(flat[at], labels, self._lm_head)
            shown["LM"] = total = loss / max(1, len(labels))
            counts.append(len(labels))
        outputs = self.heads.outputs
        frozen = not self.joint if outputs is None else not outputs.requires_grad
        for k, (rows, head) in enumerate(self._guesses(flat), 1):
            at, labels = self._classed(*labelled(batch, k + 1))
            loss, right = cross_entropy(rows[at], labels, head, frozen)
            total = total + weight * DECAY**k * loss / max(1, len(labels))
            shown[f"head {k}"] = right / max(1, len(labels))
            counts.append(len(labels))
        # Heads have a label less each at the end of a text: the first count stands for all.
        return {"loss": total, "labels": total.new_tensor(counts[0])} | shown

    def _guesses(self, flat: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """Of each head, its states (N, d) and what makes logits of them."""
        states = self.heads(flat)
        for k in range(self.heads.heads):
            if self.heads.outputs is None:
                yield states[k], self._lm_head
            else:
                outputs = self.heads.outputs[k % len(self.heads.outputs)]
                yield states[k], lambda rows, outputs=outputs: rows @ outputs.T

    def _classed(self, at: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The places (M,) whose label is one of what heads guess, and its class (M,) there."""
        if self._few is None:
            return at, labels
        classes = self._few.labels(labels)
        known = classes < len(self._few.ids)
        return at[known], classes[known]

    def _lm_head(self, rows: Tensor) -> Tensor:
        return logits_of(self.target, rows)

    def evaluate(self, device: torch.device) -> dict[str, float]:
        """Expected tokens per step of the best tree, and how often first guesses are right.

        The path of an accepted draft is the ranks of what came, so shares of paths are counted,
        where a text goes on long enough for all heads; empty if it does nowhere.
        """
        kept = [calibrate.complete(self.ranks(on(batch, device))) for batch in self.held_out]
        ranks, shown = torch.cat(kept), {}
        if len(ranks):
            shown["score"] = 1 + sum(calibrate.tree_of(ranks, self.nodes).values())
            for k, share in enumerate((ranks == 0).float().mean(0).tolist(), 1):
                shown[f"head {k}"] = share
        return shown

    @torch.no_grad()
    def ranks(self, batch: Batch) -> Tensor:
        """(rows * L, K): the rank that head k gave to the token that came k + 1 later."""
        flat = states_of(self.target, batch).flatten(0, 1)
        ranks = calibrate.unranked(len(flat), self.heads.heads)
        for k, (rows, head) in enumerate(self._guesses(flat)):
            at, labels = labelled(batch, k + 2)
            ranks[at.cpu(), k] = self.heads.vocab_size  # of what it never guesses
            at, labels = self._classed(at, labels)
            for some, wanted in zip(at.split(ROWS), labels.split(ROWS), strict=True):
                logits = head(rows[some])
                better = logits > logits.gather(1, wanted[:, None])
                ranks[some.cpu(), k] = better.sum(1, dtype=torch.int32).cpu()
        return ranks
