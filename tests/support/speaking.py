"""A server whose model says what it is told to, drafts and all: what it writes is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import draftproof as dp
import tiny
import toolbox
from draftproof.request import Request
from serving import Server

CONTEXT = 1 << 16


class Script:
    """text: what is written next, and then the end; None: what the model likes."""

    def __init__(self) -> None:
        self.text: str | None = None

    def open(self, form: str, **options: Any) -> dp.LLM:
        """A model that speaks by it; what stands in the prompt is drafted."""
        tokenizer = toolbox.tokenizer(form)
        kinds = {"vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT}
        model = tiny.model("llama", dtype=torch.float64, num_hidden_layers=2, **kinds)
        usual = {"speculate": dp.NGram(16), "max_batch": 4, "prefix_cache": True}
        made = dp.LLM(model, **{"tokenizer": tokenizer, **usual, **options})
        of_ids = made.intake.of_ids

        def scripted(*given: Any) -> list[Request]:
            requests = of_ids(*given)
            if self.text is not None:
                ids = tokenizer(self.text, add_special_tokens=False)["input_ids"]
                for request in requests:
                    request.history.process = _rule(ids, len(request.prompt), made.end_ids[0])
            return requests

        made.intake.of_ids = scripted  # type: ignore[method-assign]
        return made


def server(script: Script, form: str, **options: Any) -> Server:
    return Server(lambda: script.open(form, **options))


def _rule(text: Sequence[int], prompt: int, end: int) -> Any:
    def only(ids: Tensor, row: Tensor) -> Tensor:
        at = len(ids) - prompt
        made = torch.full_like(row, -torch.inf)
        made[text[at] if at < len(text) else end] = 0.0
        return made

    return only
