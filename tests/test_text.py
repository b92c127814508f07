"""Text as it comes: nothing lost, nothing repeated, nothing shown that a stop string takes back."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftproof.templates import chat_ids
from draftproof.text import TextStream

# One token a byte: every character beyond ASCII takes several, the hard case for streaming.
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = len(BYTES)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(BYTES)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


TOKENIZER = byte_tokenizer()


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER(text)["input_ids"])


def streamed(prompt: str, text: str, cuts: list[int], stop: tuple[str, ...]) -> tuple[str, str]:
    """(what was streamed piece by piece, the final text) when tokens come in pieces."""
    stream = TextStream(TOKENIZER, ids_of(prompt), stop)
    ids, pieces = ids_of(text), []
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    for begin, end in zip(edges, edges[1:], strict=False):
        for token in ids[begin:end]:
            stream.push([token])
            if stream.stopped():
                break
        pieces.append(stream.take())
        if stream.stopped():
            break
    stream.flush()
    pieces.append(stream.take())
    return "".join(pieces), stream.text


@given(st.text(max_size=8), st.text(max_size=20), st.lists(st.integers(0, 80), max_size=6))
def test_pieces_make_the_whole(prompt: str, text: str, cuts: list[int]) -> None:
    pieces, whole = streamed(prompt, text, cuts, ())
    assert pieces == whole == text


@given(
    st.text("abé", max_size=12),
    st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_a_stop_string_cuts_before_itself_and_is_never_streamed(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    pieces, whole = streamed("a", text, cuts, tuple(stop))
    # Slow and obvious: the stop string that is complete first ends the text.
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    first = min(end for end, _ in ends) if ends else None
    expected = text[: min(at for end, at in ends if end == first)] if ends else text
    assert whole == expected
    assert pieces == whole


def test_special_tokens_are_not_text() -> None:
    stream = TextStream(TOKENIZER, ids_of("a"))
    stream.push([*ids_of("b"), SPECIAL])
    stream.flush()
    assert stream.text == "b"


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    stream = TextStream(TOKENIZER, ids_of("a"))
    stream.push(ids_of("xé")[:2])
    assert stream.take() == "x"
    stream.flush()
    assert stream.take() == "\ufffd"


def test_no_template_is_refused() -> None:
    with pytest.raises(ValueError, match="no chat template"):
        chat_ids(TOKENIZER, [{"role": "user", "content": "hello"}])


def test_a_template_is_followed() -> None:
    own = byte_tokenizer()
    own.chat_template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}A"
    assert chat_ids(own, [{"role": "u", "content": "b"}]) == ids_of("u:b;A")


def test_what_a_template_refuses_is_a_value_error() -> None:
    own = copy.deepcopy(TOKENIZER)
    own.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(ValueError, match="System role not supported"):
        chat_ids(own, [{"role": "system", "content": "b"}])
    own.chat_template = "{{ messages[0].content + 1 }}"
    with pytest.raises(ValueError, match="chat template cannot take these messages"):
        chat_ids(own, [{"role": "user", "content": "b"}])
