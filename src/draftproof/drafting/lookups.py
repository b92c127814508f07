"""Whole drafts of look-ups natively: all draft in one call for all texts of a step, merged there.

What they offer, and learn from what is written, is what `Asking`, `Offer.add` and `Source.learn`
make of it text by text (`native/drafts.cpp`). Knows no other source.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import c_int32, c_void_p

from draftproof.drafting.failing import too_large
from draftproof.drafting.looking import Looking
from draftproof.drafting.looks import Looks, missing, natively
from draftproof.drafting.sources import DEEP, LARGEST, Source
from draftproof.drafting.text import Text


class LookUps:
    """Those of a controller's sources. vocabulary: ids that a tree may hold."""

    def __init__(self, sources: Sequence[Source], looking: Looking, vocabulary: int) -> None:
        self.sources, self.looking, self.vocabulary = sources, looking, vocabulary

    def of(self, texts: Sequence[Text]) -> list[Looks] | None:
        """The looks at texts of which all that is free is drafted natively; None: not of all."""
        native, sources = self.looking.native, self.sources
        if not native or not all([sources[number].free for number in native]):
            return None
        if len(sources) > len(native):
            free = {number for number, source in enumerate(sources) if source.free}
            if not all([text.failed >= free - native.keys() for text in texts]):
                return None
        found = [looks for looks in self.looking.all(texts) if looks is not None]
        return found if len(found) == len(texts) else None

    def draft(
        self,
        texts: Sequence[Text],
        looks: Sequence[Looks],
        useful: int,
        least: float,
        one: float,
    ) -> float | None:
        """What drafting took, in passes of `one`; None: nothing is of use, and all are to be asked.

        All look-ups draft in one call, of whose time each of their drafts counts the same.

        useful: nodes of a tree. least: chance below which nothing behind a node is looked at.
        """
        count, requests = len(texts), [text.request for text in texts]
        tokens, sizes, fresh = missing(list(zip(requests, looks, strict=True)))
        counts = array("i", [len(each.numbers) for each in looks])
        rooms = array("i", [request.room for request in requests])
        drafted = (c_int32 * sum(counts))()
        clock = self.sources[looks[0].numbers[0]].clock
        began = clock()
        done = natively().dp_draft(
            (c_void_p * count)(*[each.address for each in looks]),
            (c_void_p * count)(*[each.merged.address for each in looks]),
            *(count, *[each.buffer_info()[0] for each in (counts, tokens, sizes, fresh, rooms)]),
            *(useful, least, self.vocabulary, drafted),
        )
        nodes = drafted[:]
        if done < 0 or min(nodes) < 0:
            return None
        each_took, at = (clock() - began) / len(nodes), 0
        found: dict[int, list[tuple[Text, int]]] = {}
        for text, each, size, new in zip(texts, looks, sizes, fresh, strict=True):
            text.step.looks, seen = each, max(0, len(text.request.tokens) - new)
            for own in each.own:
                own.size = size
            for number in each.numbers:
                text.read[number] = seen  # glances have read too
                found.setdefault(number, []).append((text, nodes[at]))
                at += 1
        took = 0.0
        for number, some in found.items():
            missed = [text.missed(number) for text, _ in some]
            seconds = each_took * len(some)
            passes = self.sources[number].took(seconds, len(some), one, missed)
            self._count(number, some, passes / len(some), one)
            took += passes
        return took

    def _count(
        self, number: int, drafted: Sequence[tuple[Text, int]], passes: float, one: float
    ) -> None:
        """So many nodes were drafted for each text, which took so many passes."""
        name = self.sources[number].name
        for text, size in drafted:
            text.read[number] = len(text.request.tokens)
            text.spent += passes
            share = text.request.decisions.share(name)
            share.seconds += passes * one
            share.offered += size - 1
            if size - 1 > LARGEST:
                too_large(text, number, self.sources[number], size - 1)

    def learn(self, texts: Sequence[Text]) -> None:
        """From what was written behind the last drafts."""
        told = list[tuple[Text, Looks]]()
        tokens, written = array("i"), array("i")
        for text in texts:
            looks = text.step.looks
            if looks is not None and (new := text.request.tokens[text.length :]):
                tokens.extend(new[:DEEP])
                written.append(min(len(new), DEEP))
                told.append((text, looks))
        if not told:
            return
        count, counts = len(told), [len(looks.numbers) for _, looks in told]
        right = (c_int32 * sum(counts))()
        natively().dp_learn(
            (c_void_p * count)(*[looks.address for _, looks in told]),
            *(count, (c_int32 * count)(*counts)),
            *(tokens.buffer_info()[0], written.buffer_info()[0], right),
        )
        found, at = right[:], 0
        for (text, _), many in zip(told, counts, strict=True):
            text.step.right = found[at : at + many]
            at += many
