"""The facade: text out of tokens, what ends it, how long it gets."""

from __future__ import annotations

import pytest

import draftproof as dp
from draftproof.text import TextStream
from facade import TEXT, llm, params
from spelling import MAX, model, tokenizer


def decoded(prompt: list[int], tokens: list[int]) -> str:
    """The text that tokens add to a prompt, by decoding everything."""
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    known = tokenizer().decode(prompt, **options)
    return tokenizer().decode([*prompt, *tokens], **options)[len(known) :]


# --- text ---


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_text_is_what_the_tokens_decode_to(drafted_llm: dp.LLM, temperature: float) -> None:
    prompts = [TEXT, "x", "\u00e9\u4e16\U0001f600"]
    for seed in range(4):
        one = params(temperature=temperature, seed=seed, max_tokens=50)
        for out in drafted_llm.generate(prompts, one):
            tokens = out.token_ids[:-1] if out.finish_reason == "stop" else out.token_ids
            assert out.text == decoded(out.prompt_token_ids, tokens)


def test_without_a_tokenizer_text_is_empty() -> None:
    with dp.LLM(model(), speculate=None) as bare:
        (out,) = bare.generate([5, 6], params())
        assert out.text == "" and len(out.token_ids) == 30
        assert "".join(chunk.text for chunk in bare.stream([5, 6], params())) == ""
        with pytest.raises(ValueError, match="tokenizer"):
            bare.generate("x", params())
        with pytest.raises(ValueError, match="tokenizer"):
            bare.generate([5], params(stop="x"))
        with pytest.raises(ValueError, match="came without a tokenizer"):
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
    drafted_llm: dp.LLM, plain_llm: dp.LLM, width: int
) -> None:
    whole = plain_llm.generate("x", params(bad_token_ids=tuple(range(100, 259)), max_tokens=40))[0]
    for at in (0, 3, 11, 20):
        stop = whole.text[at : at + width]
        one = params(stop=stop, bad_token_ids=tuple(range(100, 259)), max_tokens=40)
        a, b = plain_llm.generate("x", one)[0], drafted_llm.generate("x", one)[0]
        assert a.token_ids == b.token_ids and a.text == b.text
        assert a.finish_reason == b.finish_reason == "stop"
        assert a.text == whole.text[: whole.text.index(stop)]
        n = len(a.token_ids)
        assert a.token_ids == whole.token_ids[:n]
        assert stop in decoded([5], a.token_ids) and stop not in decoded([5], a.token_ids[:-1])


def test_the_first_of_several_stop_strings_wins(drafted_llm: dp.LLM) -> None:
    bans = tuple(range(100, 259))
    whole = drafted_llm.generate("x", params(bad_token_ids=bans))[0].text
    stops = (whole[9:11], whole[4:6], "never there")
    out = drafted_llm.generate("x", params(bad_token_ids=bans, stop=stops))[0]
    assert out.text == whole[: min(whole.index(stop) for stop in stops[:2])]
    streamed = "".join(
        chunk.text for chunk in drafted_llm.stream("x", params(bad_token_ids=bans, stop=stops))
    )
    assert streamed == out.text


def test_a_stop_string_that_also_starts_in_the_prompt_does_not_count(plain_llm: dp.LLM) -> None:
    whole = plain_llm.generate("xyz", params(bad_token_ids=tuple(range(100, 259))))[0].text
    out = plain_llm.generate(
        "xyz", params(stop=("xyz", "z" + whole[0]), bad_token_ids=tuple(range(100, 259)))
    )[0]
    assert out.text == whole


def test_end_of_text_is_a_token_and_no_text(drafted_llm: dp.LLM, plain_llm: dp.LLM) -> None:
    one = params(logit_bias={2: 9.0}, max_tokens=40, seed=1)
    a, b = drafted_llm.generate("x", one)[0], plain_llm.generate("x", one)[0]
    assert a.token_ids == b.token_ids and a.token_ids[-1] == 2 and len(a.token_ids) < 40
    assert a.finish_reason == "stop" and "</s>" not in a.text
    on = drafted_llm.generate(
        "x", params(logit_bias={2: 9.0}, max_tokens=40, seed=1, ignore_eos=True)
    )
    assert on[0].token_ids[: len(a.token_ids)] == a.token_ids and len(on[0].token_ids) == 40


def test_stop_token_ids(drafted_llm: dp.LLM) -> None:
    whole = drafted_llm.generate("x", params(ignore_eos=True))[0].token_ids
    end = whole[8]
    for ignore in (False, True):
        out = drafted_llm.generate("x", params(stop_token_ids=(end,), ignore_eos=ignore))[0]
        assert out.token_ids == whole[: whole.index(end) + 1] and out.finish_reason == "stop"
        assert out.text == decoded(out.prompt_token_ids, out.token_ids[:-1])


def test_min_tokens_delays_every_end(drafted_llm: dp.LLM) -> None:
    out = drafted_llm.generate("x", params(logit_bias={2: 80.0}, min_tokens=6))[0]
    assert out.token_ids.index(2) == 6 and len(out.token_ids) == 7


def test_a_stop_string_before_min_tokens_is_not_cut_out_of_the_text(plain_llm: dp.LLM) -> None:
    """As in vLLM: stop strings are looked for in what follows the first min_tokens."""
    bans = tuple(range(100, 259))
    whole = plain_llm.generate("x", params(bad_token_ids=bans))[0]
    stop = whole.text[1:3]
    assert whole.text.count(stop) == 1
    out = plain_llm.generate("x", params(bad_token_ids=bans, stop=stop, min_tokens=10))[0]
    assert len(out.token_ids) == 30 and out.text == whole.text


# --- lengths ---


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 5])
def test_max_tokens_below_a_draft(drafted_llm: dp.LLM, plain_llm: dp.LLM, max_tokens: int) -> None:
    whole = plain_llm.generate(TEXT, params())[0].token_ids
    out = drafted_llm.generate(TEXT, params(max_tokens=max_tokens))[0]
    assert out.token_ids == whole[:max_tokens] and out.finish_reason == "length"
    assert out.text == decoded(out.prompt_token_ids, out.token_ids)
    assert out.stats.tokens == max_tokens


@pytest.mark.parametrize("fixture", ["plain_llm", "drafted_llm"])
@pytest.mark.parametrize("left", [1, 2, 3, 8, 9])
def test_max_length_is_reached_exactly(
    request: pytest.FixtureRequest, fixture: str, left: int
) -> None:
    made = request.getfixturevalue(fixture)
    prompt = [7 + i % 50 for i in range(MAX - left)]
    each = [params(max_tokens=500, ignore_eos=True), params(max_tokens=10)]
    out = made.generate([prompt, [5]], each)[0]
    assert len(out.token_ids) == left and out.finish_reason == "length"


def test_prompts_that_do_not_fit(plain_llm: dp.LLM) -> None:
    assert plain_llm.max_length == MAX
    for size in (MAX, MAX + 1, 5000):
        with pytest.raises(ValueError, match=str(size)):
            plain_llm.generate([[5], [5] * size], params())
    with llm(max_length=20) as short:
        assert len(short.generate([5] * 19, params())[0].token_ids) == 1
        with pytest.raises(ValueError, match="20"):
            short.generate([5] * 20, params())
    with pytest.raises(ValueError, match="max_length"):
        llm(max_length=MAX + 1)
    for bad in (0, 1, -5):
        with pytest.raises(ValueError, match="max_length"):
            llm(max_length=bad)


def test_a_refused_prompt_stops_nothing_else(plain_llm: dp.LLM) -> None:
    with pytest.raises(ValueError):
        plain_llm.generate([[5], []], params())
    assert not plain_llm.engine.scheduler.running and not plain_llm.engine.scheduler.waiting
