"""The certificate: sound engines pass, and each of eight planted defects is found."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import foretoken as ft
import tiny
from foretoken import certify as certificates
from foretoken import cli, engine, native, request, sampling
from foretoken import verify as verification
from foretoken.certify import Certificate, identity, law, report
from foretoken.proposers.growing import Growth
from foretoken.runners.attention import Segment
from foretoken.runners.committed import Committed
from foretoken.tree import TokenTree

RNG = Random(0)
PROMPTS = [[RNG.randrange(3, 97) for _ in range(5 + 6 * i)] for i in range(4)]


@cache
def target() -> PreTrainedModel:
    """Weights of a usual size: with larger ones rounding grows from layer to layer."""
    return tiny.model("llama", initializer_range=0.1)


@cache
def draft() -> PreTrainedModel:
    return tiny.relative(target(), 0.3)


def methods() -> dict[str, Callable[[], Any]]:
    return {"draft": lambda: ft.DraftModel(draft(), 5, min_confidence=0.0)}


def certify(llm: ft.LLM | None = None, **options: Any) -> Certificate:
    options = {"max_tokens": 30, "runs": 40, "contexts": 1, **options}
    return certificates.certify(llm or ft.LLM(target()), methods(), PROMPTS, **options)


def causes(found: Certificate) -> set[str]:
    return {finding.cause for _, _, finding in found.defects}


# --- sound ----------------------------------------------------------------------------------------


def test_a_sound_engine_is_identical() -> None:
    counted: Counter[str] = Counter()
    found = certify(runs=1000, tick=lambda what, count: counted.update({what: count}))
    assert found.code == certificates.IDENTICAL and not found.defects and not found.near_ties
    assert found.verdict.startswith("IDENTICAL: nothing differs over")
    coupled, rejection = found.cases
    assert set(coupled.outcomes) == set(certificates.SETTINGS)
    assert set(rejection.outcomes) == {"greedy", certificates.ENDED}
    for outcome in coupled.outcomes.values():
        assert outcome.positions and outcome.accepted > outcome.positions / 8
        assert 0 < outcome.difference <= found.bound.value  # really another pass
    assert 0 < found.bound.value < 1e-3
    assert found.bound.blocks > 0 and (found.bound.rounding or 0.0) > 0
    assert len(rejection.laws) == len(law.SETTINGS) and not coupled.laws
    assert all(test.bins > 5 and test.p > 1e-3 and not test.impossible for test in rejection.laws)
    assert counted.total() == certificates.total(1, 4, certificates.RULES, 1000, 1)


@pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
def test_on_the_native_runner_not_a_bit_may_differ() -> None:
    model = tiny.model("llama", dtype=torch.bfloat16, head_dim=16)
    llm = ft.LLM(model, runner="native")
    made = {"ngram": lambda: ft.NGram(min_ngram=1), **methods()}
    found = certificates.certify(llm, made, PROMPTS, max_tokens=24, rules=["coupled"])
    assert found.code == certificates.IDENTICAL
    assert found.bound == identity.Bound(0.0, 0.0, None, 0.0)
    assert all(case.whole.difference == 0.0 for case in found.cases)
    assert "no logit may differ" in report.bound(found)


def test_near_ties_are_counted_and_nothing_hides_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A runner in bfloat16 rounds otherwise for one row and for many."""
    model = tiny.model("llama", vocab_size=4000, dtype=torch.bfloat16)
    made = {"draft": lambda: ft.DraftModel(model, 5, min_confidence=0.0)}
    found = certificates.certify(
        ft.LLM(model), made, [[7 * i + 3, *p] for i, p in enumerate(PROMPTS)], rules=["coupled"]
    )
    assert found.code == certificates.NEAR_TIES and found.near_ties
    assert found.verdict.startswith(f"NEAR-TIES: {found.near_ties} tokens differ by rounding")
    # Each prompt is compared to its end, whatever came before: twice, alone and in the batch.
    outcome = found.cases[0].outcomes["temperature 0.7"]
    written = sum(each.max_tokens for each in found.settings["temperature 0.7"])
    assert outcome.near_ties and outcome.positions == 2 * written


# --- eight planted defects ------------------------------------------------------------------------


def wrong_residual(patch: pytest.MonkeyPatch) -> None:
    """A rejected token is replaced from p and not from norm((p - q)+)."""
    whole = verification._round

    def round_(tree: TokenTree, u: int, p: Tensor, coins: list[float]) -> tuple[Tensor, int | None]:
        _, accepted = whole(tree, u, p, coins)
        return p, accepted

    patch.setattr(verification, "_round", round_)


def shared_noise(patch: pytest.MonkeyPatch) -> None:
    """The coins come from the stream that the draft drew from."""
    patch.setattr(engine, "VERIFIER", 0)

    def generator(self: request.Request, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed % 2**63)

    patch.setattr(request.Request, "generator", generator)


def lying_law(patch: pytest.MonkeyPatch) -> None:
    """The draft draws from one law and tells another."""
    whole = sampling.draw_distinct

    def draw(p: Tensor, k: int, rng: torch.Generator) -> tuple[list[int], list[Tensor]]:
        ids, laws = whole(p, k, rng)
        return ids, [each.pow(2) / each.pow(2).sum() for each in laws]

    patch.setattr(sampling, "draw_distinct", draw)


def not_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """Of the tree's scratch the first nodes are kept, whichever were accepted."""
    whole = Committed.keep

    def keep(self: Committed, key: int, path: Sequence[int]) -> None:
        whole(self, key, range(len(path)))

    patch.setattr(Committed, "keep", keep)


def wrong_position(patch: pytest.MonkeyPatch) -> None:
    """A sibling stands behind the one before it."""

    def positions(self: Segment) -> list[int]:
        nodes = 0 if self.tree is None else len(self.tree)
        return [*range(self.cached, self.root), *range(self.root + self.first, self.root + nodes)]

    patch.setattr(Segment, "positions", positions)


def foreign_penalty(patch: pytest.MonkeyPatch) -> None:
    """A node's history holds its siblings too."""
    patch.setattr(TokenTree, "path_tokens", lambda self, i: list(self.tokens[1 : i + 1]))


def wrong_row(patch: pytest.MonkeyPatch) -> None:
    """The bonus is picked after the token before it."""
    whole = verification.verify

    def verify(tree: TokenTree, picks: Any) -> tuple[list[int], int]:
        path, bonus = whole(tree, picks)
        return path, picks[path[-2]] if len(path) > 1 else bonus

    patch.setattr(engine, "verify", verify)


def end_in_the_middle(patch: pytest.MonkeyPatch) -> None:
    """Stop tokens are looked for at the end of a step only."""
    whole = request.Request.accept

    def accept(
        self: request.Request, tree: TokenTree, path: Sequence[int], bonus: int, logits: Tensor
    ) -> list[int]:
        stops, self.stop_ids = self.stop_ids, self.stop_ids & {bonus}
        written = whole(self, tree, path, bonus, logits)
        self.stop_ids = stops
        return written

    patch.setattr(request.Request, "accept", accept)


PLANTED = {
    not_rolled_back: "logits that verified",
    wrong_position: "logits that verified",
    foreign_penalty: "does not follow",
    wrong_row: "does not follow",
    end_in_the_middle: "wrote on",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch)
    found = certify(rules=["coupled"])
    assert found.code == certificates.DEFECT and found.verdict.startswith("DEFECT")
    assert any(PLANTED[plant] in cause for cause in causes(found))
    assert len(report.defects(found)) <= report.SHOWN
    json.dumps(report.as_dict(found, "tiny"), allow_nan=False)


@pytest.mark.parametrize(
    "plant", [wrong_residual, shared_noise, lying_law], ids=lambda plant: plant.__name__
)
def test_a_false_law_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = certify(rules=["rejection"], runs=1500)
    assert found.code == certificates.DEFECT
    assert found.false_laws and not found.defects  # greedy output is right all the same
    assert "do not follow the target's law" in report.defects(found)[0]


def test_a_drafter_that_fails_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Growth) -> TokenTree:
        raise RuntimeError("boom")

    monkeypatch.setattr(Growth, "tree", fail)
    found = certify(rules=["coupled"])
    assert causes(found) == {"drafting stopped: RuntimeError: boom"}


# --- its parts ------------------------------------------------------------------------------------


def test_the_exact_law_is_what_plain_decoding_follows() -> None:
    llm, params = ft.LLM(target(), rule="rejection"), law.SETTINGS["penalties, top_k=4"]
    ids = PROMPTS[1]
    want = law.exact(llm, ids, params)
    assert math.isclose(sum(want.values()), 1.0) and len(want) == 4**3
    (triple, share) = max(want.items(), key=lambda pair: pair[1])
    history, p = sampling.History(ids), 1.0
    for i, token in enumerate(triple):
        with torch.no_grad():
            row = target()(torch.tensor([[*ids, *triple[:i]]])).logits[0, -1]
        p *= float(sampling.law(row, params, history, triple[:i])[token])
    assert math.isclose(p, share, rel_tol=1e-4)


def test_chi_square_pools_what_is_rare() -> None:
    want = {(0,): 0.5, (1,): 0.494, (2,): 0.003, (3,): 0.003}
    assert law.chi_square(want, Counter({(0,): 500, (1,): 494, (2,): 6}), 1000) == (3, 1.0)
    assert law.chi_square(want, Counter({(0,): 50, (1,): 50}), 100)[0] == 2
    bins, p = law.chi_square({(0,): 0.5, (1,): 0.5}, Counter({(0,): 60, (1,): 40}), 100)
    assert bins == 2 and math.isclose(p, math.erfc(math.sqrt(2.0)), rel_tol=1e-9)  # z = 2
    assert law.chi_square({(0,): 1.0}, Counter({(0,): 9}), 9) == (1, 1.0)


def test_a_difference_that_is_no_number_is_infinite() -> None:
    row = torch.tensor([1.0, -math.inf, 2.0])
    assert identity.difference(row, row.clone()) == 0.0
    assert identity.difference(row, torch.tensor([1.0, -math.inf, 2.5])) == 0.5
    for bad in (math.nan, math.inf, -math.inf):
        assert identity.difference(row, torch.tensor([1.0, -math.inf, bad])) == math.inf


def test_none_is_not_certified() -> None:
    with pytest.raises(ValueError, match="what everything is compared with"):
        certificates.certify(ft.LLM(target()), {"none": lambda: None}, PROMPTS)


# --- the command ----------------------------------------------------------------------------------


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["certify", *arguments])
    return int(ended.value.code or 0)


SMALL = ("--num-prompts", "2", "--max-tokens", "12", "--runs", "20")


@pytest.fixture
def bundled() -> Iterator[tuple[str, ...]]:
    yield ("bundled", "--draft", "bundled", *SMALL)


def test_the_command_certifies(bundled: tuple[str, ...], capsys: Any) -> None:
    assert run(*bundled) == 0
    shown = capsys.readouterr().out
    assert "IDENTICAL" in shown and "ngram" in shown and "draft" in shown and "chi-square" in shown
    assert run(*bundled, "--method", "ngram", "--rule", "coupled", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["code"] == 0 and [case["method"] for case in told["cases"]] == ["ngram", "draft"]


def test_the_command_writes_a_script_that_shows_the_defect(
    bundled: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    with monkeypatch.context() as patch:
        wrong_row(patch)
        code = run(*bundled, "--method", "draft", "--rule", "coupled", "--out", str(tmp_path))
    assert code == 1 and "DEFECT" in capsys.readouterr().out
    (script,) = tmp_path.glob("foretoken-defect-*.py")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert ran.stdout.count("same tokens") == 2  # the engine in that process is sound


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "draft"), "needs a model: add --draft"),
        (("--method", "nonsense"), "cannot be certified: use ngram"),
        (("--method", "none"), "cannot be certified"),
        (("--rule", "typical"), "rule 'typical' is unknown"),
        (("--runs", "0"), "--runs is 0"),
        (("--max-tokens", "99999"), "do not fit in max_length"),
        (("--prompts", "/nowhere.jsonl"), "cannot read the prompts"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str, capsys: Any) -> None:
    assert run("bundled", *arguments) == 2
    assert words in capsys.readouterr().err
