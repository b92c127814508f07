"""Prompt files: one format for every command."""

from __future__ import annotations

import gzip
import json
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from draftproof import prompts
from draftproof.bundled import corpus
from draftproof.bundled.prompts import PROMPTS
from draftproof.prompts import Prompt
from spelling import tokenizer


def lines(path: Path, *entries: Any) -> Path:
    path.write_text("\n\n".join(map(json.dumps, entries)) + "\n")
    return path


def bare() -> Any:
    """A tokenizer without a template."""
    made = copy(tokenizer())
    made.chat_template = None
    return made


def test_json_lines_plain_and_gzipped(tmp_path: Path) -> None:
    plain = lines(
        tmp_path / "p.jsonl",
        {"prompt": "def f", "completion": "()"},
        {"turns": ["a", "b"], "question_id": 81, "category": "writing"},
        {"prompt": "x = ", "task_id": "HumanEval/3"},
        {"text": "y = "},
    )
    packed = tmp_path / "p.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    expected = [
        Prompt("1", ("def f",), completion="()"),
        Prompt("81", ("a", "b"), True, "writing"),
        Prompt("HumanEval/3", ("x = ",)),
        Prompt("7", ("y = ",)),
    ]
    assert prompts.load(plain, False) == prompts.load(packed, False) == expected
    assert all(prompt.chat for prompt in prompts.load(plain, True))


def test_a_list_in_json(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps([{"prompt": "a"}, {"text": "b"}]))
    assert [each.turns for each in prompts.load(path, False)] == [("a",), ("b",)]
    path.write_text(json.dumps([{"prompt": "a"}, {"txt": "b"}]))
    with pytest.raises(ValueError, match="entry 2 has none of the fields messages, "):
        prompts.load(path, False)
    path.write_text("{}")
    with pytest.raises(ValueError, match="no list"):
        prompts.load(path, False)


def test_a_conversation_is_asked_its_last_question(tmp_path: Path) -> None:
    """What was said before stays, and the answer in the file is the completion."""
    said = [("system", "be brief"), ("user", "hi"), ("assistant", "hello"), ("user", "and?")]
    messages = [{"role": role, "content": text} for role, text in said]
    answer = {"role": "assistant", "content": "so"}
    path = lines(tmp_path / "p.jsonl", {"messages": messages}, {"messages": [*messages, answer]})
    first, second = prompts.load(path, False)
    assert (first.completion, second.completion) == (None, "so")
    assert first.ids(tokenizer(), []) == second.ids(tokenizer(), [])
    text = "[system]be brief\n[user]hi\n[assistant]hello\n[user]and?\n[assistant]"
    assert tokenizer().decode(first.ids(tokenizer(), [])) == text
    with pytest.raises(ValueError, match="no chat template"):
        first.ids(bare(), [])
    slip = lines(path, {"messages": [{"role": "sytem", "content": "be brief"}, messages[1]]})
    with pytest.raises(ValueError, match="did you mean 'system'"):
        prompts.load(slip, False)[0].ids(tokenizer(), [])


def test_a_system_message_stands_before_all(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    path = lines(tmp_path / "p.jsonl", {"messages": said}, {"prompt": "ho"})
    read = prompts.read([path], None, tokenizer(), system="be kind")
    texts = [tokenizer().decode(prompt.ids(tokenizer(), [])) for prompt in read]
    assert texts == [f"[system]be kind\n[user]{text}\n[assistant]" for text in ("hi", "ho")]
    with pytest.raises(ValueError, match="no chat template"):
        prompts.read([path], None, bare(), system="be kind")


def test_any_other_file_is_a_prompt_per_paragraph(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text('\n{"prompt": 1}\n  and more\n \n\n  indented\n')
    assert prompts.load(tmp_path / "p.txt", False) == [
        Prompt("p.txt:1", ('{"prompt": 1}\n  and more',)),
        Prompt("p.txt:2", ("  indented",)),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"prompt": "a"}\n\n{"txt": "b"}', "line 3 has none"),
        ('{"prompt": "a"}\n[1]', "line 2 has none"),
        ('{"prompt": "a"}\n{"prompt": ', "line 2 is not JSON: .*; give an object in each line"),
        ('{"prompt": "a\\ud800"}', "line 1 holds half a character .*: correct its text"),
        ('{"prompt": "a", "category": "\\udfff"}', "line 1 holds half a character"),
        ('{"prompt": ""}', "line 1"),
        ('{"prompt": 7}', "line 1"),
        ('{"prompt": "a", "completion": 7}', "line 1: `completion`"),
        ('{"turns": []}', "line 1"),
        ('{"turns": "abc"}', "line 1"),
        ('{"messages": [{"role": "user"}]}', "line 1: message 1"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "no message of a user"),
        (" \n", "is empty"),
    ],
)
def test_a_bad_line_is_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(ValueError, match=says):
        prompts.load(tmp_path / "p.jsonl", False)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl.gz").write_bytes(b"not gzip")
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe\x00")
    for name, says in (
        ("p.jsonl.gz", "cannot read"),
        ("p.txt", r"UTF-8 text \(byte 0\): convert it"),
        ("", "Is a directory; give a file, or bundled, "),
        ("no.txt", "cannot read .* bundled, held-out, damaged, humaneval or mt-bench"),
    ):
        with pytest.raises(ValueError, match=says):
            prompts.load(tmp_path / name, False)


def test_turns_are_asked_in_turn() -> None:
    chat = Prompt("c", ("hi", "and"), chat=True)
    decode = tokenizer().decode
    assert decode(chat.ids(tokenizer(), [])) == "[user]hi\n[assistant]"
    text = "[user]hi\n[assistant]hello\n[user]and\n[assistant]"
    assert decode(chat.ids(tokenizer(), ["hello"])) == text
    plain = Prompt("b", ("hi ", " and"))
    assert decode(plain.ids(tokenizer(), ["hello"])) == "hi hello and"
    assert chat.ids(bare(), []) == bare()("hi")["input_ids"]


def test_names_files_and_counts(tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": "b"})
    found = prompts.read(["bundled", path], 1, tokenizer())
    assert [each.turns[0] for each in found] == [PROMPTS[0], "a"]
    assert len(prompts.read(["bundled", str(path)], None, tokenizer())) == len(PROMPTS) + 2
    assert prompts.read(["held-out"], 2, tokenizer()) == prompts.held_out(tokenizer(), 2)
    assert len(prompts.read([], None, tokenizer())) == 10
    assert all(each.chat for each in prompts.read([], 3, tokenizer(), chat=True))
    with pytest.raises(ValueError, match="no chat template"):
        prompts.read([], 3, bare(), chat=True)


def test_held_out_prompts_are_beginnings_of_held_out_statements() -> None:
    found = prompts.held_out(tokenizer(), 5)
    assert len({prompt.turns for prompt in found}) == 5
    for prompt in found:
        path, _, line = prompt.id.rpartition(":")
        assert corpus.is_held_out(path)
        assert line == "1" or prompt.turns[0][0].isalpha()
        assert len(prompt.ids(tokenizer(), [])) <= 128
