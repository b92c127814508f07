"""The corpus of the bundled models: the standard library's own sources.

`python -m draftproof.bundled.corpus FOLDER` writes them there, into `train` and `held_out`.

Knows which files count, which are held out, and how they become one array of token ids. Does
not know what is trained on them.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
HELD_OUT_ONE_IN = 20


def modules(root: Path | None = None, only_held_out: bool = False) -> list[tuple[str, str]]:
    """Every (relative path, source) of the standard library that parses, sorted by path."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if "site-packages" in path.parts or (only_held_out and not is_held_out(name)):
            continue
        try:
            source = path.read_bytes().decode("utf-8")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in the library's own tests
                ast.parse(source)
        except (UnicodeDecodeError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # the test suite ships broken files on purpose
        if source.strip():
            found.append((name, source))
    return found


def is_held_out(path: str) -> bool:
    """A twentieth of the modules, chosen by the hash of their path: the same everywhere."""
    return int(hashlib.sha256(path.encode()).hexdigest(), 16) % HELD_OUT_ONE_IN == 0


def train_tokenizer(texts: Iterator[str], vocab_size: int = 8192) -> PreTrainedTokenizerFast:
    """A byte-level BPE; `END` separates documents, and begins every prompt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    end_id = tokenizer.token_to_id(END)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, end_id)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )


def write(folder: Path) -> None:
    """Every module as a file below `train` or `held_out`."""
    for name, source in modules():
        file = folder / ("held_out" if is_held_out(name) else "train") / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
