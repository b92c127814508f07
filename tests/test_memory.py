"""Bytes of keys and values are known: who waits for them, who is refused, what makes way."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

import draftproof as dp
from draftproof.memory import bytes_of
from draftproof.request import Request
from draftproof.runners.rows import FIRST_SLOTS
from remembering import DEEPEST, draft, llm, some, tokens_of

SLOT = llm().runner.held.slot_bytes  # of the model of these tests


def taken(llm: dp.LLM) -> int:
    """Bytes of its rows, of all models."""
    helds = [store.held for store in llm.memory.stores]
    return sum(held.slot_bytes * sum(held.sizes().values()) for held in helds)


def finish(made: dp.LLM, requests: Sequence[Request], most: int) -> int:
    """Steps until all have ended; how many ran at once, at most. The bytes are looked at."""
    at_once = 0
    while not all(each.finished for each in requests):
        made.engine.step()
        made.engine.check()
        at_once = max(at_once, len(made.engine.scheduler.running))
        assert taken(made) <= most
    return at_once


@pytest.mark.parametrize("speculate", [None, "draft"])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_requests_wait_for_bytes_and_write_the_same(
    prefix_cache: bool, speculate: str | None
) -> None:
    rng = Random(1)
    prompts = [some(rng, rng.randrange(5, 300)) for _ in range(8)]
    params = [
        dp.SamplingParams(temperature=0.8, seed=seed, max_tokens=rng.randrange(1, 100))
        for seed in range(8)
    ]
    slot = SLOT if speculate is None else SLOT + dp.LLM(draft()).runner.held.slot_bytes
    most = 5 * FIRST_SLOTS * slot
    with llm() as plain:
        wanted = [out.token_ids for out in plain.generate(prompts, params)]
    drafting = None if speculate is None else dp.DraftModel(draft(), 3)
    with llm(speculate=drafting, kv_memory=most, prefix_cache=prefix_cache, max_batch=8) as made:
        requests = [made.submit(*each)[0] for each in zip(prompts, params, strict=True)]
        assert 1 < finish(made, requests, most) < 6
        assert [each.output for each in requests] == wanted
        assert made.memory.taken == 0


def test_who_came_first_is_let_in_first() -> None:
    most = 3 * FIRST_SLOTS * SLOT
    with llm(kv_memory=most, max_batch=4) as made:
        big = dp.SamplingParams(max_tokens=600)
        small = dp.SamplingParams(max_tokens=20)
        first = made.submit([5] * 20, small)[0]
        second = made.submit([5] * 20, big)[0]  # has to wait, and the third behind it
        third = made.submit([5] * 20, small)[0]
        made.engine.step()
        assert made.engine.scheduler.running == [first]
        finish(made, [first, second, third], most)
        assert not any(each.error for each in (first, second, third))


def test_what_never_fits_is_refused_with_both_numbers() -> None:
    most = 3 * FIRST_SLOTS * SLOT
    with llm(kv_memory=most) as made:
        with pytest.raises(ValueError, match=f"400 prompt tokens and 500 more.*{most:,}.*704"):
            made.generate([7] * 400, dp.SamplingParams(max_tokens=500))
        made.generate([7] * 400, dp.SamplingParams(max_tokens=300, ignore_eos=True))


def test_what_fits_no_longer_fails_and_keeps_nobody_waiting() -> None:
    """What drafts may be changed between the check of a request and its place."""
    params = dp.SamplingParams(max_tokens=150)
    with llm(kv_memory=FIRST_SLOTS * SLOT) as made:
        large = made.prepare([5] * 20, params)
        made.use(dp.DraftModel(draft(), 3))
        made.engine.add(large[0])
        assert made.engine.step() == large
        assert large[0].finish_reason == "error" and "kv_memory is" in (large[0].error or "")
        made.engine.check()
        assert made.memory.taken == 0
        made.use(None)
        assert not made.generate([5] * 20, params)[0].error


@pytest.mark.parametrize(
    ("given", "count"),
    [(5, 5), ("5", 5), ("2GB", 2 * 10**9), ("1.5 GiB", 3 << 29), ("7m", 7 * 10**6), ("auto", 0)],
)
def test_sizes_are_read(given: int | str, count: int | None) -> None:
    assert bytes_of(given) == count


@pytest.mark.parametrize("given", [0, -1, "", "much", "5 TB", "1e9", 0.5, True])
def test_what_is_no_size_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match="kv_memory is"):
        llm(kv_memory=given)


def test_memory_that_holds_no_text_is_refused_when_the_model_is_loaded() -> None:
    """A server would start, and refuse whatever it is asked."""
    with pytest.raises(ValueError, match=f"kv_memory is 1 bytes, and .*{FIRST_SLOTS * SLOT:,}"):
        llm(kv_memory=1)
    llm(kv_memory=FIRST_SLOTS * SLOT).close()


def test_the_plan_is_told() -> None:
    with llm(kv_memory="auto") as made:
        assert (made.memory.total or 0) > 1 << 20
    with llm(kv_memory=1000 * SLOT, speculate=dp.DraftModel(draft())) as made:
        each = f"{1000 * SLOT // made.memory.slot_bytes:,} tokens of {made.memory.slot_bytes:,}"
        assert each in str(made.memory) and "a draft's" in str(made.memory)


def test_an_open_text_gets_more_while_there_is_any(monkeypatch: pytest.MonkeyPatch) -> None:
    more, longest = 200, 700
    monkeypatch.setattr("draftproof.memory.OPEN", more)
    prompt, slots = some(Random(3), 10), 2 * FIRST_SLOTS
    params = dp.SamplingParams(max_tokens=None, ignore_eos=True, temperature=1.0, seed=1)
    with llm(max_length=longest) as plain:
        wanted = tokens_of(plain, prompt, max_tokens=None, ignore_eos=True, temperature=1.0, seed=1)
    for total, length in ((8 * slots, longest), (slots + FIRST_SLOTS, 0)):
        with llm(kv_memory=total * SLOT, max_length=longest) as made:
            (request,) = made.submit(prompt, params)
            finish(made, [request], total * SLOT)
            assert request.finish_reason == "length"
            assert request.output == wanted[: len(request.output)]
            short = [note for note in request.warnings if "no memory" in note]
            if length:
                assert len(request.tokens) == length and not short
            else:
                assert more < len(request.output) < longest - 10 and len(short) == 1


def test_a_long_prompt_has_its_row_at_once() -> None:
    """Growing copies what was read, while everybody waits."""
    with llm(max_batch=1) as made:
        made.engine.scheduler.prompt_budget = 64
        (request,) = made.submit([5] * 900, dp.SamplingParams(max_tokens=100, ignore_eos=True))
        sizes = set()
        while not request.finished:
            made.engine.step()
            sizes.add(made.runner.held.slots_of(request.key))
        assert len(sizes - {0}) == 1 and max(sizes) >= 1000


def test_idle_rows_make_way_the_oldest_first() -> None:
    rng, most = Random(4), 6 * FIRST_SLOTS * SLOT
    with llm(kv_memory=most, prefix_cache=True, max_batch=2) as made:
        talks = [some(rng, 150) for _ in range(4)]
        for talk in talks:
            finish(made, made.submit(talk, dp.SamplingParams(max_tokens=3)), most)
        held = made.runner.held
        assert len(held._parked) == 4  # more than run at once
        finish(made, made.submit(some(rng, 900), dp.SamplingParams(max_tokens=3)), most)
        assert [parked.tokens[0] for parked in held._parked.values()][0] != talks[0][0]
        assert held.idle_bytes() <= most


# --- prompts that begin alike ---


def reads(made: dp.LLM) -> dict[int, int]:
    """Grows by what each key is given to read."""
    read: dict[int, int] = {}
    forward = made.runner.forward

    def spy(work, taps=()):  # type: ignore[no-untyped-def]
        for item in work:
            read[item.key] = read.get(item.key, 0) + len(item.new)
        return forward(work, taps)

    made.runner.forward = spy  # type: ignore[method-assign]
    return read


@pytest.mark.parametrize("speculate", [None, "ngram", "draft"])
def test_who_comes_later_copies_what_they_share(speculate: str | None) -> None:
    """At once, while the first one reads, and while it writes."""
    rng = Random(5)
    shared = some(rng, 900)
    prompts = [[*shared, *some(rng, 20)] for _ in range(4)]
    params = dp.SamplingParams(temperature=1.0, seed=2, max_tokens=40, ignore_eos=True)
    with llm() as plain:
        wanted = [plain.generate(each, params)[0].token_ids for each in prompts]
    drafting = {"draft": dp.DraftModel(draft(), 3), "ngram": dp.NGram(DEEPEST, min_ngram=1)}
    how = None if speculate is None else drafting[speculate]
    with llm(prefix_cache=True, speculate=how) as made:
        read = reads(made)
        requests = [made.submit(each, params)[0] for each in prompts[:2]]
        made.engine.step()
        requests += made.submit(prompts[2], params)  # the first one reads
        while not requests[0].begun:
            made.engine.step()
            made.engine.check()
        requests += made.submit(prompts[3], params)  # it writes
        while not all(each.finished for each in requests):
            made.engine.step()
            made.engine.check()
        assert [each.output for each in requests] == wanted
        extra = DEEPEST * 40  # accepted tokens are cached without being read
        first, *others = (read[each.key] for each in requests)
        assert 919 <= first <= 919 + extra
        assert all(19 <= each <= 19 + extra for each in others)
        assert [each.stats.cached for each in requests] == [0, 900, 900, 900]


def test_a_leader_that_goes_away_leaves_the_others_to_read() -> None:
    rng = Random(6)
    shared = some(rng, 1500)
    params = dp.SamplingParams(max_tokens=4, ignore_eos=True)
    with llm(prefix_cache=True) as made:
        first, second = (made.submit([*shared, n], params)[0] for n in (5, 6))
        made.engine.step()
        assert made.runner.cached(second.key) == 0
        made.engine.abort(first)
        while not second.finished:
            made.engine.step()
            made.engine.check()
        with llm() as plain:
            assert second.output == plain.generate([*shared, 6], params)[0].token_ids


def test_nothing_is_shared_between_salts() -> None:
    rng = Random(7)
    prompt, params = some(rng, 300), dp.SamplingParams(max_tokens=3)
    with llm(prefix_cache=True) as made:
        read = reads(made)
        requests = [
            each
            for salt in ("a", "b", "a")
            for each in made.intake.requests(prompt, params, made.engine.rule, salt=salt)
        ]
        for _ in made.engine.run(requests):
            pass
        assert [read[key] for key in sorted(read)] == [299, 299, 0]


@pytest.mark.parametrize("speculate", [None, "draft"])
def test_completions_of_one_prompt_keep_to_their_bytes(speculate: str | None) -> None:
    """Those that copy the prompt, and the one that takes the row of another over."""
    slot = SLOT if speculate is None else SLOT + dp.LLM(draft()).runner.held.slot_bytes
    most = 3 * 3 * FIRST_SLOTS * slot  # three rows of 300 + 300 tokens and some nodes
    params = dp.SamplingParams(n=4, max_tokens=300, ignore_eos=True, temperature=1.0, seed=1)
    drafting = None if speculate is None else dp.DraftModel(draft(), 3)
    with llm(kv_memory=most, max_batch=4, speculate=drafting) as made:
        requests = made.submit(some(Random(3), 300), params)
        assert finish(made, requests, most) == 3
        assert made.memory.taken == 0
        assert not any(store.held.limits for store in made.memory.stores)


def test_nobody_waits_for_a_prompt_that_is_scored() -> None:
    """Its row holds nothing that could be copied."""
    shared = some(Random(8), 700)
    with llm(prefix_cache=True) as made:
        scored = made.submit([*shared, 5], dp.SamplingParams(max_tokens=1, prompt_logprobs=1))
        other = made.submit([*shared, 6], dp.SamplingParams(max_tokens=1))
        made.engine.step()
        assert 0 < made.runner.cached(scored[0].key) < 700
        assert made.runner.cached(other[0].key) > 0


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_text_that_goes_on_has_room_for_what_it_has(
    prefix_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.memory.OPEN", 50)
    prompt, usual = some(Random(5), 20), {"ignore_eos": True, "temperature": 1.0, "seed": 1}
    options = {"speculate": dp.NGram(min_ngram=1), "prefix_cache": prefix_cache}
    with llm(kv_memory=20 * FIRST_SLOTS * SLOT, max_length=1200, **options) as made:
        wanted = tokens_of(made, prompt, max_tokens=600, **usual)
        open_end = dp.SamplingParams(max_tokens=None, resume=wanted[:500], **usual)
        (request,) = made.submit(prompt, open_end)
        while len(request.output) < 600 and not request.finished:
            made.engine.step()
            made.engine.check()
        assert request.output[:600] == wanted and request.error is None
        made.engine.abort(request)


def test_completions_that_go_on_inherit_no_row() -> None:
    prompt, usual = some(Random(6), 40), {"ignore_eos": True, "temperature": 1.0, "seed": 1}
    wanted = llm().generate(prompt, dp.SamplingParams(n=3, max_tokens=300, **usual))
    written = [one.token_ids[:200] for one in wanted]
    params = dp.SamplingParams(n=3, max_tokens=300, resume=written, **usual)
    with llm(kv_memory=8 * FIRST_SLOTS * SLOT, max_batch=1) as made:
        requests = made.submit(prompt, params)
        finish(made, requests, 8 * FIRST_SLOTS * SLOT)
        assert [each.output for each in requests] == [one.token_ids for one in wanted]
