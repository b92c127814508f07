"""A draft with another tokenizer: its bookkeeping, with a draft that writes what it is told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from draftproof.proposers.foreign import ForeignDraft
from foreign_pairs import GREEDY, LINES, SAMPLED, bytewise, other
from scribe import Scribe, bound, drafted, follows, request


def test_a_greedy_draft_is_the_targets_encoding_of_what_it_wrote() -> None:
    own = other("merges")
    scribe = Scribe(len(own), follows(own, " value: return value"))
    proposer = bound(scribe, own)
    one = request("the")
    (tree,) = proposer.propose([one])
    assert tree.is_chain and tree.laws is None and tree.tokens[0] == one.tokens[-1]
    wrote = own.decode(scribe.contexts[-1] + [scribe.says(scribe.contexts[-1])])
    assert "[BOS]the" + drafted(tree) == wrote
    assert len(scribe.passes) == 5 and len(tree) > 6  # longer tokens than the target's
    assert proposer.survival == 1.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_second_choices_are_branches_and_take_no_pass(temperature: float) -> None:
    own = other("merges")
    scribe = Scribe(len(own), follows(own, " value: return value"), 40.0, own.encode("q")[-1])
    (chain,) = bound(scribe, own).propose([request("the", temperature=temperature)])
    passes, proposer = len(scribe.passes), bound(scribe, own, branch=2)
    (tree,) = proposer.propose([request("the", 1, temperature=temperature)])
    assert len(scribe.passes) == 2 * passes and tree.laws is None
    paths = [tree.path_tokens(node) for node in range(len(tree)) if not tree.children(node)]
    assert list(chain.tokens[1:]) in paths and len(paths) == passes + 1
    if temperature:  # the noise says what comes second
        assert max(tree.tokens) < 259 and max(tree.depths) == passes
        return
    wrote = [own.decode(context) for context in scribe.contexts[-passes:]]
    says = {str(bytewise().decode(path)) for path in paths}
    assert {before.removeprefix("[BOS]the") + "q" for before in wrote} <= says
    assert proposer.survival == 1.0  # of what was meant to be written


def test_under_another_rule_the_likeliest_text_is_proposed() -> None:
    own = other("merges")
    scribe = Scribe(len(own), follows(own, " value: return value"), sure=2.0)
    proposer = bound(scribe, own)
    kinds = [{}, {"rule": "rejection", "temperature": 5.0}, {"rule": "typical", "temperature": 5.0}]
    trees = proposer.propose([request("the", key, **kind) for key, kind in enumerate(kinds)])
    assert len({tuple(tree.tokens) for tree in trees}) == 1 and len(trees[0]) > 6
    assert all(tree.laws is None for tree in trees)


def test_survival_is_exact() -> None:
    own = other("bytes")
    scribe = Scribe(len(own), follows(own, "ab😀"))
    proposer = bound(scribe, own, num_draft_tokens=4)
    assert proposer.survival == 1.0
    (tree,) = proposer.propose([request("the ")])
    assert drafted(tree) == "ab"  # and half an emoji, which is one broken character
    assert (proposer.written, proposer.survived) == (4, 2) and proposer.survival == 2 / 4
    (tree,) = proposer.propose([request("the ", 1, temperature=1.0, logit_bias={5: 0.0})])
    raced = list(tree.tokens[1:])
    assert len(raced) == 4 and (proposer.written, proposer.survived) == (8, 6)


def test_a_race_is_over_strings_that_both_have() -> None:
    own = other("merges")
    scribe = Scribe(len(own) + 2, follows(own, "the dog and"))
    proposer = bound(scribe, own, num_draft_tokens=3)
    strings, theirs = own.get_vocab(), bytewise().get_vocab()
    shared = {tip: i for tip, i in proposer.ids.items() if tip < 259}
    assert shared == {theirs[c]: strings[c] for c in pre_tokenizers.ByteLevel.alphabet()}
    assert sorted(proposer.ids.values()) == list(range(len(own) + 2))
    (tree,) = proposer.propose([request("the ", temperature=1.0)])
    assert all(3 <= token < 259 for token in tree.tokens) and len(tree) == 4
    for token, context in zip(tree.tokens[1:], [c[-1] for c in scribe.contexts[1:]], strict=False):
        assert shared[token] == context, "the draft went on behind another token"


def test_spaces_are_matched_whatever_the_alphabet() -> None:
    own, theirs = other("metaspace"), other("merges")
    proposer = ForeignDraft(None, tokenizer=own, target_tokenizer=theirs)
    runner = SimpleNamespace(encodes=False, vocabulary=len(own), device="cpu")
    target = SimpleNamespace(encodes=False, vocabulary=len(theirs))
    proposer.bind(target, lambda target, model: runner)  # type: ignore[arg-type]
    spelt = {
        own.convert_ids_to_tokens(i): theirs.convert_ids_to_tokens(t)
        for t, i in proposer.ids.items()
        if t < len(theirs)
    }
    assert spelt["▁the"] == "Ġthe" and spelt["e"] == "e" and spelt["▁value"] == "Ġvalue"
    assert spelt["ü"] == "Ã¼"


@pytest.mark.parametrize("name", ["merges", "metaspace"])
@given(text=st.text(max_size=40) | st.text("the value ünd", max_size=40), data=st.data())
@settings(max_examples=50)
def test_the_drafts_context_is_the_text_so_far(name: str, text: str, data: st.DataObject) -> None:
    own = other(name)
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own, lookbehind=data.draw(st.integers(1, 5)))
    ids = bytewise().encode(text + " end 😀", add_special_tokens=False)
    one = request(ids[: data.draw(st.integers(1, len(ids)))])
    while True:
        before = len(scribe.contexts)
        (tree,) = proposer.propose([one])
        whole = bytewise().decode(one.tokens)
        if whole.endswith("\ufffd"):
            assert len(tree) == 1 and len(scribe.contexts) == before
        else:
            alone = own.encode("[BOS]" + whole, add_special_tokens=False)
            assert own.decode(scribe.contexts[before]) == own.decode(alone)
            assert len(scribe.contexts) == before + 5
        done = len(one.tokens)
        if done == len(ids):
            return
        one.tokens += ids[done : done + data.draw(st.integers(1, 9))]


def test_what_is_settled_is_cached_and_little_is_run_anew() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own)
    one = request((" ".join(LINES) + " ") * 20)
    assert len(one.tokens) > 3 * 512
    for _ in range(4):  # a long prompt in slices, one a step
        assert len(proposer.propose([one])[0]) == 1
    assert scribe.passes == [[0]] * 4 and 0 not in scribe.scratch
    for text in (" the value", " of", "größer 😀", " x" * 9, "0123456789" * 9, " end"):
        proposer.propose([one])
        assert len(scribe.scratch[0]) <= 4 * 4 + 1 + 5
        one.tokens += bytewise().encode(text, add_special_tokens=False)
    assert len(scribe.committed[0]) > 1000


def test_one_pass_a_depth_for_all_requests() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own, num_draft_tokens=3)
    kinds = [GREEDY, SAMPLED, GREEDY | {"max_tokens": 3}, SAMPLED]
    texts = ["the dog", "größer", "x", "日本語 and the quick"]
    trees = proposer.propose(
        [request(t, key, **o) for key, (t, o) in enumerate(zip(texts, kinds, strict=True))]
    )
    assert scribe.passes == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 3]]
    assert all(len(tree) > 1 for tree in trees)
    assert scribe.rows[4:] == [1] * 7, "what lies in scratch was run again"
