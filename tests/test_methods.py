"""Every method, any model, batch and sampling: the tokens of plain decoding, and bounded memory.

Drafts are disturbed copies of the target, so that they agree often and err often.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import draftproof as dp
import oracles
import tiny
from drafters import METHODS, NATIVE, check_counters, exit_head, target
from draftproof import methods
from draftproof.drafting import growth
from draftproof.drafting.automaton import Automaton
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.proposers import specinfer
from draftproof.request import Request
from draftproof.tree import TokenTree, merge
from draftproof.verify import verify_typical
from draftproof.writing import Feedback
from laws import WARPED, check_law, small

NAMES = ("llama", "qwen3", "gemma3")
RNG = Random(3)
PROMPTS = [
    [7, 8, 9, 7, 8, 9, 7, 8],
    [RNG.randrange(3, 97) for _ in range(21)],
    [5],
    [20, 21, 22, 23, 24] * 3,
]
GREEDY = dp.SamplingParams(max_tokens=40)
SAMPLED = dp.SamplingParams(
    temperature=0.9,
    top_k=30,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=-1.0,  # a random model does not repeat itself else, and look-up finds nothing
    max_tokens=40,
    seed=5,
)


OFTEN = [pytest.param(name, marks=() if name == "llama" else pytest.mark.slow) for name in NAMES]


def written(llm: dp.LLM, params: dp.SamplingParams, together: bool = True) -> list[dp.Completion]:
    if together:
        done = llm.generate(PROMPTS, params)
    else:
        done = [llm.generate(prompt, params)[0] for prompt in PROMPTS]
    assert not any(one.warnings or one.error for one in done)
    return done


def told(done: Sequence[dp.Completion]) -> list[tuple[list[int], str]]:
    return [(one.token_ids, one.finish_reason) for one in done]


def texts(
    llm: dp.LLM, params: dp.SamplingParams, together: bool = True
) -> list[tuple[list[int], str]]:
    return told(written(llm, params, together))


@cache
def plain(name: str, params: dp.SamplingParams) -> list[tuple[list[int], str]]:
    return texts(dp.LLM(target(name)), params, together=False)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_plain_decoding(
    name: str, method: str, params: dp.SamplingParams
) -> None:
    with dp.LLM(target(name), speculate=METHODS[method](name)) as llm:
        for together in (False, True):
            done = written(llm, params, together)
            assert told(done) == plain(name, params)
            assert any(one.stats.accepted for one in done)  # else it shows nothing


@NATIVE
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OFTEN[:2])  # Gemma3 it does not take
def test_bits_of_the_native_runner(name: str, method: str, params: dp.SamplingParams) -> None:
    model = tiny.model(name, dtype=torch.bfloat16, head_dim=16)
    other = tiny.relative(model, 0.05)
    made: dict[str, Any] = {
        "draft": dp.DraftModel(other, 5, min_confidence=0.0),
        "shaped draft": dp.DraftModel(other, tree=[(0,), (1,), (0, 0), (1, 0), (1, 1)]),
        "fitted draft": dp.DraftModel(other, tree="auto"),
        "specinfer": dp.SpecInfer([other, tiny.relative(model, 0.1)], expansion=(1, 3, 1)),
        "staged": dp.Staged(other, dp.NGram(min_ngram=1), 6, min_confidence=0.0),
        "staged twice": dp.Staged(other, dp.DraftModel(tiny.relative(model, 0.1), 2), 6),
        "hybrid": dp.Hybrid([dp.NGram(min_ngram=1), dp.Lookahead(3, 3, 3)], 9),
    }
    base = dp.LLM(model, runner="native")
    want = texts(base, params, together=False)
    with dp.LLM(base, speculate=made.get(method) or METHODS[method](name)) as llm:
        for together in (False, True):
            done = written(llm, params, together)
            assert told(done) == want
            assert any(one.stats.accepted for one in done)


@NATIVE
def test_a_quantised_draft() -> None:
    """The target itself in int8 drafts for a target on torch, and for one on the native runner."""
    model = tiny.model("llama", dtype=torch.bfloat16, head_dim=16)
    on_torch = dp.LLM(copy.deepcopy(model).float())
    for base in (on_torch, dp.LLM(model, runner="native")):
        want = texts(base, SAMPLED)
        quantised = dp.DraftModel(model, 4, quantize="int8", min_confidence=0.0)
        with dp.LLM(base, speculate=quantised) as llm:
            assert texts(llm, SAMPLED) == want
            (one,) = llm.generate([PROMPTS[1]], SAMPLED)
        assert quantised.beside.runner.precision == "int8"
        assert one.stats.accepted > one.stats.steps
        with pytest.raises(ValueError, match="native|quantised"):
            dp.LLM(base, speculate=dp.DraftModel(tiny.model("gemma3"), quantize="int8"))
    with pytest.raises(ValueError, match="quantize='int4' is unknown"):
        dp.DraftModel(model, quantize="int4")


# --- ends ---


# Where no token of the first 24 comes twice each of them can be the one that ends the text.
DISTINCT = {"presence_penalty": 2.0, "repetition_penalty": 3.0, "frequency_penalty": 0.0}
KINDS = {
    "greedy": replace(GREEDY, **DISTINCT),
    "sampled": replace(SAMPLED, **DISTINCT),
    "repeating": SAMPLED,
}


@pytest.mark.parametrize(
    "kind", [pytest.param("greedy", marks=pytest.mark.slow), "sampled", "repeating"]
)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OFTEN)
def test_an_end_at_every_position(name: str, method: str, kind: str) -> None:
    """A stop token, or the last token there is room for, anywhere in a block."""
    params, prompt = KINDS[kind], PROMPTS[1]
    whole = plain(name, params)[1][0]
    assert kind == "repeating" or len(set(whole[:24])) == 24
    cut = [replace(params, max_tokens=n) for n in range(1, 25)]
    stops = [replace(params, stop_token_ids=[whole[n - 1]]) for n in range(1, 25)]
    with dp.LLM(target(name), speculate=METHODS[method](name), max_batch=24) as llm:
        for n, one in enumerate(llm.generate([prompt] * 24, cut), 1):
            assert (one.token_ids, one.finish_reason) == (whole[:n], "length")
        for n, one in enumerate(llm.generate([prompt] * 24, stops), 1):
            first = whole.index(whole[n - 1]) + 1
            assert (one.token_ids, one.finish_reason) == (whole[:first], "stop")
    limit = len(prompt) + 20
    made = METHODS[method](name)
    with dp.LLM(target(name), speculate=made, max_length=limit) as llm:
        (one,) = llm.generate([prompt], params)
        assert (one.token_ids, one.finish_reason) == (whole[:20], "length")


@cache
def two_letters() -> PreTrainedTokenizerFast:
    """Every token is two letters."""
    strings = map("".join, itertools.product("abcdefghij", repeat=2))
    made = Tokenizer(models.WordLevel({s: i for s, i in zip(strings, range(97), strict=False)}))
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OFTEN)
def test_a_stop_string_across_tokens(name: str, method: str) -> None:
    """It begins within one token and ends within the next."""
    prompt, text = PROMPTS[1], two_letters().decode(plain(name, SAMPLED)[1][0])
    stops = [text[2 * at + 1 : 2 * at + 4] for at in range(24)]
    ends = [text.index(stop) for stop in stops]
    each = [replace(SAMPLED, stop=[stop]) for stop in stops]
    made = METHODS[method](name)
    with dp.LLM(target(name), tokenizer=two_letters(), speculate=made, max_batch=24) as llm:
        for end, one in zip(ends, llm.generate([prompt] * 24, each), strict=True):
            assert (one.text, one.finish_reason) == (text[:end], "stop")
            assert len(one.token_ids) == (end + 3 + 1) // 2


# --- laws under the rejection rule ---

DRAWN = {
    "early exit": lambda: dp.EarlyExit(1, 3, min_confidence=0.0),
    "early exit, in doubt": lambda: dp.EarlyExit(1, 3, min_confidence=0.3, branch=1),
    "fitted": lambda: dp.DraftModel(small(1), tree="auto"),
    "specinfer": lambda: dp.SpecInfer([small(1), small(2)], expansion=(2, 1)),
    "specinfer, each": lambda: dp.SpecInfer([small(1), small(2)], expansion=[(1, 2), (3,)]),
    "shaped": lambda: dp.DraftModel(small(1), tree=[(0,), (1,), (0, 0), (1, 0), (1, 1)]),
    "staged": lambda: dp.Staged(small(1), dp.NGram(min_ngram=1), 3, min_confidence=0.0),
    "staged, a draft's laws": lambda: dp.Staged(
        small(1), dp.DraftModel(small(2), 2, min_confidence=0.0), 3, min_confidence=0.0
    ),
    "staged, in doubt": lambda: dp.Staged(
        small(1), dp.DraftModel(small(2), 2, branch=1), 3, min_confidence=0.4
    ),
    "hybrid": lambda: dp.Hybrid(
        [dp.SuffixAutomaton(min_match=1), dp.DraftModel(small(1), 3, branch=3)], 4
    ),
    "lookahead": lambda: dp.Lookahead(3, 3, 3),
}


def of(method: str) -> PreTrainedModel:
    return small(0, layers=2) if "exit" in method else small(0)


@pytest.mark.parametrize("method", DRAWN)
def test_laws(method: str) -> None:
    check_law("rejection", DRAWN[method](), 1200, max_tokens=4, target=of(method))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, WARPED], ids=["plain", "warped"])
@pytest.mark.parametrize("method", DRAWN)
def test_laws_at_length(method: str, options: dict[str, Any]) -> None:
    made = DRAWN[method]()
    check_law("rejection", made, 12000, max_tokens=5, length=4, target=of(method), **options)


@pytest.mark.parametrize("method", ["specinfer", "staged, a draft's laws"])
def test_a_false_law_is_found(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of laws itself: a draft that tells a flatter law than it drew from."""
    whole = growth.stacked

    def flat(laws: Sequence[Tensor]) -> Tensor | None:
        return whole([law.sqrt() / law.sqrt().sum() for law in laws])

    for module in (growth, specinfer):
        monkeypatch.setattr(module, "stacked", flat)
    with pytest.raises(AssertionError):
        check_law("rejection", DRAWN[method](), 1200, max_tokens=4)


# --- typical acceptance ---


@given(oracles.trees(vocabulary=3), st.data())
def test_typical_acceptance_is_that_of_the_paper(tree: TokenTree, data: st.DataObject) -> None:
    rows = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3)
    p = torch.tensor([data.draw(rows) for _ in range(len(tree))], dtype=torch.float64)
    p /= p.sum(-1, keepdim=True)
    rule = dp.Typical(data.draw(st.floats(0.05, 0.9)), data.draw(st.floats(0.05, 2.0)))
    paths = []
    for node in range(len(tree)):  # every candidate whose tokens all are typical
        path = tree.path(node)
        typical, likelihood = True, 0.0
        for parent, child in itertools.pairwise(path):
            law, share = p[parent], float(p[parent, tree.tokens[child]])
            entropy = -sum(float(x) * math.log(float(x)) for x in law)
            typical &= share > min(rule.epsilon, rule.delta * math.exp(-entropy))
            likelihood += math.log(share)
        if typical:
            paths.append((len(path), likelihood, path))
    path, bonus = verify_typical(tree, p, rule)
    best = max(paths)
    assert (len(path), pytest.approx(best[1])) == (
        best[0],
        sum(math.log(float(p[a, tree.tokens[b]])) for a, b in itertools.pairwise(path)),
    )
    assert bonus == int(p[path[-1]].argmax())


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("method", METHODS)
def test_counters_are_those_of_the_trace(
    method: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [GREEDY, replace(SAMPLED, temperature=0.4, stop_token_ids=(30, 31, 32))]
    with dp.LLM(target("llama"), speculate=METHODS[method]("llama"), rule=rule) as llm:
        check_counters(monkeypatch, llm, PROMPTS, some)


@pytest.mark.parametrize("runner", ["torch", pytest.param("native", marks=NATIVE)])
def test_an_exit_head_that_repeats_the_lm_head_drafts_what_the_bare_exit_drafts(
    runner: str,
) -> None:
    model = tiny.model(dtype=torch.bfloat16, head_dim=16) if runner == "native" else target("llama")
    heads = Heads(torch.zeros(1, 1, 48, 48), vocab_size=tiny.VOCABULARY, exit=2)
    seen = []
    for kind in ({"layers": 2}, {"heads": heads}):
        made = dp.EarlyExit(num_draft_tokens=4, min_confidence=0.0, **kind)
        with dp.LLM(model, speculate=made, runner=runner, max_batch=3) as llm:
            done = llm.generate(PROMPTS, SAMPLED)
        seen.append([(one.token_ids, one.stats.drafted, one.stats.accepted) for one in done])
    assert seen[0] == seen[1] and any(accepted for *_, accepted in seen[0])


def test_heads_go_to_the_method_that_they_are_of(tmp_path: Path) -> None:
    files.save(tmp_path / "exit", exit_head("llama"))
    last = Heads(torch.zeros(2, 1, 48, 48), vocab_size=tiny.VOCABULARY)
    files.save(tmp_path / "last", last)
    middle, end = ({"draft": None, "heads": tmp_path / name} for name in ("exit", "last"))
    assert methods.listed([], middle) == ["early-exit"] and methods.listed([], end) == ["medusa"]
    assert methods.listed(["early-exit"], middle) == ["early-exit"]
    assert methods.listed(["ngram"], middle) == ["ngram", "early-exit"]
    assert "medusa" in methods.possible(end) and "medusa" not in methods.possible(middle)
    made = methods.named("early-exit", middle)
    assert isinstance(made, dp.EarlyExit) and made.layers == 3 and made.heads is not None
    assert methods.named("early-exit", end).heads is None
    with pytest.raises(ValueError, match="these heads read layer 3: use them with EarlyExit"):
        methods.named("medusa", middle)
    with pytest.raises(ValueError, match="these heads read the last layer: use them with Medusa"):
        dp.EarlyExit(heads=last)
    with pytest.raises(ValueError, match="the head reads layer 3, not 2: drop layers"):
        dp.EarlyExit(2, heads=exit_head("llama"))
    with pytest.raises(ValueError, match="exit=2 is of one head"):
        Heads(torch.zeros(2, 1, 48, 48), vocab_size=tiny.VOCABULARY, exit=2)
    with pytest.raises(ValueError, match="these heads read the last layer: use them with Medusa"):
        dp.EarlyExit(2, heads=last)
    own = Heads(torch.zeros(1, 1, 48, 48), None, torch.zeros(1, 97, 48), vocab_size=97, exit=3)
    for write in (files.export_vllm, files.export_original):
        with pytest.raises(ValueError, match="is no Medusa head"):
            write(tmp_path / "other", own)
    (tmp_path / "last" / "config.json").write_text("{")
    with pytest.raises(ValueError, match="last: config.json cannot be read"):
        methods.listed([], end)
    with (
        pytest.raises(ValueError, match="use heads of this target"),
        dp.LLM(target("llama")) as llm,
    ):
        llm.use(dp.EarlyExit(heads=Heads(torch.zeros(1, 1, 32, 32), vocab_size=97, exit=2)))


def test_typical_acceptance_is_lossy_and_says_so() -> None:
    made = METHODS["draft"]("llama")
    with dp.LLM(target("llama"), speculate=made, rule=dp.Typical(0.01, 0.1)) as llm:
        assert texts(llm, GREEDY) == plain("llama", GREEDY)  # greedy stays greedy
        (lossy,) = llm.generate([PROMPTS[0]], replace(SAMPLED, temperature=2.0))
        assert lossy.stats.lossy and lossy.stats.accepted
    with dp.LLM(target("llama"), speculate=made) as llm:
        (exact,) = llm.generate([PROMPTS[0]], replace(SAMPLED, temperature=2.0))
        assert not exact.stats.lossy and exact.stats.accepted < lossy.stats.accepted
    for wrong in ({"epsilon": 0.0}, {"epsilon": 1.5}, {"delta": 0.0}, {"delta": math.inf}):
        with pytest.raises(ValueError, match="must be in"):
            dp.Typical(**wrong)


# --- the automaton, the window, the budget ---

TEXTS = st.lists(st.integers(0, 2), max_size=24)


@given(TEXTS, TEXTS)
def test_the_automaton_knows_every_substring(text: list[int], query: list[int]) -> None:
    automaton = Automaton()
    for token in text:
        automaton.append(token)

    def occurrences(part: list[int]) -> int:
        return sum(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))

    state, length = automaton.match(query)
    suffixes = [query[i:] for i in range(len(query) + 1)]
    assert length == next(len(suffix) for suffix in suffixes if not suffix or occurrences(suffix))
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            part = text[start:end]
            state, length = automaton.match(part)
            assert length == len(part) and automaton.count[state] == occurrences(part)
    assert len(automaton.next) <= max(2, 2 * len(text))  # linear (Blumer et al.)


def request(tokens: list[int], key: int = 0, **options: Any) -> Request:
    params = dp.SamplingParams(max_tokens=500, **options)
    return Request(key, tokens, params, seed=0, max_length=10_000)


def test_a_suffix_tree_is_weighted_by_frequency() -> None:
    proposer = dp.SuffixAutomaton(4, min_match=1, min_share=0.3)
    proposer.bind(None, None)  # type: ignore[arg-type]
    text = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 8, 1, 2, 3, 8, 5, 1, 2]
    (tree,) = proposer.propose([request(text)])
    sequences = {tuple(tree.path_tokens(i)): tree.scores[i] for i in range(1, len(tree))}
    assert sequences[3,] == pytest.approx(3 / 4)
    assert sequences[3, 8] == pytest.approx(3 / 4 * 2 / 3)
    assert (4,) not in sequences and len(tree) == 3


def test_what_earlier_requests_wrote_is_remembered_within_bounds() -> None:
    proposer = dp.SuffixAutomaton(4, corpus=60)
    proposer.bind(None, None)  # type: ignore[arg-type]
    first = request([1, 2])
    first.tokens += [10, 11, 12, 13, 14]
    proposer.propose([first])
    proposer.release(first)
    (tree,) = proposer.propose([request([5, 10, 11], key=1)])
    assert tree.path_tokens(len(tree) - 1) == [12, 13, 14]
    for key in range(2, 40):
        other = request([1, 2], key=key)
        other.tokens += [20 + key, 21 + key, 22 + key]
        proposer.propose([other])
        proposer.release(other)
        assert proposer._new.size + proposer._old.size <= 60 + 4
    (tree,) = proposer.propose([request([5, 10, 11], key=99)])
    assert len(tree) == 1  # forgotten


def test_the_window_is_the_comb_of_the_paper() -> None:
    """W 5, N 4, G 2: 21 tokens, 78 visible pairs (formulae of the release)."""
    proposer = dp.Lookahead(5, 4, 2, from_text=False)
    one = request([3, 4, 5, 6])
    for step in range(4):
        (tree,) = proposer.propose([one])
        best = [7 + step] * len(tree)
        one.feedback = Feedback(tree, [0], {}, best)
    state = next(iter(proposer._states.values()))
    assert [len(row) for row in state.rows] == [4, 5, 5]
    state.pool[6] = OrderedDict({(1, 2, 3): None, (4, 5, 6): None})
    (tree,) = proposer.propose([one])
    assert len(tree) == 21 and int(tree.ancestors().sum()) == 78
    assert tree.path_tokens(3) == [4, 5, 6]  # the latest guess first
    depths = sorted(tree.depths[node] for node in state.ends)
    assert depths == [2, 3, 4, 5, 6]  # row 2 of column j stands at 2 + j


def test_guesses_with_one_beginning_share_its_nodes() -> None:
    """Else the rejection rule, having accepted one of them, would lose the others."""
    proposer = dp.Lookahead(1, 4, 3, from_text=False)
    one = request([3, 4, 5, 6])
    proposer.propose([one])
    guesses = [(1, 2, 3), (1, 2, 7), (8, 2, 3)]
    next(iter(proposer._states.values())).pool[6] = OrderedDict.fromkeys(guesses)
    (tree,) = proposer.propose([one])
    drafted = {tuple(tree.path_tokens(i)) for i in range(1, len(tree))}
    assert drafted >= set(guesses) and len(drafted) == len(tree) - 1 == 3 + 1 + 3


def test_nodes_are_found_again_in_a_merged_tree() -> None:
    ours = TokenTree([1, 2, 2, 3, 4], [-1, 0, 0, 1, 2])
    other = TokenTree([1, 5, 2, 4], [-1, 0, 0, 2])
    whole = merge([other, ours])
    found = ours.within(whole)
    assert [whole.path_tokens(at) for at in found] == [ours.path_tokens(i) for i in range(5)]
    assert found[1] == found[2]  # equal siblings are one node there
    cut = TokenTree([1, 2, 4], [-1, 0, 1])
    assert ours.within(cut) == [0, 1, 1, -1, 2]
    assert TokenTree.chain([1, 9, 1]).within(cut) == [0, -1, -1]


def test_lookahead_finds_what_repeats_without_reading_the_text() -> None:
    with dp.LLM(target("llama"), speculate=dp.Lookahead(6, 3, 4, from_text=False)) as llm:
        done = llm.generate(PROMPTS, replace(GREEDY, max_tokens=90))
    assert sum(one.stats.accepted for one in done) > 20


@given(oracles.trees(vocabulary=3), st.integers(1, 12), st.randoms(use_true_random=False))
def test_a_budget_keeps_the_best_connected_nodes(tree: TokenTree, count: int, rng: Random) -> None:
    scores = [1.0]
    for i in range(1, len(tree)):
        scores.append(scores[tree.parents[i]] * rng.random())
    scored = TokenTree(tree.tokens, tree.parents, scores=scores)
    best = scored.best(count)
    assert len(best) == min(count, len(tree)) and best.scores is not None
    wanted = sorted(scores, reverse=True)[: len(best)]
    assert sorted(best.scores, reverse=True) == pytest.approx(wanted)


def held(thing: Any, seen: set[int] | None = None) -> int:
    """Entries of every container by request that a proposer and its parts hold."""
    seen = set() if seen is None else seen
    if id(thing) in seen or not type(thing).__module__.startswith("draftproof.proposers"):
        return 0
    seen.add(id(thing))
    size = 0
    for name, value in vars(thing).items():
        if name.startswith("_") and isinstance(value, dict | WeakKeyDictionary):
            size += len(value)
        parts = value if isinstance(value, list | tuple) else [value]
        size += sum(held(part, seen) for part in parts)
        size += len(value._rows.lengths) if hasattr(value, "_rows") else 0
    return size


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_20000_tokens_stay_bounded_and_acceptance_does_not_decay(method: str) -> None:
    suffix = dp.SuffixAutomaton(min_match=1, corpus=5000)
    made = suffix if method == "suffix" else METHODS[method]("llama")
    params = dp.SamplingParams(temperature=0.8, max_tokens=500, ignore_eos=True)
    with dp.LLM(target("llama"), speculate=made, max_batch=4) as llm:
        done = []
        for begin in range(0, 40, 4):
            each = [replace(params, seed=seed % 4) for seed in range(begin, begin + 4)]
            done += llm.generate(PROMPTS, each)
            assert not llm.runner._rows.lengths and not held(made)
        assert not any(one.warnings for one in done)
    rates = [one.stats.tokens_per_step for one in done]
    assert sum(rates[-4:]) >= 0.95 * sum(rates[:4])
    assert method != "suffix" or suffix._old.size + suffix._new.size <= 5000 + 4 * 501
