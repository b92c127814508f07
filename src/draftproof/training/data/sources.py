"""Training data: from the files, folders and data sets that a user names to documents.

`entries` makes documents of what lies in them, `rows` packs them. Does not know models,
vocabularies, or what is trained.
"""

from __future__ import annotations

import gzip
import importlib
import json
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from draftproof.conversations import CHATS
from draftproof.training.data.entries import FIELDS, PAIRS, PROMPTS, encoded, parsed
from draftproof.training.data.rows import Document


def documents(
    sources: Sequence[str | Path],
    tokenizer: Any,
    *,
    limit: int | None = None,
    unanswered: bool = False,
    start: Sequence[int] | None = None,
) -> list[Document]:
    """The documents of all sources in their order; `limit` ends after about so many tokens.

    A source is a file of text (one document), a `.jsonl` file or a `.json` list of objects with
    the fields `text`, `prompt` and `completion` (the completion is learnt), or a conversation, see
    `conversations` (the assistant's answers are learnt); a folder of such files; or a data set:
    a folder that `datasets` saved, or a name on the hub, `name:split` for a split other than
    "train". Files may be gzipped. Below a folder hidden files are passed over, files that are not
    UTF-8 text with a warning, and JSON of another kind and tables are text; such a file itself is
    refused. Entries with nothing to learn are left out with a warning.

    unanswered: answers are written later, so a `prompt` alone, `turns` (the first of them), and a
    conversation that ends with a question are taken too: see `entries.parsed`.

    start: what a decoder goes on from, where an encoder reads the prompts; then entries have
    `prompt` and `completion`, and nothing else is taken.

    Raises `ValueError` naming file and line, and for a source without anything to learn.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"a limit of {limit} tokens leaves no data: give at least 1")
    if not sources:
        raise ValueError("no data was named: give a file, a folder or a data set of the hub")
    reader = _Reader(tokenizer, unanswered, start)
    read: list[Document] = []
    tokens = 0
    for source in sources:
        before = len(read)
        for document in reader.read(str(source)):
            if limit is not None and document.taught is None:
                document = document.part(0, limit - tokens)  # one text may be all there is
            read.append(document)
            tokens += len(document.ids) + len(document.read or ())
            if limit is not None and tokens >= limit:
                return read
        if len(read) == before:
            raise ValueError(f"{source} has nothing to learn in it: name other data")
    return read


def check(sources: Sequence[str | Path]) -> None:
    """Raises `ValueError` for a path at which nothing lies, before a model is loaded for it.

    A name may be that of a data set of the hub.
    """
    for each in map(str, sources):
        named = each.startswith((".", "/", "~")) or each.endswith(
            (".txt", ".json", ".jsonl", ".gz", ".csv", ".tsv")
        )
        if not each or (named and not Path(each).exists()):  # "" is a variable that is not set
            raise ValueError(
                f"there is no file or folder {each!r}: data is a text, JSON lines, a folder of "
                "such files, or a data set of the hub"
            )


KNOWN = {"text", "completion", "instruction", *PROMPTS, *CHATS}
OTHER = {  # what is hardly meant as a text
    ".json": "no JSON list of entries, nor JSON lines",
    ".csv": "a table",
    ".tsv": "a table",
}


class _Reader:
    """Documents of sources; unanswered, start: as in `documents`."""

    def __init__(self, tokenizer: Any, unanswered: bool, start: Sequence[int] | None) -> None:
        self.tokenizer, self.unanswered, self.start = tokenizer, unanswered, start

    def read(self, source: str) -> Iterator[Document]:
        path = Path(source)
        saved = (path / "dataset_dict.json").exists() or (
            (path / "state.json").exists() and (path / "dataset_info.json").exists()
        )
        if path.is_file():
            yield from self._file(path, None)
        elif path.is_dir() and not saved:
            yield from self._folder(path)
        else:
            yield from self._entries(source, _dataset(source))

    def _folder(self, folder: Path) -> Iterator[Document]:
        odd: list[Path] = []
        for path in sorted(folder.rglob("*")):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if path.is_file() and not hidden:
                yield from self._file(path, odd)
        if odd:
            names = ", ".join(str(path.relative_to(folder)) for path in odd[:3])
            more = ", ..." if len(odd) > 3 else ""
            warnings.warn(
                f"{folder}: {len(odd)} files are not UTF-8 text and were left out ({names}{more})",
                stacklevel=2,
            )

    def _file(self, path: Path, odd: list[Path] | None) -> Iterator[Document]:
        """The documents of a file; what is no text goes to `odd`, or is an error without it."""
        if ".jsonl" in path.suffixes:
            yield from self._entries(str(path), _lines(path))
            return
        text = _text(path)
        if text is None and odd is None:
            raise ValueError(f"{path} is not UTF-8 text: convert it, or give JSON lines")
        if text is None and odd is not None:
            odd.append(path)
        elif text and ".json" in path.suffixes and (listed := _listed(text, odd is None)):
            entries = ((f"{path}, entry {number}", entry) for number, entry in enumerate(listed, 1))
            yield from self._entries(str(path), entries)
        elif text and odd is None and (kind := OTHER.get(_ending(path))):
            cause = f"{path} is {kind}"
            raise ValueError(f"{cause}: give JSON lines with {FIELDS}, or name it .txt as a text")
        elif self.start is not None:
            raise ValueError(f"{path} is a text: {PAIRS}")
        elif text and text.strip():
            yield encoded(self.tokenizer, text)

    def _entries(self, name: str, entries: Iterable[tuple[str, Any]]) -> Iterator[Document]:
        count = missed = 0
        for where, entry in entries:
            try:
                learnt = parsed(where, entry, self.tokenizer, self.unanswered, self.start)
            except (TypeError, UnicodeEncodeError) as error:
                half = "it holds half a character (of \\ud800 to \\udfff)"
                raise ValueError(
                    f"{where} cannot be tokenised: {half}: correct its text"
                ) from error
            yield from learnt
            count += 1
            missed += not learnt
        if missed:
            warnings.warn(
                f"{name}: {missed} of {count} entries have nothing to learn and were left out",
                stacklevel=2,
            )


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read {path}: {reason}") from error


def _ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix


def _text(path: Path) -> str | None:
    """None if the file is not text."""
    try:
        with _opened(path) as file:
            text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _listed(text: str, any_fields: bool) -> list[Any] | None:
    """The entries of a JSON list, or of JSON lines under that name; None for any other JSON."""
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        entries = json.loads(text if lines[:1] and lines[0].lstrip()[0] == "[" else _list(lines))
    except (ValueError, RecursionError):
        return None
    first = entries[0] if isinstance(entries, list) and entries else None
    known = isinstance(first, dict) and (any_fields or first.keys() & KNOWN)
    return entries if known else None


def _list(lines: Sequence[str]) -> str:
    return f"[{','.join(lines)}]"


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(where, what) of every line that is not blank."""
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            try:
                text = line.decode("utf-8-sig")
                if text.strip():
                    yield where, json.loads(text)
            except UnicodeDecodeError as error:
                raise ValueError(f"{where} is not UTF-8 text (byte {error.start})") from error
            except json.JSONDecodeError as error:
                way = "give an object in each line"
                raise ValueError(f"{where} is not JSON: {error.msg}; {way}") from error
            except RecursionError as error:
                raise ValueError(f"{where} nests too deep: leave it out") from error


def _dataset(source: str) -> Iterator[tuple[str, Any]]:
    """(where, what) of every row of a data set, on the hub or saved in a folder."""
    name, _, part = (source, "", "") if Path(source).is_dir() else source.partition(":")
    local = Path(name).is_dir()
    try:
        library = importlib.import_module("datasets")
    except ImportError as error:
        cause = "was saved by `datasets`" if local else "is neither a file nor a folder here"
        install = "data sets are read with the library: pip install 'draftproof[train]'"
        raise ValueError(f"{source} {cause}; {install}") from error
    try:
        if local:
            data = library.load_from_disk(name)
        else:
            data = library.load_dataset(name, split=part or "train")
    except (OSError, ValueError, RuntimeError, library.exceptions.DatasetsError) as error:
        cause = "cannot be loaded" if local else "is no file or folder here, nor loads from the hub"
        raise ValueError(f"{source} {cause}: {' '.join(str(error).split())[:200]}") from error
    splits = data if isinstance(data, dict) else {"train" if local else part or "train": data}
    name_of_split = part or (next(iter(splits)) if len(splits) == 1 else "train")
    if name_of_split not in splits:
        raise ValueError(f"{name} has the splits {', '.join(splits)}: name one as {name}:split")
    for number, row in enumerate(splits[name_of_split], 1):
        yield f"{source}, row {number}", row
