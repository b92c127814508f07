"""The token tree: what is drafted, run and verified.

Node 0 is the last committed token, every other node a drafted continuation of its parent. A chain
is the tree whose parents are -1, 0, 1, ...; plain decoding is the tree of one node. Nodes stand in
an order in which a parent comes before its children. A tree never changes after it was made.

It does not know positions, caches, models, or who accepts its nodes.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenTree:
    """Drafted tokens and how they hang together; N nodes, node 0 included.

    `laws` may be given only if every node that was drawn is kept, duplicates included, in the
    order of drawing, and nothing about the tree's shape was decided by looking at a drawn token.
    A tree that was pruned, sorted, merged or deduplicated carries None.
    Raises `ValueError` for what is no tree.
    """

    tokens: Sequence[int]  # (N,)
    parents: Sequence[int]  # (N,), parents[0] == -1, parents[i] < i; siblings may repeat a token
    laws: Tensor | None = None  # (N, V): row i = the law node i was drawn from, given its earlier
    # siblings; row 0 unused. None = deterministic (one-hot). Used by the rejection rule only.
    scores: Sequence[float] | None = None  # (N,) the drafter's estimates: they rank, never accept

    def __post_init__(self) -> None:
        for name in ("tokens", "parents"):
            if {*map(type, ids := getattr(self, name))} - {int}:
                object.__setattr__(self, name, _integers(ids))
        n, parents = len(self.tokens), self.parents
        if not (n >= 1 and len(parents) == n and parents[0] == -1):
            raise ValueError("a tree has a parent for each token, and node 0, whose parent is -1")
        if n > 1 and not (min(parents[1:]) >= 0 and all(map(operator.lt, parents, range(n)))):
            raise ValueError(
                "the parent of a node must stand before it in the tree: sort the nodes"
            )
        if self.laws is not None and not (self.laws.ndim == 2 and self.laws.shape[0] == n):
            raise ValueError(f"laws of a tree of {n} nodes must be of shape ({n}, vocabulary)")
        if self.scores is not None and len(self.scores) != n:
            raise ValueError(f"a tree of {n} nodes has {len(self.scores)} scores: give {n}")

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        laws: Tensor | None = None,
        scores: Sequence[float] | None = None,
    ) -> TokenTree:
        """Tokens (N,) one after another, the last committed one first; laws (N, V)."""
        return cls(tokens, list(range(-1, len(tokens) - 1)), laws, scores)

    @classmethod
    def root(cls, token: int) -> TokenTree:
        """Of node 0 alone, made for every text that a step writes plainly: nothing is checked."""
        tree = object.__new__(cls)
        vars(tree).update(tokens=[token], parents=[-1], laws=None, scores=None)
        return tree

    @classmethod
    def of(
        cls,
        kept: Sequence[int],
        last: int,
        tokens: Sequence[int],
        parents: Sequence[int],
        scores: Sequence[float] | None = None,
        laws: Tensor | None = None,
    ) -> TokenTree:
        """Of these nodes of a larger one, ascending, node 0 and all parents among them.

        last: the text's last token, which stands for node 0, whatever `tokens` has there. laws: of
        those nodes alone. Made in every step that drafts: what is cut out of a tree is one, so
        nothing is checked.
        """
        tree, new = object.__new__(cls), dict(zip(kept, range(len(kept)), strict=True))
        drafted = kept[1:]
        vars(tree).update(
            tokens=[last, *[tokens[node] for node in drafted]],
            parents=[-1, *[new[parents[node]] for node in drafted]],
            laws=laws,
            scores=None if scores is None else [scores[node] for node in kept],
        )
        return tree

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> list[int]:
        """(N,) Steps from node 0, which has depth 0."""
        depths = [0] * len(self)
        for i in range(1, len(self)):
            depths[i] = depths[self.parents[i]] + 1
        return depths

    @cached_property
    def is_chain(self) -> bool:
        return all([parent == i - 1 for i, parent in enumerate(self.parents)])

    @cached_property
    def _children(self) -> list[list[int]]:
        children: list[list[int]] = [[] for _ in self.tokens]
        for i in range(1, len(self)):
            children[self.parents[i]].append(i)
        return children

    def children(self, i: int) -> Sequence[int]:
        """The children of node i, in the order of the tree: that in which they were drawn."""
        return self._children[i] if len(self.tokens) > 1 else ()

    def path(self, i: int) -> list[int]:
        """The nodes from node 0 down to node i, both included."""
        path = []
        while i >= 0:
            path.append(i)
            i = self.parents[i]
        path.reverse()
        return path

    def path_tokens(self, i: int) -> list[int]:
        """The tokens after node 0 down to node i: its history beyond the committed tokens."""
        return [self.tokens[j] for j in self.path(i)[1:]]

    def ancestors(self) -> Tensor:
        """(N, N) bool: row i is true at node i and at its ancestors, what it may attend to."""
        n = len(self)
        rows = bytearray(n * n)
        for i, parent in enumerate(self.parents):  # a row is its parent's row, and itself
            if parent >= 0:
                rows[i * n : i * n + n] = rows[parent * n : parent * n + n]
            rows[i * n + i] = 1
        return torch.frombuffer(rows, dtype=torch.bool).view(n, n)

    def check(self, last: int, vocabulary: int | None) -> None:
        """Raises `ValueError`: the tree would reach a model as another context, or not at all.

        last: the text's last token. vocabulary: ids that the tree may hold; None: any.
        """
        if self.tokens[0] != last:
            raise ValueError("node 0 of the tree is not the request's last token")
        if vocabulary is None:
            return
        if not 0 <= min(self.tokens) <= max(self.tokens) < vocabulary:
            raise ValueError(f"the tree holds a token outside of the vocabulary of {vocabulary}")
        if self.laws is not None and self.laws.shape[1] != vocabulary:
            raise ValueError(f"the tree's laws are not over the vocabulary of {vocabulary}")

    def truncate(self, max_depth: int) -> TokenTree:
        """The tree without the nodes deeper than `max_depth` (>= 0); the rest keeps its order.

        A whole depth goes, whatever was drawn there, so the laws of the others stay true.
        """
        assert max_depth >= 0
        if len(self.tokens) - 1 <= max_depth or max(depths := self.depths) <= max_depth:
            return self
        kept = [i for i, depth in enumerate(depths) if depth <= max_depth]
        return self._part(kept, None if self.laws is None else self.laws[kept])

    def bounded(self, nodes: int, by_depth: bool) -> TokenTree:
        """The tree with at most so many drafted nodes (>= 0): the best, or the first, of them.

        by_depth: only whole depths go, so the laws of the others stay true; else laws are lost.
        """
        if len(self.tokens) - 1 <= nodes:
            return self
        if by_depth:
            counts = [sum(depth <= d for depth in self.depths) for d in range(max(self.depths))]
            fits = [d for d, count in enumerate(counts) if count <= nodes + 1]
            return self.truncate(max(fits, default=0))
        whole = range(nodes + 1)
        return self.best(nodes + 1) if self.scores is not None else self._part(whole, None)

    def below(self, vocabulary: int) -> TokenTree:
        """As `rooted`, of the nodes whose tokens are ids of such a vocabulary."""
        return self.rooted({i for i, token in enumerate(self.tokens) if 0 <= token < vocabulary})

    def rooted(self, keep: Collection[int]) -> TokenTree:
        """The tree of those nodes of `keep` whose parent is kept too; node 0 always is.

        Takes the laws away where it cuts: what is dropped was dropped for what it is.
        """
        if len(keep) >= len(self):
            return self
        stays = [True]
        for i in range(1, len(self)):
            stays.append(i in keep and stays[self.parents[i]])
        return self._part([i for i, stay in enumerate(stays) if stay], None)

    def best(self, count: int) -> TokenTree:
        """At most `count` (>= 1) nodes: of those whose parent is kept always the best score next.

        Needs scores, and takes the laws away: what is dropped was dropped for what it is.
        """
        assert count >= 1 and self.scores is not None
        if len(self) <= count:
            return self._part(range(len(self)), None)
        kept, heap = [0], [(-self.scores[i], i) for i in self.children(0)]
        heapq.heapify(heap)
        while heap and len(kept) < count:
            node = heapq.heappop(heap)[1]
            kept.append(node)
            for child in self.children(node):
                heapq.heappush(heap, (-self.scores[child], child))
        return self._part(sorted(kept), None)

    def within(self, whole: TokenTree, root: int = 0) -> list[int]:
        """(N,) where the nodes lie in a tree that was merged from this one; -1: cut off there.

        root: the node of `whole` that this one's node 0 is.
        """
        # The first of equal siblings, as `merge` keeps it.
        where = {
            (whole.parents[node], whole.tokens[node]): node for node in reversed(range(len(whole)))
        }
        found = [root]
        for parent, token in zip(self.parents[1:], self.tokens[1:], strict=True):
            found.append(where.get((found[parent], token), -1) if found[parent] >= 0 else -1)
        return found

    def _part(self, kept: Sequence[int], laws: Tensor | None) -> TokenTree:
        """The tree of the nodes `kept`, ascending, each with its parent."""
        return TokenTree.of(kept, self.tokens[0], self.tokens, self.parents, self.scores, laws)


def _integers(ids: Sequence[int]) -> list[int]:
    """Python's own, of numpy's or torch's: what is accepted of a tree gets into the text."""
    try:
        return [operator.index(each) for each in ids]
    except TypeError:
        raise ValueError("a token or parent of a tree is no integer: give ids, not text") from None


def merge(trees: Sequence[TokenTree]) -> TokenTree:
    """The union by (parent, token): each drafted sequence once, in the order it first came.

    (SpecInfer, Definition 3.2.) Node 0 must agree. The result carries no laws: a node that stands
    for several draws was drawn from none of them. Its score is the highest; None unless all trees
    have scores.
    """
    root = trees[0].tokens[0]
    assert all(tree.tokens[0] == root for tree in trees)
    scored = all(tree.scores is not None for tree in trees)
    tokens, parents = [root], [-1]
    scores: list[float] = [float("-inf")]
    where: dict[tuple[int, int], int] = {(-1, root): 0}  # (parent, token) -> node of the union
    for tree in trees:
        nodes: list[int] = []  # nodes[i] = where node i of this tree went
        for i, token in enumerate(tree.tokens):
            parent = nodes[tree.parents[i]] if i else -1
            node = where.setdefault((parent, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(parent)
                scores.append(float("-inf"))
            if scored and tree.scores is not None:
                scores[node] = max(scores[node], tree.scores[i])
            nodes.append(node)
    return TokenTree(tokens, parents, scores=scores if scored else None)
