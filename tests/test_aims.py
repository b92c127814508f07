"""docs/aims: figures of an aim stand in the entry of the log that it names, and verdicts follow."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "aims" / "aims.json"
AIMS = [a for s in json.loads(DATA.read_text(encoding="utf-8"))["subjects"] for a in s["aims"]]
LOGGED = [aim for aim in AIMS if "log" in aim]
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*(?:e-\d+)?")

sys.path.insert(0, str(ROOT / "scripts"))
import aims  # noqa: E402


def plain(text: str) -> str:
    """Without line breaks and bold type."""
    return " ".join(text.replace("**", "").split())


def entries() -> dict[str, str]:
    parts = re.split(r"^## ", (ROOT / "docs" / "log.md").read_text(encoding="utf-8"), flags=re.M)
    return {part.partition("\n")[0]: plain(part) for part in parts[1:]}


def complaints(aim: dict[str, Any], log: dict[str, str]) -> list[str]:
    """Quotes that the named entry lacks, and figures that the quotes lack."""
    said = " ".join(t for heading, t in log.items() if heading.split(":")[0] == aim["log"])
    if not said:
        said = " ".join(t for heading, t in log.items() if heading.startswith(aim["log"] + ","))
    missing = [quote for quote in aim["quote"] if plain(quote) not in said]
    told = NUMBER.findall(" ".join(aim["quote"]))
    return missing + [each for each in NUMBER.findall(aim["measured"]) if each not in told]


@pytest.mark.parametrize("aim", LOGGED, ids=lambda aim: aim["aim"][:50])
def test_the_log_says_so(aim: dict[str, Any]) -> None:
    assert complaints(aim, entries()) == []


def test_planted_figures_and_quotes_are_found() -> None:
    log = {"2026-01-01, first: a day": plain("it took **1.12**\nof 30 s")}
    aim = {"log": "2026-01-01, first", "quote": ["it took 1.12 of 30 s"], "measured": "1.12"}
    assert complaints(aim, log) == []
    assert complaints({**aim, "measured": "1.11"}, log) == ["1.11"]
    assert complaints({**aim, "quote": ["it took 1.12 of 40 s"]}, log) != []
    assert complaints({**aim, "log": "2026-01-02"}, log) != []


def test_every_aim_has_one_ground_and_what_falls_short_a_reason() -> None:
    for aim in AIMS:
        assert sum(key in aim for key in ("figures", "log", "tests")) <= 1, aim["aim"]
        verdict, row = aims.judged(aim)
        assert verdict == "yes" or aim.get("why"), aim["aim"]
        assert all((ROOT / path).exists() for path in aim.get("tests", ())), row
        assert len(row) == len(aims.HEADINGS) and not any("|" in cell for cell in row), row


def test_a_bar_is_judged_by_the_digits_that_are_shown() -> None:
    assert aims.holds([1.101, 0.97], ["<= 1.10", ">= 0.97"])
    assert not aims.holds([1.106, 0.97], ["<= 1.10", ">= 0.97"])
    assert not aims.holds([0.9694], [">= 0.97"])


def test_what_falls_short_comes_first() -> None:
    order = list(aims.VERDICTS)
    for number in range(len(aims.load("aims/aims")["subjects"])):
        lines = aims.subject(number).splitlines()[2:]
        cells = [line.split(" | ")[2].split(":")[0] for line in lines]
        ranks = [order.index(v) for cell in cells for v in order if aims.VERDICTS[v] == cell]
        assert len(ranks) == len(cells) and ranks == sorted(ranks)
