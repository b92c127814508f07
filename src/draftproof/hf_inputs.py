"""What each row of transformers' batch reads and starts from, of decoders and encoder-decoders.

By the time the drop-in is called, `generate` has run the encoder: what it made of a row's input is
taken as it is, without the padding that the mask hides. Knows `generate`'s conventions alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from draftproof.runners.base import EncoderInput

Asked = tuple[list[int], list[int], EncoderInput | None]


def of_rows(ids: Tensor, read: Tensor | None, given: Mapping[str, Any], runner: Any) -> list[Asked]:
    """Of each row: its padding, the tokens that its output goes on from, what an encoder made.

    ids: (rows, tokens) that `generate` starts from. read: what it was given, (rows, tokens), or
    fewer rows where several sequences are asked of each. given: its keywords.
    """
    if not runner.encodes:
        return [_of_decoder(ids, given, row) for row in range(len(ids))]
    mask = given.get("decoder_attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError(
            "decoder_attention_mask hides tokens: generate rows whose decoder_input_ids have one "
            "length together"
        )
    inputs = _inputs(len(ids), read, given, runner)
    return [([], row, inputs[at]) for at, row in enumerate(ids.tolist())]


def _of_decoder(ids: Tensor, given: Mapping[str, Any], row: int) -> Asked:
    """A prompt that is padded on the left, if at all."""
    mask, positions, length = given.get("attention_mask"), given.get("position_ids"), ids.shape[1]
    begin = 0
    if mask is not None:
        begin = length - int(mask[row].sum())
        if begin and bool(mask[row, :begin].any()):
            raise ValueError("attention_mask has holes or padding on the right: pad on the left")
    if positions is not None:
        own = positions[min(row, len(positions) - 1), begin:].tolist()
        if own != list(range(length - begin)):
            raise ValueError("position_ids that do not count the prompt are not taken: drop them")
    tokens = ids[row].tolist()
    return tokens[:begin], tokens[begin:], None


def _inputs(
    rows: int, read: Tensor | None, given: Mapping[str, Any], runner: Any
) -> list[EncoderInput]:
    """One for each row; sequences of one input, which stand together, share theirs."""
    states: Tensor = given["encoder_outputs"][0]  # the last hidden ones, of a tuple as well
    if runner.ear is not None:
        return _heard(rows, read, given, runner)
    if read is None or read.is_floating_point() or bool((read < 0).any()):
        raise ValueError(
            "inputs_embeds, and encoder_outputs without input_ids, are not taken by draftproof, "
            "which drafts from the tokens: pass input_ids"
        )
    several = rows // len(read)
    if states.shape[:2] != (rows, read.shape[1]):
        raise ValueError(
            f"encoder_outputs are of {states.shape[0]} x {states.shape[1]} tokens and input_ids of "
            f"{rows} x {read.shape[1]}: pass those that belong together"
        )
    mask = given.get("attention_mask")
    seen = torch.ones(states.shape[:2], dtype=torch.bool) if mask is None else mask.bool().cpu()
    inputs: list[EncoderInput] = []
    for row in range(0, rows, several):
        at = seen[row].nonzero()[:, 0]
        if not len(at):
            raise ValueError(f"attention_mask hides all of input {row // several}: drop the row")
        tokens = read[row // several, at.to(read.device)].tolist()
        kept = states[row, at.to(states.device)]
        brought = EncoderInput(tokens, runner.comparable, states=kept, made_by=runner.model)
        inputs += [brought] * several
    return inputs


def _heard(
    rows: int, read: Tensor | None, given: Mapping[str, Any], runner: Any
) -> list[EncoderInput]:
    """As `_inputs`, of a model that hears."""
    made: Any = given["encoder_outputs"]
    states: Tensor = made[0]
    if read is None or not read.is_floating_point():
        raise ValueError(
            f"encoder_outputs without {runner.ear.name} are not taken by draftproof, whose drafts "
            f"may hear for themselves: pass {runner.ear.name}"
        )
    mask, shrunk = getattr(made, "attention_mask", None), given.get("attention_mask")
    if mask is None and shrunk is not None:
        shrink = getattr(runner.model, "_get_feature_vector_attention_mask", None)
        mask = None if shrink is None else shrink(states.shape[1], shrunk)
    seen = torch.ones(states.shape[:2]) if mask is None else mask
    several, inputs = rows // len(read), list[EncoderInput]()
    for row in range(0, rows, several):
        kept = states[row, seen[row].bool().to(states.device)]
        features = read[row // several]
        brought = EncoderInput((), False, kept, runner.model, features, len(kept))
        inputs += [brought] * several
    return inputs
