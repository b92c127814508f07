"""Hidden states of packed rows, which recipes learn from, and the labels that belong to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from draftproof.runners import altering, encoders
from draftproof.runners import torch as decoders
from draftproof.training.trainer import Batch


def logits_of(model: Any, states: Tensor) -> Tensor:
    """Logits (..., V) of post-norm states (..., d) of a decoder, alone or with an encoder."""
    if not encoders.is_one(model):
        return decoders.logits_of(model, states)
    model = getattr(model, "owner", model)  # an exit has the head of the model that it is in
    # Families scale and shift before and behind their heads, each in its own way: so it is the
    # model that is run, over one token, and its head reads these states.
    given: dict[str, Any] = {
        "encoder_outputs": altering.nothing_read(model),
        "decoder_input_ids": torch.zeros(1, 1, dtype=torch.long, device=states.device),
        "use_cache": False,
    }
    flat = states.reshape(1, -1, states.shape[-1])
    out, _ = altering.headed(model.get_decoder(), lambda _: flat, lambda: model(**given))
    logits: Tensor = out.logits
    return logits.reshape(*states.shape[:-1], -1)


def states_of(target: Any, batch: Batch) -> Tensor:
    """Post-norm hidden states (rows, L, d) of packed rows, what the LM head sees."""
    if "states" in batch:  # they were captured
        return batch["states"]
    if "read" in batch:
        return _across(target, batch)
    # The decoder alone: all layers' states, of which these are the last, would all be kept.
    out = target.get_decoder()(
        input_ids=batch["ids"], position_ids=batch["positions"], use_cache=False
    )
    states: Tensor = out.last_hidden_state
    return states


def _across(target: Any, batch: Batch) -> Tensor:
    """Of rows that are pairs (`read`), whose encoder runs first; padding is passed over."""
    ids, read = batch["ids"], batch["read"]
    read = read[:, : int((read >= 0).sum(1).max())]
    long = ids.shape[1]
    if "segments" in batch:
        long = int((batch["segments"] >= 0).sum(1).max())
    mask = (read >= 0).long()
    encoder, decoder = target.get_encoder(), target.get_decoder()
    given = encoder(input_ids=read.clamp(min=0), attention_mask=mask).last_hidden_state
    states: Tensor = decoder(
        input_ids=ids[:, :long],
        encoder_hidden_states=given,
        encoder_attention_mask=mask,
        use_cache=False,
    ).last_hidden_state
    return F.pad(states, (0, 0, 0, ids.shape[1] - long))


@torch.no_grad()
def _check_pair(target: Any, row: Batch) -> None:
    """As `check`: logits are the LM head's, and padding of what is read changes nothing."""
    name = type(target).__name__
    try:
        batch = on({key: tensor[None] for key, tensor in row.items()}, target.device)
        read = batch["read"][batch["read"] >= 0][None]
        own = target(input_ids=read, decoder_input_ids=batch["ids"], use_cache=False).logits
        longer = F.pad(read, (0, 3), value=-1)  # than the other row's, which is read whole
        twice = {key: torch.cat((tensor, tensor)) for key, tensor in batch.items()}
        twice["read"] = torch.cat((longer, longer.where(longer >= 0, read[0, 0])))
        both = logits_of(target, states_of(target, twice))[:1]
    except Exception as error:  # whatever a foreign model makes of it
        raise ValueError(
            f"{name} gives no hidden states to learn from ({type(error).__name__}: {error}): use "
            "another encoder-decoder of transformers"
        ) from error
    real = batch["segments"][0] >= 0
    # Routers of experts reckon in float32, whatever the model's precision is.
    eps = max(torch.finfo(own.dtype).eps, torch.finfo(torch.float32).eps)
    bound = 256 * eps * max(1.0, float(own.abs().max()))
    if _apart(both[:, real], own[:, real], bound):
        raise ValueError(
            f"the logits of {name} are not its LM head over its last hidden states, or padding of "
            "what it reads changes them: heads and drafts cannot learn from it"
        )


@torch.no_grad()
def check(target: Any, row: Batch) -> None:
    """Refuse a target whose states heads cannot learn from: `ValueError`.

    row: a packed row (L) of at least two tokens, on which everything is tried: that the LM head of
    the last states are the target's logits, and that documents in a row do not see each other.
    """
    if "read" in row:
        return _check_pair(target, row)
    name, half = type(target).__name__, len(row["ids"]) // 2
    try:
        ids = row["ids"][None].to(target.device)
        positions = torch.cat([torch.arange(half), torch.arange(len(row["ids"]) - half)])
        batch = {"ids": ids, "positions": positions.to(ids)[None]}
        states = states_of(target, batch)
        logits = target(input_ids=ids, position_ids=batch["positions"], use_cache=False).logits
        ours = logits_of(target, states)
    except Exception as error:  # whatever a foreign model makes of it
        raise ValueError(
            f"{name} gives no hidden states to learn from ({type(error).__name__}: {error}): use "
            "a causal language model of transformers"
        ) from error
    bound = 16 * torch.finfo(logits.dtype).eps * max(1.0, float(logits.abs().max()))
    if _apart(ours, logits, bound):
        raise ValueError(
            f"the logits of {name} are not its LM head over its last hidden states: heads cannot "
            "share it"
        )
    alone = {key: tensor[:, half:] for key, tensor in batch.items()}
    if _apart(logits_of(target, states_of(target, alone)), logits[:, half:], bound):
        raise ValueError(f"{name} lets packed documents see each other: it cannot be trained")


def _apart(logits: Tensor, others: Tensor, bound: float) -> bool:
    """Whether they differ by more; NaN does."""
    return not float((logits - others).abs().max()) <= bound


def on(batch: Batch, device: torch.device) -> Batch:
    """The batch on that device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def labelled(batch: Batch, ahead: int) -> tuple[Tensor, Tensor]:
    """Where (M,) in the flattened rows the token `ahead` positions on is learnt, and it (M,)."""
    ids, segments, taught = batch["ids"], batch["segments"], batch["taught"]
    length = ids.shape[1] - ahead
    if length < 1:
        return ids.new_zeros(0), ids.new_zeros(0)
    here, there = segments[:, :length], segments[:, ahead:]
    wanted = (here == there) & (here >= 0) & taught[:, ahead:]
    rows, columns = wanted.nonzero(as_tuple=True)
    return rows * ids.shape[1] + columns, ids[rows, columns + ahead]
