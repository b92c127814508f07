"""Writes answers plainly, and asks every source at every position what it would draft there.

What a source drafts behind a text is a function of that text alone, under the coupled rule and
greedily: so it can be asked beside plain decoding, and what was written tells what would have been
accepted. Sources whose model can read ahead are asked in wide passes instead (`reading`).
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from draftproof.drafting.adopting import adopt
from draftproof.drafting.base import Drafter
from draftproof.llm import LLM
from draftproof.request import Request
from draftproof.runners.base import Load, Target
from draftproof.sampling import SamplingParams
from draftproof.tree import TokenTree
from draftproof.tuning.records import Text, Trees, as_it_grew, as_it_is
from draftproof.tuning.sources import Source
from draftproof.writing import Writing

Asked = tuple[str, int]  # a source, and which of what is asked for it


class Recorder(Drafter):
    """Proposes nothing, and keeps what others would propose. parts: by source and number."""

    name = "recorder"

    def __init__(self, parts: Mapping[Asked, Drafter]) -> None:
        self.parts = dict(parts)
        each = self.parts.values()
        self.taps = tuple(sorted({tap for part in each for tap in part.taps}))
        self.wants_best = any(part.wants_best for part in each)
        self.observes = any(part.observes for part in each)
        # By request and what was asked: position -> tree. By what was asked: seconds for a text.
        self.trees: dict[int, dict[Asked, dict[int, TokenTree]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self.seconds: dict[Asked, list[float]] = defaultdict(list)

    def bind(self, target: Target, load: Load) -> None:
        for part in self.parts.values():
            part.bind(target, load)

    def observe(self, request: Writing, position: int, hidden: Mapping[int, Tensor]) -> None:
        for part in self.parts.values():
            if part.observes:
                part.observe(request, position, hidden)

    def read_along(self, requests: Sequence[Writing]) -> None:
        for part in self.parts.values():
            part.read_along(requests)

    def release(self, request: Writing) -> None:
        for part in self.parts.values():
            part.release(request)

    def close(self) -> None:
        for part in self.parts.values():
            part.close()

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        for asked, part in self.parts.items():
            began = time.perf_counter()
            trees = part.propose(requests)
            self.seconds[asked].append((time.perf_counter() - began) / len(requests))
            for request, tree in zip(requests, trees, strict=True):
                at = len(request.tokens) - len(request.prompt)
                self.trees[request.key][asked][at] = tree.truncate(request.room - 1)
        return [TokenTree.chain(request.tokens[-1:]) for request in requests]


def write(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    groups: Sequence[str],
    params: SamplingParams,
    sources: Sequence[Source],
) -> list[Text]:
    """The target's own answers to prompts (token ids), and what the sources draft in them.

    llm: drafts with nothing afterwards. Raises `ValueError` for a source that cannot be used, and
    for an answer that fails.
    """
    parts = {
        (source.name, number): adopt(proposer)
        for source in sources
        for number, proposer in enumerate(source.asked())
    }
    recorder = Recorder(parts)
    llm.use(recorder)
    try:
        requests = [made for prompt in prompts for made in llm.prepare(list(prompt), params)]
        for _ in llm.engine.run(requests):
            pass
        for request in requests:
            refuse(request)
        return [
            _text(request, group, recorder, sources)
            for request, group in zip(requests, groups, strict=True)
        ]
    finally:
        llm.use(None)


def refuse(request: Request) -> None:
    """Raises `ValueError` for an answer that failed, or whose drafter did."""
    if request.finish_reason not in ("stop", "length"):
        raise ValueError(request.error or "an answer was cut off")
    if request.plain:
        raise ValueError(request.warnings[-1])


def keep(text: Text, source: Source, trees: Sequence[Sequence[TokenTree]]) -> None:
    """Take down the trees (asked, n) of a source."""
    following = [text.following(at) for at in range(len(text))]
    if source.grows:
        rows = [as_it_grew(t, after) for t, after in zip(trees[0], following, strict=True)]
        text.grown[source.name] = np.array(rows, np.uint8).T
        more = len(text.grown[source.name])
    else:
        found = [
            [as_it_is(t, after) for t, after in zip(each, following, strict=True)] for each in trees
        ]
        text.asis[source.name] = np.array(found, np.uint8).transpose(0, 2, 1)
        more = 3 * len(trees)
    text.trees[source.name] = Trees.of(trees[0], more)


def _text(request: Request, group: str, recorder: Recorder, sources: Sequence[Source]) -> Text:
    read = request.encoder_input
    made = Text(
        prompt=request.prompt,
        reads=None if read is None else [*read.tokens],
        output=request.output,
        temperature=request.params.temperature,
        group=group,
        longest=len(request.output) + max(0, request.room),
        seed=request.seed,
    )
    asked = recorder.trees[request.key]
    for source in sources:
        listed = [asked[source.name, number] for number in range(len(source.asked()))]
        trees = [
            [each.get(at) or TokenTree.chain([root(made, at)]) for at in range(len(made))]
            for each in listed
        ]
        keep(made, source, trees)
        took = [s for (name, _), s in recorder.seconds.items() if name == source.name]
        made.seconds[source.name] = statistics.median(took[0]) if took and took[0] else 0.0
    return made


def root(text: Text, position: int) -> int:
    """The last token before a position."""
    return text.output[position - 1] if position else text.prompt[-1]
