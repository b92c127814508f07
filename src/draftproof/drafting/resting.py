"""Steps at rest: written plainly, with at most a glance at the sources.

They are settled together with the next step in which sources are asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from draftproof.drafting.account import SHARE, wait
from draftproof.drafting.bother import Bother
from draftproof.drafting.glancing import Glances
from draftproof.drafting.looks import Together
from draftproof.drafting.price import Price
from draftproof.drafting.text import PROBE, Text

HARDLY = 4  # steps until it is looked again whether a token of a text counts enough to pay
LONGEST = 32  # steps at rest, behind which it is reckoned anew what time is worth


class Rests:
    """The rest of a batch: until another one steps, or a draft may pay again."""

    def __init__(self, glances: Glances) -> None:
        self.glances = glances
        self.bother = Bother(glances)
        self.done = 0  # steps at rest since somebody was asked
        self._keys: list[int] = []
        self._texts: Sequence[Text] = ()
        self._price: Price | None = None
        self._looked: Together | None = None  # all of them
        # Steps behind the one in which somebody was asked: to the next such, and to a glance.
        self._until, self._next = 0, 0

    @property
    def over(self) -> bool:
        """Whether sources are asked in the next step whatever a glance tells."""
        return self.done + 1 >= self._until

    def go_on(self, keys: list[int]) -> bool:
        """Whether the step of these texts is one at rest."""
        if self.over or keys != self._keys or self._price is None:
            return False
        step = self.done + 1
        if step >= self._next:
            texts = self._glanced(self._price, step)
            if not texts:
                return False
            self._pass_over(texts, self._price, len(self._texts), step)
            self._next = min([text.ask - text.steps for text in self._texts])
        self.done = step
        return True

    def _glanced(self, price: Price, step: int) -> Sequence[Text]:
        """The texts that were glanced at, if nothing seems worth asking for; else none."""
        if self._looked is None and self.glances.looking.native:
            self._looked = self.glances.looking.together(self._texts, price, self.bother.each)
        if self._looked is not None:  # to look at those besides that cannot pay takes nothing more
            texts, looked = self._texts, self._looked
            asks = self.glances.promise_together(looked, texts, price, self.bother.once, step)
        else:
            texts = [text for text in self._texts if text.ask <= text.steps + step]
            asks = self.glances.promise(texts, price, self.bother.each, self.bother.once)
        return () if asks else texts

    def end(self) -> int:
        """Steps since somebody was asked, that one included."""
        steps, self.done, self._until, self.glances.spent = 1 + self.done, 0, 0, 0.0
        return steps

    def release(self, key: int) -> None:
        """A text has ended: nothing is kept of it, nor of those that rested with it."""
        if key in self._keys:
            self._keys, self._texts, self._looked = [], (), None

    def begin(self, keys: list[int], texts: Sequence[Text], price: Price) -> None:
        """The step of these texts is plain; so are those that follow until one is to be asked."""
        self._keys, self._texts, self._price, self._looked = keys, texts, price, None
        # Beside a prompt that is read a row has another price than in the steps behind it.
        longest = 0 if price.reads else LONGEST
        self._until = min([longest, *(text.full - text.steps for text in texts)])
        self._next = min([text.ask - text.steps for text in texts])

    def asked(self, texts: Sequence[Text], price: Price, new: bool) -> list[Text]:
        """The texts whose sources are asked in this step; the others are told when next.

        new: no pass was made yet, which would tell what one takes.
        """
        # A draft of which not even one node could run is of no use.
        least = self.bother.least(price, len(texts))
        # Waiting for so much that a glance at all of them does not take away what it was for.
        lacks = self.bother.needs(price, 1) - price.left
        glance, share = self.glances.cost, self.bother.share(len(texts))
        lacks += len(texts) * glance if lacks > 0 else 0.0
        patience = max(wait(lacks, price.unit), new)
        asked: list[Text] = []
        open_to: list[Text] = []
        for text in texts:
            due, text.promising = text.full <= text.steps, text.promising and _fresh(text)
            own, unit = text.left, text.step.unit
            # A glance that promised something is not paid for twice.
            cost = share if due else least - glance if text.promising else least
            steps = max(patience, wait(cost - own, unit))
            if steps:  # until a glance can be paid for too, or it would never be enough
                steps = max(steps, wait(least + glance - own, unit))
                text.step.why = text.step.why if new else "debt"
            if not price.pays(text.step.weight):
                steps, text.step.why = max(steps, HARDLY), "price"
            if price.reads:  # beside a prompt, which gives a row another price
                steps = min(steps, 1)
            if steps:
                text.ask = max(text.ask, text.steps + steps)
                text.full = max(text.full, text.steps + steps)
                text.able = text.steps + steps
            elif text.ran or due:
                asked.append(text)
            elif text.ask <= text.steps:
                open_to.append(text)
        # Some were glanced at just now, which ended the rest.
        unseen = [text for text in open_to if not _fresh(text)]
        self.glances.promise(unseen, price, self.bother.each, 0.0 if asked else self.bother.once)
        if open_to:
            asked += [text for text in open_to if text.promising]
            self._pass_over([text for text in open_to if not text.promising], price, len(texts))
        return self.bother.affordable(asked, price)

    def _pass_over(self, texts: Sequence[Text], price: Price, count: int, step: int = 0) -> None:
        """A glance showed nothing, so many steps behind the last that was settled.

        count: texts of the batch, which are asked for together.

        The next is worth nothing before what it may find can be asked for.
        """
        least, cost = self.bother.least(price, count), self.glances.cost
        # Half of what may be lost is for glances, at most, once what was won before is spent.
        pause = math.ceil(2 * cost * len(texts) / (SHARE * price.unit))
        pause = min(max(pause, 1), PROBE)
        spare = price.left - sum([text.glanced for text in texts]) - self.bother.needs(price, 1)
        for text in texts:
            won = spare > 0 and text.account.debt + text.glanced < 0
            text.passed_over(cost, step, 1 if won else pause)
            text.able = text.steps + text.wait(least + cost + text.glanced)
            text.ask = max(text.ask, text.able)


def _fresh(text: Text) -> bool:
    """Whether it was glanced at behind its last token."""
    return text.guessed == len(text.request.tokens)
