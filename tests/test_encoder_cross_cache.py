"""Keys and values of cross-attention: made once for a request, never copied while it runs."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import draftproof as dp
from draftproof.runners.crossing import CROSS
from encoders import model, own, prompts


def projections(decoder: nn.Module) -> list[nn.Module]:
    """What makes keys and values of cross-attention, two of each layer."""
    found = []
    for path, module in decoder.named_modules():
        *_, before, name = ["", *path.split(".")]
        if before in CROSS and name in ("k", "v", "k_proj", "v_proj"):
            found.append(module)
    return found


@pytest.mark.parametrize("family", ["T5", "UMT5", "BART", "M2M100"])
def test_made_once_for_a_request_and_never_copied(family: str) -> None:
    """Eight requests, three at once: rows come and go, and one is aborted in the middle."""
    made = model(family)
    made_of: list[int] = []  # rows of inputs that were projected, by call
    handles = [
        module.register_forward_hook(
            lambda module, args, output: made_of.append(args[0].shape[:-1].numel())
        )
        for module in projections(made.get_decoder())
    ]
    assert len(handles) == 4
    try:
        llm = dp.LLM(made, speculate=dp.NGram(min_ngram=1), max_batch=3)
        runner: Any = llm.runner
        given = [prompt for prompt in prompts(9) if len(prompt) > 1]
        made_of.clear()
        requests = [
            llm.submit(prompt, dp.SamplingParams(max_tokens=4 + 5 * (n % 3)))[0]
            for n, prompt in enumerate(given)
        ]
        seen: dict[int, list[tuple[int, int]]] = {}
        together, step = set(), 0
        while llm.engine.scheduler.running or llm.engine.scheduler.waiting:
            llm.engine.step()
            step += 1
            if step == 3:
                llm.engine.abort(requests[2])
            together.add(len(llm.engine.scheduler.running))
            for key, brought in runner._inputs.items():
                pairs = runner._across[brought].values()
                at = [(keys.data_ptr(), values.data_ptr()) for keys, values in pairs]
                assert seen.setdefault(key, at) == at, "what was made of an input has moved"
        assert len(together) > 2 and len(seen) == len(given)
        # Later passes project one dead row; an input's rows are projected once by each module.
        assert sum(rows for rows in made_of if rows > 1) == 4 * sum(map(len, given))
        for number, (request, prompt) in enumerate(zip(requests, given, strict=True)):
            if number != 2:
                assert request.output == own(made, prompt, 4 + 5 * (number % 3))
        llm.engine.check()
    finally:
        for handle in handles:
            handle.remove()
