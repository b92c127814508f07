"""Training data: from the files, folders and data sets that a user names to documents.

`entries` makes documents of what lies in them, `rows` packs them. Does not know models,
vocabularies, or what is trained.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from draftproof.conversations import CHATS
from draftproof.training.data.entries import FIELDS, PAIRS, PROMPTS, encoded, form_of, parsed
from draftproof.training.data.files import ending, lines_of, listed, text_of
from draftproof.training.data.rows import Document

LOOKED_AT = 8 << 20  # bytes that are looked at before a model is loaded: some tenths of a second
SHOWN = 0.002  # share of the data, of which is told when it is read

T = TypeVar("T")


def documents(
    sources: Sequence[str | Path],
    tokenizer: Any,
    *,
    limit: int | None = None,
    unanswered: bool = False,
    start: Sequence[int] | None = None,
    told: Callable[[float], None] = lambda share: None,
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

    told: hears now and then what share of the data is read.

    Raises `ValueError` naming file and line, and for a source without anything to learn.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"a limit of {limit} tokens leaves no data: give at least 1")
    if not sources:
        raise ValueError("no data was named: give a file, a folder or a data set of the hub")
    reader = _Reader(
        lambda where, entry: parsed(where, entry, tokenizer, unanswered, start),
        lambda text: encoded(tokenizer, text),
        pairs=start is not None,
    )
    reader.weigh(sources)
    read: list[Document] = []
    tokens, shown = 0, 0.0
    for source in sources:
        before = len(read)
        for document in reader.read(str(source)):
            share = max(reader.share, tokens / limit if limit else 0.0)
            if share >= shown + SHOWN:
                shown = share
                told(share)
            if limit is not None and document.taught is None:
                document = document.part(0, limit - tokens)  # one text may be all there is
            read.append(document)
            tokens += len(document.ids) + len(document.read or ())
            if limit is not None and tokens >= limit:
                return read
        if len(read) == before:
            raise ValueError(_nothing(source))
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


def look(sources: Sequence[str | Path], *, unanswered: bool, pairs: bool) -> None:
    """Raises `ValueError`, as `documents`, for what can be told before there is a tokenizer.

    Of all files only the first `LOOKED_AT` bytes are looked at, and no data set: that takes no
    time beside a model. pairs: as a `start` does. Says nothing of what is left out.
    """
    reader: _Reader[object] = _Reader(
        lambda where, entry: [form_of(where, entry, unanswered, pairs)],
        lambda text: text,
        pairs=pairs,
    )
    reader.most = LOOKED_AT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for source in map(str, sources):
            path = Path(source)
            found = any([each is not None for each in reader.read(source)])
            here = path.is_file() or _is_plain(path)
            if not found and reader.bytes <= LOOKED_AT and here:
                raise ValueError(_nothing(source))


def _nothing(source: str | Path) -> str:
    return f"{source} has nothing to learn in it: name other data"


KNOWN = {"text", "completion", "instruction", *PROMPTS, *CHATS}
OTHER = {  # what is hardly meant as a text
    ".json": "no JSON list of entries, nor JSON lines",
    ".csv": "a table",
    ".tsv": "a table",
}


class _Reader(Generic[T]):
    """What is made of sources. entry, text: what makes it, of an entry and of a whole text.

    pairs: a text alone is refused.
    """

    def __init__(
        self,
        entry: Callable[[str, Any], list[T]],
        text: Callable[[str], T],
        *,
        pairs: bool,
    ) -> None:
        self.entry, self.text, self.pairs = entry, text, pairs
        self.bytes, self.all = 0, 0  # of files: read so far; of all that were weighed
        self.most: int | None = None  # bytes, behind which no file is opened or read on
        self._found: dict[Path, list[Path]] = {}

    def weigh(self, sources: Sequence[str | Path]) -> None:
        """Learn how large they are, for `share`."""
        self.all = sum(path.stat().st_size for each in sources for path in self.files(Path(each)))

    def files(self, source: Path) -> list[Path]:
        """See `_files`; found once."""
        if source not in self._found:
            self._found[source] = _files(source)
        return self._found[source]

    @property
    def share(self) -> float:
        """Of the bytes of files, what is read."""
        return self.bytes / self.all if self.all else 0.0

    def read(self, source: str) -> Iterator[T]:
        path = Path(source)
        if path.is_file():
            yield from self._file(path, None)
        elif _is_plain(path):
            yield from self._folder(path)
        elif self.most is None:
            yield from self._entries(source, _dataset(source))

    def _folder(self, folder: Path) -> Iterator[T]:
        odd: list[Path] = []
        for path in self.files(folder):
            yield from self._file(path, odd)
        if odd:
            names = ", ".join(str(path.relative_to(folder)) for path in odd[:3])
            more = ", ..." if len(odd) > 3 else ""
            warnings.warn(
                f"{folder}: {len(odd)} files are not UTF-8 text and were left out ({names}{more})",
                stacklevel=2,
            )

    def _file(self, path: Path, odd: list[Path] | None) -> Iterator[T]:
        """What is made of a file; what is no text goes to `odd`, or is an error without it."""
        size, before = path.stat().st_size, self.bytes
        if self.most is not None and before > self.most:
            return
        if ".jsonl" in path.suffixes:

            def told(count: int) -> None:
                self.bytes = before + count

            yield from self._entries(str(path), lines_of(path, told))
        elif self.most is None or before + size <= self.most:
            yield from self._whole(path, odd)
        self.bytes = before + size

    def _whole(self, path: Path, odd: list[Path] | None) -> Iterator[T]:
        """As `_file`, of one that is read at once."""
        text = text_of(path)
        if text is None and odd is None:
            raise ValueError(f"{path} is not UTF-8 text: convert it, or give JSON lines")
        if text is None and odd is not None:
            odd.append(path)
        elif (
            text
            and ".json" in path.suffixes
            and (found := listed(text, KNOWN if odd is not None else ()))
        ):
            entries = ((f"{path}, entry {number}", entry) for number, entry in enumerate(found, 1))
            yield from self._entries(str(path), entries)
        elif text and odd is None and (kind := OTHER.get(ending(path))):
            cause = f"{path} is {kind}"
            raise ValueError(f"{cause}: give JSON lines with {FIELDS}, or name it .txt as a text")
        elif self.pairs:
            raise ValueError(f"{path} is a text: {PAIRS}")
        elif text and text.strip():
            yield self.text(text)

    def _entries(self, name: str, entries: Iterable[tuple[str, Any]]) -> Iterator[T]:
        count = missed = 0
        for where, entry in entries:
            if self.most is not None and self.bytes > self.most:
                break
            try:
                learnt = self.entry(where, entry)
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


def _is_plain(path: Path) -> bool:
    """Whether it is a folder of files, and none that `datasets` saved."""
    saved = (path / "dataset_dict.json").exists() or (
        (path / "state.json").exists() and (path / "dataset_info.json").exists()
    )
    return path.is_dir() and not saved


def _files(source: Path) -> list[Path]:
    """The files of a source; none of a data set."""
    if source.is_file():
        return [source]
    if not _is_plain(source):
        return []
    every = (path for path in sorted(source.rglob("*")) if path.is_file())
    return [p for p in every if not any(n.startswith(".") for n in p.relative_to(source).parts)]


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
