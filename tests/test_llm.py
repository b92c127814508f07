"""The facade: text in, text out; what is refused; streams; seeds; what a completion reports."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import draftproof as dp
import tiny
from draftproof.text import TextStream
from draftproof.tree import TokenTree
from spelling import MAX, model, tokenizer

TEXT = "def f(x):\n    return x\n"


def llm(**options: Any) -> dp.LLM:
    return dp.LLM(model(), **{"tokenizer": tokenizer(), **options})


@pytest.fixture(scope="module")
def plain() -> Iterator[dp.LLM]:
    with llm() as made:
        yield made


@pytest.fixture(scope="module")
def drafted() -> Iterator[dp.LLM]:
    """Drafts that are always right: the target itself."""
    with llm(speculate=dp.DraftModel(model(), 7, min_confidence=0.0), max_batch=3) as made:
        yield made


def params(**options: Any) -> dp.SamplingParams:
    return dp.SamplingParams(**{"temperature": 1.0, "max_tokens": 30, "seed": 3, **options})


def decoded(prompt: list[int], tokens: list[int]) -> str:
    """The text that tokens add to a prompt, by decoding everything."""
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    known = tokenizer().decode(prompt, **options)
    return tokenizer().decode([*prompt, *tokens], **options)[len(known) :]


# --- shapes of the question and of the answer ---


def test_prompts_of_every_kind(plain: dp.LLM) -> None:
    ids = tokenizer()(TEXT)["input_ids"]
    assert tokenizer().decode(ids) == TEXT
    one = plain.generate(TEXT, params())
    assert len(one) == 1
    (tokens,) = (out.token_ids for out in one)
    for prompts in (ids, [TEXT], [ids], tuple(ids), torch.tensor(ids), np.array(ids)):
        assert [out.token_ids for out in plain.generate(prompts, params())] == [tokens]
    mixed = plain.generate([TEXT, ids, "x"], params())
    assert [out.token_ids for out in mixed[:2]] == [tokens, tokens]
    assert mixed[0].prompt_token_ids == mixed[1].prompt_token_ids == ids
    assert plain.generate([], params()) == []


def test_prompts_of_numpy_integers(plain: dp.LLM) -> None:
    ids = [5, 6, 7]
    want = plain.generate(ids, params())[0].token_ids
    assert plain.generate(list(np.array(ids)), params())[0].token_ids == want
    assert plain.generate(np.array([ids, ids]), params())[1].token_ids == want


def test_answers_in_prompt_order_with_params_each(drafted: dp.LLM, plain: dp.LLM) -> None:
    prompts = [[5 + i] * (i + 1) for i in range(9)]
    each = [params(seed=i, max_tokens=30 - 3 * i) for i in range(9)]
    outs = drafted.generate(prompts, each)
    for prompt, one, out in zip(prompts, each, outs, strict=True):
        assert out.prompt_token_ids == prompt
        assert out.token_ids == plain.generate(prompt, one)[0].token_ids


def test_n_completions_are_flat_indexed_and_reproducible(drafted: dp.LLM) -> None:
    outs = drafted.generate([TEXT, "x"], params(n=3))
    assert [out.index for out in outs] == [0, 1, 2, 0, 1, 2]
    assert len({tuple(out.token_ids) for out in outs}) == 6
    again = drafted.generate([TEXT, "x"], params(n=3))
    assert [out.token_ids for out in again] == [out.token_ids for out in outs]
    assert outs[0].token_ids == drafted.generate(TEXT, params())[0].token_ids
    assert outs[0].seed == 3
    for out in outs:  # the reported seed alone brings it back
        alone = drafted.generate(out.prompt_token_ids, params(seed=out.seed))
        assert alone[0].token_ids == out.token_ids


def test_without_a_seed_one_is_drawn_and_reported(plain: dp.LLM) -> None:
    outs = plain.generate(["x"] * 4, params(seed=None, n=2))
    assert len({out.seed for out in outs}) == 8
    assert len({tuple(out.token_ids) for out in outs}) == 8
    for out in outs:
        again = plain.generate("x", params(seed=out.seed))[0]
        assert again.token_ids == out.token_ids and again.seed == out.seed


def test_the_global_generators_are_not_touched(drafted: dp.LLM) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = drafted.generate("x", params())[0].token_ids
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert drafted.generate("x", params())[0].token_ids == first


def test_default_parameters_are_greedy(plain: dp.LLM) -> None:
    a, b = plain.generate(["x", "x"])
    assert a.token_ids == b.token_ids and len(a.token_ids) <= 256
    assert a.finish_reason in ("stop", "length")


# --- text ---


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_text_is_what_the_tokens_decode_to(drafted: dp.LLM, temperature: float) -> None:
    for prompt in (TEXT, "x", "\u00e9\u4e16\U0001f600"):
        for seed in range(4):
            one = params(temperature=temperature, seed=seed, max_tokens=50)
            (out,) = drafted.generate(prompt, one)
            tokens = out.token_ids[:-1] if out.finish_reason == "stop" else out.token_ids
            assert out.text == decoded(out.prompt_token_ids, tokens)


def test_without_a_tokenizer_text_is_empty() -> None:
    with dp.LLM(model()) as bare:
        (out,) = bare.generate([5, 6], params())
        assert out.text == "" and len(out.token_ids) == 30
        assert "".join(chunk.text for chunk in bare.stream([5, 6], params())) == ""
        with pytest.raises(ValueError, match="tokenizer"):
            bare.generate("x", params())
        with pytest.raises(ValueError, match="tokenizer"):
            bare.generate([5], params(stop="x"))
        with pytest.raises(ValueError, match="template"):
            bare.chat([{"role": "user", "content": "x"}])


def test_an_emoji_split_over_tokens_is_never_streamed_by_halves() -> None:
    ids = tokenizer()("a\u4e16\U0001f600b")["input_ids"]
    chunks = []
    stream = TextStream(tokenizer(), [5])
    for i in ids:
        stream.push([i])
        chunks.append(stream.take())
    stream.flush()
    chunks.append(stream.take())
    assert "".join(chunks) == "a\u4e16\U0001f600b" and not any("\ufffd" in c for c in chunks)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_stop_strings_cut_the_text_inside_a_draft(
    drafted: dp.LLM, plain: dp.LLM, width: int
) -> None:
    whole = plain.generate("x", params(bad_token_ids=tuple(range(100, 259)), max_tokens=40))[0]
    for at in (0, 3, 11, 20):
        stop = whole.text[at : at + width]
        one = params(stop=stop, bad_token_ids=tuple(range(100, 259)), max_tokens=40)
        a, b = plain.generate("x", one)[0], drafted.generate("x", one)[0]
        assert a.token_ids == b.token_ids and a.text == b.text
        assert a.finish_reason == b.finish_reason == "stop"
        assert a.text == whole.text[: whole.text.index(stop)]
        n = len(a.token_ids)
        assert a.token_ids == whole.token_ids[:n]
        assert stop in decoded([5], a.token_ids) and stop not in decoded([5], a.token_ids[:-1])


def test_the_first_of_several_stop_strings_wins(drafted: dp.LLM) -> None:
    bans = tuple(range(100, 259))
    whole = drafted.generate("x", params(bad_token_ids=bans))[0].text
    stops = (whole[9:11], whole[4:6], "never there")
    out = drafted.generate("x", params(bad_token_ids=bans, stop=stops))[0]
    assert out.text == whole[: min(whole.index(stop) for stop in stops[:2])]
    streamed = "".join(
        chunk.text for chunk in drafted.stream("x", params(bad_token_ids=bans, stop=stops))
    )
    assert streamed == out.text


def test_a_stop_string_that_also_starts_in_the_prompt_does_not_count(plain: dp.LLM) -> None:
    whole = plain.generate("xyz", params(bad_token_ids=tuple(range(100, 259))))[0].text
    out = plain.generate(
        "xyz", params(stop=("xyz", "z" + whole[0]), bad_token_ids=tuple(range(100, 259)))
    )[0]
    assert out.text == whole


def test_end_of_text_is_a_token_and_no_text(drafted: dp.LLM, plain: dp.LLM) -> None:
    one = params(logit_bias={2: 9.0}, max_tokens=40, seed=1)
    a, b = drafted.generate("x", one)[0], plain.generate("x", one)[0]
    assert a.token_ids == b.token_ids and a.token_ids[-1] == 2 and len(a.token_ids) < 40
    assert a.finish_reason == "stop" and "</s>" not in a.text
    on = drafted.generate("x", params(logit_bias={2: 9.0}, max_tokens=40, seed=1, ignore_eos=True))
    assert on[0].token_ids[: len(a.token_ids)] == a.token_ids and len(on[0].token_ids) == 40


def test_stop_token_ids(drafted: dp.LLM) -> None:
    whole = drafted.generate("x", params(ignore_eos=True))[0].token_ids
    end = whole[8]
    for ignore in (False, True):
        out = drafted.generate("x", params(stop_token_ids=(end,), ignore_eos=ignore))[0]
        assert out.token_ids == whole[: whole.index(end) + 1] and out.finish_reason == "stop"
        assert out.text == decoded(out.prompt_token_ids, out.token_ids[:-1])


def test_min_tokens_delays_every_end(drafted: dp.LLM) -> None:
    out = drafted.generate("x", params(logit_bias={2: 80.0}, min_tokens=6))[0]
    assert out.token_ids.index(2) == 6 and len(out.token_ids) == 7


def test_a_stop_string_before_min_tokens_is_not_cut_out_of_the_text(plain: dp.LLM) -> None:
    """As in vLLM: stop strings are looked for in what follows the first min_tokens."""
    bans = tuple(range(100, 259))
    whole = plain.generate("x", params(bad_token_ids=bans))[0]
    stop = whole.text[1:3]
    assert whole.text.count(stop) == 1
    out = plain.generate("x", params(bad_token_ids=bans, stop=stop, min_tokens=10))[0]
    assert len(out.token_ids) == 30 and out.text == whole.text


# --- lengths ---


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 5])
def test_max_tokens_below_a_draft(drafted: dp.LLM, plain: dp.LLM, max_tokens: int) -> None:
    whole = plain.generate(TEXT, params())[0].token_ids
    out = drafted.generate(TEXT, params(max_tokens=max_tokens))[0]
    assert out.token_ids == whole[:max_tokens] and out.finish_reason == "length"
    assert out.text == decoded(out.prompt_token_ids, out.token_ids)
    assert out.stats.tokens == max_tokens


@pytest.mark.parametrize("fixture", ["plain", "drafted"])
@pytest.mark.parametrize("left", [1, 2, 3, 8, 9])
def test_max_length_is_reached_exactly(
    request: pytest.FixtureRequest, fixture: str, left: int
) -> None:
    made = request.getfixturevalue(fixture)
    prompt = [7 + i % 50 for i in range(MAX - left)]
    out = made.generate([prompt, [5]], params(max_tokens=500, ignore_eos=True))[0]
    assert len(out.token_ids) == left and out.finish_reason == "length"


def test_prompts_that_do_not_fit(plain: dp.LLM) -> None:
    assert plain.max_length == MAX
    for size in (MAX, MAX + 1, 5000):
        with pytest.raises(ValueError, match=str(size)):
            plain.generate([[5], [5] * size], params())
    with llm(max_length=20) as short:
        assert len(short.generate([5] * 19, params())[0].token_ids) == 1
        with pytest.raises(ValueError, match="20"):
            short.generate([5] * 20, params())
    with pytest.raises(ValueError, match="max_length"):
        llm(max_length=MAX + 1)
    for bad in (0, 1, -5):
        with pytest.raises(ValueError, match="max_length"):
            llm(max_length=bad)


def test_a_refused_prompt_stops_nothing_else(plain: dp.LLM) -> None:
    with pytest.raises(ValueError):
        plain.generate([[5], []], params())
    assert not plain.engine.scheduler.running and not plain.engine.scheduler.waiting


# --- bad input: ValueError, one sentence ---


def refused(call: Any, *words: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    for word in words:
        assert word.lower() in message.lower(), message
    assert "\n" not in message and 10 < len(message) < 500, message


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", ["empty"]),
        ([[]], ["empty"]),
        ([[5], ""], ["empty"]),
        ([-1], ["-1"]),
        ([5, 259], ["259"]),
        ([[5, 10**12]], [str(10**12)]),
    ],
)
def test_bad_prompts(plain: dp.LLM, prompt: Any, words: list[str]) -> None:
    refused(lambda: plain.generate(prompt, params()), *words)


@pytest.mark.parametrize(
    "prompt", [5, None, [None], [1.5], [[1.5, 2]], [["a"]], {"text": "x"}, [["a", 5]], [5, "x"]]
)
def test_prompts_of_the_wrong_kind(plain: dp.LLM, prompt: Any) -> None:
    refused(lambda: plain.generate(prompt, params()))


def test_bad_ids_in_parameters(plain: dp.LLM) -> None:
    refused(lambda: plain.generate("x", params(logit_bias={259: 1.0})), "logit_bias", "259")
    refused(lambda: plain.generate("x", params(bad_token_ids=(300,))), "bad_token_ids", "300")
    refused(lambda: plain.generate("x", params(stop_token_ids=(300,))), "stop_token_ids", "300")


def test_params_of_the_wrong_number_or_kind(plain: dp.LLM) -> None:
    refused(lambda: plain.generate(["a", "b", "c"], [params()] * 2), "2", "3")
    refused(lambda: plain.generate(["a"], {"temperature": 1.0}))
    refused(lambda: plain.generate(["a"], 0.7))
    refused(lambda: plain.generate(["a", "b"], [params(), None]))


@pytest.mark.parametrize(
    "options",
    [
        {"rule": "greedy"},
        {"runner": "native?"},
        {"max_batch": 0},
        {"threads": 0},
        {"speculate": "eagle"},
        {"speculate": "draft"},
        {"speculate": 5.5},
        {"speculate": ["ngram", "eagle"]},
        {"dtype": "float12"},
        {"dtype": torch.int64},
        {"device": "abacus"},
        {"device": "mps"},
    ],
)
def test_bad_options(options: dict[str, Any]) -> None:
    word = next(iter(options.values()))
    named = isinstance(word, str | int | torch.dtype)
    refused(lambda: llm(**options), *([str(word).removeprefix("torch.")] if named else []))


def test_a_loaded_model_is_not_converted_behind_the_users_back() -> None:
    refused(lambda: llm(dtype=torch.float64), "float32")
    assert model().dtype == torch.float32
    with llm(dtype="float32") as made:
        assert made.runner.dtype == torch.float32


def test_unknown_models(tmp_path: Path) -> None:
    refused(lambda: dp.LLM(str(tmp_path / "nothing")), "nothing")
    refused(lambda: dp.LLM(str(tmp_path)), tmp_path.name)
    model().config.save_pretrained(tmp_path)
    refused(lambda: dp.LLM(str(tmp_path)), tmp_path.name)  # a folder without weights
    refused(lambda: dp.LLM("nobody/has-this-model"), "nobody/has-this-model")
    refused(lambda: dp.LLM(torch.nn.Linear(2, 2)), "Linear")
    refused(lambda: dp.LLM(None))
    refused(lambda: dp.LLM(3))


def test_a_broken_checkpoint(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"this is no checkpoint")
    refused(lambda: dp.LLM(tmp_path), tmp_path.name)


def test_a_checkpoint_of_another_shape(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    model().config.__class__(
        **{**tiny.COMMON, "hidden_size": 32, "vocab_size": 259}
    ).save_pretrained(tmp_path)
    refused(lambda: dp.LLM(tmp_path), tmp_path.name)


def test_a_checkpoint_with_weights_missing(tmp_path: Path) -> None:
    """Layers at random are no model: transformers would only print a table."""
    model().save_pretrained(tmp_path)
    config = model().config.__class__(**{**tiny.COMMON, "vocab_size": len(tokenizer())})
    config.num_hidden_layers = 5
    config.save_pretrained(tmp_path)
    refused(lambda: dp.LLM(tmp_path))


def test_a_folder_of_weights_and_tokenizer(tmp_path: Path, plain: dp.LLM) -> None:
    model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    for name in (tmp_path, str(tmp_path)):
        with dp.LLM(name, speculate=dp.DraftModel(str(tmp_path), 4)) as made:
            assert made.runner.dtype == torch.float32
            out = made.generate(TEXT, params())[0]
    want = plain.generate(TEXT, params())[0]
    assert out.token_ids == want.token_ids and out.text == want.text
    with dp.LLM(tmp_path, dtype="float64") as made:
        assert made.runner.dtype == torch.float64
    with dp.LLM(tmp_path, dtype=torch.bfloat16) as made:
        assert made.runner.dtype == torch.bfloat16
        assert len(made.generate(TEXT, params(ignore_eos=True))[0].token_ids) == 30


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    with dp.LLM(tmp_path) as made:
        assert len(made.generate([5, 6], params(ignore_eos=True))[0].token_ids) == 30
        refused(lambda: made.generate("x"), "tokenizer")


# --- streams ---


@pytest.mark.parametrize("options", [{}, {"stop": "e"}, {"temperature": 0.0}, {"max_tokens": 1}])
@pytest.mark.parametrize("fixture", ["plain", "drafted"])
def test_a_stream_is_what_generate_writes(
    request: pytest.FixtureRequest, fixture: str, options: dict[str, Any]
) -> None:
    made = request.getfixturevalue(fixture)
    for seed in range(4):
        one = params(**{"seed": seed, "max_tokens": 50, **options})
        want = made.generate(TEXT, one)[0]
        chunks = list(made.stream(TEXT, one))
        assert "".join(chunk.text for chunk in chunks) == want.text
        assert [t for chunk in chunks for t in chunk.token_ids] == want.token_ids
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason == want.finish_reason
        if fixture == "plain":
            assert len(chunks) >= len(want.token_ids)


def test_a_stream_of_nothing_ends_with_a_reason(plain: dp.LLM) -> None:
    chunks = list(plain.stream(TEXT, params(max_tokens=0)))
    assert "".join(chunk.text for chunk in chunks) == ""
    assert chunks and chunks[-1].finish_reason == "length"


def test_closing_a_stream_aborts_and_frees_its_row(drafted: dp.LLM) -> None:
    for begun in (0, 1, 2):
        stream = drafted.stream(TEXT, params())
        for _ in range(begun):
            next(stream)
        running = list(drafted.engine.scheduler.running)
        stream.close()
        assert not drafted.engine.scheduler.running and not drafted.engine.scheduler.waiting
        for each in running:
            assert each.finish_reason == "abort" and drafted.runner.cached(each.key) == 0
    with pytest.raises(RuntimeError, match="stop here"):
        for _ in drafted.stream(TEXT, params()):
            raise RuntimeError("stop here")
    gc.collect()
    assert not drafted.engine.scheduler.running
    assert len(drafted.generate(TEXT, params(ignore_eos=True))[0].token_ids) == 30


def test_interleaved_streams(drafted: dp.LLM, plain: dp.LLM) -> None:
    rng = Random(0)
    want = {seed: plain.generate(TEXT, params(seed=seed))[0] for seed in range(5)}
    streams = {seed: drafted.stream(TEXT, params(seed=seed)) for seed in range(5)}
    texts, tokens = dict.fromkeys(streams, ""), {seed: [] for seed in streams}
    while streams:
        seed = rng.choice(list(streams))
        chunk = next(streams[seed], None)
        if chunk is None:
            del streams[seed]
            continue
        texts[seed] += chunk.text
        tokens[seed] += chunk.token_ids
        if rng.random() < 0.1:
            other = drafted.generate(TEXT, params(seed=4))[0]  # a whole answer in between
            assert other.token_ids == want[4].token_ids
    assert texts == {seed: out.text for seed, out in want.items()}
    assert tokens == {seed: out.token_ids for seed, out in want.items()}


def test_a_stream_refuses_at_once(plain: dp.LLM) -> None:
    refused(lambda: plain.stream("", params()), "empty")
    refused(lambda: plain.stream("x", params(n=2)), "n=2")


# --- chat ---


def test_chat(plain: dp.LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    prompt = "[user]hi\n[assistant]"
    want = plain.generate(prompt, params())[0]
    (out,) = plain.chat(conversation, params())
    assert out.prompt_token_ids == tokenizer()(prompt)["input_ids"]
    assert out.token_ids == want.token_ids and out.text == want.text
    two = plain.chat([conversation, conversation], params())
    assert [each.token_ids for each in two] == [want.token_ids] * 2
    refused(lambda: plain.chat([], params()))


# --- logprobs ---


@pytest.mark.parametrize("top", [0, 1, 4])
def test_logprobs_are_the_models_own(drafted: dp.LLM, top: int) -> None:
    one = params(logprobs=top, repetition_penalty=1.3, temperature=0.8, top_k=9)
    (out,) = drafted.generate(TEXT, one)
    ids = torch.tensor([[*out.prompt_token_ids, *out.token_ids]])
    with torch.no_grad():
        rows = model()(ids).logits[0, len(out.prompt_token_ids) - 1 : -1].log_softmax(-1)
    assert out.logprobs is not None and len(out.logprobs) == len(out.token_ids)
    for row, token, reported in zip(rows, out.token_ids, out.logprobs, strict=True):
        assert token in reported
        best = row.topk(top).indices.tolist()
        assert set(reported) == {*best, token}
        for i, x in reported.items():
            assert abs(x - row[i].item()) < 1e-4
    assert drafted.generate("x", params())[0].logprobs is None


def test_logprobs_are_the_same_with_drafts_and_end_with_the_output(
    drafted: dp.LLM, plain: dp.LLM
) -> None:
    one = params(logprobs=2, logit_bias={2: 9.0}, seed=1, stop="e")
    a, b = drafted.generate(TEXT, one)[0], plain.generate(TEXT, one)[0]
    assert a.token_ids == b.token_ids and len(a.logprobs) == len(a.token_ids)
    for x, y in zip(a.logprobs, b.logprobs, strict=True):
        assert x.keys() == y.keys()
        assert all(abs(x[i] - y[i]) < 1e-4 for i in x)


# --- life ---


def test_close_ends_everything_and_may_be_called_twice() -> None:
    made = llm(max_batch=1)
    requests = made.submit("x", params()) + made.submit("y", params())
    made.engine.step()
    made.close()
    made.close()
    assert [each.finish_reason for each in requests] == ["abort", "abort"]


def test_an_interrupt_leaves_nothing_running() -> None:
    class Interrupting:
        taps: tuple[int, ...] = ()
        left = 3

        def bind(self, target: Any) -> None: ...
        def release(self, request: Any) -> None: ...
        def propose(self, requests: Any) -> Any:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            raise RuntimeError("no idea")

    with llm(speculate=Interrupting()) as made:
        with pytest.raises(KeyboardInterrupt):
            made.generate(["x", "y"], params())
        assert not made.engine.scheduler.running and not made.engine.scheduler.waiting
        assert len(made.generate("x", params(ignore_eos=True))[0].token_ids) == 30


def test_a_proposer_needs_only_taps_and_propose(plain: dp.LLM) -> None:
    class Bare:
        taps: tuple[int, ...] = ()

        def propose(self, requests: Any) -> Any:
            return [TokenTree.chain([r.tokens[-1], 5, 6]) for r in requests]

    with llm(speculate=Bare()) as made:
        got = made.generate("x", params())[0].token_ids
    assert got == plain.generate("x", params())[0].token_ids


def test_all_tokens_banned_ends_one_request_with_an_error(drafted: dp.LLM) -> None:
    outs = drafted.generate(
        ["x", "y"], [params(bad_token_ids=tuple(range(259))), params(ignore_eos=True)]
    )
    assert outs[0].finish_reason == "error" and outs[0].error and outs[0].token_ids == []
    assert outs[1].finish_reason == "length" and len(outs[1].token_ids) == 30


@pytest.mark.parametrize(
    "bad",
    [
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": 2.0},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -2},
        {"max_tokens": -1},
        {"min_tokens": -1},
        {"min_tokens": 9, "max_tokens": 5},
        {"n": 0},
        {"seed": -1},
        {"seed": 1.5},
        {"seed": 2**64},
        {"logprobs": -1},
        {"repetition_penalty": 0},
        {"repetition_penalty": float("nan")},
        {"presence_penalty": float("inf")},
        {"stop": [""]},
        {"stop": ""},
        {"stop": [5]},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: float("nan")}},
        {"bad_token_ids": (-1,)},
        {"stop_token_ids": (-1,)},
        {"temperature": "hot"},
        {"max_tokens": 2.5},
        {"n": True},
    ],
)
def test_parameters_out_of_range(bad: dict[str, Any]) -> None:
    refused(lambda: dp.SamplingParams(**bad))
