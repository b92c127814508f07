"""What a certificate says of what was compared, exercised, interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from draftproof import certify as certificates
from draftproof.certify import Case, Certificate, law, report
from draftproof.certify.identity import Finding, Outcome


def outcome(**changes: Any) -> Outcome:
    return replace(Outcome(positions=10, drafted=4, accepted=2, alone=2, together=2), **changes)


def test(**changes: Any) -> law.Test:
    one = law.Test("top_k=4", 0, [1], (0, 1000), 1000, 20, 0.5, 0.2, 0, 9, 6, 3)
    return replace(one, **changes)


test.__test__ = False  # type: ignore[attr-defined]


def certificate(*cases: Case) -> Certificate:
    return Certificate("torch", "float32", 0, [], cases=[*cases])


def case(laws: Sequence[law.Test] = (), rule: str = "rejection", **changes: Any) -> Case:
    return Case("x", rule, dict.fromkeys(certificates.SETTINGS, outcome(**changes)), [*laws])


TIE = Finding(True, "rounding", 0, 0, 1, 2, 0.0)
BAD = Finding(False, "wrong", 0, 0, 1, 2, 0.0)


def test_the_order_of_verdicts() -> None:
    silent, sound = case([test(drafted=0)]), case([test()])
    tied, bad = case(rule="coupled", near_ties=[TIE]), case(rule="coupled", defects=[BAD])
    assert certificate(sound).verdict == (
        "IDENTICAL: nothing differs over 50 positions and 1 tests of law"
    )
    assert certificate(sound, tied).verdict == (
        "NEAR-TIES: 5 tokens differ by rounding alone over 100 positions and 1 tests of law"
    )
    assert certificate(silent, tied).verdict == (
        "NOT EXERCISED: x under rejection (none of 1 tests of law); 5 tokens differ by rounding "
        "alone over 100 positions and 0 of 1 tests of law"
    )
    assert certificate(silent, tied, bad).verdict == (
        "DEFECT: 5 differences over 150 positions and 0 of 1 tests of law; not exercised: "
        "x under rejection (none of 1 tests of law)"
    )
    codes = [certificate(*cases).code for cases in ([sound], [sound, tied], [silent, tied])]
    assert codes == [certificates.IDENTICAL, certificates.NEAR_TIES, certificates.NOT_EXERCISED]
    assert certificate(silent, tied, bad).code == certificates.DEFECT


def test_only_tests_that_were_exercised_share_the_false_alarms() -> None:
    found = certificate(case([test(p=4e-4), test(), *[test(drafted=0, p=1e-9)] * 8]))
    assert found.tests == 2 and len(found.failed_laws) == 1  # of 10 it would pass; silence passes
    assert "failed tests of law over 50 positions and 2 of 10 tests of law" in found.verdict
    assert test(drafted=0, impossible=1).fails(1)


def test_tests_that_surely_find_nothing_do_not_count() -> None:
    few = test(runs=10, bins=2)
    assert certificate(case([few])).code == certificates.IDENTICAL
    found = certificate(case([few] * 28))  # which share the false alarms
    assert found.code == certificates.NOT_EXERCISED and not found.counted
    assert report.idle(found) == [
        "x, rejection: 28 of 28 tests of law not exercised: "
        "10 runs are too few to find any false law for certain"
    ]


def test_an_interrupt_leaves_what_was_finished() -> None:
    """Half a case is no proof, no pass by silence, and what differs in it differs."""
    settings = [*certificates.SETTINGS]
    half = Case("x", "coupled", {settings[0]: outcome(drafted=0)})
    begun = Case("y", "rejection", dict.fromkeys(settings, outcome(accepted=0)), [test()])
    interrupted = certificate(case(rule="coupled"), half, begun)
    interrupted.interrupted = "x, coupled, penalties"
    assert interrupted.code == 130
    assert interrupted.verdict == (
        "INCOMPLETE: interrupted in x, coupled, penalties; nothing differs over 100 of 110 "
        "positions and 1 tests of law"
    )
    assert "x, coupled: only 1 of 5 settings are finished" in report.idle(interrupted)
    assert "y, rejection: only 1 of 2 laws are finished" in report.idle(interrupted)
    half.outcomes[settings[0]] = outcome(defects=[BAD])
    assert interrupted.code == 130 and "1 differences" in interrupted.verdict
    finished = certificate(case(rule="coupled", drafted=0))
    finished.interrupted = "law"
    assert "(nothing was drafted)" in finished.verdict
