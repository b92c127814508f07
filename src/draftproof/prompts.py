"""Prompts from files and from what is bundled; the one format that every command reads.

JSON lines (`.jsonl`, also `.gz`; `.json` with one list), each with one of

    prompt    text to continue; with `completion`, the answer that belongs to it
    text      text to continue
    turns     a user's messages, answered one after the other (MT-bench, Spec-Bench)
    messages  a conversation; the answer to its last user message is the `completion`. So are
              `conversations` (ShareGPT), and `instruction`, `input` and `output` (Alpaca)

Any other file is text, a prompt per paragraph (blank lines part them). Does not know models; what
needs a tokenizer is imported where it is used, for clients of a server that have none.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftproof import bundled, conversations
from draftproof.bundled import BUNDLED
from draftproof.bundled.prompts import PROMPTS

HELD_OUT = "held-out"  # beginnings of modules that the bundled models were not trained on
PUBLISHED = {  # bundled files; their sources are named beside them
    "humaneval": bundled.FOLDER / "prompts" / "humaneval.jsonl.gz",
    "mt-bench": bundled.FOLDER / "prompts" / "mt-bench.jsonl",
}
DAMAGED = "damaged"  # code with slips in it, and the code that it was: what bundled-mender is for
LONGEST_DAMAGED = 96  # tokens of each, as of what it learnt from
NAMES = (BUNDLED, HELD_OUT, DAMAGED, *PUBLISHED)
FIELDS = ("turns", "prompt", "text")


@dataclass(frozen=True)
class Prompt:
    """A text to continue, or a conversation that is answered turn by turn."""

    id: str
    turns: tuple[str, ...]
    chat: bool = False  # goes through the chat template, where the model has one
    category: str = "all"
    completion: str | None = None  # the answer that the file gives
    opening: tuple[tuple[str, str], ...] = ()  # (role, content) of messages before the first turn

    def ids(self, tokenizer: Any, answers: Sequence[str]) -> list[int]:
        """Token ids before the next answer; `answers` are those to the turns before it.

        Raises `ValueError` for a conversation that only a chat template can put into text.
        """
        turns = self.turns[: len(answers) + 1]
        if not (self.opening or (self.chat and has_template(tokenizer))):
            parts = [part for pair in zip(turns, answers, strict=False) for part in pair]
            return [int(i) for i in tokenizer("".join([*parts, turns[-1]]))["input_ids"]]
        from draftproof.templates import chat_ids

        messages = [*self.opening, ("user", turns[0])]
        for answer, turn in zip(answers, turns[1:], strict=True):
            messages += [("assistant", answer), ("user", turn)]
        return chat_ids(tokenizer, [{"role": role, "content": text} for role, text in messages])


def with_answer(prompt: Prompt, tokenizer: Any) -> list[int]:
    """Token ids of the prompt and of the answer that its file gives, if it does."""
    ids = prompt.ids(tokenizer, ())
    if prompt.completion is None:
        return ids
    answer = tokenizer(prompt.completion, add_special_tokens=False)["input_ids"]
    return ids + [int(i) for i in answer]


def has_template(tokenizer: Any) -> bool:
    """Whether the tokenizer puts conversations into text."""
    return bool(getattr(tokenizer, "chat_template", None))


def read(
    sources: Sequence[str | Path],
    count: int | None,
    tokenizer: Any,
    chat: bool = False,
    system: str | None = None,
    parsed: Mapping[str, Sequence[Prompt]] | None = None,
) -> list[Prompt]:
    """The first `count` prompts of each source (None: all); without sources, 10 held-out ones.

    sources: files, or names in `NAMES`. chat: every prompt goes through the chat template.
    parsed: what `files_of` made of the files among them; they are read here else.
    system: what it is told before each, whatever a file says; the template is used then too.
    tokenizer: None where a server has it, which is then asked for the template, too.
    Raises `ValueError` for a file that cannot be read, and where there is no template.
    """
    chat = chat or system is not None
    if chat and tokenizer is not None and not has_template(tokenizer):
        raise ValueError("this model has no chat template: leave out --chat and --system")
    prompts: list[Prompt] = []
    for source in map(str, sources or [HELD_OUT]):
        if source == HELD_OUT and tokenizer is None:
            raise ValueError(
                f"{HELD_OUT} prompts are cut by a tokenizer, which only a server has here"
            )
        if source in (HELD_OUT, DAMAGED):
            cut = held_out if source == HELD_OUT else damaged
            found: Sequence[Prompt] = cut(tokenizer, count or 10)
        elif parsed is not None and source in parsed:
            found = parsed[source]
        else:
            found = load(source, chat)
        prompts += [replace(each, chat=chat or each.chat) for each in found[:count]]
    return prompts if system is None else [_told(each, system) for each in prompts]


def too_few(count: int, batches: Iterable[int]) -> list[str]:
    """A line for each batch size that so many prompts do not fill."""
    there = f"there are {count} prompts, so {count} were written at once"
    if count == 1:
        there = "there is 1 prompt, which was written alone"
    return [f"batch {batch}: {there}; give more" for batch in batches if batch > count]


def files_of(sources: Sequence[str | Path]) -> dict[str, list[Prompt]]:
    """What stands in the files among the sources, for `read` once a model has been loaded.

    Raises `ValueError` for a file that `read` would refuse.
    """
    names = dict.fromkeys(map(str, sources))  # each once: a pipe has no second time
    return {name: load(name, False) for name in names if name not in NAMES}


def _told(prompt: Prompt, system: str) -> Prompt:
    """The prompt behind this system message."""
    messages = [message for message in prompt.opening if message[0] != "system"]
    return replace(prompt, opening=(("system", system), *messages))


def load(source: str | Path, chat: bool) -> list[Prompt]:
    """The prompts of a file, or the `bundled` ones; `chat`: as a user's messages.

    `turns` and `messages` are conversations anyway. Raises `ValueError` naming file and line.
    """
    if str(source) == BUNDLED:
        return [Prompt(f"bundled {n}", (text,), chat) for n, text in enumerate(PROMPTS, 1)]
    path = PUBLISHED.get(str(source)) or Path(source)
    text = _text(path)
    if not text.strip():
        raise ValueError(f"{path} is empty: give at least one prompt")
    if ".json" in path.suffixes:
        entries = _json(str(path), text, "give a list of objects, or JSON lines")
        if not isinstance(entries, list):
            raise ValueError(f"{path} is no list: give a list of objects, or JSON lines")
        return [_prompt(f"{path}, entry {n}", n, each, chat) for n, each in enumerate(entries, 1)]
    if ".jsonl" in path.suffixes:
        lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        where, way = f"{path}, line", "give an object in each line"
        return [
            _prompt(f"{where} {n}", n, _json(f"{where} {n}", line, way), chat) for n, line in lines
        ]
    paragraphs = [part.strip("\r\n") for part in re.split(r"\n[^\S\n]*\n", text) if part.strip()]
    return [Prompt(f"{path.name}:{n}", (part,), chat) for n, part in enumerate(paragraphs, 1)]


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}): convert it") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reason = "no such file" if isinstance(error, FileNotFoundError) else reason
        way = f"give a file, or {', '.join(NAMES[:-1])} or {NAMES[-1]}"
        raise ValueError(f"cannot read the prompts {path}: {reason}; {way}") from error


def _json(where: str, text: str, way: str) -> Any:
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
        return found
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error.msg}; {way}") from error
    except UnicodeEncodeError as error:
        half = "half a character (of \\ud800 to \\udfff)"
        raise ValueError(f"{where} holds {half}: correct its text") from error
    except RecursionError as error:
        raise ValueError(f"{where} nests too deep: leave it out") from error


def _prompt(where: str, number: int, entry: Any, chat: bool) -> Prompt:
    known = entry if isinstance(entry, dict) else {}
    kinds = [field for field in FIELDS if known.get(field) is not None]
    completion = known.get("completion")
    opening: tuple[tuple[str, str], ...] = ()
    if (messages := conversations.conversation(where, known)) is not None:
        opening, turns, completion = _conversation(where, messages)
    elif kinds:
        turns = known["turns"] if kinds[0] == "turns" else [known[kinds[0]]]
    else:
        names = ", ".join((*conversations.CHATS, *FIELDS))
        raise ValueError(f"{where} has none of the fields {names}, instruction: give one of them")
    if not (isinstance(turns, list) and turns and all(t and isinstance(t, str) for t in turns)):
        raise ValueError(
            f"{where}: `prompt` and `text` must be text, `turns` a list of texts, none empty"
        )
    if not isinstance(completion, str | None):
        raise ValueError(f"{where}: `completion` must be text")
    name = str(entry.get("question_id", entry.get("task_id", number)))
    conversation = chat or messages is not None or kinds[0] == "turns"
    category = str(entry.get("category", "all"))
    return Prompt(name, tuple(turns), conversation, category, completion, opening)


def _conversation(
    where: str, given: Sequence[dict[str, str]]
) -> tuple[tuple[tuple[str, str], ...], list[str], str | None]:
    """What comes before the last user message, that message, and the answer to it."""
    messages = [(each["role"], each["content"]) for each in given]
    last = max((at for at, (role, _) in enumerate(messages) if role == "user"), default=None)
    if last is None:
        raise ValueError(f"{where}: `messages` has no message of a user")
    answer = messages[last + 1][1] if len(messages) > last + 1 else None
    return tuple(messages[:last]), [messages[last][1]], answer


def held_out(tokenizer: Any, count: int, length: int = 128) -> list[Prompt]:
    """`count` beginnings from held-out modules of the running Python's standard library.

    Each is 12 lines from the beginning of a top-level statement on, so that it parses with what
    follows it, cut at `length` tokens; those under 24 tokens are left out.
    """
    from draftproof.bundled import corpus

    sources = corpus.modules(only_held_out=True)
    names: dict[str, str] = {}  # text -> id
    for turn, (path, source) in itertools.product(range(100), sources):
        lines = source.splitlines(keepends=True)
        at = (7 + 61 * turn) % max(1, len(lines))
        while at and not lines[at][:1].isalpha():
            at -= 1
        ids = tokenizer("".join(lines[at : at + 12]))["input_ids"][:length]
        text = tokenizer.decode(ids, skip_special_tokens=True).removesuffix("\ufffd")
        if len(ids) >= 24:
            names.setdefault(text, f"{path}:{at + 1}")
        if len(names) == count:
            break
    return [Prompt(name, (text,)) for text, name in names.items()]


def damaged(tokenizer: Any, count: int) -> list[Prompt]:
    """`count` pieces of held-out modules with slips in them, each with what it was as the answer.

    None has more than `LONGEST_DAMAGED` tokens, where there is a tokenizer to count them.
    """
    from draftproof.bundled.damaged import Damaged, held_out

    def fits(pair: Damaged) -> bool:
        texts = [pair.text, pair.clean]
        return tokenizer is None or max(map(len, tokenizer(texts)["input_ids"])) <= LONGEST_DAMAGED

    pairs = held_out(count, fits=fits)
    return [
        Prompt(f"damaged {n}", (pair.text,), completion=pair.clean)
        for n, pair in enumerate(pairs, 1)
    ]


def pair(prompt: Prompt, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Token ids of what an encoder reads, and of what is written for it, with its end.

    Raises `ValueError` for a prompt without an answer.
    """
    if not prompt.completion:
        raise ValueError(
            f"prompt {prompt.id} has no answer: an encoder-decoder needs pairs, so give JSON lines "
            "with `prompt`, which is read, and `completion`, which is written"
        )
    written = tokenizer(text_target=prompt.completion)["input_ids"]
    return prompt.ids(tokenizer, ()), [int(token) for token in written]
