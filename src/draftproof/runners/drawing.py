"""Tokens that are drawn behind a pass: all texts' at once, on the threads that ran it.

They are those of `rules.Picks`, which picks text by text: there Python takes about as long for each
as the native race does.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from torch import Tensor

from draftproof import native
from draftproof.runners.base import Work
from draftproof.runners.team import Team


def picks(team: Team, work: Sequence[Work], logits: Sequence[Tensor]) -> list[array[int] | None]:
    """`Output.picks` of each item, by its rows of logits (N, V): float32, one behind another."""
    found: list[array[int] | None] = [None] * len(work)
    texts = list[native.Drawing]()
    kept: list[array[int]] = []
    for number, (item, rows) in enumerate(zip(work, logits, strict=True)):
        draw, tree = item.draw, item.tree
        if draw is None or tree is None or item.first or not len(rows):
            continue
        tokens, parents = array("i", tree.tokens), array("i", tree.parents)
        found[number] = made = array("i", [-1]) * len(tokens)
        kept += tokens, parents
        cut = native.Cut(draw.temperature, draw.top_p, draw.floor, draw.top_k)
        where = [each.buffer_info()[0] for each in (tokens, parents)]
        texts.append(
            native.Drawing(
                *(cut, draw.seed, draw.stream, draw.position, len(tokens)),
                *(*where, rows.data_ptr(), made.buffer_info()[0]),
            )
        )
    if texts:
        given = (native.Drawing * len(texts))(*texts)
        code = native.library().dp_pick(team.handle, given, len(texts), logits[0].shape[1])
        assert code in (native.OK, native.NO_MEMORY)  # behind which each is picked by its text
    return found
