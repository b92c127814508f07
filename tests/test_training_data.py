"""Training data: what is learnt of each kind of entry, rows that keep documents apart, an order."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as backends
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import tiny
from draftproof.bundled import MODELS
from draftproof.training.data.rows import Document, Rows, Stream, pack, split
from draftproof.training.data.sources import documents

ROLE = "<|{{ message.role }}|>{{ message.content }}"
LAST = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
PLAIN = "{% for message in messages %}" + ROLE + "<|end|>\n{% endfor %}" + LAST
# An earlier answer is without its thought; nothing but the last line break follows the turn.
FORGETFUL = PLAIN.replace(
    "{{ message.content }}",
    "{{ '[thought]' if loop.last and message.role == 'assistant' }}{{ message.content }}",
)
OPENING = PLAIN.replace("<|assistant|>{% endif %}", "<|assistant|>[think]{% endif %}")
COUNTING = "{{ messages | length }}" + PLAIN  # nothing that was rendered stands when there is more
HIDING = COUNTING.replace("message.content", "message.content | length")
STRICT = "{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}" + PLAIN
BARE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def byte_tokenizer(template: str | None = PLAIN, **special: str) -> PreTrainedTokenizerFast:
    """One token a byte, and the special tokens named."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(backends.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(sorted(special.values()))
    made = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=16, **special)
    made.chat_template = template
    return made


class Slow:
    """A tokenizer that cannot say where its tokens stand."""

    is_fast = False

    def __init__(self, fast: Any) -> None:
        self.fast, self.eos_token_id = fast, fast.eos_token_id
        self.chat_template = fast.chat_template
        self.apply_chat_template = fast.apply_chat_template

    def __call__(self, text: str, **options: Any) -> Any:
        assert "return_offsets_mapping" not in options
        return self.fast(text, **options)


BYTES = byte_tokenizer(eos_token="<e>")
ENDLESS = byte_tokenizer()
BUNDLED = AutoTokenizer.from_pretrained(MODELS / "target")


def lines(path: Path, *entries: Any) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def chat(*contents: str) -> list[dict[str, str]]:
    """User and assistant by turns."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


def taught(document: Document, tokenizer: Any) -> list[str]:
    """The texts that are learnt, one for every run of tokens."""
    assert document.taught is not None and len(document.taught) == len(document.ids)
    runs: list[list[int]] = []
    for at, (token, learnt) in enumerate(zip(document.ids, document.taught, strict=True)):
        if learnt and not (at and document.taught[at - 1]):
            runs.append([])
        if learnt:
            runs[-1].append(token)
    return [tokenizer.decode(run) for run in runs]


def same(a: Document, b: Document) -> bool:
    return list(a.ids) == list(b.ids) and a.taught == b.taught


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
        ("a.jsonl", b'{"text": "b"}\n\xff\n', r"a\.jsonl, line 2 is not UTF-8 text \(byte 0\)"),
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

SOME = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=12)


def kept_apart(found: list[Document], share: float, seed: int = 0) -> tuple[Any, Any]:
    kept, held = split(found, share, seed)
    return sorted(tuple(d.ids) for d in kept), sorted(tuple(d.ids) for d in held)


@given(SOME, st.randoms(use_true_random=False), st.sampled_from([0.05, 0.3, 0.9]))
def test_a_split_parts_the_data_whatever_its_order(ids: Any, draw: Any, share: float) -> None:
    found = [Document(each) for each in ids]
    total = sum(map(len, ids))
    if total < 2:
        with pytest.raises(ValueError, match="1 tokens to learn are too few"):
            split(found, share)
        return
    kept, held = kept_apart(found, share)
    assert kept and held
    assert sum(map(len, kept)) + sum(map(len, held)) == total
    missing = Counter(map(tuple, ids)) - Counter(kept) - Counter(held)
    for whole in missing.elements():  # cut in two
        assert len(missing) == 1 and len(held) == 1
        assert whole[-len(held[0]) :] == held[0] and whole[: -len(held[0])] in [*kept, ()]
    draw.shuffle(found)
    assert kept_apart(found, share) == (kept, held)


def test_a_split_is_of_about_the_share_and_of_the_content() -> None:
    found = [Document([i % 50, i // 50, *range(i % 7)]) for i in range(1000)]
    tokens = sum(len(document.ids) for document in found)
    kept, held = split(found)
    assert 0.04 < sum(len(document.ids) for document in held) / tokens < 0.06
    assert [d for d in found if d in kept] == kept and [d for d in found if d in held] == held
    assert kept_apart(found, 0.05, seed=1)[1] != kept_apart(found, 0.05)[1]
    twice, _ = kept_apart([*found, *found], 0.05)
    assert all(twice.count(each) == 2 for each in twice)  # equal documents stay together


@given(SOME, st.integers(1, 8))
def test_a_text_long_enough_is_held_out_where_there_is_one(ids: Any, least: int) -> None:
    found = [Document(each) for each in ids]
    if sum(map(len, ids)) < 2:
        return
    kept, held = split(found, 0.05, least=least)
    assert sum(len(d.ids) for d in [*kept, *held]) == sum(map(len, ids)) and kept and held
    if max(map(len, ids)) >= 2 * least:
        assert max(len(document.ids) for document in held) >= least


def test_a_single_document_is_cut_where_something_is_learnt() -> None:
    kept, held = split([Document(list(range(100)))])
    assert [list(d.ids) for d in (*kept, *held)] == [list(range(95)), list(range(95, 100))]
    learnt = [20 <= i < 60 for i in range(100)]
    kept, held = split([Document(list(range(100)), learnt)])
    assert held[0].ids[0] == 58 and held[0].learnt().size == 2 and kept[0].learnt().size == 38


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_of_none_or_all_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="the held-out share must lie between 0 and 1"):
        split([Document([1, 2, 3])], share)


# Rows


def pieces_of(rows: Rows) -> list[tuple[list[int], list[int], list[bool]]]:
    """(ids, positions, taught) of every piece by its number; padding is checked."""
    found = {}
    for row in rows:
        for number in row["segments"].unique().tolist():
            here = row["segments"] == number
            ids, positions, learnt = (row[name][here] for name in ("ids", "positions", "taught"))
            if number < 0:
                assert not ids.any() and not learnt.any() and here.nonzero()[-1] == len(here) - 1
                assert positions.tolist() == list(range(len(positions)))
                continue
            places = here.nonzero().flatten().tolist()
            assert places == list(range(places[0], places[-1] + 1)) and number not in found
            found[number] = (ids.tolist(), positions.tolist(), learnt.tolist())
    assert sorted(found) == list(range(len(found)))
    return [found[number] for number in sorted(found)]


@given(
    st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=20), min_size=1, max_size=15),
    st.integers(2, 9),
)
def test_packing_keeps_every_token_once_and_in_order(ids: list[list[int]], length: int) -> None:
    learnt = [None if len(each) % 3 else [i % 2 == 1 for i in each] for each in ids]
    rows = pack([Document(*each) for each in zip(ids, learnt, strict=True)], length)
    longest, total = max(map(len, ids)), sum(map(len, ids))
    assert rows.ids.shape[1] == (length if total >= length else longest)
    length = rows.ids.shape[1]
    pieces = []
    for each, marks in zip(ids, learnt, strict=True):
        for at in range(0, len(each), length):
            part, mark = each[at : at + length], (marks or [True] * len(each))[at : at + length]
            pieces.append((part, list(range(len(part))), mark))
    wanted = [piece for piece in pieces if len(piece[0]) > 1 and any(piece[2][1:])] or pieces
    assert pieces_of(rows) == wanted
    assert rows.tokens == sum(len(piece[0]) for piece in wanted)
    assert len(rows) <= 2 * -(-rows.tokens // length)  # each two rows hold more than one would


def test_packing_is_tight_and_exact_about_types() -> None:
    rows = pack([Document([i + 1] * size) for i, size in enumerate([5, 3, 4, 2, 6, 4])], 8)
    assert rows.segments.tolist() == [
        [4, 4, 4, 4, 4, 4, 3, 3],
        [0, 0, 0, 0, 0, 1, 1, 1],
        [2, 2, 2, 2, 5, 5, 5, 5],
    ]
    assert rows.ids.dtype == rows.positions.dtype == rows.segments.dtype == torch.int32
    kinds = {name: value.dtype for name, value in rows[0].items()}
    assert kinds.pop("taught") == torch.bool and set(kinds.values()) == {torch.int64}
    assert set(kinds) == {"ids", "positions", "segments"}


def test_what_cannot_be_packed() -> None:
    for found in ([], [Document([])]):
        with pytest.raises(ValueError, match="there are no tokens to train on"):
            pack(found, 8)
    with pytest.raises(ValueError, match="rows of 0 tokens hold nothing"):
        pack([Document([1])], 0)
    assert pack([Document([1])], 8).tokens == 1  # there is nothing else


def test_many_documents_leave_little_room() -> None:
    found = [Document([1] * (2 + i * i % 61)) for i in range(20_000)]
    rows = pack(found, 256)
    assert rows.tokens == sum(len(document.ids) for document in found)
    assert len(rows) < 1.01 * rows.tokens / 256


def test_no_piece_sees_another() -> None:
    model = tiny.model("llama").model
    sizes = [9, 5, 7, 3, 1, 6, 12, 4]
    generator = torch.Generator().manual_seed(0)
    found = [
        Document(torch.randint(1, 97, (size,), generator=generator).tolist()) for size in sizes
    ]
    rows = pack(found, 16, minimum=1)
    ids, segments = rows.ids.long(), rows.segments
    with torch.no_grad():
        packed = model(ids, position_ids=rows.positions.long(), use_cache=False)[0]
        onward = torch.arange(ids.shape[1]).expand_as(ids)
        leaking = model(ids, position_ids=onward, use_cache=False)[0]
        apart = 0.0
        for number in range(len(found)):
            here = segments == number
            alone = model(ids[here][None], use_cache=False)[0][0]
            torch.testing.assert_close(packed[here], alone, rtol=0, atol=1e-5)
            apart = max(apart, float((leaking[here] - alone).abs().max()))
    assert apart > 0.1


# Order


@given(st.integers(1, 9), st.integers(0, 30), st.integers(0, 3), st.randoms(use_true_random=False))
def test_a_stream_depends_on_seed_and_index_alone(
    size: int, count: int, seed: int, draw: Any
) -> None:
    rows = pack([Document([i, i]) for i in range(size)], 2)
    order = [int(row["ids"][0]) for row in Stream(rows, count, seed)]
    assert len(order) == count == len(Stream(rows, count, seed))
    for begin in range(0, count - size + 1, size):
        assert sorted(order[begin : begin + size]) == list(range(size))
    stream, places = Stream(rows, count + 5, seed), list(range(count))
    draw.shuffle(places)
    assert all(int(stream[at]["ids"][0]) == order[at] for at in places)


def test_epochs_and_seeds_differ_and_the_end_is_an_end() -> None:
    rows = pack([Document([i, i]) for i in range(50)], 2)
    order = [int(row["ids"][0]) for row in Stream(rows, 100, 0)]
    assert order[:50] != order[50:]
    assert order != [int(row["ids"][0]) for row in Stream(rows, 100, 1)]
    for index in (-1, 100):
        with pytest.raises(IndexError):
            Stream(rows, 100, 0)[index]
