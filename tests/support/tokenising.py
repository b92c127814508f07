"""Tokenizers with templates of every kind, and files of entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as backends
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from draftproof.bundled import MODELS
from draftproof.training.data.rows import Document

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
