"""Keys and values of cross-attention: made once for a request, never copied while it runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import draftproof as dp
from draftproof.runners.crossing import CROSS, Roles
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
def test_made_once_for_a_request_and_never_copied(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight requests, three at once: rows come and go, and one is aborted in the middle."""
    made = model(family)
    made_of: list[int] = []  # rows of inputs that were projected, by call
    watched, linear = projections(made.get_decoder()), nn.Linear.forward
    assert len(watched) == 4

    def counted(module: nn.Linear, rows: Tensor) -> Tensor:
        if any(module is each for each in watched):
            made_of.append(rows.shape[:-1].numel())
        return linear(module, rows)

    with monkeypatch.context() as patched:
        patched.setattr(nn.Linear, "forward", counted)
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
        assert sum(made_of) == 4 * sum(map(len, given))  # and nothing in later passes
        for number, (request, prompt) in enumerate(zip(requests, given, strict=True)):
            if number != 2:
                assert request.output == own(made, prompt, 4 + 5 * (number % 3))
        llm.engine.check()


@pytest.mark.parametrize("family", ["T5", "UMT5"])
def test_biases_are_the_modules_own_and_follow_its_weights(family: str) -> None:
    """By distance, however far, in a line or not; kept only as long as its weights stay."""
    made = copy.deepcopy(model(family))
    kept = Roles(made.get_decoder()).tables[0]
    assert kept is not None
    like = made.shared.weight
    for turn, reach in enumerate((3, 200, 40)):
        distances = torch.arange(-reach, reach + 1)
        own = kept.module.compute_bias(reach + 1, reach + 1)  # of the last row: the distances to 0
        assert torch.equal(kept.at(distances[: reach + 1], like), own[:, :, -1]), turn
        assert torch.equal(kept.line(-reach, reach + 1, like), own[:, :, -1:]), turn
        with torch.no_grad():
            kept.module.relative_attention_bias.weight.mul_(1.5)
