"""A step's work does not grow with the text: automata, lookups, long prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from beside import V, drafted, guarded, models_of, some
from draftproof.drafting.adopting import adopt
from draftproof.drafting.automaton import Automaton
from draftproof.request import Request
from draftproof.runners.base import Output
from draftproof.tree import TokenTree
from draftproof.writing import Feedback

# --- an automaton that takes back ---


class Touched(list[Any]):
    """A list that counts what of it is read."""

    count = 0

    def __getitem__(self, at: Any) -> Any:
        value = super().__getitem__(at)
        Touched.count += len(value) if isinstance(at, slice) else 1
        return value

    def __iter__(self) -> Iterator[Any]:
        for value in super().__iter__():
            Touched.count += 1
            yield value

    def __eq__(self, other: object) -> bool:
        Touched.count += len(self)
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def touched(work: Callable[[], Any]) -> int:
    before = Touched.count
    work()
    return Touched.count - before


def test_taking_back_costs_the_same_in_any_text() -> None:
    counts = []
    for length in (1000, 32000):
        made = Automaton()
        for token in some(1, length):
            made.append(token)
        made.next = Touched(made.next)

        def guess(made: Automaton = made) -> None:
            for token in some(2, 200):
                made.append(token)
                made.undo()

        counts.append(touched(guess))
    assert counts[1] <= 1.5 * counts[0]


# --- the work of a step, whatever the length ---

LOOKUPS: dict[str, Callable[[], Any]] = {
    "ngram": dp.NGram,
    "suffix": dp.SuffixAutomaton,
    "lookahead": dp.Lookahead,
    "draft": lambda: dp.DraftModel(tiny.model()),
    "staged": lambda: dp.Staged(tiny.model(), dp.SuffixAutomaton()),
}


class Nothing:
    """A target, and a draft's runner, that says 5 at once."""

    vocabulary, max_length, device = V, 1 << 20, torch.device("cpu")
    encodes, layers = False, 2

    def __init__(self) -> None:
        self.length: dict[int, int] = {}
        self.tree: TokenTree | None = None
        self.read: list[int] = []

    def load(self, model: Any, quantize: Any = None) -> Nothing:
        return Nothing()

    def cached(self, key: int) -> int:
        return self.length.get(key, 0)

    def keep(self, key: int, path: Sequence[int]) -> None:
        self.length[key] += len(path)

    def crop(self, key: int, length: int) -> None:
        self.length[key] = length

    def free(self, key: int) -> None:
        self.length.pop(key, None)

    def close(self) -> None:
        self.length.clear()

    def forward(self, work: Any, taps: Any = ()) -> list[Any]:
        outputs = []
        self.read.append(sum(len(item.new) for item in work))
        for item in work:
            self.length[item.key] = self.cached(item.key) + len(item.new)
            nodes = len(item.tree.tokens) - item.first if item.tree is not None else 0
            outputs.append(Output(torch.eye(V)[[5] * nodes]))
        return outputs


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_step_reads_as_much_of_a_long_text_as_of_a_short_one(name: str) -> None:
    counts = []
    for length in (1000, 32000):
        made = LOOKUPS[name]()
        made.bind(Nothing(), Nothing.load)
        one = Request(0, [], dp.SamplingParams(max_tokens=1000), seed=1)
        one.tokens, one.prompt = Touched(some(3, length)), some(3, 9)
        one.history.append(one.tokens)

        def step(made: Any = made, one: Request = one) -> None:
            (tree,) = made.propose([one])
            one.tokens.append(6)
            one.history.append([6])
            one.feedback = Feedback(tree, [0], {}, [6] * len(tree))

        for _ in range(70):  # a draft reads the text in slices
            step()
        counts.append(touched(lambda: [step() for _ in range(20)]))
    assert counts[1] <= 1.5 * counts[0] + 50


# --- long prompts ---


def test_a_draft_reads_in_slices_and_the_shortest_first() -> None:
    made = dp.DraftModel(None, min_confidence=0.0)
    made.bind(Nothing(), Nothing.load)  # type: ignore[arg-type]
    runner: Any = made.beside.runner
    params = dp.SamplingParams(max_tokens=50)
    requests = [Request(key, some(key, n), params, seed=1) for key, n in enumerate((1400, 900, 40))]
    ready: dict[int, int] = {}
    for step in range(8):
        del runner.read[:]
        for request, tree in zip(requests, made.propose(requests), strict=True):
            if len(tree) > 1:
                ready.setdefault(request.key, step)
            request.tokens.append(5)
        assert sum(runner.read) <= 512
    assert ready[2] == 0 and ready[1] < ready[0] < 6


def test_a_draft_reads_along() -> None:
    parts = [dp.DraftModel(None), dp.SpecInfer([None]), dp.Staged(None, dp.DraftModel(None))]
    made = dp.Hybrid([dp.NGram(), *parts])
    made.bind(Nothing(), Nothing.load)  # type: ignore[arg-type]
    request = Request(0, some(1, 1500), dp.SamplingParams(max_tokens=50), seed=1)
    for step in range(3):
        adopt(made).read_along([request])
        assert [runner.cached(0) for runner in models_of(made)] == [min(1499, 512 * (step + 1))] * 4
    assert len(made.propose([request])[0]) > 1


def test_where_another_draft_is_another_text_a_draft_is_there_at_once() -> None:
    made = dp.DraftModel(None)
    made.bind(Nothing(), Nothing.load)  # type: ignore[arg-type]
    params = dp.SamplingParams(max_tokens=50, temperature=1.0)
    requests = [Request(key, some(key, 900), params, seed=1, rule="rejection") for key in range(3)]
    assert all(len(tree) > 1 for tree in made.propose(requests))


@pytest.mark.parametrize("kind", ["draft", "specinfer", "staged"])
def test_a_prompt_beyond_a_drafts_room_is_not_read(kind: str) -> None:
    short = tiny.model("llama", dtype=torch.float64, max_position_embeddings=40)
    made: Any = {
        "draft": lambda: dp.DraftModel(short),
        "specinfer": lambda: dp.SpecInfer([short]),
        "staged": lambda: dp.Staged(short, dp.NGram()),
    }[kind]()
    prompts = [some(1, 300), some(2, 30), some(3, 5)]
    params = dp.SamplingParams(max_tokens=20, ignore_eos=True)
    with drafted(made) as llm:
        seen: list[int] = []
        for runner in models_of(made):
            guarded(runner, seen)
        (long, grows, fits) = llm.generate(prompts, params)
    assert len(seen) < 300 and long.stats.drafted == 0 and grows.stats.drafted > 0
    assert ["context ends at 40" in w for w in long.warnings + grows.warnings] == [True, True]
    assert not fits.warnings


class Forking(Nothing):
    """A runner that copies rows."""

    def load(self, model: Any, quantize: Any = None) -> Forking:
        return Forking()

    def fork(self, key: int, source: int, length: int) -> None:
        assert key not in self.length and length <= self.length[source]
        self.length[key] = length


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_prompt_is_read_once_for_its_completions(rule: str) -> None:
    made = dp.DraftModel(None, min_confidence=0.0)
    made.bind(Forking(), Forking.load)  # type: ignore[arg-type]
    runner: Any = made.beside.runner
    params = dp.SamplingParams(max_tokens=50, temperature=1.0)
    requests = [Request(k, some(1, 1300), params, seed=1, rule=rule, index=k) for k in range(4)]
    for request in requests:
        request.siblings = (0, 1, 2, 3)
    for _ in range(5):
        trees = made.propose(requests)
        for request in requests:
            request.tokens.append(5)
    assert all(len(tree) > 1 for tree in trees)
    assert 1299 <= sum(runner.read) < 1299 + 4 * 8
