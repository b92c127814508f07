"""No certificate passes emptily: silence, one-sidedness and tests without power are told of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from draftproof import certify as certificates
from draftproof.certify import Certificate, law, report
from draftproof.request import Request
from draftproof.tree import TokenTree
from planted import PROMPTS, assert_whole, lying_law, target, wrong_bonus, wrong_residual, wrong_row

Guess = Callable[[Request], list[int]]


class Planted:
    """A proposer that drafts what it is given, where it is told to."""

    taps: tuple[int, ...] = ()

    def __init__(self, guess: Guess, when: Callable[[Sequence[Request]], bool]) -> None:
        self.guess, self.when = guess, when

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        drafts = self.when(requests)
        return [
            TokenTree.chain([one.tokens[-1], *(self.guess(one) if drafts else [])])
            for one in requests
        ]


@torch.inference_mode()
def ranked(request: Request) -> list[int]:
    """Token ids, the likeliest first."""
    row = target()(torch.tensor([request.tokens])).logits[0, -1]
    return row.argsort(descending=True).tolist()


def likely(request: Request) -> list[int]:
    return ranked(request)[:1]


def unlikely(request: Request) -> list[int]:
    return ranked(request)[-1:]


def failing(request: Request) -> list[int]:
    raise RuntimeError("boom")


def when(
    drafts: Callable[[Sequence[Request]], bool], guess: Guess = likely
) -> Callable[[], Planted]:
    return lambda: Planted(guess, drafts)


ALWAYS = when(lambda requests: True)
NEVER = when(lambda requests: False)


def certified(method: Callable[[], Any], prompts: Any = None, **options: Any) -> Certificate:
    options = {"max_tokens": 6, "runs": 30, "contexts": 1, **options}
    model = options.pop("model", None) or target()
    return certificates.certify(
        dp.LLM(model, speculate=None), {"x": method}, prompts or PROMPTS[:2], **options
    )


# --- methods that draft nothing, or not everywhere ------------------------------------------------


@pytest.mark.parametrize("rule", certificates.RULES)
@pytest.mark.parametrize(
    "method",
    [NEVER, when(lambda requests: requests[0].prompt[0] == 1), lambda: None],
    ids=["never", "behind prompts that nobody tests", "plain decoding"],
)
def test_silence_is_no_pass(method: Callable[[], Any], rule: str) -> None:
    found = certified(method, rules=[rule], max_tokens=3, runs=6)
    assert found.code == certificates.NOT_EXERCISED and found.tests == 0
    assert found.verdict.startswith(f"NOT EXERCISED: x under {rule} (nothing was drafted")
    assert "nothing differs over 0 of" in found.verdict
    assert ("none of 2 tests of law" in found.verdict) == (rule == "rejection")


@pytest.mark.parametrize(
    ("drafts", "words"),
    [
        (lambda requests: requests[0].params.temperature > 0, "greedily"),
        (lambda requests: not requests[0].params.temperature, "where it samples"),
        (lambda requests: len(requests) > 1, "for one prompt alone"),
        (lambda requests: len(requests) == 1, "for several prompts in one step"),
    ],
)
def test_each_kind_of_request_must_have_drafts(
    drafts: Callable[[Sequence[Request]], bool], words: str
) -> None:
    found = certified(when(drafts), rules=["coupled"])
    assert found.code == certificates.NOT_EXERCISED and not found.defects
    assert f"(nothing was drafted {words})" in found.verdict


def test_settings_without_drafts_are_named_and_not_counted() -> None:
    method = when(lambda requests: requests[0].params.presence_penalty == 0)
    found = certified(method, rules=["coupled"])
    (case,) = found.cases
    assert found.code == certificates.IDENTICAL
    assert report.idle(found) == ["x, coupled: nothing was drafted under penalties"]
    assert found.verdict == (
        f"IDENTICAL: nothing differs over {case.positions} of {case.whole.positions} positions"
    )


@pytest.mark.parametrize("plant", [wrong_residual, wrong_bonus, wrong_row, lying_law])
def test_a_broken_rule_without_drafts_is_no_pass(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = certified(NEVER, max_tokens=3, runs=6)
    assert found.code == (
        certificates.DEFECT if plant is wrong_bonus else certificates.NOT_EXERCISED
    )
    assert "x under rejection (nothing was drafted; none of 2" in found.verdict or found.defects


def test_a_method_that_fails_at_once_is_told_of() -> None:
    found = certified(when(lambda requests: True, failing), rules=["coupled"])
    assert found.code == certificates.DEFECT
    assert "not exercised: x under coupled (nothing was drafted)" in found.verdict
    assert all("drafting stopped: RuntimeError: boom" in line for line in report.defects(found))


# --- drafts that show one side only ---------------------------------------------------------------


def test_a_method_that_is_always_rejected_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law, "SETTINGS", {"top_k=4": law.SETTINGS["top_k=4"]})
    found = certified(when(lambda requests: True, unlikely), max_tokens=4)
    assert found.code == certificates.IDENTICAL and found.tests == 1
    for rule, where in (("coupled", ""), ("rejection", " or accepted in its tests of law")):
        assert f"no draft of x under {rule} was accepted{where}" in found.verdict


def test_a_method_that_is_never_rejected_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law, "SETTINGS", {"top_k=4": law.SETTINGS["top_k=4"]})
    made = lambda: dp.DraftModel(target(), 3, min_confidence=0.0)  # noqa: E731
    found = certified(made, rules=["rejection"])
    assert found.verdict.endswith("no draft of x under rejection was rejected in its tests of law")


# --- runs that show nothing -----------------------------------------------------------------------


def test_runs_too_few_are_no_test() -> None:
    found = certified(ALWAYS, rules=["rejection"], runs=1, max_tokens=3)
    assert found.code == certificates.NOT_EXERCISED
    assert "x under rejection (none of 2 tests of law)" in found.verdict
    assert all("not exercised: all outcomes share one bin" in one for one in report.idle(found))


def test_a_law_of_one_outcome_is_no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    sure = dp.SamplingParams(temperature=1e-3, top_k=4)
    monkeypatch.setattr(law, "SETTINGS", {"top_k=4": sure})
    found = certified(ALWAYS, rules=["rejection"])
    assert found.code == certificates.NOT_EXERCISED
    assert "share one bin (the likeliest has a share of 1)" in report.idle(found)[-1]


def test_one_token_per_answer_is_no_test() -> None:
    assert certified(ALWAYS, max_tokens=1, rules=["coupled"]).code == certificates.NOT_EXERCISED


def test_texts_that_end_at_once_are_written_on() -> None:
    model = tiny.model("llama", initializer_range=0.1, num_hidden_layers=2)
    model.generation_config.eos_token_id = [*range(model.config.vocab_size)]
    found = certified(ALWAYS, model=model, rules=["coupled"])
    assert found.code == certificates.IDENTICAL
    assert found.cases[0].outcomes["greedy"].positions == 2 * (6 + 5)  # alone and together


@pytest.mark.parametrize("prompts", [[[5]], [PROMPTS[0]], [PROMPTS[0]] * 3])
def test_a_batch_has_two_texts(prompts: list[list[int]]) -> None:
    seen: list[tuple[str, float]] = []
    rules = certificates.RULES if prompts == [[5]] else ["coupled"]
    options = {"rules": rules, "runs": 40, "max_tokens": 4}
    found = certified(
        ALWAYS, prompts, tick=lambda what, share: seen.append((what, share)), **options
    )
    assert len({*map(tuple, found.prompts)}) == 2 and found.prompts[:-1] == prompts
    assert found.code == certificates.IDENTICAL
    assert all(case.whole.together for case in found.cases)
    assert_whole(seen)


def test_an_llm_that_drafts_is_not_its_own_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_row(monkeypatch)
    llm = dp.LLM(target(), speculate=ALWAYS())
    options: dict[str, Any] = {"max_tokens": 6, "rules": ["coupled"]}
    found = certificates.certify(llm, {"x": ALWAYS}, PROMPTS[:2], **options)
    assert found.code == certificates.DEFECT


def test_a_rule_named_twice_counts_once() -> None:
    found = certified(ALWAYS, rules=["coupled", "coupled"])
    assert len(found.cases) == 1


@pytest.mark.parametrize("name", ["prompts", "rules", "runs", "contexts", "max_tokens"])
def test_nothing_is_not_certified(name: str) -> None:
    options: dict[str, Any] = {"prompts": [], "rules": []}
    given: dict[str, Any] = {"prompts": PROMPTS, name: options.get(name, 0)}
    with pytest.raises(ValueError, match=f"{name}: 0 of them certify nothing"):
        certificates.certify(dp.LLM(target(), speculate=None), {"x": ALWAYS}, **given)
    with pytest.raises(ValueError, match="methods: 0 of them"):
        certificates.certify(dp.LLM(target(), speculate=None), {}, PROMPTS)
    with pytest.raises(ValueError, match="rule 'typical' cannot be certified"):
        certificates.certify(
            dp.LLM(target(), speculate=None), {"x": ALWAYS}, PROMPTS, rules=["typical"]
        )


def test_look_ups_are_exercised() -> None:
    """They draft nothing where nothing stood before."""
    found = certified(lambda: dp.NGram(min_ngram=3), rules=["rejection"], max_tokens=12, runs=40)
    for tested in found.cases[0].laws:
        assert tested.idle is None and tested.accepted and tested.rejected
        assert tested.drafted >= 40  # behind nearly every run's first token
