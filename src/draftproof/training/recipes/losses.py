"""What a student is taught by: cross-entropy with labels, and divergences from a teacher's law.

Pure functions of logits, at temperature 1. Divergences are in nats, except total variation, which
is a share. p = the teacher's law, q = the student's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

ELEMENTS = 1 << 25  # logits held for a backward pass at once: 128 MB of fp32
CACHED = 1 << 20  # logits worked on at once where none are held, in a processor's cache
LEAST = 128  # rows at once: with fewer, reading the head is what takes the time

Part = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def at_once(vocabulary: int, device: torch.device) -> int:
    """Rows of logits that are worked on together where none are held for a backward pass."""
    if device.type == "cpu":
        return max(LEAST, CACHED // vocabulary)
    return max(1, ELEMENTS // vocabulary)


def cross_entropy(
    states: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor], frozen: bool = False
) -> tuple[Tensor, Tensor]:
    """Sum of -log q(label) over states (N, d), labels (N,), and how many were q's argmax.

    Where the vocabulary is large the rows go in chunks whose logits are computed once more in the
    backward pass: N x V of them would be most of the memory of training. frozen: nothing in `head`
    learns; then the states' gradient is taken at once, chunk by chunk.
    """

    def part(rows: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(rows).float()
        right = (logits.detach().argmax(-1) == wanted).sum()
        return F.cross_entropy(logits, wanted, reduction="sum"), right

    if not len(states):
        return states.sum() * 0.0, labels.new_zeros(())
    with torch.no_grad():
        vocabulary = head(states[:1]).shape[-1]
    if frozen and states.requires_grad:
        sums: tuple[Tensor, Tensor] = _AtOnce.apply(  # type: ignore[no-untyped-call]
            states, labels, part, at_once(vocabulary, states.device)
        )
        return sums
    return _in_parts(part, states, labels, max(1, ELEMENTS // vocabulary))


def _in_parts(part: Part, states: Tensor, beside: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The sums of `part` over so many rows at a time, each computed once more going backward."""
    if size >= len(states):
        return part(states, beside)
    parts = [
        checkpoint(part, rows, theirs, use_reentrant=False)
        for rows, theirs in zip(states.split(size), beside.split(size), strict=True)
    ]
    return torch.stack([p[0] for p in parts]).sum(), torch.stack([p[1] for p in parts]).sum()


class _AtOnce(torch.autograd.Function):
    """A sum over rows whose gradient by the rows is computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, labels: Tensor, part: Any, size: int
    ) -> tuple[Tensor, Tensor]:
        slopes, losses, rights = [], [], []
        for rows, wanted in zip(states.split(size), labels.split(size), strict=True):
            with torch.enable_grad():
                rows = rows.detach().requires_grad_()
                loss, right = part(rows, wanted)
                slopes.append(torch.autograd.grad(loss, rows)[0])
            losses.append(loss.detach())
            rights.append(right)
        ctx.save_for_backward(torch.cat(slopes))
        right = torch.stack(rights).sum()
        ctx.mark_non_differentiable(right)
        return torch.stack(losses).sum(), right

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * outer[0].to(slope.dtype), None, None, None


Divergence = Callable[[Tensor, Tensor], Tensor]  # the teacher's and the student's logits -> (N,)


def forward_kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(p || q) (N,) of logits (N, V): q is drawn to all that p may say."""
    log_p, log_q = teacher.log_softmax(-1), student.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def reverse_kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(q || p) (N,) of logits (N, V): q is kept from what p would not say."""
    log_p, log_q = teacher.log_softmax(-1), student.log_softmax(-1)
    return (log_q.exp() * (log_q - log_p)).sum(-1)


def total_variation(teacher: Tensor, student: Tensor) -> Tensor:
    """Half of sum |p - q| (N,) of logits (N, V), in [0, 1].

    A token drawn from q is accepted with chance 1 - TV by the rejection rule (Leviathan et al.
    2022, arXiv 2211.17192, section 3), so its mean is what is lost (DistillSpec, Zhou et al. 2023,
    arXiv 2310.08461).
    """
    return (teacher.softmax(-1) - student.softmax(-1)).abs().sum(-1) / 2


DIVERGENCES: dict[str, Divergence] = {
    "forward-kl": forward_kl,
    "reverse-kl": reverse_kl,
    "tv": total_variation,
}


def divergence(
    states: Tensor,
    taught_by: Tensor,
    head: Callable[[Tensor], Tensor],
    teacher: Callable[[Tensor], Tensor],
    of: Divergence,
) -> tuple[Tensor, Tensor]:
    """Sum of `of` over the student's states (N, d), and how many argmaxes are the teacher's.

    taught_by (N, D): the teacher's states; head, teacher: what makes logits (N, V) of either's.
    Both are made chunk by chunk where rows and vocabulary are large, as in `cross_entropy`.
    """

    def part(rows: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
        ours = head(rows).float()
        with torch.no_grad():
            wanted = teacher(theirs).float()
        return of(wanted, ours).sum(), (ours.argmax(-1) == wanted.argmax(-1)).sum()

    if not len(states):
        return states.sum() * 0.0, torch.zeros((), dtype=torch.long, device=states.device)
    with torch.no_grad():
        vocabulary = teacher(taught_by[:1]).shape[-1]
    return _in_parts(part, states, taught_by, max(1, ELEMENTS // (2 * vocabulary)))
