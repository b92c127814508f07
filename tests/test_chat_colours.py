"""`draftproof chat --colour-drafts`: the same text, each token in the colour of what drafted it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import draftproof as dp
from conversing import SHORT, printed, talk
from drafters import Eager
from draftproof.cli.coloured import END, Coloured
from draftproof.cli.margin import Margin

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def test_the_text_is_the_same(chat: Any, chat_models: Path) -> None:
    said = ["hello", "and more"]
    drafts = ("--draft", "D", "--method", "draft", "--temperature", "0", *SHORT)
    code, out, err = chat(*drafts, "--colour-drafts", lines=said)
    assert code == 0 and "\x1b[30;48;5;225m" in out
    assert ESCAPE.sub("", out) == printed(talk(chat_models, said))
    assert out.count("\x1b[30") == out.count(END)
    assert f"drafted by \x1b[30;48;5;225mdraft{END})" in err
    code, out, err = chat(*drafts, lines=said)
    assert "\x1b" not in out + err


def test_nobody_drafts_and_nothing_is_coloured(chat: Any) -> None:
    code, out, err = chat("--method", "none", "--colour-drafts", *SHORT, lines=["hello"])
    assert code == 0 and "\x1b" not in out + err and "drafted by" not in err


@pytest.mark.parametrize("sole", [True, False])
def test_the_coloured_tokens_are_those_that_were_drafted(chat_models: Path, sole: bool) -> None:
    """Each token is a character there."""
    near = dp.DraftModel(chat_models / "D", 4, min_confidence=0.0)
    params = dp.SamplingParams(max_tokens=40, ignore_eos=True, bad_token_ids=[0, 1, 2])
    with dp.LLM(chat_models / "T", speculate=near if sole else Eager("ngram", near)) as llm:
        (request,) = llm.submit("hello hello", params)
        colours, pieces = Coloured(request, llm.tokenizer, "draft"), list[tuple[str, str]]()
        for _ in llm.engine.run([request]):
            pieces += colours.take()
        pieces += colours.take(ended=True)
    text, done = "".join(piece for piece, _ in pieces), request.completion()
    assert text == done.text and 0 < sum(done.from_draft) < 40
    assert [bool(begin) for piece, begin in pieces if piece] == done.from_draft
    assert {*colours.used} <= {"draft", "ngram"} and len({*colours.used.values()}) == len(
        colours.used
    )


def test_colours_take_no_room_at_the_margin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for begin, end in (("", ""), ("\x1b[30;48;5;157m", END)):
        margin = Margin()
        for piece in ("one tw", "o three fo", "ur"):
            margin.write(piece, begin, end)
        margin.end(line=False)
    plain = "one two \nthree four"
    assert ESCAPE.sub("", capsys.readouterr().out) == plain * 2


def test_the_other_spelling_is_explained(chat: Any) -> None:
    assert "write --colour-drafts" in chat("--color-drafts").err
