"""Hidden states of packed rows, which recipes learn from, and the labels that belong to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftproof.runners.torch import logits_of
from draftproof.training.trainer import Batch


def states_of(target: Any, batch: Batch) -> Tensor:
    """Post-norm hidden states (rows, L, d) of packed rows, what the LM head sees."""
    if "states" in batch:  # they were captured
        return batch["states"]
    # The decoder alone: all layers' states, of which these are the last, would all be kept.
    out = target.get_decoder()(
        input_ids=batch["ids"], position_ids=batch["positions"], use_cache=False
    )
    states: Tensor = out.last_hidden_state
    return states


@torch.no_grad()
def check(target: Any, row: Batch) -> None:
    """Refuse a target whose states heads cannot learn from: `ValueError`.

    row: a packed row (L) of at least two tokens, on which everything is tried: that the LM head of
    the last states are the target's logits, and that documents in a row do not see each other.
    """
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
    if float((ours - logits).abs().max()) > bound:
        raise ValueError(
            f"the logits of {name} are not its LM head over its last hidden states: heads cannot "
            "share it"
        )
    alone = {key: tensor[:, half:] for key, tensor in batch.items()}
    apart = logits_of(target, states_of(target, alone))
    if float((apart - logits[:, half:]).abs().max()) > bound:
        raise ValueError(f"{name} lets packed documents see each other: it cannot be trained")


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
