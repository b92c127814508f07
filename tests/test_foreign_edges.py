"""A draft with another tokenizer: broken characters, special tokens, room, faults, options."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import draftproof as dp
from draftproof.proposers.foreign import ForeignDraft
from draftproof.runners.base import Output
from foreign_pairs import (
    ASCII,
    GREEDY,
    LINES,
    PROMPTS,
    SAMPLED,
    Shuffled,
    bytewise,
    foreign,
    other,
    params,
    permutation,
    plain,
    target,
    written,
)
from scribe import Scribe, bound, follows, request


def test_a_text_that_ends_within_a_character_is_not_drafted_for() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own)
    ids = bytewise().encode("the 😀", add_special_tokens=False)
    one = request(ids[:-2])
    assert len(proposer.propose([one])[0]) == 1 and scribe.passes == []
    one.tokens += ids[-2:]
    assert len(proposer.propose([one])[0]) > 1
    assert own.decode(scribe.contexts[0]) == "[BOS]the 😀"


def test_a_token_that_would_have_been_written_with_the_last_one_is_not_proposed() -> None:
    """The target ended a token where its tokenizer does not: it did not mean what follows."""
    own, theirs = other("bytes"), other("merges")
    scribe = Scribe(len(own), follows(own, "e dog"))
    proposer = ForeignDraft(
        scribe,
        tokenizer=own,
        target_tokenizer=theirs,
        min_confidence=0.0,
        num_draft_tokens=3,
        branch=1,
    )
    target = SimpleNamespace(encodes=False, vocabulary=len(theirs))
    proposer.bind(target, lambda target, model: model)  # type: ignore[arg-type]
    ids = theirs.encode("and th", add_special_tokens=False)
    assert len(theirs.encode("and the", add_special_tokens=False)) <= len(ids)
    (tree,) = proposer.propose([request(ids)])
    assert len(tree) == 1 and proposer.survival == 0.0


def test_special_tokens_that_only_one_knows_are_not_read() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own)
    the = bytewise().encode("the", add_special_tokens=False)
    proposer.propose([request([1, *the, 2, *the])])
    assert own.decode(scribe.contexts[0]) == "[BOS]thethe"
    scribe.says = lambda context: 0  # [BOS], which is no text
    (tree,) = proposer.propose([request(the, 1)])
    assert len(tree) == 1


def test_special_tokens_that_both_know_are_read_and_written() -> None:
    own = Shuffled(bytewise(), permutation(259))
    scribe = Scribe(259, lambda context: own.order[2])
    proposer = bound(scribe, own, num_draft_tokens=1)
    the = bytewise().encode("the", add_special_tokens=False)
    for key, options in enumerate((GREEDY, {"temperature": 0.1})):
        (tree,) = proposer.propose([request([1, *the], key, **options)])
        assert own.decode(scribe.contexts[-1]) == "<s>the"
        assert tree.tokens[1:] == [2]


def test_a_key_that_is_used_again_starts_afresh() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own)
    one = request(LINES[0])
    proposer.propose([one])
    proposer.release(one)
    proposer.propose([request("fox")])
    assert own.decode(scribe.contexts[5]) == "[BOS]fox"


def test_the_drafts_context_is_not_overrun() -> None:
    own = other("bytes")
    scribe = Scribe(len(own), lambda context: 70)
    scribe.max_length = 24
    proposer = bound(scribe, own)
    one = request("x")
    for _ in range(30):
        proposer.propose([one])
        one.tokens.append(70)
    assert 20 <= max(map(len, scribe.contexts)) <= 24


def test_a_token_that_the_draft_has_no_row_for() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own)
    scribe.vocabulary = max(own.encode("the", add_special_tokens=False))
    (tree,) = proposer.propose([request("the")])
    assert len(tree) == 1 and scribe.passes == []


def test_a_token_that_the_target_has_no_row_for() -> None:
    own, theirs = other("merges"), bytewise()
    last = theirs.encode("z", add_special_tokens=False)[0]
    scribe = Scribe(len(own), follows(own, "zero and"))
    proposer = bound(scribe, own, last, num_draft_tokens=1)
    for key, options in enumerate((GREEDY, SAMPLED)):
        (tree,) = proposer.propose([request("the", key, **options)])
        assert all(token < last for token in tree.tokens[1:])


def test_doubt_ends_a_draft() -> None:
    own = other("merges")
    unsure = bound(Scribe(len(own), lambda context: 70), own, min_confidence=1.0)
    one, two = request("the dog"), request("the dog", 1, **SAMPLED)
    for tree in unsure.propose([one, two]):
        assert len(tree) == 2


def test_a_draft_that_fails_stops_drafting_and_says_so() -> None:
    proposer = foreign("merges")
    with dp.LLM(target(), tokenizer=bytewise(), speculate=proposer) as llm:

        def broken(*args: Any) -> list[Output]:
            raise RuntimeError("out of order")

        proposer.runner.forward = broken
        outs = llm.generate(PROMPTS, params(bad_token_ids=ASCII, **GREEDY))
    assert [out.token_ids for out in outs] == plain("greedy", ASCII)
    assert all("out of order" in out.warnings[0] for out in outs)


@pytest.mark.parametrize(
    "options",
    [
        {"num_draft_tokens": 0},
        {"lookbehind": 0},
        {"min_confidence": 2.0},
        {"tokenizer": None},
        {"target_tokenizer": None},
    ],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    good = {"tokenizer": bytewise(), "target_tokenizer": bytewise()}
    with pytest.raises(ValueError):
        ForeignDraft("somewhere", **{**good, **options})


class Counted:
    """A tokenizer that counts what it decodes."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.decoded = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def decode(self, ids: Any, **options: Any) -> Any:
        self.decoded += len(ids)
        return self.inner.decode(ids, **options)


@pytest.mark.parametrize("byte", ["ÿ", "Ģ", None], ids=["ff", "80", "a replacement character"])
def test_broken_bytes_are_decoded_once(byte: str | None) -> None:
    """In every step the same work, whatever the text is and how long it has become."""
    more = bytewise().encode("\ufffd", add_special_tokens=False)
    more = more if byte is None else [bytewise().convert_tokens_to_ids(byte)]
    theirs = Counted(bytewise())
    own = other("merges")
    made = ForeignDraft(
        Scribe(len(own), lambda context: 70), tokenizer=own, target_tokenizer=theirs
    )
    target = SimpleNamespace(encodes=False, vocabulary=259)
    made.bind(target, lambda target, model: model)  # type: ignore[arg-type]
    one = request("the dog")
    counts = []
    for _ in range(400):
        before = theirs.decoded
        made.propose([one])
        counts.append(theirs.decoded - before)
        one.tokens += more
    assert max(counts[200:]) <= 1.5 * max(counts[40:80])


def test_a_prompt_beyond_the_drafts_room_is_not_read() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    scribe.max_length = 24
    proposer = bound(scribe, own)
    one = request("the quick brown fox " * 40)
    for _ in range(3):
        assert len(proposer.propose([one])[0]) == 1
        one.tokens.append(70)
    assert scribe.passes == []
    assert one.warnings == ["a draft model drafts no further: its context ends at 24 tokens"]


def test_a_text_that_was_rolled_back_is_read_anew() -> None:
    """As a draft's drafter sees it, whose guesses the target rejects."""
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    scribe.crop = lambda key, size: scribe.committed[key].__delitem__(slice(size, None))  # type: ignore[attr-defined]
    proposer = bound(scribe, own)
    one = request("the dog and the fox")
    shadow = one.shadow()
    for fresh in (" is it", " of it and of them all ", " x"):
        shadow.follow(one)
        shadow.tokens += bytewise().encode(" a guess that nobody wants", add_special_tokens=False)
        proposer.propose([shadow])
        shadow.follow(one)
        proposer.propose([shadow])
        told = own.decode(scribe.contexts[-5])
        assert told == own.decode(own.encode("[BOS]" + bytewise().decode(one.tokens)))
        one.tokens += bytewise().encode(fresh, add_special_tokens=False)


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_rules_from_outside_know_the_targets_ids(rule: str, kind: str) -> None:
    size = target().config.vocab_size

    def alternates(ids: Any, row: Any) -> Any:
        assert len(row) == size and int(ids.max()) < size
        row = row.clone()
        row[ids[-3:]] = -torch.inf
        return row

    texts = []
    for proposer in (None, foreign("merges")):
        with dp.LLM(target(), tokenizer=bytewise(), speculate=proposer, rule=rule) as llm:
            options = GREEDY if kind == "greedy" else SAMPLED
            requests = [llm.submit(prompt, params(**options))[0] for prompt in PROMPTS]
            for each in requests:
                each.history.process = alternates
            while not all(each.finished for each in requests):
                llm.engine.step()
        texts.append([each.output for each in requests])
    assert sum(each.stats.drafted for each in requests) > 0
    assert not any(each.warnings or each.error for each in requests)
    assert rule == "rejection" or texts[0] == texts[1]


def test_a_grammar_of_strings_that_the_draft_has_not() -> None:
    """Nothing is drafted where they are, and drafting goes on behind them; `written` looks on."""
    digits = dp.Grammar.regex("[0-9]{2}the dog and the[a-z ]{4}")
    outs = written(foreign("wordpiece"), 2, "rejection", grammar=digits, **SAMPLED)
    assert all(out.text[:2].isdigit() for out in outs) and sum(o.stats.drafted for o in outs)
