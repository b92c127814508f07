"""What a token of each text of a batch counts, and why a text is written plainly."""

from __future__ import annotations

import math
from collections.abc import Sequence

from draftproof.drafting.text import Text
from draftproof.writing import Writing

EARLY = 1 / 16  # of what a text has left, by which its end is not known where it may end at a token
RUN = 2.0  # tokens that a draft brings at a time, where it brings any
GUMBEL = math.sqrt(6) / math.pi  # deviations in the scale of the law that a softmax is exact for
SURE = 32  # steps after which the pace of a text counts as much as that of all


def by_row(curve: Sequence[float], texts: int, reading: float = 0.0) -> float:
    """Part of what a plain token takes that its row alone makes dearer, while half of them end.

    0 on a flat curve of costs, where only the last text to end saves passes, and 1 where every row
    takes as long. reading: of the keys and values of each text, in passes over one row.
    """
    rows = min(texts, len(curve) - 1)
    half = rows // 2
    less = (curve[half] + reading * half) / (curve[rows] + reading * rows) if half else 1.0
    return (1 - less) * rows / (rows - half)


def weights(texts: Sequence[Text], objective: str, running: int, own: float = 0.0) -> list[float]:
    """What a token of each text counts, 1 on average.

    Texts that are written together are done when the last of them is, so a token of the one with
    most left to write counts most, those included whose prompts are still being read, unless others
    of them wait for a place. But a text that ends sooner leaves the others passes of a row less.
    Under "latency", and where nobody waits for several at once, all tokens count alike.

    running: requests that have a place. own: see `by_row`.
    """
    found = [1.0] * len(texts)
    if objective == "latency":
        return found
    several: dict[int, list[int]] = {}
    for number, text in enumerate(texts):
        if together := text.request.together:
            several.setdefault(id(together), []).append(number)
    for members in several.values():
        latest = texts[members[0]].request.together[-running - 1 :]
        unread = [request.room for request in latest if not request.begun]
        if len(unread) + len(texts) > running:
            continue
        some = [texts[at] for at in members]
        steps = [text.steps for text in some]
        written = [text.length - text.begin for text in some]
        usual = max(1.0, sum(written) / max(1, sum(steps)))
        # Tokens per step, thought to be usual until there are many of them.
        paces = [(n + SURE * usual) / (m + SURE) for n, m in zip(written, steps, strict=True)]
        left = [text.request.room / pace for text, pace in zip(some, paces, strict=True)]
        left += [room / usual for room in unread]
        latest_end = max(left)
        last = left.index(latest_end)
        pace = max(1.0, written[last] / max(1, steps[last])) if last < len(some) else usual
        spread = _spread(latest_end, usual, pace, any([_may_end(text.request) for text in some]))
        late = [math.exp((each - latest_end) / spread) for each in left]
        total = sum(late)
        for at, each in zip(members, late, strict=False):
            found[at] = own + (1 - own) * each * len(late) / total
    return found


def _spread(steps: float, usual: float, pace: float, open_end: bool) -> float:
    """By how many of the steps that are left the ends of texts are off, as a softmax has it.

    Of tokens that are won at random, in runs. Where hardly any are, a text that is ahead by two is
    hardly ever the last. And where drafts write much of the text that is behind it gets them first,
    and catches up: by that share of what they save it.

    usual, pace: tokens per step, of all texts and of the one that is behind. open_end: a text may
    end before its room does.
    """
    won = math.sqrt(RUN * steps * (usual - 1)) / usual
    drafted = 1 - 1 / pace
    steered = steps * drafted**2
    return max(1.0, GUMBEL * won, steered, EARLY * steps if open_end else 0.0)


def _may_end(request: Writing) -> bool:
    """Whether what it writes may end it, and not its room alone."""
    return bool(request.stop_ids or request.params.stop or request.params.grammar)


def reason(text: Text) -> str:
    """Why a text is written plainly whose sources were asked."""
    offered = text.step.offered or text.step.looks is not None
    return "price" if offered else "nothing offered"
