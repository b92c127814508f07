"""Training data: what is learnt of each kind of entry, rows that keep documents apart, an order."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.training.data.sources import documents
from tokenising import (
    BARE,
    BUNDLED,
    BYTES,
    COUNTING,
    ENDLESS,
    FORGETFUL,
    HIDING,
    OPENING,
    PLAIN,
    STRICT,
    Slow,
    byte_tokenizer,
    chat,
    lines,
    same,
    taught,
)


@pytest.mark.parametrize(
    ("tokenizer", "front", "end"),
    [(BUNDLED, [0], [0]), (BYTES, [], [256]), (ENDLESS, [], [])],
    ids=["both", "end", "none"],
)
def test_a_file_of_text_is_one_document(
    tmp_path: Path, tokenizer: Any, front: list[int], end: list[int]
) -> None:
    text = "def f():\n    return 'é'\n" * 4
    (tmp_path / "a.py").write_text(text, encoding="utf-8-sig")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    plain = [*front, *tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], *end]
    for found in documents([tmp_path / "a.py", str(tmp_path / "b.txt.gz")], tokenizer):
        assert list(found.ids) == plain and found.taught is None


def test_an_end_that_is_there_is_not_added_and_length_is_no_matter(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text that is longer than sixteen<e>")
    (found,) = documents([tmp_path / "a"], BYTES)
    assert list(found.ids).count(256) == 1
    assert not BYTES.deprecation_warnings  # where it notes that it has warned of the length


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json"])
def test_entries_of_every_kind(tmp_path: Path, suffix: str) -> None:
    shared = [("human", "hi"), ("gpt", "yes?"), ("human", "never mind")]
    entries: list[Any] = [
        {"text": "one\u2028two", "url": 3},
        {"prompt": "2 + 2 =", "completion": " 4", "text": None},
        {"messages": chat("hi", "yes?"), "prompt": "hi"},
        {"conversations": [{"from": a, "value": b} for a, b in shared]},
    ]
    text = json.dumps(entries)
    if suffix != ".json":
        text = "\n\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    path = tmp_path / f"data{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    plain, completion, *chats = documents([path], BYTES)
    assert BYTES.decode(plain.ids) == "one\u2028two<e>" and plain.taught is None
    assert BYTES.decode(completion.ids) == "2 + 2 = 4<e>"
    assert taught(completion, BYTES) == [" 4<e>"]
    assert same(*chats)  # the question that nobody answered is not read
    assert BYTES.decode(chats[0].ids) == "<|user|>hi<|end|>\n<|assistant|>yes?<|end|>\n"
    assert taught(chats[0], BYTES) == ["yes?<|end|>"]


@pytest.mark.parametrize("tokenizer", [ENDLESS, BUNDLED], ids=["none", "both"])
def test_a_completion_is_learnt_whatever_ends_it(tmp_path: Path, tokenizer: Any) -> None:
    path = lines(tmp_path / "a.jsonl", {"prompt": "for i in", "completion": " range(3):"})
    (found,) = documents([path], tokenizer)
    assert taught(found, tokenizer) == [" range(3):" + (tokenizer.eos_token or "")]
    assert same(found, documents([path], Slow(tokenizer))[0])


@given(st.lists(st.text("aé\n <|>", min_size=1, max_size=6), min_size=2, max_size=6))
def test_of_a_chat_the_answers_are_learnt_with_the_end_of_their_turn(
    tmp_path_factory: pytest.TempPathFactory, contents: list[str]
) -> None:
    contents = contents[: len(contents) // 2 * 2]
    path = lines(tmp_path_factory.mktemp("a") / "a.jsonl", {"messages": chat(*contents)})
    (found,) = documents([path], BYTES)
    assert taught(found, BYTES) == [f"{answer}<|end|>" for answer in contents[1::2]]
    whole = BYTES.apply_chat_template(chat(*contents), return_dict=False)
    assert list(found.ids) == whole
    assert same(found, documents([path], Slow(BYTES))[0])


@pytest.mark.parametrize(
    ("template", "learnt"),
    [
        (PLAIN, [["b<|end|>", "d<|end|>"]]),
        (OPENING, [["b<|end|>", "d<|end|>"]]),
        (FORGETFUL, [["[thought]b<|end|>"], ["[thought]d<|end|>"]]),
        (COUNTING, [["b<|end|>"], ["d<|end|>"]]),
        (BARE, [["b\n", "d\n"]]),
    ],
)
def test_answers_as_the_template_has_them(
    tmp_path: Path, template: str, learnt: list[list[str]]
) -> None:
    tokenizer = byte_tokenizer(template)
    path = lines(tmp_path / "a.jsonl", {"messages": chat("a", "b", "c", "d")})
    found = documents([path], tokenizer)
    assert [taught(document, tokenizer) for document in found] == learnt
    whole = tokenizer.apply_chat_template(chat("a", "b", "c", "d"), tokenize=False)
    if template == COUNTING:  # as it was when the answer was asked for
        whole = whole.replace("4", "3", 1)
    assert tokenizer.decode(found[-1].ids) == whole


def test_entries_without_anything_to_learn_are_counted(tmp_path: Path) -> None:
    entries = [{"text": " "}, {"messages": chat("hm")}, {"prompt": "a", "completion": ""}]
    path = lines(tmp_path / "a.jsonl", *entries, {"text": "b"})
    with pytest.warns(UserWarning, match=r"a\.jsonl: 3 of 4 entries have nothing to learn"):
        (found,) = documents([path], BYTES)
    assert BYTES.decode(found.ids) == "b<e>"
    only = lines(tmp_path / "b.jsonl", *entries)
    with (
        pytest.warns(UserWarning, match="3 of 3"),
        pytest.raises(ValueError, match=r"b\.jsonl has nothing to learn"),
    ):
        documents([only], BYTES)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.txt", b"", r"a\.txt has nothing to learn in it: name"),
        ("a.txt", b"\xff\xfe", r"a\.txt is not UTF-8 text: convert"),
        ("a.bin", b"\0\0", r"a\.bin is not UTF-8 text: convert"),
        ("a.txt.gz", b"text", r"cannot read .*a\.txt\.gz: Not a gzipped file"),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"text": "b"}\n', mtime=0)[:-4],
            r"cannot read .*a\.jsonl\.gz: ",
        ),
        (
            "a.jsonl",
            b'{"text": "b"}\n\xff\n',
            r"a\.jsonl, line 2 is not UTF-8 text \(byte 0\): convert",
        ),
        ("a.jsonl", b'{"text": "b"}\n\n{', r"a\.jsonl, line 3 is not JSON: Expecting"),
        ("a.jsonl", b"[1]", r"a\.jsonl, line 1 is not an object: give one with `text`, "),
        ("a.jsonl", b'{"prompt": "b"}', r"line 1 has the fields \['prompt'\]: give `text`, "),
        ("a.jsonl", b'{"text": 3}', r"line 1: `text`, `prompt` and `completion` must be text"),
        ("a.jsonl", b'{"text": "\\ud800"}', r"line 1 cannot be tokenised: .*: correct its text"),
        ("a.jsonl", b'{"messages": "b"}', r"line 1: message 1 must be an object of texts, `role`"),
        ("a.jsonl", b'{"conversations": [{"from": "b", "value": "c"}]}', r"\(human, gpt, .*user"),
        ("a.json", b'[{"text": "b"}, 3]', r"a\.json, entry 2 is not an object"),
    ],
)
def test_errors_name_file_and_line(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        documents([tmp_path / name], BYTES)


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        (None, r"line 1 is a chat and needs a tokenizer with a chat template"),
        (STRICT, r"line 1: the chat template refuses the conversation \(no\): correct it"),
        (HIDING, r"line 1: the chat template has no fixed place for an answer: give"),
    ],
)
def test_chats_that_cannot_be_read(tmp_path: Path, template: str | None, complaint: str) -> None:
    turns = [{"role": "system", "content": "s"}, *chat("a", "b")]
    path = lines(tmp_path / "a.jsonl", {"messages": turns})
    with pytest.raises(ValueError, match=complaint):
        documents([path], byte_tokenizer(template))


def test_no_data_and_no_tokens() -> None:
    with pytest.raises(ValueError, match="no data was named: give a file"):
        documents([], BYTES)
    with pytest.raises(ValueError, match="a limit of 0 tokens leaves no data"):
        documents(["a"], BYTES, limit=0)


def test_the_limit_cuts_a_text_and_never_an_answer(tmp_path: Path) -> None:
    text = lines(tmp_path / "a.jsonl", *({"text": "four"} for _ in range(9)))
    found = documents([text, tmp_path / "unread"], BYTES, limit=12)
    assert [len(document.ids) for document in found] == [5, 5, 2]
    talk = lines(tmp_path / "b.jsonl", *({"messages": chat("a", "b")} for _ in range(9)))
    (whole,) = documents([talk], BYTES, limit=1)
    assert taught(whole, BYTES) == ["b<|end|>"]


def test_a_folder_is_read_in_order_without_what_is_hidden_or_not_text(tmp_path: Path) -> None:
    for name, text in {"b.py": "2", "a/z.md": "1", ".git/x": "no", "c/.x": "no", "e": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    lines(tmp_path / "c" / "d.jsonl", {"text": "3"}, {"text": "4"})
    (tmp_path / "package.json").write_text('[{"name": 5}]')  # a list, and not of entries
    found = documents([tmp_path], ENDLESS)
    assert [ENDLESS.decode(document.ids) for document in found] == [*"1234", '[{"name": 5}]']
    (tmp_path / "c" / "image.png").write_bytes(b"\x89PNG")
    with pytest.warns(UserWarning, match=r"1 files are not UTF-8 text .* \(c/image\.png\)"):
        assert len(documents([tmp_path], ENDLESS)) == len(found)


def test_a_folder_of_nothing_but_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    with (
        pytest.warns(UserWarning, match=r"image\.png"),
        pytest.raises(ValueError, match="has nothing to learn"),
    ):
        documents([tmp_path], BYTES)


def test_data_sets(tmp_path: Path) -> None:
    one = datasets.Dataset.from_list([{"text": "a", "id": 1}, {"text": "b", "id": 2}])
    talk = datasets.Dataset.from_list([{"messages": chat("a", "b")}])
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": one, "test": talk}).save_to_disk(tmp_path / "two")
    datasets.DatasetDict({"a": one, "b": talk}).save_to_disk(tmp_path / "three")
    for name in ("one", "two", "two:train", "three:a"):
        found = documents([str(tmp_path / name)], BYTES)
        assert [BYTES.decode(document.ids) for document in found] == ["a<e>", "b<e>"]
    (found_talk,) = documents([f"{tmp_path / 'two'}:test"], BYTES)
    assert taught(found_talk, BYTES) == ["b<|end|>"]
    for name, complaint in {
        "three": r"three has the splits a, b: name one as .*three:split",
        "two:valid": r"two has the splits train, test: name",
    }.items():
        with pytest.raises(ValueError, match=complaint):
            documents([str(tmp_path / name)], BYTES)
    datasets.Dataset.from_list([{"a": "b"}]).save_to_disk(tmp_path / "odd")
    with pytest.raises(ValueError, match=r"odd, row 1 has the fields \['a'\]"):
        documents([tmp_path / "odd"], BYTES)


def test_a_name_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"no/where is no file or folder here, nor loads from"):
        documents(["no/where"], BYTES)  # the tests have no network
    asked = []

    def load(name: str, split: str) -> Any:
        asked.append((name, split))
        return datasets.Dataset.from_list([{"text": name}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(documents(["some/name", "some/name:test[:10]"], BYTES)) == 2
    assert asked == [("some/name", "train"), ("some/name", "test[:10]")]


def test_without_the_library_for_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    way_out = r"; data sets .* pip install 'draftproof\[train\]'"
    with pytest.raises(ValueError, match="some/name is neither a file nor a folder here" + way_out):
        documents(["some/name"], BYTES)
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(ValueError, match="was saved by `datasets`" + way_out):
        documents([tmp_path], BYTES)


# Held out


# Rows


# Order
