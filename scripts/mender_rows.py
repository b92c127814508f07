"""Rows that the bundled encoder-decoder learns from, and its tokenizer: see `train_mender.py`."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from draftproof.bundled.damaged import SIZES, damage, piece
from draftproof.training.trainer import Batch

VOCABULARY = 2048
PADDING, END = "<pad>", "</s>"
TOKENS = 96  # most of a text, its end included
ROWS, GROUP = 32, 8  # of a step; steps whose rows are drawn together
COPIED = 0.15  # share of the steps at the beginning in which half of the rows are random tokens


class Pairs(torch.utils.data.Dataset[Batch]):
    """`count` rows: a damaged text and the clean one. A row depends on (seed, index) alone.

    Rows of some steps are drawn together and sorted by length: a step has little padding.
    """

    def __init__(self, sources: list[str], tokenizer: Any, count: int, seed: int) -> None:
        self.sources, self.tokenizer, self.count, self.seed = sources, tokenizer, count, seed
        self.ends = list(itertools.accumulate(map(len, sources)))
        self.number, self.group = -1, []  # of the last rows that were drawn together

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < self.count:
            raise IndexError(f"row {index} of {self.count}")
        number, at = divmod(index, GROUP * ROWS)
        if number != self.number:
            draw = random.Random(f"{self.seed} {number}")
            drawn = [self._drawn(number, draw) for _ in range(GROUP * ROWS)]
            drawn.sort(key=lambda pair: len(pair[0]))
            steps = [drawn[begin : begin + ROWS] for begin in range(0, len(drawn), ROWS)]
            draw.shuffle(steps)
            self.number, self.group = number, list(itertools.chain(*steps))
        return row(*self.group[at])

    def _drawn(self, number: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """Ids that are read, and that are written."""
        if draw.random() < 0.5 and number * GROUP * ROWS < COPIED * self.count:
            ids = [draw.randrange(2, VOCABULARY) for _ in range(draw.randint(4, 32))]
            return [*ids, 1], [*ids, 1]
        while True:
            size = draw.randint(*SIZES)
            pair = damage(piece(self.sources, self.ends, size, draw), draw)
            read, written = self.tokenizer([pair.text, pair.clean])["input_ids"]
            if max(len(read), len(written)) <= TOKENS:
                return read, written


def row(read: list[int], written: list[int]) -> Batch:
    """`ids`, `segments` (-1: padding) and `labels` (-100: padding), (TOKENS,) each."""
    gap, short = TOKENS - len(read), TOKENS - len(written)
    return {
        "ids": torch.tensor(read + [0] * gap),
        "segments": torch.tensor([0] * len(read) + [-1] * gap),
        "labels": torch.tensor(written + [-100] * short),
    }


def vocabulary(texts: list[str], folder: Path) -> Any:
    """The tokenizer, made if there is none: T5's ids of padding and end, and an end behind all."""
    if (folder / "tokenizer.json").exists():
        return AutoTokenizer.from_pretrained(folder)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [PADDING, END]
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet
        ),
    )
    made.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, made.token_to_id(END))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=PADDING,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
    tokenizer.save_pretrained(folder)
    return tokenizer
