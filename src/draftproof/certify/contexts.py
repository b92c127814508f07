"""Where the law is tested: contexts behind which a method drafts, and the target is not sure.

Candidates are what the target wrote, and what it wrote said once more, so that look-ups find it. A
few runs with seeds of their own, which no test counts, tell which of them exercise the method.
Knows no method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.certify import law
from draftproof.certify.chi_square import LEAST
from draftproof.certify.plain import Reference
from draftproof.llm import LLM

LONGEST = 64  # tokens of a context: it is read many times
SHORTEST = 4  # tokens before the place that is said again, if there are any: look-ups match some
TRIAL = 16  # runs behind a candidate
ENOUGH = 4  # of a trial's tokens: accepted as well as rejected


@dataclass(frozen=True)
class Context:
    """Token ids behind which the law may be tested."""

    number: int  # of the prompt
    ids: list[int]
    reads: Sequence[int] = ()  # the prompt itself, where an encoder reads it


def candidates(refs: Sequence[Reference], room: int, *, plain: bool) -> list[Context]:
    """Contexts of texts, from the place where the target was least sure; that one first.

    plain: as they were written, and before those that say it again. room: tokens that context and
    run may have together.
    """
    longest = max(1, min(LONGEST, room - law.TOKENS - law.AHEAD))
    ranking = []
    for ref in refs:
        sure = [float(row.float().topk(4).values.softmax(-1).amax()) for row in ref.rows]
        text, first = [*ref.begin, *ref.tokens], len(ref.begin)
        reads = () if ref.read is None else tuple(ref.read.tokens)
        if plain:
            at = min(range(len(sure)), key=sure.__getitem__)
            ranking.append((0, sure[at], ref.number, text[: first + at][-longest:], reads))
        late = [i for i in range(len(sure)) if first + i >= SHORTEST] or [len(sure) - 1]
        at = first + min(late, key=sure.__getitem__)
        part = max(1, longest // 3)
        said = text[max(0, at - part) : at + part] + text[max(0, at - part) : at]
        ranking.append((1, sure[at - first], ref.number, said[-longest:], reads))
    return [Context(number, ids, reads) for *_, number, ids, reads in sorted(ranking)]


def tests(
    llm: LLM,
    listed: Sequence[Context],
    setting: str,
    count: int,
    seeds: range,
    off: float,
    done: Callable[[int], None],
) -> list[law.Test]:
    """The tests of law of `llm`, which drafts, behind the `count` candidates that say most of it.

    They are of different prompts. Where a method drafts nothing, or fails, the trial is the test.
    """
    best: dict[int, tuple[tuple[float, int], Context, law.Test]] = {}
    trial_seeds = range(seeds.stop, seeds.stop + min(TRIAL, len(seeds)))
    good = set[int]()
    for context in listed:
        if context.number in good:
            continue
        given = llm, context.number, context.ids, setting
        trial = law.test(*given, trial_seeds, off, reads=context.reads)
        worth = _worth(trial, len(seeds))
        if context.number not in best or worth > best[context.number][0]:
            best[context.number] = (worth, context, trial)
        if worth[0] >= min(ENOUGH, len(trial_seeds) // 4):
            good.add(context.number)
        if len(good) == count:
            break
    results = []
    for _, context, trial in sorted(best.values(), key=lambda one: one[0], reverse=True)[:count]:
        if trial.drafted and trial.cause is None and not trial.impossible:
            given = llm, context.number, context.ids, setting
            results.append(law.test(*given, seeds, off, done, context.reads))
        else:
            results.append(trial)
            done(len(seeds))
    return results


def _worth(trial: law.Test, runs: int) -> tuple[float, int]:
    """How much a test of so many runs would say; what fails says most."""
    if trial.cause is not None or trial.impossible:
        return float("inf"), 0
    if runs * (1 - trial.surest) < LEAST:
        return -1.0, trial.drafted
    return float(min(trial.accepted, trial.rejected)), trial.accepted + trial.rejected
