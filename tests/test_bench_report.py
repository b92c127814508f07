"""What `draftproof bench` says of a run: heading, tables at any width, verdict, picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from draftproof.bench import report
from draftproof.bench.picture import draw


def result(side: str, ratio: float, **more: Any) -> dict[str, Any]:
    spread = {"median": ratio, "low": 0.9 * ratio, "high": 1.1 * ratio}
    return {
        "side": side,
        "temperature": 0.0,
        "batch": 1,
        "tokens_per_s": [90.0 * ratio, 100.0 * ratio],
        "of_plain": spread,
        "of_transformers": None,
        "predicted": None,
        "tokens_per_step": ratio,
        "acceptance": None,
        "differing": 0,
        "why": "",
    } | more


def run(*results: dict[str, Any], **options: Any) -> dict[str, Any]:
    acceptance = {"alpha": 0.5, "cumulative": [0.8, 0.4]}
    if not results:
        results = (
            result("draftproof none", 1.0),
            result("draftproof ngram", 1.5, acceptance=acceptance, why="A reason."),
            result("draftproof ngram+draft", 2.0, acceptance=acceptance),
            result("transformers", 3.0),
        )
    given = {
        "model": "some/model",
        "draft": "small",
        "heads": None,
        "inflate": None,
        "prompts": ["p.jsonl"],
        "max_tokens": 7,
        "draft_options": {"branch": 2},
    }
    about = {"runner": "native (amx)", "dtype": "int8", "threads": 2, "processor": "A CPU"}
    return {
        "options": given | options,
        "environment": about,
        "pass_seconds": {"1": 0.01, "4": 0.02},
        "prompts": 3,
        "results": list(results),
        "skipped": ["peer: no kernel"],
        "incomplete": "",
    }


def printed(found: dict[str, Any], width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(report.table(found, width))
    return file.getvalue()


def is_stacked(text: str) -> bool:
    return "\n  tokens/s  " in text


@pytest.mark.parametrize("width", [45, 60, 80, 120])
@pytest.mark.parametrize("slowest", [90.0, 1.0])  # the spread of the rounds below and above 100%
def test_tables_fit_and_nothing_is_cut(width: int, slowest: float) -> None:
    found = run()
    for each in found["results"]:
        each["tokens_per_s"] = [slowest, 95.0, 12345.6]
        each["of_plain"] = each["of_transformers"] = {"median": 1.0, "low": 0.1, "high": 150.0}
        each["predicted"] = {"speedup": 1.25}
    text = printed(found, width)
    assert all(len(line) <= width for line in text.splitlines()) and "…" not in text
    assert "ngram+draft" in text and "transformers" in text
    row = "ngram+draft" if is_stacked(text) else "ngram+draft 95 ±12895% 1.00 ±14900% 1.00 ±14900%"
    assert row in " ".join(text.split())
    heading = " ".join(text.split())
    assert "some/model: native (amx) runner, int8, 2 threads, A CPU; 3 prompts" in heading


def test_a_table_is_stacked_only_where_it_does_not_fit() -> None:
    assert is_stacked(printed(run(), 45)) and not is_stacked(printed(run(), 80))


def test_a_single_round_has_no_spread() -> None:
    once = result("draftproof ngram", 1.5, tokens_per_s=[150.0])
    once["of_plain"] = dict.fromkeys(("median", "low", "high"), 1.5)
    assert "±" in printed(run(), 80)
    text = printed(run(once), 80)
    assert "±" not in text.replace("± the farthest", "") and " 150 " in text and " 1.50 " in text


def test_an_interrupted_run_says_so() -> None:
    assert "incomplete: after a round" in printed(run() | {"incomplete": "after a round"}, 80)


def test_the_verdict_is_one_line_with_a_command() -> None:
    wanted = (
        "Fastest here: ngram+draft, 2.00x plain decoding: draftproof generate some/model "
        "--method ngram+draft --draft small --branch 2 --dtype int8 --chat PROMPT"
    )
    assert report.verdict(run(dtype="int8", chat=True)) == wanted


def test_the_verdict_is_over_all_cases() -> None:
    hot: dict[str, Any] = {"temperature": 1.0}
    results = [result("draftproof none", 1.0), result("draftproof none", 1.0, **hot)]
    results += [result("draftproof ngram", 3.0), result("draftproof ngram", 0.3, **hot)]
    assert report.verdict(run(*results)).startswith("Plain decoding is best here (ngram")
    results += [result("draftproof suffix", 1.2), result("draftproof suffix", 1.2, **hot)]
    assert report.verdict(run(*results)).startswith("Fastest here: suffix, 1.20x")
    assert "--method all" in report.verdict(run(results[0]))


def test_reasons_are_told_apart_from_who_is_missing() -> None:
    assert list(report.skipped(run())) == ["skipped: peer: no kernel"]
    first, second = report.notes(run())
    assert first.startswith("A pass over one token takes 10.00 ms") and "A reason." in second


def test_a_picture_of_what_drafts_and_of_what_does_not(tmp_path: Path) -> None:
    decided = result("draftproof auto", 1.2)
    decided["drafted_by"] = [[("", 3), ("ngram", 4)], [("ngram", 2), ("", 1), ("suffix", 5)]]
    runs = run(), run(result("draftproof none", 1.0)), run(decided)
    for name, found in zip("abc", runs, strict=True):
        assert draw(found, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
