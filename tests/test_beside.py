"""What drafts beside a target do at every edge: long texts, small vocabularies, faults, the end.

The bars: work of a step that does not grow with the text, no id that a model has no row for, one
request's draft that no other notices, and nothing held of a request that has ended.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from drafters import METHODS
from draftproof.drafting import fitting
from draftproof.drafting.automaton import Automaton
from draftproof.drafting.base import adopt
from draftproof.request import Request
from draftproof.tree import TokenTree
from draftproof.writing import Feedback
from tiny import other_size

V = tiny.VOCABULARY
SLOW = pytest.mark.slow
LONG_ROOM = {"dtype": torch.float64, "max_position_embeddings": 2600}


@cache
def target() -> PreTrainedModel:
    return tiny.model("llama", **LONG_ROOM)


@cache
def draft(share: float = 0.1) -> PreTrainedModel:
    return tiny.relative(target(), share)


def drafted(proposer: Any, share: float = 0.0, **options: Any) -> dp.LLM:
    return dp.LLM(target(), speculate=proposer, **options)


def some(seed: int, length: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(3, V) for _ in range(length)]


def run(llm: dp.LLM, requests: Sequence[Request]) -> list[list[int]]:
    while not all(request.finished for request in requests):
        llm.engine.step()
    return [request.output for request in requests]


# --- an automaton that takes back ---


def state_of(made: Automaton) -> Any:
    return [list(each.items()) for each in made.next], made.link, made.length, made.count, made.ends


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=8), st.data())
def test_an_automaton_that_took_back_is_a_fresh_one(
    parts: list[list[int]], data: st.DataObject
) -> None:
    made = Automaton()
    for part in parts:
        for token in part:
            made.append(token)
        for _ in range(data.draw(st.integers(0, made.size))):
            made.undo()
        fresh = Automaton()
        for token in made.tokens:
            fresh.append(token)
        assert state_of(made) == state_of(fresh)


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
            outputs.append(SimpleNamespace(logits=torch.eye(V)[[5] * nodes]))
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


# --- vocabularies ---


def guarded(runner: Any, seen: list[int]) -> None:
    forward = runner.forward

    def checked(work: Any, *args: Any, **options: Any) -> Any:
        for item in work:
            ids = [*item.new, *(item.tree.tokens if item.tree is not None else ())]
            assert all(0 <= token < runner.vocabulary for token in ids), "no row for that id"
            seen.extend(ids)
        return forward(work, *args, **options)

    runner.forward = checked


class Says:
    """Proposes every id that only some models have, and what the target likes."""

    taps: tuple[int, ...] = ()

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        return [TokenTree([r.tokens[-1], V - 1, 5, V - 3, 6], [-1, 0, 1, 0, 2]) for r in requests]


def less(by: int = 8) -> PreTrainedModel:
    made = other_size(V - by, draft())
    made.config.max_position_embeddings = 2600
    return made


SMALLER: dict[str, Callable[[], Any]] = {
    "draft": lambda: dp.DraftModel(less(), min_confidence=0.0),
    "shaped": lambda: dp.DraftModel(less(), tree=[(0,), (1,), (0, 0), (1, 0)]),
    "specinfer": lambda: dp.SpecInfer([less(), less(4)], expansion=(2, 2, 1)),
    "staged, look-up": lambda: dp.Staged(less(), dp.NGram(min_ngram=1), min_confidence=0.0),
    "staged, suffix": lambda: dp.Staged(
        less(), dp.SuffixAutomaton(min_match=1), min_confidence=0.0
    ),
    "staged, any ids": lambda: dp.Staged(less(), Says(), min_confidence=0.0),
    "staged, wider": lambda: dp.Staged(less(), dp.DraftModel(draft(), 3), min_confidence=0.0),
    "staged, narrower": lambda: dp.Staged(draft(), dp.DraftModel(less(), 3), min_confidence=0.0),
    "staged twice": lambda: dp.Staged(
        less(4), dp.Staged(less(), Says(), 4, min_confidence=0.0), min_confidence=0.0
    ),
    "hybrid": lambda: [dp.NGram(min_ngram=1), dp.DraftModel(less(), min_confidence=0.0)],
}
SMALL_PROMPTS = [[5, 6, V - 1, 7], [5, V - 2], *(some(seed, 12) for seed in range(2)), [9, 10] * 8]


def models_of(proposer: Any) -> Iterator[Any]:
    """The runners of all models of its own."""
    parts = [*getattr(proposer, "parts", ()), *getattr(proposer, "drafts", ())]
    parts += [getattr(proposer, name) for name in ("beside", "drafter") if hasattr(proposer, name)]
    if hasattr(proposer, "runner"):
        yield proposer.runner
    for part in parts:
        yield from models_of(part)


def sampled(**options: Any) -> dp.SamplingParams:
    given = {"temperature": 1.1, "max_tokens": 14, "ignore_eos": True, "seed": 5, **options}
    return dp.SamplingParams(**given)


@cache
def plain(rule: str, temperature: float) -> list[list[int]]:
    with dp.LLM(target(), rule=rule) as llm:
        outs = llm.generate(SMALL_PROMPTS, sampled(temperature=temperature))
        return [out.token_ids for out in outs]


@pytest.mark.parametrize("rule", ["coupled", pytest.param("rejection", marks=SLOW)])
@pytest.mark.parametrize("name", SMALLER)
def test_no_id_reaches_a_model_that_has_no_row_for_it(name: str, rule: str) -> None:
    with drafted(SMALLER[name](), rule=rule) as llm:
        seen: list[int] = []
        for runner in models_of(llm.engine.proposer):
            guarded(runner, seen)
        outs = llm.generate(SMALL_PROMPTS, sampled())
    assert seen and sum(out.stats.drafted for out in outs) > 0
    said = [warning for out in outs for warning in out.warnings]
    assert all("has no row for token id" in warning for warning in said), said
    assert all(len(out.warnings) <= 2 for out in outs)
    if rule == "coupled":
        assert [out.token_ids for out in outs] == plain("coupled", 1.1)


# --- rules from outside ---


def alternates(ids: Tensor, row: Tensor) -> Tensor:
    """No token of the last three again, and every id has its place."""
    assert len(row) == V and int(ids.max()) < V
    row = row.clone()
    row[ids[-3:]] = -torch.inf
    return row


def forces(ids: Tensor, row: Tensor) -> Tensor:
    """Every fifth token is one that a smaller draft does not have."""
    if len(ids) % 5:
        return alternates(ids, row)
    row = torch.full_like(row, -torch.inf)
    row[V - 1] = 0.0
    return row


@pytest.mark.parametrize(
    ("process", "temperature"),
    [
        (alternates, 0.9),
        pytest.param(alternates, 0.0, marks=SLOW),
        pytest.param(forces, 0.9, marks=SLOW),
        (forces, 0.0),
    ],
)
@pytest.mark.parametrize("name", SMALLER)
def test_a_rule_from_outside_sees_the_targets_ids(
    name: str, temperature: float, process: Any
) -> None:
    texts = []
    for proposer in (None, SMALLER[name]()):
        with drafted(proposer) as llm:
            requests = [
                llm.submit(prompt, sampled(temperature=temperature))[0]
                for prompt in SMALL_PROMPTS[2:]
            ]
            for request in requests:
                request.history.process = process
            texts.append(run(llm, requests))
    assert texts[0] == texts[1]
    if process is alternates:
        assert sum(request.stats.drafted for request in requests) > 0
    said = [warning for request in requests for warning in request.warnings]
    assert all("has no row for token id" in warning for warning in said), said


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_stage_is_asked_about_its_own_text(rule: str) -> None:
    """The target as its own draft, drafted for: whatever the rule bars, all is accepted."""
    made = dp.Staged(target(), dp.NGram(min_ngram=1), min_confidence=0.0, branch=1)
    with drafted(made, rule=rule) as llm:
        requests = [llm.submit(prompt, sampled())[0] for prompt in SMALL_PROMPTS[2:]]
        for request in requests:
            request.history.process = alternates
        run(llm, requests)
    assert all(r.stats.accepted == r.stats.drafted > 0 for r in requests)


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


# --- the same seed, the same text ---


class Clock:
    """Says of every pass that it took as long as is planted."""

    def __init__(self, costs: Callable[[int], float]) -> None:
        self.costs = costs

    def seconds(self, runner: Any, sizes: Sequence[int]) -> dict[int, float]:
        return {n: self.costs(n) for n in sizes}


CLOCKS = [lambda n: 1.0 + 0.01 * n, lambda n: float(n)]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("fitted", "rejection"),
        pytest.param("fitted", "typical", marks=SLOW),
        ("suffix", "rejection"),
        ("hybrid", "rejection"),
        ("staged", "rejection"),
        ("early exit", "rejection"),
    ],
)
def test_neither_clocks_nor_neighbours_change_a_text(
    name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [7, 8, 9, 7, 8, 9, 7, 8]
    most = 100 if name == "fitted" else 30  # fitted after 32 steps for the first time
    params = dp.SamplingParams(temperature=0.9, max_tokens=most, seed=5, ignore_eos=True)
    model = tiny.model("llama", dtype=torch.float64, max_position_embeddings=600)
    texts = []
    for clock, others in zip(CLOCKS, (0, 3), strict=True):
        monkeypatch.setattr(fitting, "_seconds", Clock(clock).seconds)
        made = {
            "fitted": lambda: dp.DraftModel(tiny.relative(model), tree="auto"),
            "suffix": lambda: dp.SuffixAutomaton(min_match=1),
            "hybrid": lambda: dp.Hybrid(
                [dp.SuffixAutomaton(min_match=1), dp.DraftModel(tiny.relative(model), 3)], 6
            ),
            "staged": lambda: dp.Staged(
                tiny.relative(model), dp.SuffixAutomaton(min_match=1), min_confidence=0.0
            ),
            "early exit": lambda: dp.EarlyExit(2, 4, min_confidence=0.0),
        }[name]()
        with dp.LLM(model, speculate=made, rule=rule, prefix_cache=bool(others)) as llm:
            if others:
                # The same text, which a look-up finds; or a prompt that a cache still holds.
                before = 3 if name == "early exit" else 30
                llm.generate([prompt] * 2, replace(params, max_tokens=before))
            more = [llm.submit(some(k, 5 + 40 * k), params)[0] for k in range(others)]
            (one,) = llm.submit(prompt, params)
            run(llm, [one, *more])
            assert not one.warnings and one.stats.drafted
            texts.append(one.output)
    assert texts[0] == texts[1]


FAULTY = ("draft", "specinfer", "staged", "hybrid", "early exit")


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_of_one_requests_draft_changes_no_others_draws(name: str) -> None:
    """A rule from outside raises, but only where a draft asks it."""
    params = dp.SamplingParams(temperature=0.9, max_tokens=20, seed=5, ignore_eos=True)
    prompts = [some(seed, 9) for seed in range(3)]
    texts = []
    for faulty in (False, True):
        made, drafting = METHODS[name]("llama"), [False]

        def propose(
            requests: Sequence[Request],
            inner: Any = made.propose,
            drafting: list[bool] = drafting,
        ) -> Any:
            drafting[0] = True
            try:
                return inner(requests)
            finally:
                drafting[0] = False

        def fails(ids: Tensor, row: Tensor, drafting: list[bool] = drafting) -> Tensor:
            if drafting[0] and len(ids) >= 9 + 6:
                raise RuntimeError("out of luck")
            return row

        made.propose = propose
        model = tiny.model("llama", max_position_embeddings=600)
        with dp.LLM(model, speculate=made, rule="rejection") as llm:
            requests = [llm.submit(prompt, params)[0] for prompt in prompts]
            if faulty:
                requests[1].history.process = fails
            run(llm, requests)
            texts.append([requests[0].output, requests[2].output])
    assert texts[0] == texts[1] and "out of luck" in requests[1].warnings[0]
    assert all(request.finish_reason == "length" for request in requests)


# --- the end ---


@pytest.mark.parametrize("rule", ["rejection", pytest.param("coupled", marks=SLOW)])
@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_held_of_a_request_that_has_ended(name: str, rule: str) -> None:
    model = tiny.model("llama", max_position_embeddings=600)
    params = dp.SamplingParams(temperature=0.9, max_tokens=20, seed=5)
    made = METHODS[name]("llama")
    held: list[Any] = []
    propose = made.propose

    def watched(requests: Sequence[Request]) -> list[TokenTree]:
        trees: list[TokenTree] = propose(requests)
        held.extend(map(weakref.ref, trees))
        held.extend(weakref.ref(tree.laws) for tree in trees if tree.laws is not None)
        return trees

    made.propose = watched
    with dp.LLM(model, speculate=made, rule=rule) as llm:
        requests = [llm.submit([7, 8, 9] * 4 + [k], params)[0] for k in range(2)]
        run(llm, requests)
        held += [weakref.ref(request) for request in requests]
        del requests
        gc.collect()
        assert held and not any(one() is not None for one in held)


@pytest.mark.parametrize("name", ["draft", "specinfer", "staged twice", "hybrid"])
def test_close_lets_go_of_the_drafts_cache(name: str) -> None:
    model = tiny.model("llama", max_position_embeddings=600)
    made = METHODS[name]("llama")
    with dp.LLM(model, speculate=made) as llm:
        params = dp.SamplingParams(max_tokens=9)
        llm.generate([[7, 8, 9] * 4], params)
        runners = list(models_of(made))
        assert runners and all(runner._cache._held for runner in runners)
        adopt(made).close()
        assert not any(runner._cache._held for runner in runners)
        (again,) = llm.generate([[7, 8, 9] * 4], params)  # and it drafts on, should it be asked to
        assert again.stats.drafted and not again.warnings


def test_a_drafts_cache_takes_over_what_an_earlier_request_read() -> None:
    made = dp.DraftModel(draft(), min_confidence=0.0)
    prompt = some(1, 60)
    with drafted(made, prefix_cache=True) as llm:
        seen: list[int] = []
        llm.generate(prompt, dp.SamplingParams(max_tokens=4))
        guarded(made.beside.runner, seen)
        llm.generate(prompt, dp.SamplingParams(max_tokens=4))
    assert len(seen) < 40
