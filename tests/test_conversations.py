"""Conversations of other tools' files: the same messages, whatever they are called there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftproof import prompts
from draftproof.conversations import conversation
from draftproof.training.data.sources import check, documents
from tokenising import BUNDLED, BYTES, chat, lines, taught

ALPACA = {"instruction": "add", "input": "", "output": "so"}


def part(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


@pytest.mark.parametrize(
    "entry",
    [
        {"messages": chat("add", "so")},
        {"messages": [each | {"content": part(each["content"])} for each in chat("add", "so")]},
        {"conversations": [{"from": "human", "value": "add"}, {"from": "gpt", "value": "so"}]},
        {"prompt": chat("add", "so")[:1], "completion": chat("add", "so")[1:]},
        ALPACA,
    ],
)
def test_one_conversation_in_the_forms_of_many_tools(tmp_path: Path, entry: Any) -> None:
    assert conversation("here", entry) == chat("add", "so")
    path = lines(tmp_path / "a.jsonl", entry)
    (found,) = documents([path], BYTES)
    assert taught(found, BYTES) == ["so<|end|>"]
    (prompt,) = prompts.load(path, False)
    assert (prompt.turns, prompt.completion, prompt.chat) == (("add",), "so", True)


def test_what_an_instruction_is_about_stands_behind_it() -> None:
    found = conversation("here", ALPACA | {"input": "1, 2", "system": "be brief"})
    assert found == [{"role": "system", "content": "be brief"}, *chat("add\n1, 2", "so")]
    assert conversation("here", {"instruction": "add"}) == chat("add")
    assert conversation("here", ALPACA | {"text": "add: so"}) is None  # written out already


@pytest.mark.parametrize(
    "entry",
    [
        ALPACA | {"input": 3},
        ALPACA | {"output": ["so"]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
    ],
)
def test_what_is_no_text_is_refused(entry: Any) -> None:
    with pytest.raises(ValueError, match=r"here: message \d must be an object of texts"):
        conversation("here", entry)


def test_an_instruction_needs_a_template_to_be_learnt(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([ALPACA]))
    with pytest.raises(ValueError, match=r"entry 1 is a chat .* give `prompt` and `completion`"):
        documents([path], BUNDLED)
    (prompt,) = prompts.load(path, False)
    assert prompt.ids(BUNDLED, ()) == BUNDLED("add")["input_ids"]


def test_json_lines_that_are_called_json(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.json", ALPACA, {"text": "one\u2028two"})
    chatted, text = documents([path], BYTES)
    assert taught(chatted, BYTES) == ["so<|end|>"]
    assert BYTES.decode(text.ids) == "one\u2028two<e>"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.json", "[]", "is no JSON list of entries, nor JSON lines: give JSON lines with `text`"),
        ("a.json", '{"data": [{"text": "a"}]}', r"entry 1 has the fields \['data'\]: give `text`"),
        ("a.json", '[{"text": "a"}', "is no JSON list of entries"),
        ("a.json", '[{"question": "a"}]', r"entry 1 has the fields \['question'\]: give `text`"),
        ("a.csv", "text,label\na,1\n", r"a\.csv is a table: give JSON lines .*name it \.txt"),
        ("a.jsonl", "[" * 100_000, "line 1 nests too deep: leave it out"),
        ("a.json", "[" * 100_000, "is no JSON list of entries"),
        ("a.jsonl", '{"prompt": "a", "completion": "\\ud800"}', "half a character"),
    ],
)
def test_a_file_that_is_hardly_meant_as_a_text_is_refused(
    tmp_path: Path, name: str, content: str, complaint: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=complaint):
        documents([tmp_path / name], BYTES)


def test_prompts_that_nest_without_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="line 1 nests too deep: leave it out"):
        prompts.load(tmp_path / "a.jsonl", False)


def test_tables_are_text_in_a_folder_and_by_the_name_of_one(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv.txt", "c.json"):
        (tmp_path / name).write_text('{"a": 1}')
    assert len(documents([tmp_path], BYTES)) == 3
    assert len(documents([tmp_path / "b.csv.txt"], BYTES)) == 1


def test_a_variable_that_is_not_set_is_not_this_folder() -> None:
    with pytest.raises(ValueError, match="there is no file or folder ''"):
        check([""])
