"""`--quick`: less of everything that was not given, in all commands that have it."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof import certify as certificates
from draftproof.bundled.prompts import PROMPTS
from draftproof.cli import certify, demo, tune
from draftproof.demo import show
from draftproof.tuning import run as tuning

COMMANDS: dict[str, tuple[list[str], dict[str, int], dict[str, int]]] = {
    "certify": (
        ["certify", "bundled"],
        {"num_prompts": 6, "max_tokens": 48, "runs": 1000},
        certify.QUICK,
    ),
    "tune": (
        ["tune", "bundled"],
        {"num_prompts": 12, "max_tokens": 128, "rounds": 3},
        tune.QUICK,
    ),
    "demo": (["demo"], {"num_prompts": len(PROMPTS), "max_tokens": 128}, demo.QUICK),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What a command would do, which it is kept from."""
    seen: dict[str, int] = {}

    def kept(*given: Any, **named: Any) -> None:
        if isinstance(given[0], show.Options):
            seen.update(num_prompts=given[0].prompts, max_tokens=given[0].max_tokens)
        else:
            of = certify.QUICK.keys() | tune.QUICK.keys()
            prompts = given[2] if callable(given[1]) or isinstance(given[1], dict) else given[1]
            seen.update({name: named[name] for name in of & named.keys()}, num_prompts=len(prompts))
        raise ValueError("kept from it")

    monkeypatch.setattr(certificates, "certify", kept)
    monkeypatch.setattr(tuning, "tune", kept)
    monkeypatch.setattr(show, "demo", kept)
    return seen


@pytest.mark.parametrize("name", COMMANDS)
def test_what_was_not_given_is_less(run: Any, asked: dict[str, int], name: str) -> None:
    words, usual, quick = COMMANDS[name]
    assert quick.keys() == usual.keys() and all(quick[each] < usual[each] for each in usual)
    assert "kept from it" in run(*words).err and asked == usual
    run(*words, "--quick")
    assert asked == quick
    run(*words, "--quick", "--max-tokens", "40", "--num-prompts", str(usual["num_prompts"]))
    assert asked == quick | {"max_tokens": 40, "num_prompts": usual["num_prompts"]}
