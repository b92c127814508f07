"""What is kept of a text: its tokens, and what each source would draft at each of its positions.

Position i stands behind the prompt and the first i tokens of the output. Of a tree its nodes are
kept, likeliest first where there are too many, and what of it agrees with the text; at most
`MOST_BYTES` for a position and a source. Knows no model and no method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.out_folders import whole
from draftproof.tree import TokenTree

MOST_BYTES = 200
DEEP, FIRST, WIDE = 12, 4, 2  # levels of a draft; children of node 0, and of the likeliest others
NODE = 7  # bytes of one
DOUBTS = (0.0, 0.1, 0.3)  # confidences below which a growing draft ends
NONE = 255  # no child is right
# Of a growing draft: levels at the likeliest nodes that are right, the rank of the right child
# behind them and at node 0, levels in all, and levels after each of `DOUBTS`.
GROWN = 4 + len(DOUBTS)
ACCEPTED, DRAFTED, LEVELS = range(3)  # of a draft as it is

Bytes = NDArray[np.uint8]


@dataclass
class Trees:
    """Of one source over one text. starts (n + 1,): where the nodes of each position begin."""

    starts: NDArray[np.int32]
    tokens: NDArray[np.uint32]
    parents: Bytes
    scores: NDArray[np.float16]

    @classmethod
    def of(cls, trees: Sequence[TokenTree], more: int) -> Trees:
        """Node 0 is left out: it is the text's. more: bytes of a position that are taken."""
        most = 1 + (MOST_BYTES - 4 - more) // NODE
        cut = [tree if len(tree) <= most else _scored(tree).best(most) for tree in trees]
        sizes = [0, *(len(tree) - 1 for tree in cut)]
        scores = [score for tree in cut for score in (_scored(tree).scores or ())[1:]]
        return cls(
            np.cumsum(sizes, dtype=np.int32),
            np.array([t for tree in cut for t in tree.tokens[1:]], np.uint32),
            np.array([p for tree in cut for p in tree.parents[1:]], np.uint8),
            np.array(scores, np.float16),
        )

    def tree(self, position: int, root: int) -> TokenTree:
        """Behind the token `root`."""
        at = slice(int(self.starts[position]), int(self.starts[position + 1]))
        return TokenTree(
            [root, *self.tokens[at].tolist()],
            [-1, *self.parents[at].tolist()],
            scores=[1.0, *self.scores[at].astype(float).tolist()],
        )


@dataclass
class Text:
    """An answer of the target, and what sources draft in it.

    trees: by source. grown: by source whose model grows its drafts, (GROWN, n). asis: by source,
    (settings, 3, n). seconds: by source, of asking it at one position of one text.
    """

    prompt: list[int]
    output: list[int]
    temperature: float
    group: str = "all"
    longest: int = 0  # tokens that the output might have had
    seed: int = 0  # of the request's noise
    reads: list[int] | None = None  # what an encoder read for it; None: there is none
    trees: dict[str, Trees] = field(default_factory=dict)
    grown: dict[str, Bytes] = field(default_factory=dict)
    asis: dict[str, Bytes] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.output)

    @property
    def asked(self) -> list[int]:
        """What it is the answer to: what an encoder read, or else the prompt."""
        return self.prompt if self.reads is None else self.reads

    def following(self, position: int) -> list[int]:
        """The tokens that were written behind a position, as many as a draft may be deep."""
        return self.output[position : position + 2 * DEEP + 2]

    def room(self, position: int) -> int:
        """Tokens that may be drafted there: the bonus needs a place too."""
        return self.longest - position - 1

    def save(self, path: Path) -> None:
        names = ("prompt", "output", "temperature", "group", "longest", "seed", "reads", "seconds")
        about = {name: getattr(self, name) for name in names}
        arrays: dict[str, Any] = {"about": np.array(json.dumps(about))}
        for name, trees in self.trees.items():
            arrays |= {f"trees|{part}|{name}": each for part, each in vars(trees).items()}
        arrays |= {f"grown|{name}": each for name, each in self.grown.items()}
        arrays |= {f"asis|{name}": each for name, each in self.asis.items()}
        with whole(path) as part, part.open("wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> Text:
        """Raises `ValueError`, `OSError`, `EOFError`, `KeyError` or `BadZipFile` for any other."""
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            made = cls(**json.loads(str(file["about"])))
            parts: dict[str, dict[str, Any]] = {}
            for key in file.files:
                kind, _, name = key.partition("|")
                if kind == "trees":
                    part, _, source = name.partition("|")
                    parts.setdefault(source, {})[part] = file[key]
                elif kind in ("grown", "asis"):
                    getattr(made, kind)[name] = file[key]
            made.trees = {name: Trees(**each) for name, each in parts.items()}
            return made


def as_it_is(tree: TokenTree, following: Sequence[int]) -> list[int]:
    """Tokens of a draft that are accepted, its nodes, its levels."""
    right, nodes = 0, [0]
    for token in following:
        nodes = [c for at in nodes for c in tree.children(at) if tree.tokens[c] == token]
        if not nodes:
            break
        right += 1
    return [right, min(NONE, len(tree) - 1), max(tree.depths)]


def as_it_grew(tree: TokenTree, following: Sequence[int]) -> list[int]:
    """Of a draft whose likeliest node of each level has children: see `GROWN`."""
    tip = levels = run = 0
    next_rank, first_rank, agrees = NONE, NONE, True
    ends = [0] * len(DOUBTS)
    scores = tree.scores or ()
    while children := tree.children(tip):
        token = following[levels] if levels < len(following) else -1
        rank = next((n for n, c in enumerate(children) if tree.tokens[c] == token), NONE)
        if levels == 0:
            first_rank = rank
        if agrees and rank == 0:
            run += 1
        elif agrees:
            agrees, next_rank = False, rank
        levels += 1
        tip = children[0]
        for number, doubt in enumerate(DOUBTS):
            if not ends[number] and scores[tip] < doubt:
                ends[number] = levels
    return [run, next_rank, first_rank, levels, *(end or levels for end in ends)]


def bytes_of(texts: Sequence[Text]) -> Mapping[str, float]:
    """Bytes per position, by source."""
    positions = sum(len(text) for text in texts)
    found: dict[str, float] = {}
    for text in texts:
        for name, trees in text.trees.items():
            size = sum(each.nbytes for each in vars(trees).values())
            found[name] = found.get(name, 0.0) + size
        for arrays in (text.grown, text.asis):
            for name, each in arrays.items():
                found[name] = found.get(name, 0.0) + each.nbytes
    return {name: size / max(1, positions) for name, size in found.items()}


def _scored(tree: TokenTree) -> TokenTree:
    if tree.scores is not None:
        return tree
    scores = [0.5**depth for depth in tree.depths]
    return TokenTree(tree.tokens, tree.parents, scores=scores)
