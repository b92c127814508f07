"""What plain decoding does at the end of a text, every rule does with drafts.

The same tokens, the same reason, the same error; and nothing is asked for behind an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.runners.base import Output, Work
from draftproof.scheduler import Scheduler
from draftproof.tree import TokenTree
from draftproof.verify import Typical
from fakes import Table, V, Wild, run

RULES: dict[str, Any] = {"coupled": "coupled", "rejection": "rejection", "typical": Typical()}
PROMPT = [1, 2, 3]


class Words:
    """A text of one letter per token; what it may not decode raises."""

    def __init__(self, stop: str = "", forbidden: int | None = None) -> None:
        self.text, self.stop, self.forbidden = "", stop, forbidden

    def push(self, tokens: Sequence[int], stops: bool) -> None:
        for token in tokens:
            if token == self.forbidden:
                raise KeyError(f"no word for {token}")
            self.text += chr(97 + token)

    def flush(self) -> None: ...

    def stopped(self) -> bool:
        return bool(self.stop) and self.stop in self.text


class Longer(Wild):
    """Drafts what the target will write, far behind its end, and something else beside it."""

    def __init__(self, truth: Table, answer: Sequence[int]) -> None:
        super().__init__(0, truth)
        self.answer = answer

    def grow(self, request: Request) -> TokenTree:
        follow = self.answer[len(request.output) :][:6]
        tokens, parents = [request.tokens[-1]], [-1]
        for token in follow:
            parent = len(tokens) - 1 if len(tokens) == 1 or tokens[-1] != 0 else len(tokens) - 2
            tokens += [token, 0] if token else [token]
            parents += [parent, parent] if token else [parent]
            if token:  # the chain goes on from the right one
                tokens[-2:], parents[-2:] = [0, token], [parent, parent]
        return TokenTree(tokens, parents)


def outcome(request: Request) -> tuple[Any, ...]:
    text = request.text.text if request.text is not None else ""
    return request.output, request.finish_reason, request.error, text, request.logprobs


def written(
    runner: Table, rule: str, proposer: Any = None, *, ends: Any = None, **options: Any
) -> tuple[Any, ...]:
    extra = {name: options.pop(name) for name in ("text", "max_length") if name in options}
    params = dp.SamplingParams(**{"max_tokens": 12, **options})
    asked = Request(0, PROMPT, params, seed=3, rule=rule, **extra)
    if ends is not None:
        asked.ends = lambda: ends(asked.tokens)
    engine = Engine(runner, proposer, rule=RULES[rule], scheduler=Scheduler(1), vocabulary=V)
    run(engine, [asked])
    return outcome(asked)


def answer(temperature: float) -> list[int]:
    return written(Table(), "coupled", temperature=temperature, max_tokens=30)[0]


CASES = [("coupled", 0.0), ("coupled", 0.8), ("rejection", 0.0), ("typical", 0.0)]


@pytest.mark.parametrize(("rule", "temperature"), CASES)
@pytest.mark.parametrize("end", ["id", "string", "criterion", "length", "context", "none"])
def test_a_row_that_nothing_can_be_picked_from_behind_every_token(
    rule: str, temperature: float, end: str
) -> None:
    known = answer(temperature)
    stop = next(i for i in range(3, 9) if known[i] not in known[:i])
    letters = "".join(chr(97 + token) for token in known[stop - 1 : stop + 1])
    for poisoned in range(14):

        def result(proposer: Any, poisoned: int = poisoned) -> tuple[Any, ...]:
            runner = Table(poison=lambda key, length: length == len(PROMPT) + poisoned)
            options: dict[str, Any] = {"temperature": temperature}
            if end == "id":
                options["stop_token_ids"] = [known[stop]]
            elif end == "string":
                options["text"] = Words(letters)
            elif end == "criterion":
                options["ends"] = lambda tokens: len(tokens) == len(PROMPT) + stop
            elif end == "context":
                options["max_length"] = len(PROMPT) + stop
            elif end == "length":
                options["max_tokens"] = stop
            return written(runner, rule, proposer, **options)

        wanted = result(None)
        for proposer in (Longer(Table(), known), *(Wild(seed, Table()) for seed in range(4))):
            assert result(proposer) == wanted, (poisoned, proposer)
        assert wanted[1] in ("error", "stop", "length")


class Above(Table):
    """A row with +inf behind so many tokens."""

    at = 0

    def row(self, before: Sequence[int]) -> torch.Tensor:
        row = super().row(before).clone()
        row[3] = torch.inf if len(before) == self.at else row[3]
        return row


def raising(when: bool, cause: str) -> None:
    if when:
        raise KeyError(cause)


def faulty(fault: str, at: int, rule: str, temperature: float, proposer: Any) -> tuple[Any, ...]:
    """What is written where `fault` comes behind the prompt and `at` tokens."""
    length = len(PROMPT) + at
    options: dict[str, Any] = {"temperature": temperature, "max_tokens": 12}
    runner = Table()
    if fault == "logprobs":  # of a row whose banned token is at +inf
        options |= {"logprobs": 1, "bad_token_ids": [3]}
        runner = Above()
        runner.at = length
    asked = Request(0, PROMPT, dp.SamplingParams(**options), seed=3, rule=rule)
    if fault == "decode":
        asked.text = Words(forbidden=answer(temperature)[at])
    elif fault == "criterion":
        asked.ends = lambda: bool(raising(len(asked.tokens) == length, "no more"))
    elif fault == "process":
        asked.history.process = lambda ids, row: (raising(len(ids) == length, "not here"), row)[1]
    engine = Engine(runner, proposer, rule=RULES[rule], scheduler=Scheduler(1), vocabulary=V)
    run(engine, [asked])
    return outcome(asked)


@pytest.mark.parametrize(("rule", "temperature"), CASES)
@pytest.mark.parametrize("fault", ["decode", "process", "criterion", "logprobs"])
def test_an_error_at_every_token(rule: str, temperature: float, fault: str) -> None:
    known = answer(temperature)
    for at in range(10):
        wanted = faulty(fault, at, rule, temperature, None)
        assert wanted[1] == ("error" if fault != "criterion" or at else "length"), at
        for proposer in (Longer(Table(), known), Wild(1, Table()), Wild(2, Table())):
            assert faulty(fault, at, rule, temperature, proposer) == wanted, at


def test_processors_are_not_asked_behind_an_end() -> None:
    """As `prefix_allowed_tokens_fn`, which knows no continuation of its own last token."""
    known, asked_for = answer(0.0), []

    def process(ids: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        asked_for.append(ids.tolist())
        return row

    for proposer in (None, Longer(Table(), known)):
        asked = Request(0, PROMPT, dp.SamplingParams(stop_token_ids=[known[4]]), seed=3)
        asked.history.process = process
        run(Engine(Table(), proposer, scheduler=Scheduler(1), vocabulary=V), [asked])
        assert asked.finish_reason == "stop" and len(asked.output) <= 5
    texts = [PROMPT + known[:i] for i in range(len(asked.output))]
    assert asked_for == 2 * texts


class Leaking(Table):
    """0 times infinity is NaN: a drafted token 0 breaks every row of its pass, and what is read."""

    def __init__(self, leaks: bool = True) -> None:
        super().__init__()
        self.leaks = leaks
        self.broken: dict[int, int] = {}  # key -> committed tokens that are sound

    def forward(self, work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
        before = {item.key: self.cached(item.key) for item in work}
        outputs = super().forward(work, taps)
        for item, output in zip(work, outputs, strict=True):
            if self.broken.get(item.key, 1 << 30) < before[item.key]:
                output.logits[:] = torch.nan
            elif item.tree is not None and 0 in item.tree.tokens[1:] and self.leaks:
                output.logits[:] = torch.nan
                if item.new:  # read beside it, and committed
                    self.broken[item.key] = before[item.key]
        return outputs

    def crop(self, key: int, length: int) -> None:
        super().crop(key, length)
        if self.broken.get(key, 0) >= length:
            self.broken.pop(key, None)

    def keep(self, key: int, path: Sequence[int]) -> None:
        super().keep(key, path)
        assert key not in self.broken


@pytest.mark.parametrize(("rule", "temperature"), CASES)
def test_a_draft_that_overflows_changes_nothing(rule: str, temperature: float) -> None:
    known = answer(temperature)
    wanted = written(Table(), rule, temperature=temperature)
    for proposer in (Longer(Table(), known), Wild(5, Table()), Wild(6, None)):
        assert written(Leaking(), rule, proposer, temperature=temperature) == wanted


def huge_token(model: Any, token: int) -> Any:
    """The model with an embedding that overflows in the first layer, and is never picked."""
    with torch.no_grad():
        model.get_input_embeddings().weight[token] = 3e38
        model.get_output_embeddings().weight[token] = 0
    return model


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_an_overflowing_draft_on_torch(temperature: float) -> None:
    model = huge_token(tiny.model(tie_word_embeddings=False), 5)
    rng = Random(0)

    class Poisonous:
        taps: tuple[int, ...] = ()

        def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
            return [
                TokenTree([r.tokens[-1], 5, rng.randrange(20), 7], [-1, 0, 0, 2]) for r in requests
            ]

    params = dp.SamplingParams(
        max_tokens=6, temperature=temperature, seed=1, bad_token_ids=[5], ignore_eos=True
    )
    (plain,) = dp.LLM(model, speculate=None).generate([[3, 4, 6]], params)
    (drafted,) = dp.LLM(model, speculate=Poisonous()).generate([[3, 4, 6]], params)
    assert plain.finish_reason == "length" and len(plain.token_ids) == 6
    assert (drafted.token_ids, drafted.error) == (plain.token_ids, None)
