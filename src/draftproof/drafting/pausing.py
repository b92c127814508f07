"""When a dear source is tried again for a text: soon where it was right, ever later where not."""

from __future__ import annotations

from draftproof.drafting.sources import SOON
from draftproof.drafting.text import Text

SHADOW = 48  # steps until a source that does not pay is tried again, at most
VAIN = 1.0  # passes without a token that is right, behind which one that seems to pay rests too


def rests(number: int, text: Text) -> bool:
    """Whether it was wrong so often that the rest of what may be lost is kept for later places.

    Reading what a draft missed costs about what an account gains meanwhile, so a try costs as much
    of it later as at once; and a text that has turned may have turned back by then.
    """
    return text.vain[number] >= VAIN and text.steps < text.due[number]


def go_on(number: int, text: Text) -> None:
    """It is asked: again soon, or later where it was wrong for long."""
    if text.vain[number] < VAIN:
        text.pause[number] = SOON
    else:
        put_off(number, text)


def put_off(number: int, text: Text) -> None:
    text.due[number] = text.steps + text.pause[number]
    text.pause[number] = min(2 * text.pause[number], SHADOW)
