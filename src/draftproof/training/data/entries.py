"""One entry of training data becomes documents of token ids: text, a completion, or a chat.

What is learnt of it is marked token by token. Does not know where entries come from.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import numpy as np

from draftproof.conversations import conversation, messages
from draftproof.training.data.rows import Document

PROMPTS = ("prompt", "turns")  # fields that may come without an answer
FIELDS = (
    "`text`, `prompt` and `completion`, `messages` or `conversations`, or `instruction` and "
    "`output`"
)
PAIRS = (
    "an encoder-decoder learns from pairs, JSON lines with `prompt`, which is read, and "
    "`completion`, which is written (or not, with --self-distill)"
)
MARK = "\u00a7answer\u00a7"  # stands for an answer where its place is looked for


@dataclass(frozen=True)
class Pair:
    """What an encoder reads, and what is written then; None: an answer is made later."""

    read: str
    written: str | None


@dataclass(frozen=True)
class Chat:
    """Messages with `role` and `content`."""

    messages: list[dict[str, str]]


@dataclass(frozen=True)
class Asked:
    """A prompt whose answer is made later."""

    prompt: str


@dataclass(frozen=True)
class Text:
    """A text, of which everything behind `prompt` is learnt; without one, everything."""

    prompt: str | None
    learnt: str


Form = Pair | Chat | Asked | Text


def form_of(where: str, entry: Any, unanswered: bool, pairs: bool) -> Form | None:
    """What an entry holds, by its fields, before there is a tokenizer; None: nothing to learn.

    unanswered, pairs: as `unanswered` and `start` of `parsed`. Raises `ValueError` that begins
    with `where`.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is not an object: give one with {FIELDS}")
    given = {field: value for field, value in entry.items() if value is not None}
    if pairs:
        return _pair_of(where, given, unanswered)
    if (chat := conversation(where, given)) is not None:
        return Chat(chat)
    if "prompt" in given and "completion" in given:
        parts = [given["prompt"], given["completion"]]
    elif unanswered and "prompt" in given:
        if not isinstance(given["prompt"], str):
            raise ValueError(f"{where}: `prompt` must be text")
        return Asked(given["prompt"])
    elif unanswered and "turns" in given:
        turns = given["turns"]
        first = turns[0] if isinstance(turns, list) and turns else None
        return Chat(messages(where, [{"role": "user", "content": first}]))
    elif "text" in entry:
        parts = [given.get("text", "")]
    else:
        fields = f"{where} has the fields {sorted(map(str, entry))}: give {FIELDS}"
        alone = not unanswered and any(field in given for field in PROMPTS)
        raise ValueError(fields + ("; prompts alone are for --self-distill" if alone else ""))
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{where}: `text`, `prompt` and `completion` must be text")
    return Text(parts[0] if parts[1:] else None, parts[-1]) if parts[-1].strip() else None


def _pair_of(where: str, given: dict[str, Any], unanswered: bool) -> Pair | None:
    prompt, answer = given.get("prompt"), given.get("completion")
    if prompt is None or (answer is None and not unanswered):
        missing = "completion" if prompt is not None else "prompt"
        raise ValueError(f"{where} has no `{missing}`: {PAIRS}")
    if not isinstance(prompt, str) or not isinstance(answer, str | None):
        raise ValueError(f"{where}: `prompt` and `completion` must be text")
    blank = not prompt.strip() or (answer is not None and not answer.strip())
    return None if blank else Pair(prompt, answer)


def parsed(
    where: str,
    entry: Any,
    tokenizer: Any,
    unanswered: bool = False,
    start: Sequence[int] | None = None,
) -> list[Document]:
    """The documents of one entry, by its fields; none if there is nothing to learn in it.

    start: what a decoder goes on from; then entries are pairs, of which an encoder reads the
    prompt.

    unanswered: a prompt may come without its answer; the document is then the prompt, and one
    token, the only one to learn, that stands for what will be written. Raises `ValueError` that
    begins with `where`.
    """
    form = form_of(where, entry, unanswered, start is not None)
    if isinstance(form, Pair):
        return _pair(form, tokenizer, start or ())
    if isinstance(form, Chat):
        return _chat(where, form.messages, tokenizer, unanswered)
    if isinstance(form, Asked):
        return _asked(tokenizer(form.prompt)["input_ids"])
    if form is None:
        return []
    if form.prompt is None:
        return [encoded(tokenizer, form.learnt)]
    whole = form.prompt + form.learnt
    return [encoded(tokenizer, whole, [(len(form.prompt), len(whole))])]


def _pair(pair: Pair, tokenizer: Any, start: Sequence[int]) -> list[Document]:
    """What an encoder reads, and what is written; unanswered: a token that stands for that."""
    read = tokenizer(pair.read, verbose=False)["input_ids"]
    if not read:
        return []
    if pair.written is None:
        written = [start[-1]]
    else:
        written = [*tokenizer(text_target=pair.written, verbose=False)["input_ids"]]
        last = getattr(tokenizer, "eos_token_id", None)
        written += [last] if last is not None and written[-1:] != [last] else []
    taught = [False] * len(start) + [True] * len(written)
    return [Document([*start, *written], taught, read)]


def _asked(ids: Sequence[int]) -> list[Document]:
    """A prompt, and a token that stands for its answer."""
    return [Document([*ids, ids[-1]], [False] * len(ids) + [True])] if ids else []


def _chat(
    where: str, given: list[dict[str, str]], tokenizer: Any, unanswered: bool
) -> list[Document]:
    """A conversation, its answers learnt up to and with the end of their turns.

    One document, or several where the template renders an answer differently once others follow
    it: then each is the conversation as the model sees it when it gives that answer.
    """
    if not getattr(tokenizer, "chat_template", None):
        need = "a tokenizer with a chat template, which this is not"
        raise ValueError(f"{where} is a chat and needs {need}: give `prompt` and `completion`")

    def rendered(shown: list[dict[str, str]], prompt: bool = False) -> str:
        try:
            text: str = tokenizer.apply_chat_template(
                shown, tokenize=False, add_generation_prompt=prompt
            )
        except Exception as error:  # a template is a program that came with the model
            cause = f"the chat template refuses the conversation ({error})"
            raise ValueError(f"{where}: {cause}: correct it or leave it out") from error
        return text

    answers: list[tuple[str, list[tuple[int, int]]]] = []
    if unanswered and given and given[-1]["role"] != "assistant":
        text = rendered(given, prompt=True)
        return _asked(tokenizer(text, add_special_tokens=False)["input_ids"])
    for at in range(1, len(given)):
        if given[at]["role"] != "assistant":
            continue
        before, prompt = rendered(given[:at]), rendered(given[:at], prompt=True)
        text = rendered(given[: at + 1])
        begin = len(commonprefix([prompt, text]))  # some prompts open a thought that is not kept
        if begin < min(len(before), len(prompt)):
            # Some of Mistral's show the system's words only while the last question is open. The
            # model answered the prompt, so the answer is put behind that.
            marked = rendered([*given[:at], {"role": "assistant", "content": MARK}])
            place = marked.find(MARK)
            if place < 0 or not text.startswith(marked[:place]):
                cause = "the chat template has no fixed place for an answer"
                raise ValueError(f"{where}: {cause}: give `prompt` and `completion`")
            begin = len(text[:place].rstrip())
            prompt = prompt.removesuffix(text[begin:place])
            text, begin = prompt + text[begin:], len(prompt)
        bare = text[begin:].strip() == given[at]["content"].strip()
        end = len(text if bare else text.rstrip())  # no model writes the break behind its turn
        earlier = answers.pop() if answers and text.startswith(answers[-1][0]) else ("", [])
        answers.append((text, [*earlier[1], (begin, end)]))
    learnt = [encoded(tokenizer, text, spans, chat=True) for text, spans in answers]
    return [document for document in learnt if any(document.taught or ())]


def encoded(
    tokenizer: Any, text: str, spans: list[tuple[int, int]] | None = None, chat: bool = False
) -> Document:
    """A document that teaches the tokens with a character of `spans` in them (None: all).

    Special tokens are added, and the tokenizer's end behind them; a chat's template has written
    its own.
    """
    options = {"add_special_tokens": not chat, "verbose": False}  # verbose: that it is long
    fast = spans is not None and bool(getattr(tokenizer, "is_fast", False))
    encoding = tokenizer(text, **({"return_offsets_mapping": True} if fast else {}), **options)
    ids = array("i", encoding["input_ids"])  # a tenth of a list of numbers
    taught = np.zeros(len(ids), dtype=bool)
    begins, ends = np.asarray(encoding["offset_mapping"] if fast else []).reshape(-1, 2).T

    def token(at: int) -> int:  # the first that differs when the text ends at this character
        return len(commonprefix([list(ids), list(tokenizer(text[:at], **options)["input_ids"])]))

    for begin, end in spans or []:
        if fast:
            taught |= (begins < end) & (ends > begin)
        else:
            taught[token(begin) : token(end)] = True
    last = None if chat else getattr(tokenizer, "eos_token_id", None)
    if last is not None:
        if not ids or ids[-1] != last:
            ids.append(last)
        taught = np.append(taught, True)[: len(ids)]
        taught[-1] = True
    return Document(ids, None if spans is None else taught.tolist())
