"""A tokenizer as the fields of a GGUF file: what `tokenizer` reads, the other way round."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftproof.gguf.reader import File
from draftproof.gguf.tokenizer import CONTROL, NORMAL, SPLITS, USER, of_fields

UNUSED = 5  # type of an id that stands for no token
# By the way of splitting text, the name for it that other programs know best.
NAMES = {split: name for name, split in reversed(SPLITS.items())}
# What ways of splitting text do not agree about.
HARD = (
    "It's 2024-11-05, I'LL pay $1,234.50 (or 99%)!\n\n\tdef f(x):\n        return x**2  # done\r\n",
    "naïve café, Ünïcödé, ÀÉÎ; e\u0301 a\u0308; Straße — “quoted” …",
    "Ελληνικά, русский текст, עברית, العربية ١٢٣, हिन्दी में, ภาษาไทย",
    "中文字符和标点，日本語のテキスト。 한국어 문장 12345 一二三 ４５６",
    "emoji 🙂👍🏽👨‍👩‍👧 and \u200b zero\u00a0width",
    "   leading and trailing   \n \n  \t\t x\n\n\n y   z ",
    "a1b2c3 1000000 3.14159e-10 0xFF_FF x'=y'' don't DON'T we've 'tis",
    'http://example.org/a-b_c?d=e&f=g#h <tag attr="v"/> {json: [1, 2]} //--++==',
)


def fields(tokenizer: Any, size: int) -> dict[str, Any]:
    """Those of a byte-level vocabulary, `size` ids. Raises `ValueError` for another kind."""
    backend = getattr(tokenizer, "backend_tokenizer", None)  # others have no tokenizer.json
    none: dict[str, Any] = {"model": {"type": ""}}
    said = none if backend is None else json.loads(backend.to_str())
    if said["model"]["type"] != "BPE" or said["model"].get("byte_fallback"):
        raise ValueError(
            "only byte-level vocabularies can be written into a GGUF file, and this tokenizer has "
            "another kind"
        )
    count = len(tokenizer)
    if count > size:
        raise ValueError(f"the tokenizer has {count} tokens and the model {size}: no pair")
    added = {each["id"]: CONTROL if each["special"] else USER for each in said["added_tokens"]}
    tokens = tokenizer.convert_ids_to_tokens(range(count))
    types = [added.get(at, UNUSED if token is None else NORMAL) for at, token in enumerate(tokens)]
    listed = [f"[PAD{at}]" if token is None else token for at, token in enumerate(tokens)]
    rest = range(count, size)
    made = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*listed, *[f"[PAD{at}]" for at in rest]],
        "tokenizer.ggml.token_type": [*types, *[UNUSED for _ in rest]],
        "tokenizer.ggml.merges": [
            each if isinstance(each, str) else " ".join(each) for each in said["model"]["merges"]
        ],
        "tokenizer.ggml.add_bos_token": _begins(tokenizer),
    }
    for name, long in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (at := getattr(tokenizer, f"{name}_token_id", None)) is not None:
            made[f"tokenizer.ggml.{long}_token_id"] = at
    if isinstance(tokenizer.chat_template, str):
        made["tokenizer.chat_template"] = tokenizer.chat_template
    made["tokenizer.ggml.pre"] = _split(tokenizer, made)
    return made


def _begins(tokenizer: Any) -> bool:
    bos = getattr(tokenizer, "bos_token_id", None)
    return bos is not None and tokenizer("a")["input_ids"][:1] == [bos]


def _split(tokenizer: Any, made: dict[str, Any]) -> str:
    """The name of a way of splitting text that gives the tokenizer's own ids for `HARD`."""
    wanted = _ids(tokenizer)
    for name in NAMES.values():
        file = File(Path("the file"), {**made, "tokenizer.ggml.pre": name}, {})
        if _ids(of_fields(file)) == wanted:
            return name
    raise ValueError(
        "the tokenizer splits text in a way that has no name in GGUF files: no program would do it"
    )


def _ids(tokenizer: Any) -> Sequence[list[int]]:
    return [each.ids for each in tokenizer.backend_tokenizer.encode_batch(list(HARD))]
