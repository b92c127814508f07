"""Whole drafts of look-ups natively: for all texts of a step in one call each, merged there.

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
        native = self.looking.native
        free = {number for number, source in enumerate(self.sources) if source.free}
        if not native or not native.keys() <= free:
            return None
        others, found = free - native.keys(), list[Looks]()
        for text, looks in zip(texts, self.looking.all(texts), strict=True):
            if looks is None or not text.failed >= others:
                return None
            found.append(looks)
        return found

    def draft(
        self,
        texts: Sequence[Text],
        looks: Sequence[Looks],
        useful: int,
        least: float,
        one: float,
    ) -> float | None:
        """What drafting took, in passes of `one`; None: nothing is of use, and all are to be asked.

        useful: nodes of a tree. least: chance below which nothing behind a node is looked at.
        """
        count, took = len(texts), 0.0
        requests = [text.request for text in texts]
        tokens, sizes, fresh = missing(list(zip(requests, looks, strict=True)))
        rooms = array("i", [request.room for request in requests])
        offers = (c_void_p * count)(*[each.merged.address for each in looks])
        told = [each.buffer_info()[0] for each in (tokens, sizes, fresh, rooms)]
        drafted = (c_int32 * count)()
        counts: list[tuple[int, float, list[int]]] = []
        for begin, number in enumerate(self.looking.native):
            source = self.sources[number]
            began = source.clock()
            at = (c_void_p * count)(*[each.at.get(number) for each in looks])
            done = natively().dp_draft(
                *(at, offers, count, number, not begin, *told),
                *(useful, least, self.vocabulary, drafted),
            )
            nodes = drafted[:]
            if done < 0 or min(nodes) < 0:
                return None
            asked = [text for text, each in zip(texts, nodes, strict=True) if each]
            if asked:
                missed = [text.missed(number) for text in asked]
                passes = source.took(source.clock() - began, len(asked), one, missed)
                counts.append((number, passes / len(asked), nodes))
                took += passes
        for each, size in zip(looks, sizes, strict=True):
            for own in each.own:
                own.size = size
        for text, each in zip(texts, looks, strict=True):
            text.step.looks = each
        for number, passes, nodes in counts:
            self._count(number, [*zip(texts, nodes, strict=True)], passes, one)
        return took

    def _count(
        self, number: int, drafted: Sequence[tuple[Text, int]], passes: float, one: float
    ) -> None:
        """So many nodes were drafted for each text, which took so many passes."""
        name = self.sources[number].name
        for text, size in drafted:
            if size:
                text.read[number] = len(text.request.tokens)
                text.spent += passes
                share = text.request.decisions.share(name)
                share.seconds += passes * one
                share.offered += size - 1
                if size - 1 > LARGEST:
                    too_large(text, number, self.sources[number], size - 1)

    def learn(self, texts: Sequence[Text]) -> None:
        """From what was written behind the last drafts."""
        tokens, written, told = array("i"), array("i"), list[tuple[Text, Looks]]()
        for text in texts:
            looks, new = text.step.looks, text.request.tokens[text.length :]
            if looks is not None and new:
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
