"""What the target says after the nodes of a tree: its picks under the coupled rule, or its laws.

Both are made when they are asked for, node by node: verification reaches few of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from torch import Tensor

from draftproof import sampling
from draftproof.request import Request
from draftproof.tree import TokenTree


class Picks:
    """The target's own token after each node of a tree, made when it is asked for.

    best: what the runner found where the request is greedy; -1 where there is nothing to pick.
    """

    def __init__(
        self, request: Request, tree: TokenTree, logits: Tensor, best: Sequence[int] | None = None
    ) -> None:
        self.request, self.tree, self.logits = request, tree, logits
        self._position = len(request.tokens)  # of node 0's pick; the walk writes as it goes
        self._best: Sequence[int] | None = None
        if request.greedy:
            self._best = best
            # One synchronisation with an accelerator, where a row at a time would take one each.
            if best is None and logits.device.type != "cpu":
                self._best = sampling.argmaxes(logits)

    def __getitem__(self, node: int) -> int:
        request = self.request
        if self._best is not None:
            if self._best[node] >= 0:
                return self._best[node]
            if not len(self.logits):
                raise sampling.NoCandidate("no token can be picked, the logits are not finite")
        path = self.tree.path_tokens(node)
        return sampling.pick(
            self.logits[node],
            request.params,
            request.history,
            path,
            request.noise,
            self._position + len(path),
        )


class Laws:
    """The target's law (V,) after each node of a tree, made when it is asked for."""

    def __init__(self, request: Request, tree: TokenTree, logits: Tensor) -> None:
        self._law = functools.cache(
            lambda node: sampling.law(
                logits[node], request.params, request.history, tree.path_tokens(node)
            ).cpu()
        )

    def __getitem__(self, node: int) -> Tensor:
        return self._law(node)
