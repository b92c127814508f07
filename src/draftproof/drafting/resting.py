"""Steps at rest: written plainly, with at most a glance at the sources.

They are settled together with the next step in which sources are asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting.account import ADVANCE, LATELY, wait
from draftproof.drafting.glancing import Glances
from draftproof.drafting.price import Price
from draftproof.drafting.text import Text

HARDLY = 4  # steps until it is looked again whether a token of a text counts enough to pay
LONGEST = 32  # steps at rest, behind which it is reckoned anew what time is worth
BOTHER = 0.02  # passes over one row that asking takes, before it is known


class Rests:
    """The rest of a batch: until another one steps, or a draft may pay again."""

    def __init__(self, glances: Glances) -> None:
        self.glances = glances
        self.bother = BOTHER  # what asking for a text takes of late, whatever is offered
        self.done = 0  # steps at rest since somebody was asked
        self._keys: list[int] = []
        self._texts: Sequence[Text] = ()
        self._price: Price | None = None
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
            texts = [text for text in self._texts if text.ask <= text.steps + step]
            if self.glances.promise(texts, self._price, self.bother):
                return False
            self._pass_over(texts, self._price, step)
            self._next = min([text.ask - text.steps for text in self._texts])
        self.done = step
        return True

    def end(self) -> int:
        """Steps since somebody was asked, that one included."""
        steps, self.done, self._until = 1 + self.done, 0, 0
        return steps

    def begin(self, keys: list[int], texts: Sequence[Text], price: Price) -> None:
        """The step of these texts is plain; so are those that follow until one is to be asked."""
        self._keys, self._texts, self._price = keys, texts, price
        # Beside a prompt that is read a row has another price than in the steps behind it.
        longest = LONGEST if price.rows <= len(texts) else 0
        self._until = min([longest, *(text.full - text.steps for text in texts)])
        self._next = min([text.ask - text.steps for text in texts])

    def took(self, asking: float) -> None:
        """Asking took so long for a text.

        What stalled it, as a collection of garbage does, is no part of the next: else one stall of
        some hundred passes would end all asking, and with it all that could tell of a shorter one.
        """
        self.bother += (min(asking, max(4 * self.bother, ADVANCE)) - self.bother) * LATELY

    def asked(self, texts: Sequence[Text], price: Price, left: float, new: bool) -> list[Text]:
        """The texts whose sources are asked in this step; the others are told when next.

        left: what the batch may lose. new: no pass was made yet, which would tell what one takes.
        """
        # A draft of which not even one node could run is of no use.
        least = self._least(price)
        patience = max(wait(least - left, price.unit), new)
        asked: list[Text] = []
        open_to: list[Text] = []
        for text in texts:
            due, text.promising = text.full <= text.steps, text.promising and _fresh(text)
            # A glance that promised something is not paid for twice.
            paid = self.glances.cost if text.promising else 0.0
            steps = max(patience, text.wait(self.bother if due else least - paid))
            if steps:  # until a glance can be paid for too, or it would never be enough
                steps = max(steps, text.wait(least + self.glances.cost))
            if not price.pays(text.step.weight):
                steps = max(steps, HARDLY)
            if price.rows > len(texts):  # beside a prompt, which gives a row another price
                steps = min(steps, 1)
            if steps:
                text.ask = max(text.ask, text.steps + steps)
                text.full = max(text.full, text.steps + steps)
            elif text.ran or due:
                asked.append(text)
            elif text.ask <= text.steps:
                open_to.append(text)
        # Some were glanced at just now, which ended the rest.
        unseen = [text for text in open_to if not _fresh(text)]
        self.glances.promise(unseen, price, self.bother)
        asked += [text for text in open_to if text.promising]
        self._pass_over([text for text in open_to if not text.promising], price)
        return asked

    def _least(self, price: Price) -> float:
        """What it takes to ask for a text, and to run one node."""
        return self.bother + self.glances.drafting + price.likely(1)

    def _pass_over(self, texts: Sequence[Text], price: Price, step: int = 0) -> None:
        """A glance showed nothing, so many steps behind the last that was settled.

        The next is worth nothing before what it may find can be asked for.
        """
        least, cost = self._least(price), self.glances.cost
        for text in texts:
            text.passed_over(cost, step)
            text.ask = max(text.ask, text.steps + text.wait(least + cost + text.glanced))


def _fresh(text: Text) -> bool:
    """Whether it was glanced at behind its last token."""
    return text.guessed == len(text.request.tokens)
