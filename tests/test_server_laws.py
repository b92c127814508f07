"""The rule of rejection over HTTP: what clients count is the model's law, whoever drafts."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch import Tensor

import draftproof as dp
from chi_square import chi_square_p
from draftproof import verify
from draftproof.server.settings import Limits
from draftproof.tree import TokenTree
from laws import WARPED, exact_law, small
from serving import Server, events

pytestmark = pytest.mark.slow
PROMPT, LENGTH = [1, 3], 3
MANY = 200  # completions of a call


def opened() -> dp.LLM:
    draft = dp.DraftModel(small(1), 3, min_confidence=0.0, branch=2)
    return dp.LLM(small(0), speculate=draft, max_batch=100, prefix_cache=True)


def counted(server: Server, seed: int, stream: bool, asked: dict[str, Any]) -> tuple[Counter, int]:
    """The first tokens of the texts of one call, and how many drafted tokens were accepted."""
    body: dict[str, Any] = {"prompt": PROMPT, "seed": seed, "n": MANY, "rule": "rejection"}
    body |= {"max_tokens": LENGTH + 1, "ignore_eos": True, "logprobs": 0, **asked}
    body |= {"return_tokens_as_token_ids": True, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    answer = server.post("/v1/completions", **body)
    assert answer.status_code == 200, answer.text
    told = [*events(answer.text)] if stream else [answer.json()]
    texts: list[list[int]] = [[] for _ in range(MANY)]
    for choice in (choice for each in told for choice in each["choices"]):
        names = choice["logprobs"]["tokens"]
        texts[choice["index"]] += [int(name.removeprefix("token_id:")) for name in names]
    details = told[-1]["usage"]["completion_tokens_details"]
    assert details["rejected_prediction_tokens"] > MANY // 4
    counts = Counter(tuple(text[:LENGTH]) for text in texts)
    return counts, details["accepted_prediction_tokens"]


def check(asked: dict[str, Any]) -> None:
    """Four calls at once, half of them streams."""
    with (
        Server(opened, Limits(queued=4 * MANY, n=MANY, texts=MANY)) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        calls = [pool.submit(counted, server, at, at % 2 > 0, asked) for at in range(4)]
        found = [call.result() for call in calls]
    assert all(accepted > MANY // 4 for _, accepted in found)
    counts = sum((counts for counts, _ in found), Counter())
    assert counts.total() == 4 * MANY
    law = exact_law(small(0), dp.SamplingParams(**asked), PROMPT, LENGTH)
    assert chi_square_p(counts, law) > 1e-5


@pytest.mark.parametrize("asked", [{"temperature": 1.0}, WARPED], ids=["plain", "warped"])
def test_the_law_of_rejection(asked: dict[str, Any]) -> None:
    check(asked)


def test_a_wrong_residual_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same test: a rejected token is replaced from p and not from norm((p - q)+)."""
    whole = verify._round

    def wrong(tree: TokenTree, u: int, p: Tensor, coins: list[float]) -> tuple[Tensor, int | None]:
        return p, whole(tree, u, p, coins)[1]

    monkeypatch.setattr(verify, "_round", wrong)
    with pytest.raises(AssertionError, match="1e-05"):
        check({"temperature": 1.0})
