"""Small targets and drafts with tokenizers of every kind."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerFast as Fast

import draftproof as dp
import tiny
from draftproof.proposers.foreign import ForeignDraft
from draftproof.runners.base import Output, Work

BUNDLED = Path(dp.__file__).parent / "bundled" / "models"
LINES = [
    "the quick brown fox jumps over the lazy dog and the other dog",
    "der müde Bär schläft, die Füchse grüßen: schön, größer, am größten",
    "def return_value(value): return value + 1  # the value 😀 😀😁",
    "naïve café, the price: 10 € 日本語 日本",
]
PROMPTS = ["the dog", "Grüße 😀", "日本語 is", "def return_value(v"]
DRAFTS = ["bytes", "merges", "wordpiece", "words", "metaspace"]


# --- tokenizers ---


@cache
def bytewise() -> Fast:
    """The target's: 0 pad, 1 bos, 2 end of text, 3.. the bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {c: i + 3 for i, c in enumerate(alphabet)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return Fast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


@cache
def other(name: str) -> Fast:
    """A draft's tokenizer of the named kind, trained on LINES."""
    special = ["[BOS]", "[UNK]"]
    made, trainer = {
        "bytes": lambda: (
            Tokenizer(models.BPE()),
            trainers.BpeTrainer(
                vocab_size=258,
                special_tokens=special,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            ),
        ),
        "merges": lambda: (
            Tokenizer(models.BPE()),
            trainers.BpeTrainer(
                vocab_size=330,
                special_tokens=special,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            ),
        ),
        "wordpiece": lambda: (
            Tokenizer(models.WordPiece(unk_token="[UNK]")),
            trainers.WordPieceTrainer(vocab_size=120, special_tokens=special),
        ),
        "words": lambda: (
            Tokenizer(models.WordLevel(unk_token="[UNK]")),
            trainers.WordLevelTrainer(special_tokens=special),
        ),
        "metaspace": lambda: (
            Tokenizer(models.BPE(unk_token="[UNK]", byte_fallback=True)),
            trainers.BpeTrainer(
                vocab_size=420, special_tokens=special + [f"<0x{i:02X}>" for i in range(256)]
            ),
        ),
    }[name]()
    made.pre_tokenizer = {
        "wordpiece": pre_tokenizers.BertPreTokenizer,
        "words": pre_tokenizers.Whitespace,
        "metaspace": pre_tokenizers.Metaspace,
    }.get(name, lambda: pre_tokenizers.ByteLevel(add_prefix_space=False))()
    made.train_from_iterator(LINES, trainer)
    if name == "metaspace":
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
        return Fast(tokenizer_object=made, bos_token="[BOS]")
    made.decoder = decoders.WordPiece() if name == "wordpiece" else decoders.ByteLevel()
    if name == "words":
        made.decoder = decoders.WordPiece(prefix="\0")  # a space before every word
    return Fast(tokenizer_object=made, bos_token="[BOS]", unk_token="[UNK]")


class Shuffled:
    """A tokenizer whose ids went through a permutation: `order[old] == new`."""

    bos_token_id = None

    def __init__(self, inner: Any, order: Sequence[int]) -> None:
        self.inner, self.order = inner, list(order)
        self.back = {new: old for old, new in enumerate(self.order)}
        self.all_special_ids = [self.order[i] for i in inner.all_special_ids]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = self.inner.encode(text, add_special_tokens=add_special_tokens)
        return [self.order[i] for i in ids]

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        return str(self.inner.decode([self.back[i] for i in ids], **options))

    def get_vocab(self) -> dict[str, int]:
        return {string: self.order[i] for string, i in self.inner.get_vocab().items()}


def permutation(size: int) -> list[int]:
    return torch.randperm(size, generator=torch.Generator().manual_seed(5)).tolist()


def shuffled(model: PreTrainedModel, order: Sequence[int]) -> PreTrainedModel:
    """The model whose row `order[i]` is the given model's row i."""
    made = copy.deepcopy(model)
    tied = {id(m.weight): m.weight for m in (made.get_input_embeddings(), made.lm_head)}
    with torch.no_grad():
        for weight in tied.values():
            weight[:] = weight[torch.tensor(order).argsort()].clone()
    return made


# --- models ---


@cache
def target() -> PreTrainedModel:
    return tiny.model("llama", dtype=torch.float64, vocab_size=259, num_hidden_layers=2)


@cache
def draft(name: str) -> PreTrainedModel:
    size = len(other(name)) + 3  # some rows that the tokenizer knows nothing of
    return tiny.model("llama", 7, torch.float64, vocab_size=size, num_hidden_layers=2)


def foreign(name: str, **options: Any) -> ForeignDraft:
    return ForeignDraft(
        draft(name),
        tokenizer=other(name),
        target_tokenizer=bytewise(),
        **{"min_confidence": 0.0, **options},
    )


ASCII = tuple(i for i in range(259) if i < 3 or not bytewise().decode([i]).isascii())
GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 3}
PENALISED: dict[str, Any] = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "logit_bias": {40: 1.5},
}
ALL = {
    "greedy": GREEDY,
    "greedy, penalised": GREEDY | PENALISED,
    "sampled": SAMPLED,
    "sampled, penalised": SAMPLED | PENALISED,
}


def params(**options: Any) -> dp.SamplingParams:
    return dp.SamplingParams(**{"max_tokens": 18, "ignore_eos": True, **options})


def guarded(runner: Any) -> list[Sequence[Work]]:
    """The runner's passes from now on; an id out of range fails at once."""
    passes: list[Sequence[Work]] = []
    forward = runner.forward

    def run(work: Sequence[Work], *args: Any, **options: Any) -> list[Output]:
        for item in work:
            ids = [*item.new, *(item.tree.tokens if item.tree is not None else ())]
            assert all(0 <= i < runner.vocabulary for i in ids)
        passes.append(work)
        made: list[Output] = forward(work, *args, **options)
        return made

    runner.forward = run
    return passes


def written(proposer: Any, batch: int, rule: str = "coupled", **options: Any) -> Any:
    """Completions of the last `batch` of PROMPTS; every pass of target and draft is guarded."""
    with dp.LLM(
        target(), tokenizer=bytewise(), speculate=proposer, rule=rule, max_batch=min(batch, 3)
    ) as llm:
        guarded(llm.runner)
        if proposer is not None:
            guarded(proposer.runner)
        outs = llm.generate(PROMPTS[-batch:], params(**options))
    assert all(out.warnings == [] and out.error is None for out in outs)
    return outs


@cache
def plain(kind: str, banned: tuple[int, ...]) -> list[list[int]]:
    outs = written(None, 4, bad_token_ids=banned, **ALL[kind])
    return [out.token_ids for out in outs]
