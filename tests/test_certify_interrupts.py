"""An interrupted certificate: what is finished is returned, printed and written, and no more."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import draftproof as dp
from draftproof import certify as certificates
from draftproof import cli
from draftproof.certify import SETTINGS, law
from planted import PROMPTS, draft, target

SMALL = ("--num-prompts", "1", "--max-tokens", "4", "--runs", "20", "--threads", "1")


def interrupting(part: str) -> Callable[[str, float], None]:
    """What a certificate tells of its progress, until this part begins."""

    def tick(what: str, share: float) -> None:
        if what == part:
            raise KeyboardInterrupt

    return tick


def certify(part: str) -> certificates.Certificate:
    return certificates.certify(
        dp.LLM(target(), speculate=None),
        {"draft": lambda: dp.DraftModel(draft())},
        PROMPTS[:2],
        max_tokens=4,
        runs=20,
        contexts=1,
        tick=interrupting(part),
    )


def test_settings_that_were_compared_are_kept() -> None:
    third = [*SETTINGS][2]
    certificate = certify(f"draft, rejection, {third}")
    coupled, rejection = certificate.cases
    assert certificate.interrupted == f"draft, rejection, {third}" and certificate.code == 130
    assert [*coupled.outcomes] == [*SETTINGS][:3] and [*rejection.outcomes] == [*SETTINGS][:2]
    assert certificate.verdict.startswith("INCOMPLETE: interrupted in draft, rejection, ")
    assert "IDENTICAL" not in certificate.verdict and certificate.finished == []


def test_laws_that_were_tested_are_kept() -> None:
    first, second = law.SETTINGS
    certificate = certify(f"draft, law, {second}")
    coupled, rejection = certificate.cases
    assert certificate.finished == [coupled] and {one.setting for one in rejection.laws} == {first}
    assert rejection.unfinished == "1 of 2 laws"


@pytest.mark.parametrize("setting", ["plain, greedy", "draft, coupled, greedy"])
def test_before_anything_is_compared_it_is_an_interrupt(setting: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        certify(setting)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_shows_what_is_finished(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    real = certificates.certify

    def interrupted(*args: Any, **options: Any) -> Any:
        tick = interrupting(f"ngram, coupled, {[*SETTINGS][1]}")
        return real(*args, **(options | {"tick": tick}))

    monkeypatch.setattr(certificates, "certify", interrupted)
    words = ["certify", "bundled", "--methods", "ngram", *SMALL, *["--json"][: int(as_json)]]
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    out, err = capsys.readouterr()
    assert end.value.code == 130 and "Traceback" not in err
    if as_json:
        told = json.loads(out)
        assert told["code"] == 130 and told["interrupted"].startswith("ngram, coupled")
    else:
        assert "INCOMPLETE: interrupted in ngram, coupled, " in " ".join(out.split())
        assert "ngram, coupled: only 1 of 5 settings are finished" in out
