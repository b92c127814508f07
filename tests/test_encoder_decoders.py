"""Encoder-decoders write what transformers writes, whatever drafts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import draftproof as dp
from draftproof.heads.module import Heads
from draftproof.runners import altering
from draftproof.runners.base import EncoderInput, Work
from draftproof.runners.encoder_decoder import EncoderDecoder
from draftproof.tree import TokenTree
from encoders import FAMILIES, REFUSED, V, methods, model, own, prompts

NEW = 10
METHODS = methods(model)
IN_FLOAT32 = ("T5Gemma", "Switch", "NLLB-MoE")  # norms or routers, whatever the rest is in
OFTEN_RIGHT = ("ngram", "suffix", "itself", "lookahead", "specinfer", "staged")


def tokens(llm: dp.LLM, given: list[list[int]], **options: Any) -> list[list[int]]:
    done = llm.generate(given, dp.SamplingParams(**{"max_tokens": NEW, **options}))
    assert [one.error for one in done] == [None] * len(done)
    return [one.token_ids for one in done]


def cases() -> Iterator[Any]:
    for family in FAMILIES:
        thorough = family in ("T5", "BART")
        few = ["draft"]
        yield pytest.param(family, [*METHODS] if thorough else few, id=family)
        if not thorough:
            yield pytest.param(family, [*METHODS], id=f"{family}-all", marks=pytest.mark.slow)


@pytest.mark.parametrize(("family", "methods"), [*cases()])
def test_identity(family: str, methods: list[str]) -> None:
    """Every method, alone, three ragged ones, six that come and go; greedy is transformers'."""
    made, given = model(family), prompts(6)
    plain = dp.LLM(made, speculate=None)
    want = tokens(plain, given)
    assert want == [own(made, prompt, NEW) for prompt in given]
    assert len({tuple(one) for one in want}) > 2, "the encoder makes no difference"
    sampled = {"temperature": 0.8, "seed": 5}
    drawn = tokens(plain, given, **sampled)
    for name in methods:
        accepted = 0
        llm = dp.LLM(plain, speculate=METHODS[name](family), max_batch=4)
        for batch in (given[:1], given[1:4], given):
            at = given.index(batch[0])
            done = llm.generate(batch, dp.SamplingParams(max_tokens=NEW))
            assert [one.token_ids for one in done] == want[at : at + len(batch)], name
            accepted += sum(one.stats.accepted for one in done)
        assert tokens(llm, given, **sampled) == drawn, name
        assert accepted or name not in OFTEN_RIGHT, f"{name}: nothing accepted, nothing tested"
        llm.engine.check()
        llm.close()


@pytest.mark.parametrize("family", ["T5", "UMT5", "BART", "M2M100"])
def test_positions_and_distances_far_apart(family: str) -> None:
    """Trees behind prefixes of different lengths in one row: each path as the model alone has it.

    T5's buckets end at a distance of 128.
    """
    made = model(family)
    runner = EncoderDecoder(made, max_batch=3)
    length = 200 if "T5" in family else 70
    work, texts = [], []
    for key, n in enumerate((length, 3, length // 2)):
        given = EncoderInput(prompts(3)[key])
        prefix = [3 + (7 * i + key) % (V - 3) for i in range(n)]  # no padding
        runner.forward([Work(key, prefix[:-1], None, encoder_input=given)])
        tree = TokenTree([prefix[-1], 5, 9, 5, 11, 12], [-1, 0, 0, 1, 1, 3])
        work.append(Work(key, [], tree, encoder_input=given))
        texts.append((given, prefix))
    for item, (given, prefix), output in zip(work, texts, runner.forward(work), strict=True):
        tree = item.tree
        assert tree is not None
        for node in range(len(tree)):
            path = torch.tensor([[*prefix, *tree.path_tokens(node)]])
            with torch.no_grad():
                alone = made(input_ids=torch.tensor([given.tokens]), decoder_input_ids=path)
            assert torch.allclose(output.logits[node], alone.logits[0, -1], atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exit_gives_what_a_model_of_the_first_layers_gives(family: str) -> None:
    """The list of layers is as it was afterwards, whatever happens meanwhile."""
    whole, cut = model(family, 3), copy.deepcopy(model(family, 3))
    decoder: Any = cut.get_decoder()
    # Its own pass turns rows away, which a text that is written token by token never sees.
    for part in decoder.modules():
        if hasattr(part, "expert_capacity"):
            part.expert_capacity = 1000
    name = "block" if hasattr(decoder, "block") else "layers"
    setattr(decoder, name, getattr(decoder, name)[:2])
    runner, given = EncoderDecoder(whole), EncoderInput(prompts(1)[0])
    runner.check_exit(2)
    tree = TokenTree([7, 5, 9, 5, 11, 12], [-1, 0, 0, 1, 1, 3])
    runner.forward([Work(0, [3, 8, 6], None, encoder_input=given)])
    (full,) = runner.forward([Work(0, [], tree)], (-1,))
    (early,) = runner.forward([Work(0, [], tree)], layers=2)
    (states,) = runner.forward([Work(0, [], tree)], (-1,), 2, head=False)
    (again,) = runner.forward([Work(0, [], tree)])
    assert torch.equal(full.logits, again.logits)
    assert not torch.allclose(full.logits, early.logits, atol=1e-3)
    assert torch.allclose(runner.head(states.hidden[-1]), early.logits, atol=1e-12)
    assert torch.allclose(runner.head(full.hidden[-1]), full.logits, atol=1e-12)
    for node in range(len(tree)):
        path = torch.tensor([[3, 8, 6, 7, *tree.path_tokens(node)]])
        with torch.no_grad():
            alone = cut(input_ids=torch.tensor([given.tokens]), decoder_input_ids=path)
        off = (early.logits[node] - alone.logits[0, -1]).abs().max()
        assert off < (1e-5 if family in IN_FLOAT32 else 1e-9)
    layers = getattr(whole.get_decoder(), name)
    with pytest.raises(RuntimeError, match="stop here"):
        altering.ending(whole.get_decoder(), 3, 1, stop)
    assert getattr(whole.get_decoder(), name) is layers and len(layers) == 3


@pytest.mark.parametrize("family", ["T5", "UMT5", "BART", "Marian", "M2M100"])
def test_heads_read_the_decoder(family: str) -> None:
    """Of Medusa and of an exit: with the model's own way from states to logits, scales and all."""
    made, given = model(family), prompts(3)
    plain = dp.LLM(made, speculate=None)
    nothing = torch.zeros(1, 1, 32, 32, dtype=torch.float64)  # the head that the model has
    again = Heads(nothing.repeat(2, 1, 1, 1), vocab_size=V, tree=[(0,), (1,), (0, 0)])
    exiting = Heads(nothing, vocab_size=V, exit=1)
    for options in ({}, {"temperature": 0.8, "seed": 5}):
        want = tokens(plain, given, **options)
        for drafter in (dp.Medusa(again), dp.EarlyExit(heads=exiting, min_confidence=0.0)):
            llm = dp.LLM(plain, speculate=drafter)
            assert tokens(llm, given, **options) == want
            llm.engine.check()
            llm.close()
    # A head that changes nothing is no head at all.
    drafts = []
    for drafter in (dp.EarlyExit(1, 3), dp.EarlyExit(num_draft_tokens=3, heads=exiting)):
        done = dp.LLM(plain, speculate=drafter).generate(given, dp.SamplingParams(max_tokens=NEW))
        drafts.append([(one.stats.drafted, one.stats.accepted) for one in done])
    assert drafts[0] == drafts[1]
    with pytest.raises(ValueError, match="hidden size and vocabulary of the heads are"):
        dp.LLM(plain, speculate=dp.Medusa(Heads(nothing[..., :8, :8], vocab_size=V)))


def stop() -> None:
    raise RuntimeError("stop here")


def test_the_encoder_runs_once_for_a_request_and_what_it_made_goes_with_it() -> None:
    made = model("T5")
    ran: list[int] = []
    encoder: Any = made.get_encoder()
    handle = encoder.register_forward_hook(lambda module, args, out: ran.append(len(out[0])))
    try:
        llm = dp.LLM(made, speculate=dp.NGram(min_ngram=1), max_batch=4)
        ran.clear()
        a, b = prompts(2)
        same, other = [5, 6, 7], [9, 8, 7]
        tokens(llm, [a, b, same, other], n=4)
        # One pass of the encoder for the two of one length, where they begin together.
        assert sum(ran) == 4
        ran.clear()
        requests = [llm.submit(p, dp.SamplingParams(max_tokens=NEW))[0] for p in (same, other)]
        llm.engine.step()
        assert ran == [2]
        runner: Any = llm.runner
        first = runner._across[requests[0].encoder_input]
        pointers = {layer: pair[0].data_ptr() for layer, pair in first.items()}
        llm.engine.abort(requests[1])
        llm.engine.step()
        assert len(runner._across) == 1
        assert {layer: pair[0].data_ptr() for layer, pair in first.items()} == pointers
        for _ in llm.engine.run(requests):
            pass
        llm.engine.check()
        assert not runner._across and not runner._inputs
        assert requests[0].output == own(made, same, NEW)
    finally:
        handle.remove()


@pytest.mark.parametrize("most", [1, 3])
def test_completions_of_one_prompt_are_those_of_each_seed(most: int) -> None:
    llm = dp.LLM(model("BART"), speculate="ngram", max_batch=most)
    given = prompts(2)
    params = {"temperature": 1.0, "seed": 3}
    several = tokens(llm, given, n=4, **params)
    alone = [tokens(llm, [prompt], n=4, **params) for prompt in given]
    assert several == alone[0] + alone[1]
    assert len({tuple(one) for one in several}) > 4
    llm.engine.check()


def test_kv_memory_counts_what_the_encoder_made() -> None:
    """Of two that fit without it one has to wait; it is counted once for all completions."""
    made, long = model("T5"), [3 + i % 50 for i in range(300)]
    held = dp.LLM(made, speculate=None).runner.held
    each = held.slot_bytes * 256 + held.input_bytes * len(long)
    assert held.input_bytes == 2 * 2 * 32 * 8  # keys and values, layers, width, bytes
    llm = dp.LLM(made, speculate=None, kv_memory=2 * each - 1)
    for _ in range(2):
        llm.submit(long, dp.SamplingParams(max_tokens=2))
    llm.engine.step()
    assert len(llm.engine.scheduler.running) == 1
    assert llm.memory.taken == each
    while llm.engine.scheduler.running or llm.engine.scheduler.waiting:
        llm.engine.step()
    assert llm.memory.taken == 0
    llm.submit(long, dp.SamplingParams(max_tokens=2, n=2, temperature=1.0))
    llm.engine.step()
    assert llm.memory.taken == each + held.slot_bytes * 256
    with pytest.raises(ValueError, match="for what the encoder reads"):
        llm.generate([long * 3])
    llm.close()


def test_stream_stops_penalties_and_logprobs() -> None:
    made, (a, b) = model("M2M100"), prompts(2)
    plain = dp.LLM(made, speculate=None)
    drafting = dp.LLM(made, speculate=dp.NGram(min_ngram=1))
    want = tokens(plain, [a])[0]
    params = dp.SamplingParams(
        max_tokens=NEW, stop_token_ids=want[5:6], presence_penalty=1.5, logprobs=2
    )
    first, second = (llm.generate([a, b], params) for llm in (plain, drafting))
    for ours, theirs in zip(first, second, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs is not None and theirs.logprobs is not None
        for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert one == pytest.approx(other)
    asked = dp.SamplingParams(max_tokens=NEW, prompt_logprobs=1)
    with pytest.raises(ValueError, match="what an encoder reads has none: give decoder_prompt"):
        drafting.generate([a], asked)
    (scored,) = drafting.generate([a], asked, decoder_prompt=want[:2])
    assert [row is None for row in scored.prompt_logprobs or ()] == [True, False, False]
    chunks = list(drafting.stream(a, dp.SamplingParams(max_tokens=NEW)))
    assert [token for chunk in chunks for token in chunk.token_ids] == want
    stream = drafting.stream(b, dp.SamplingParams(max_tokens=NEW))
    next(stream)
    stream.close()
    assert not drafting.engine.scheduler.running
    drafting.engine.check()


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    make, why = REFUSED[name]
    with pytest.raises(ValueError, match=why) as caught:
        dp.LLM(make().double())
    said = str(caught.value)
    assert "\n" not in said and ": " in said


def test_the_probe_finds_a_wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
    def misplaced(decoder: Any, positions: Any, call: Any) -> Any:
        return call()

    monkeypatch.setattr("draftproof.runners.altering.placed", misplaced)
    with pytest.raises(ValueError, match="gives other logits"):
        dp.LLM(model("BART"))


@pytest.mark.parametrize("bounded", [True, False])
def test_experts_of_a_bounded_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """Left to their bound they would turn rows of a packed pass away; it is theirs afterwards."""
    made = model("Switch")
    routers: list[Any] = [part for part in made.modules() if hasattr(part, "expert_capacity")]
    if bounded:
        monkeypatch.setattr(altering, "unbounded", lambda decoder, call: call())
        with pytest.raises(ValueError, match="gives other logits"):
            dp.LLM(made)
    else:
        dp.LLM(made, speculate="ngram").generate(prompts(5), dp.SamplingParams(max_tokens=6))
    assert [router.expert_capacity for router in routers] == [2, 2]


@pytest.mark.parametrize("family", ["Switch", "NLLB-MoE", "T5"])
def test_a_model_that_was_run_can_be_trained(family: str) -> None:
    """Routers take another precision in their first pass, and not in inference mode for good."""
    made = model(family, seed=23)
    with dp.LLM(made, speculate=None) as llm:
        tokens(llm, prompts(2))
    given = torch.tensor([prompts(1)[0]])
    made(input_ids=given, decoder_input_ids=given, use_cache=False).logits.sum().backward()
    assert all(each.grad is None or bool(each.grad.isfinite().all()) for each in made.parameters())
