"""Where tokens are accepted, and nowhere else.

Three rules. Each takes a tree and what the target says after its nodes, and returns
`(path, bonus)`: the accepted nodes from node 0 on, and the token that follows the last of them. So
a verification yields `len(path)` new tokens: the accepted ones and the bonus. Where an accepted
node ends the text the walk ends too: nothing behind it is asked for, and the bonus is None.

- `verify`, the default: a child is accepted if it is the target's own pick. Lossless for greedy
  decoding and, with coupled noise, at any temperature.
- `verify_rejection`: speculative sampling. Lossless in law.
- `verify_typical`: lossy: what is likely enough is accepted, whatever the target would draw.

p = target, q = draft, R = what is left of p after rejections (Leviathan's letters; Chen et al.
swap p and q). This module does not know how logits become picks or laws, nor who drafted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftproof.tree import TokenTree


class Picks(Protocol):
    """picks[i]: the target's own token after node i."""

    def __getitem__(self, node: int, /) -> int: ...


class Laws(Protocol):
    """p[i] (V,): the target's law of the token after node i."""

    def __getitem__(self, node: int, /) -> Tensor: ...


Ends = Callable[[int], bool]  # of a node, told of every accepted one in order: does the text end?


def verify(
    tree: TokenTree, picks: Picks, ends: Ends = lambda node: False
) -> tuple[list[int], int | None]:
    """Follow the target's own picks through the tree.

    The child of node u whose token is `picks[u]` is accepted (greedy: SpecInfer, VerifyGreedy;
    coupled sampling: Daliri, Musco, Suresh 2024). Siblings may repeat a token: then the longest
    path wins, the first node among equals.

    `picks` may be lazy and dear: it is indexed at most once per node, and only at nodes that the
    walk reaches. Returns the path, which starts with 0, and `picks[path[-1]]`.
    """
    level = [0]  # nodes behind the same tokens
    while True:
        pick = picks[level[0]]
        following = [c for u in level for c in tree.children(u) if tree.tokens[c] == pick]
        if not following:
            return tree.path(level[0]), pick
        level = sorted(following)
        if ends(level[0]):
            return tree.path(level[0]), None


def verify_rejection(
    tree: TokenTree, p: Laws, rng: torch.Generator, ends: Ends = lambda node: False
) -> tuple[list[int], int | None]:
    """Accept drafted tokens so that the output follows the target's law exactly.

    At node u, R = p[u]. For each child c with token t, in the order of drawing, q = laws[c]:
        accept c and go on from it with probability min(1, R[t] / q[t]);
        else R <- norm((R - q)+), or R unchanged where nothing is left (only by rounding).
    If no child is accepted the bonus is drawn from R; at a leaf that is p[leaf]. Without laws q is
    one-hot: accept with probability R[t], else R[t] <- 0, renormalised.

    One child: Leviathan et al. 2023, Algorithm 1 (Chen et al. 2023, Theorem 1). I.i.d.
    children or several drafts: SpecInfer, Algorithm 2. Without replacement: Sequoia, Algorithm 2.
    One-hot: Lookahead decoding (sampling). Each round leaves a sample of R if its child was
    drawn from q: min(R, q) + (1 - sum min(R, q)) norm((R - q)+) = R.

    p: (N, V), rows that sum to one, any floating type, on any device; never written to, may be an
    expanded view or anything that gives p[i] (V,). Indexed at most once per node, and only at
    nodes that the walk reaches. rng: a CPU generator that nothing else shares its noise with, the
    draft least of all. A token of target probability 0 is never accepted and never the bonus.
    """
    # One coin a node, coins[0] for the bonus; in [0, 1), so that "coin < 0" never accepts.
    coins = torch.rand(len(tree), generator=rng, dtype=torch.float64).tolist()
    path = [0]
    while True:
        law, accepted = _round(tree, path[-1], p[path[-1]], coins)
        if accepted is None:
            return path, _draw(law, coins[0])
        path.append(accepted)
        if ends(accepted):
            return path, None


@dataclass(frozen=True)
class Typical:
    """The lossy rule of typical acceptance, and its thresholds.

    A token is accepted if p(token) > min(epsilon, delta exp(-H(p))), H in nats. The defaults are
    those of the paper's published runs; the paper itself sets delta = sqrt(epsilon).
    """

    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        try:
            sound = 0 < self.epsilon <= 1 and 0 < self.delta < math.inf
        except TypeError:
            sound = False
        if not sound:
            raise ValueError(
                f"epsilon={self.epsilon!r} must be a number in (0, 1], and delta={self.delta!r} a "
                "positive one"
            )


def verify_typical(
    tree: TokenTree,
    p: Laws,
    rule: Typical,
    ends: Ends = lambda node: False,
    end_ids: Container[int] = (),
) -> tuple[list[int], int | None]:
    """Accept what is typical of the target: lossy, the output does not follow the target's law.

    (Medusa, Cai et al. 2024, section 2.3.2.) The longest path all of whose tokens are accepted
    wins, the likelier among equals; the token after it is the target's likeliest. Greedy decoding,
    whose laws are one-hot, stays greedy. p: as in `verify_rejection`; where it raises no path goes
    on, and it raises again if the best one ends there. end_ids: behind these none goes on either.
    """
    reached = {0: (0, 0.0)}  # node -> depth, log-likelihood
    bars: dict[int, float] = {}  # node -> what its children must surpass
    last = 0
    for i in range(1, len(tree)):
        parent = tree.parents[i]
        if parent not in reached or (parent and tree.tokens[parent] in end_ids):
            continue
        if parent not in bars:
            try:
                entropy = float(torch.special.entr(p[parent]).sum())
                bars[parent] = min(rule.epsilon, rule.delta * math.exp(-entropy))
            except Exception:  # a request's own rules; raised if a path ends here
                bars[parent] = math.inf
        if math.isinf(bars[parent]):
            continue
        share = float(p[parent][tree.tokens[i]])
        if share > bars[parent]:
            depth, likelihood = reached[parent]
            reached[i] = depth + 1, likelihood + math.log(share)
            last = max(last, i, key=reached.__getitem__)
    path = tree.path(last)
    for at, node in enumerate(path[1:], 2):
        if ends(node):
            return path[:at], None
    return path, int(p[last].argmax())


def _round(tree: TokenTree, u: int, law: Tensor, coins: list[float]) -> tuple[Tensor, int | None]:
    """The children of u against p[u] = `law` (V,): what is left of it, and the child accepted.

    What is left is not normalised: R = law / mass. So a node whose first child is accepted costs
    two look-ups, not a pass over the vocabulary.
    """
    laws, mass = tree.laws, 1.0
    for c in tree.children(u):
        t = tree.tokens[c]
        q_t = 1.0 if laws is None else laws[c, t].item()
        if coins[c] * q_t * mass < law[t].item():  # no division: q_t may be 0 by rounding
            return law, c
        if laws is None:
            left = law.to(torch.float64, copy=True)
            left[t] = 0.0
        else:
            q = laws[c].to(law.device, torch.float64)
            left = torch.sub(law, q, alpha=mass).clamp_(min=0.0)
        total = left.sum().item()
        if total > 0.0:
            law, mass = left, total
    return law, None


def _draw(law: Tensor, coin: float) -> int:
    """A token of the unnormalised `law` (V,), by inversion; coin in [0, 1).

    On the CPU, where a running sum never falls: a parallel scan may rise by a rounding at a token
    of probability 0, and name it.
    """
    running = law.to("cpu", torch.float64).cumsum(0)
    return int(torch.searchsorted(running, coin * running[-1].item(), right=True))
