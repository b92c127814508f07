"""`draftproof chat`: templates, and what cannot be talked with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiny
from conversing import SHORT, TEMPLATE, printed, talk

WORDS = ["hello", "what is a list?", "and a tuple?", "hello"]


def test_a_template_from_a_file(chat: Any, chat_models: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    wanted = printed(talk(chat_models, WORDS))
    assert chat("--chat-template", str(file), *SHORT, lines=WORDS, model="N")[:2] == (0, wanted)
    file.write_text(TEMPLATE.replace("[", "<"))
    code, out, _ = chat("--chat-template", str(file), *SHORT, lines=WORDS)  # not the model's own
    assert code == 0 and out != wanted


@pytest.mark.parametrize(
    ("template", "names"),
    [
        (None, "no/such/file"),
        (b"", "--chat-template"),
        (b"\xff\xfe", "UTF-8"),
        (b"{% for m in messages %}", "template"),
        (b"{{ raise_exception('no system here') }}", "no system here"),
        (b"{{ messages + 1 }}", "template"),
        (b"{# nothing #}", "nothing"),
    ],
)
def test_templates_that_cannot_be_used(
    chat: Any, tmp_path: Path, template: bytes | None, names: str
) -> None:
    file = tmp_path / "chat.jinja"
    if template is not None:
        file.write_bytes(template)
    path = str(file) if template is not None else "no/such/file"
    code, out, err = chat("--chat-template", path, lines=["hello"])
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    assert names in err


@pytest.mark.parametrize(
    ("model", "options", "names"),
    [
        ("N", "", "--chat-template"),
        ("no-such-model", "", "no-such-model"),
        ("T", "--method magic", "magic"),
        ("T", "--method draft", "--draft"),
        ("T", "--branch 2", "--draft"),
        ("T", "--draft no-such-draft", "no-such-draft"),
        ("T", "--temperature -1", "temperature"),
        ("T", "--rule luck", "luck"),
        ("T", "--max-length 9999", "9999"),
        ("T", "--device mps", "mps"),
        ("T", "more", "generate MODEL PROMPT --chat"),
    ],
)
def test_bad_input_is_one_sentence(chat: Any, model: str, options: str, names: str) -> None:
    code, out, err = chat(*options.split(), model=model, lines=["hello"])
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    assert names in err


def test_a_model_without_a_tokenizer(chat: Any, chat_models: Path, tmp_path: Path) -> None:
    tiny.model().save_pretrained(tmp_path)
    code, _, err = chat(model=str(tmp_path), lines=["hello"])
    assert code == 2 and "tokenizer" in err and err.count("\n") == 1
