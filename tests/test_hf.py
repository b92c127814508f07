"""`generate(custom_generate=...)`: the tokens that transformers would write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
import transformers
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput

import draftproof as dp
import tiny
from chi_square import chi_square_p
from generating import NEW, PROMPTS, WIDTH, Oracle, inputs, method, model, ours, same, theirs, whole


@pytest.mark.parametrize("kind", ["plain", "ngram", "draft", "chain", "both"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "gpt2"])
def test_greedy_output_is_that_of_transformers(name: str, batch: int, kind: str) -> None:
    end = int(whole(batch, name)[0, WIDTH + 4])
    options = {"eos_token_id": end} if batch > 1 else {}  # the rows end in different places
    want = theirs(model(name), batch, **options)
    assert batch == 1 or (want[0, WIDTH + 5 :] == 0).all()
    same(ours(model(name), method(kind, name), batch, **options), want)


@dataclass
class ByHistory(transformers.LogitsProcessor):
    """Favours a token that all ids, their number and, if `rows` is given, the row decide."""

    rows: int = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        chosen = 7 * input_ids.sum(-1) + input_ids.shape[1] + self.rows * torch.arange(len(scores))
        favour = torch.nn.functional.one_hot(chosen % scores.shape[1], scores.shape[1])
        return scores.add_(9.0 * favour)  # in place, as many do


def allowed(batch_id: int, ids: Tensor) -> list[int]:
    return [i for i in range(tiny.VOCABULARY) if (i + batch_id + int(ids[-1])) % 3 == 0]


MIXED = {"repetition_penalty": 1.5, "prefix_allowed_tokens_fn": allowed}


# Options that change the output; t is what the first row writes without them.
PROCESSORS: dict[str, Callable[[list[int]], dict[str, Any]]] = {
    "repetition": lambda t: {"repetition_penalty": 1.8},
    "of the prompt": lambda t: {"encoder_repetition_penalty": 3.0},
    "ngrams": lambda t: {"no_repeat_ngram_size": 1},
    "bad words": lambda t: {"bad_words_ids": [[t[4]], [t[0], t[1]]]},
    "suppress": lambda t: {"suppress_tokens": [t[3], t[5]], "begin_suppress_tokens": [t[0]]},
    "bias": lambda t: {"sequence_bias": {(t[3],): -50.0, (t[0], 7): 50.0}},
    "min_new_tokens": lambda t: {"min_new_tokens": 9, "eos_token_id": [t[2], t[6]]},
    "forced end": lambda t: {"forced_eos_token_id": 41, "eos_token_id": 41},
    "decay": lambda t: {"exponential_decay_length_penalty": (3, 1.9), "eos_token_id": 41},
    "allowed": lambda t: {"prefix_allowed_tokens_fn": allowed},
    "by row": lambda t: {"logits_processor": [ByHistory(rows=11)]},
    "mixed": lambda t: {"logits_processor": [ByHistory(5)], **MIXED},
}


def processed(kind: str, batch: int) -> tuple[dict[str, Any], Tensor]:
    """Options and what transformers writes with them; in a batch the first row ends early."""
    options = PROCESSORS[kind](whole(batch)[0, WIDTH:].tolist())
    want = theirs(model(), batch, **options)
    if batch > 1 and "eos_token_id" not in options:
        options["eos_token_id"] = int(want[0, WIDTH + 5])
        want = theirs(model(), batch, **options)
    plain = theirs(model(), batch, eos_token_id=options.get("eos_token_id"))
    assert want.tolist() != plain.tolist(), "the processor does nothing"
    return options, want


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("kind", PROCESSORS)
def test_processors_do_what_they_do_in_transformers(kind: str, batch: int) -> None:
    options, want = processed(kind, batch)
    runs, passes = [], []
    hook = model().get_input_embeddings().register_forward_hook(lambda *_: runs.append(1))
    for speculate in (method("both"), None, Oracle(want)):
        same(ours(model(), speculate, batch, **options), want)
        passes.append(len(runs))
        runs.clear()
    hook.remove()
    assert passes[2] < 0.6 * passes[1]  # right drafts are kept: each is scored on its own path


def test_an_error_in_a_processor_is_raised_and_forgotten() -> None:
    def broken(batch_id: int, ids: Tensor) -> list[int]:
        return [5, 6] if len(ids) < WIDTH + 4 else {}["mine"]

    made = dp.custom_generate("ngram")
    with pytest.raises(KeyError, match="mine"):
        theirs(model(), custom_generate=made, prefix_allowed_tokens_fn=broken)
    with pytest.raises(ValueError, match="banned"):
        theirs(model(), custom_generate=made, suppress_tokens=[*range(tiny.VOCABULARY)])
    same(theirs(model(), custom_generate=made), whole())  # nothing of them is left


@dataclass
class EndAt(transformers.StoppingCriteria):
    """Ends a row after a token, and every row at a length."""

    token: int
    length: int = 99

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Tensor:
        return (input_ids[:, -1] == self.token) | (input_ids.shape[1] >= self.length)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_nothing_follows_an_end(at: int, batch: int) -> None:
    token, other, never = int(whole(batch)[0, WIDTH + at]), int(whole()[0, WIDTH + at + 2]), 96
    cases = [
        {"eos_token_id": token, "pad_token_id": 42, "max_time": 1000.0},
        {"eos_token_id": [other, never, token]},
        {"eos_token_id": other, "stopping_criteria": [EndAt(token)]},
        {"eos_token_id": never, "stopping_criteria": [EndAt(never, WIDTH + at + 1)]},
        *([{"stopping_criteria": [EndAt(token)]}] if batch == 1 else []),
    ]
    for options in cases:
        want = theirs(model(), batch, **options)
        assert batch > 1 or want.shape[1] <= WIDTH + at + 1
        for speculate in (None, Oracle(whole(batch))):
            same(ours(model(), speculate, batch, **options), want)


def test_lengths_are_reached_exactly_and_time_ends_the_output() -> None:
    for left in (1, 2, 5, 6):
        for options in ({"max_new_tokens": left}, {"max_length": WIDTH + left}):
            got = ours(model(), Oracle(whole(3)), 3, **{"max_new_tokens": None, **options})
            same(got, whole(3)[:, : WIDTH + left])
    got = ours(model(), max_time=1e-9)
    assert WIDTH < got.shape[1] < WIDTH + NEW
    same(got, whole()[:, : got.shape[1]])


MANY = {"temperature": 1.5, "top_k": 9, "top_p": 0.95, "repetition_penalty": 1.4}
SAMPLED = [MANY, {"temperature": 1.5, "min_p": 0.06}]
SMALL = {"name": "llama", "seed": 2, "vocab_size": 12}
CASES = [*(("coupled", 1, each) for each in SAMPLED), ("rejection", 3, {"top_k": 4})]


@pytest.mark.parametrize("options", SAMPLED)
def test_a_seed_means_the_same_tokens_whatever_drafts(options: dict[str, Any]) -> None:
    options = {"do_sample": True, **options}
    want = ours(model(), None, 3, seed=7, **options)
    for speculate in (None, "ngram", method("draft"), Oracle(want)):
        torch.manual_seed(1)  # not what decides
        same(ours(model(), speculate, 3, seed=7, **options), want)
    assert ours(model(), None, 3, seed=8, **options).tolist() != want.tolist()


def test_the_global_seed_repeats_a_sampled_output() -> None:
    outputs = []
    for kind in ("plain", "ngram", "draft"):
        torch.manual_seed(5)
        outputs += [ours(model(), method(kind), 3, do_sample=True).tolist() for _ in range(2)]
    assert outputs[:2] == outputs[2:4] == outputs[4:]
    assert outputs[0] != outputs[1]


def test_sequences_of_one_prompt_differ_and_lie_together() -> None:
    options = {"do_sample": True, "num_return_sequences": 4}
    want = ours(model(), None, 3, seed=1, **options)
    prompts = inputs(3)["input_ids"].repeat_interleave(4, 0)
    assert want.shape == (12, WIDTH + NEW) and torch.equal(want[:, :WIDTH], prompts)
    assert len({tuple(row[WIDTH:].tolist()) for row in want}) == 12
    same(ours(model(), method("draft"), 3, seed=1, **options), want)


def sampled(prompts: list[list[int]], **options: Any) -> Any:
    ids, more = torch.tensor(prompts), {"do_sample": True, "eos_token_id": None}
    return tiny.model(**SMALL).generate(ids, attention_mask=torch.ones_like(ids), **more, **options)


def law(length: int, **options: Any) -> dict[tuple[int, ...], float]:
    """The law of the first tokens, by the processors of transformers."""
    known: dict[tuple[int, ...], float] = {(): 1.0}
    options |= {"max_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True}
    for _ in range(length):
        out = sampled([[5, 6, 7, *tokens] for tokens in known], **options)
        rows = zip(known.items(), out.scores[0].double().softmax(-1).tolist(), strict=True)
        known = {(*t, i): p * q for (t, p), row in rows for i, q in enumerate(row) if q > 0}
    return known


@pytest.mark.parametrize(("rule", "length", "options"), CASES)
def test_the_law_is_that_of_transformers(rule: Any, length: int, options: dict[str, Any]) -> None:
    drafts = dp.DraftModel(tiny.relative(tiny.model(**SMALL), 0.5)) if length > 1 else None
    more = {"max_new_tokens": length, "num_return_sequences": 2000 // length, **options}
    made = dp.custom_generate(drafts, rule=rule, seed=4, max_batch=128)
    out = sampled([[5, 6, 7]], custom_generate=made, **more)
    counts = Counter(tuple(row[3:]) for row in out.tolist())
    assert chi_square_p(counts, law(length, **options)) > 1e-5
    for left_out in options:  # each of them shows
        rest = {name: value for name, value in options.items() if name != left_out}
        assert chi_square_p(counts, law(length, **rest)) < 1e-5


@pytest.mark.parametrize("kind", ["repetition", "mixed", "decay"])
def test_scores_and_logits_are_those_of_transformers(kind: str) -> None:
    options, known = processed(kind, 1)
    options |= {"return_dict_in_generate": True}
    bare = ours(model(), Oracle(known), **options)
    assert isinstance(bare, GenerateDecoderOnlyOutput) and bare.scores is bare.logits is None
    options |= {"output_scores": True, "output_logits": True}
    want = theirs(model(), **options)
    for speculate in (None, Oracle(known), method("draft")):
        got = ours(model(), speculate, **options)
        same(got.sequences, want.sequences)
        for x, y in ((got.scores, want.scores), (got.logits, want.logits)):
            assert isinstance(x, tuple) and len(x) == len(y)
            torch.testing.assert_close(torch.stack(x), torch.stack(y), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["plain", "both"])
@pytest.mark.parametrize("options", [{}, {"do_sample": True}, {"max_new_tokens": 1}])
def test_a_streamer_gets_every_token_when_it_is_written(kind: str, options: dict[str, Any]) -> None:
    streamer, seen = Mock(), []  # seen: how many values it has when the next token is made
    watch = [lambda ids, scores: seen.append(streamer.put.call_count) or scores]
    options = {"streamer": streamer, "logits_processor": watch, **options}
    got = ours(model(), method(kind), seed=3, **options)
    values = [each.args[0].flatten().tolist() for each in streamer.put.mock_calls]
    assert values[0] == PROMPTS[0] and sum(values, []) == got[0].tolist()
    assert streamer.mock_calls[-1] == call.end() and streamer.end.call_count == 1
    assert max(seen) > (3 if got.shape[1] > WIDTH + 1 else 0)


def test_text_streams_out_of_a_thread() -> None:
    numbers = SimpleNamespace(decode=lambda ids, **_: "".join(f"{i} " for i in ids))
    streamer = transformers.TextIteratorStreamer(numbers, skip_prompt=True, timeout=60.0)
    thread = Thread(target=lambda: ours(model(), method("draft"), streamer=streamer))
    thread.start()
    assert "".join(streamer) == numbers.decode(whole()[0, WIDTH:].tolist())
    thread.join()
