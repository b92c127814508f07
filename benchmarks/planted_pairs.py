"""A draft of an encoder-decoder, or transformers' assistant, whose passes run and whose tokens are
planted: at every place of a known text the right one with a given chance, else a wrong one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from random import Random
from typing import Any

from torch import Tensor

import draftproof as dp
from draftproof import analysis
from draftproof.bench import sides
from draftproof.bench.sides import How, Side, Written
from draftproof.drafting.growth import Growth
from draftproof.writing import Children

VOCABULARY = 32_128  # of T5
DRAWS = 300  # of planted places, of which one is taken


class Plant:
    """What a draft says: at a place of a text the right token with chance `alpha`, else another.

    texts: of each prompt, by its ids, what the target writes. A few short texts would be luckier or
    unluckier than that by much, so of many draws the one is taken whose tokens a step come nearest
    to what alpha and gamma promise; it is the same in every run.
    """

    def __init__(self, texts: dict[tuple[int, ...], list[int]], alpha: float, gamma: int) -> None:
        self.texts, promised = texts, analysis.expected_tokens(alpha, gamma)

        def drawn(salt: int) -> dict[tuple[int, ...], list[bool]]:
            draw = Random(salt)
            return {r: [draw.random() < alpha for _ in text] for r, text in texts.items()}

        def off(salt: int) -> float:
            keeps = drawn(salt)
            tokens = sum(map(len, keeps.values()))
            return abs(tokens / sum(steps_of(each, gamma) for each in keeps.values()) - promised)

        self.keeps = drawn(min(range(DRAWS), key=off))

    def token(self, read: Sequence[int], at: int) -> int:
        """At a place of the text that is written for what was read."""
        text = self.texts[tuple(read)]
        if at >= len(text):
            return 0
        # Two ids further: one more might be the end of a text, where transformers stops a draft.
        return text[at] if self.keeps[tuple(read)][at] else (text[at] + 2) % VOCABULARY


def steps_of(keeps: Sequence[bool], gamma: int) -> int:
    """Steps that a text takes: the bonus needs a place, and what is behind the end is no draft."""
    at = steps = 0
    while at < len(keeps):
        room = min(gamma, len(keeps) - at - 1)
        run = next((n for n in range(room) if not keeps[at + n]), room)
        at, steps = at + run + 1, steps + 1
    return steps


class Planted(dp.DraftModel):
    """A draft model with all its passes, whose tokens are planted."""

    def __init__(self, model: Any, gamma: int, plant: Plant) -> None:
        super().__init__(model, gamma, min_confidence=0.0, branch=1)
        self.plant = plant

    def draw(self, growth: Growth, path: Sequence[int], row: Tensor, count: int) -> Children:
        _, shares, laws = super().draw(growth, path, row, count)
        request = growth.request
        assert request.encoder_input is not None
        at = len(request.output) + len(path)
        return [self.plant.token(request.encoder_input.tokens, at)], shares, laws


def assisted(model: Any, assistant: Any, gamma: int, plant: Plant) -> Side:
    """transformers' assistant, of one text at a time, whose logits are planted for each call."""
    # A model of its own over the same weights: the target itself may be the draft.
    assistant = copy.deepcopy(assistant, {id(each): each for each in assistant.parameters()})
    side = sides.assisted(model, assistant, [], gamma)
    inner = side.write

    drafting = assistant.generate

    def write(prompts: Sequence[list[int]], how: How) -> list[Written]:
        (read,), at = prompts, 0

        def generate(*args: Any, **options: Any) -> Any:
            """A draft behind the whole text, whatever the assistant's cache holds of it."""
            nonlocal at
            at = options["decoder_input_ids"].shape[1] - 1
            return drafting(*args, **options)

        def planted(module: Any, args: Any, output: Any) -> Any:
            nonlocal at
            output.logits[0, -1] = -1e4
            output.logits[0, -1, plant.token(read, at)] = 1e4
            at += 1
            return output

        handle = assistant.register_forward_hook(planted)
        try:
            assistant.generate = generate
            return inner(prompts, how)
        finally:
            handle.remove()
            del assistant.generate

    return Side(side.name, write, peer=True, batches=False)
