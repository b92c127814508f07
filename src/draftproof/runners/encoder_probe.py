"""A packed pass of three requests decides whether an encoder-decoder can be run so.

Prefixes, trees and inputs of different sizes, one after the other in one row: what mixes requests,
miscounts positions or hides a mask gives other logits than the model alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftproof.runners import altering, encoders, probe, spanning
from draftproof.runners.base import EncoderInput, Work
from draftproof.runners.encoder_decoder import EncoderDecoder
from draftproof.runners.encoders import INSTEAD
from draftproof.runners.loading import Refused
from draftproof.runners.reading import Reader
from draftproof.runners.telling import LOG
from draftproof.tree import TokenTree

ROUNDED = {torch.float32: 1e-4, torch.float64: 1e-9}  # of the largest number; in fewer bits no
# order of additions can be told from a mistake

# Of each request: tokens that the encoder reads, tokens before the tree, parents in the tree.
REQUESTS = ((7, 3, (-1, 0, 0, 1, 2)), (4, 1, (-1, 0, 1, 1, 3, 0)), (7, 6, (-1,)))


def check(runner: EncoderDecoder) -> None:
    """Raise `Refused` unless the packed pass is the model's own pass.

    From then on the runner knows the keys and values of every layer.
    """
    asked = [_request(runner, number) for number in range(len(REQUESTS))]
    beside: list[EncoderDecoder] = []

    def passes(runner: EncoderDecoder) -> tuple[Tensor, Tensor]:
        other = runner.again(max_batch=len(asked), parked=0)
        beside.append(other)
        read = [Work(key, new, None, encoder_input=given) for key, (given, new, _) in _keyed(asked)]
        other.forward(read)
        trees = [
            Work(key, [], tree, encoder_input=given) for key, (given, _, tree) in _keyed(asked)
        ]
        packed = torch.cat([output.logits for output in other.forward(trees)])
        return packed, torch.cat([_own(runner, *each) for each in asked])

    if (off := probe.verdict(runner, passes, INSTEAD)) is not None:
        name = type(runner.model).__name__
        raise Refused(
            f"{name} gives other logits when requests are packed (off by {off:.2g}): {INSTEAD}"
        )
    runner.learn_from(beside[0])
    runner.reader.packs = _packs(runner)


def _packs(runner: EncoderDecoder) -> bool:
    """Whether its encoder makes of inputs in one row what it makes of each alone.

    In a row as long as any will be, or longer than the encoder has positions for.
    """
    model, longest = runner.model, runner.longest_input
    if runner.ear is not None or altering.bounded(model) or model.dtype not in ROUNDED:
        return False
    lengths = 7, 4, 9
    if longest < spanning.MOST:
        lengths = longest // 2 + 1, 4, longest
    given = [EncoderInput(_ids(runner, n, n, runner.input_vocabulary)) for n in lengths]
    reader = Reader(model, runner.takeover)
    try:
        packed = reader.read_row(given)
    except Exception as error:
        LOG.debug("inputs are read one by one (%s)", error)
        return False
    for own, one in zip(packed, given, strict=True):
        alone = reader.read([one])
        if not (own - alone).abs().max() <= ROUNDED[model.dtype] * alone.abs().max():
            return False
    return True


def _keyed(asked: list[Any]) -> list[Any]:
    return list(enumerate(asked))


def _request(runner: EncoderDecoder, number: int) -> tuple[EncoderInput, list[int], TokenTree]:
    length, before, parents = REQUESTS[number]
    span = min(runner.input_vocabulary or runner.vocabulary, runner.vocabulary, 1 << 15)

    def ids(count: int, salt: int) -> list[int]:
        return _ids(runner, count, 17 * number + salt, span)

    read = ids(length, 0)
    given = runner.example(length, lambda at: read[at])
    return given, ids(before, 31), TokenTree(ids(len(parents), 53), list(parents))


def _ids(runner: EncoderDecoder, count: int, salt: int, span: int) -> list[int]:
    """Without padding: some models count positions without it, and no text holds any."""
    padding = getattr(runner.config, "pad_token_id", None)
    found = [(11 + 7919 * (i + salt)) % span for i in range(count)]
    return [(token + 1) % span if token == padding else token for token in found]


def _own(runner: EncoderDecoder, given: EncoderInput, new: list[int], tree: TokenTree) -> Tensor:
    """The model's own logits (N, V) behind every node of a tree, a pass for each leaf."""
    rows: dict[int, Tensor] = {}
    inner = set(tree.parents)
    read = encoders.given([given], runner.model)
    for leaf in [node for node in range(len(tree)) if node not in inner]:
        path = tree.path(leaf)
        text = torch.tensor([[*new, *(tree.tokens[node] for node in path)]], device=runner.device)

        def whole(text: Tensor = text) -> Any:
            return runner.model(**read, decoder_input_ids=text, use_cache=False)

        def written() -> Any:
            return altering.unbounded(runner.bounded, whole)

        logits = runner.takeover.look(written).logits[0, len(new) :]
        rows |= dict(zip(path, logits, strict=True))
    return torch.stack([rows[node] for node in range(len(tree))])
