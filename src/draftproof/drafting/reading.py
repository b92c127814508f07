"""What a model beside the target has yet to read of its texts, and how much of it in a step.

In slices under one budget for all requests, so that a long prompt holds nobody up. Does not know
whose tokens they are: a text is a request and the model's own ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from draftproof.drafting.base import alone
from draftproof.drafting.together import passed
from draftproof.runners.base import Runner, Work, begin, expect, fork
from draftproof.writing import Writing

SLICE = 512  # prompt tokens read in one step, of all requests together

Text = tuple[Writing, Sequence[int]]  # the last token is run with a tree
Stop = Callable[[Writing, Exception], None]
# Writing, the keys before it in this step, ahead -> what is to be cached, None: nothing now.
Follow = Callable[[Writing, Sequence[int], bool], Sequence[int] | None]


def catch_up(
    runner: Runner, requests: Sequence[Writing], follow: Follow, stop: Stop, ahead: bool
) -> set[int]:
    """Read of all requests what a step's budget allows; the keys that can be drafted for now.

    ahead: none can, the target itself still reads. One request's fault is not the others'.
    """
    texts: list[Text] = []
    for request in requests:
        try:
            tokens = follow(request, [before.key for before, _ in texts], ahead)
        except Exception as error:  # of a model or a tokenizer, which are foreign code
            stop(request, error)
            continue
        if tokens is not None:
            texts.append((request, tokens))
            if alone(request) and len(request.siblings) > 1:  # who come next, and copy it
                read(runner, texts[-1:], stop, ahead)
    return read(runner, [text for text in texts if not text[0].plain], stop, ahead)


def read(runner: Runner, texts: Sequence[Text], stop: Stop, ahead: bool = False) -> set[int]:
    """Read of all texts what the budget allows, the shortest rests first.

    Returns the keys that can be drafted for: what is not cached of them goes with the first pass of
    their tree. ahead: nothing is drafted for in this step. A request that stands alone is read
    whatever it takes: whether there is a draft may not depend on who else is read.
    """
    rests = {r.key: len(tokens) - 1 - runner.cached(r.key) for r, tokens in texts}
    budget, ready = SLICE, set[int]()
    slices: list[tuple[Writing, Work]] = []

    def run(some: Sequence[tuple[Writing, Work]]) -> Sequence[object]:
        return runner.forward([work for _, work in some])

    def fail(one: tuple[Writing, Work], error: Exception) -> None:
        ready.discard(one[0].key)
        stop(one[0], error)

    def part(text: Text, size: int) -> tuple[Writing, Work]:
        (request, tokens), at = text, runner.cached(text[0].key)
        new, brought = tokens[at : at + size], request.encoder_input
        return request, Work(request.key, new, None, encoder_input=brought)

    for text in sorted(texts, key=lambda text: rests[text[0].key]):
        request, rest = text[0], rests[text[0].key]
        if alone(request) and not ahead:
            ready.add(request.key)
            # Siblings copy what is cached, so nothing is left for the tree's pass.
            left = SLICE if len(request.siblings) < 2 else 0
            while rest > left and [*passed([part(text, min(rest, SLICE))], run, fail)]:
                rest -= SLICE
        elif rest <= budget and not ahead:
            ready.add(request.key)
            budget -= max(0, rest)
        elif (size := min(rest, budget)) > 0:
            slices.append(part(text, size))
            budget -= size
    for _ in passed(slices, run, fail):
        pass
    return ready


def waits(
    runner: Runner, request: Writing, before: Collection[int], length: int, ahead: bool
) -> bool:
    """Whether a new key had better wait: one of those before it reads what it could copy.

    length: tokens of what they have in common. Nothing waits that must be drafted for in this step.
    """
    if not hasattr(runner, "fork") or (alone(request) and not ahead):
        return False
    return any(key in request.siblings and runner.cached(key) < length - 1 for key in before)


def start(
    runner: Runner, request: Writing, tokens: Sequence[int], shared: Callable[[int], int]
) -> None:
    """Begin a new key, with what a sibling or an earlier key has cached of `tokens`.

    shared(key): how many of them the sibling's text begins with.
    """
    expect(runner, request.key, request.likely)
    others = [key for key in request.siblings if key != request.key and runner.cached(key)]
    lengths = {key: min(runner.cached(key), shared(key), len(tokens) - 1) for key in others}
    source = max(others, key=lambda key: lengths[key], default=None)
    if source is None or not (n := lengths[source]) or not fork(runner, request.key, source, n):
        begin(runner, request.key, tokens, request.salt)
