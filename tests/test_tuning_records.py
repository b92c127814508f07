"""What `tune` recorded goes on being of use where everything it hangs on is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import draftproof as dp
import tiny

PROMPTS = [[5, 6, 7, 5, 6, 7], [8, 9, 3]]
OPTIONS: dict[str, Any] = {"max_tokens": 6, "batches": (1,), "rounds": 0}


def test_a_draft_that_was_trained_again_is_asked_again(tmp_path: Path) -> None:
    draft, records = tmp_path / "draft", tmp_path / "records"
    target = tiny.model()
    tiny.relative(target).save_pretrained(draft)
    with dp.LLM(target, speculate=None, runner="torch", max_batch=2) as llm:

        def kept() -> set[str]:
            dp.tune(llm, PROMPTS, drafts=[str(draft)], records=records, **OPTIONS)
            return {file.name for file in records.glob("*.npz")}

        first = kept()
        assert len(first) == 2 and kept() == first
        tiny.model(seed=5).save_pretrained(draft)
        again = kept()
        assert first < again and len(again) == 4


def test_a_target_that_was_trained_again_writes_again(tmp_path: Path) -> None:
    """Nor has another target of the same name said what this one says."""
    records = tmp_path / "records"

    def kept(folder: Path) -> set[str]:
        with dp.LLM(folder, speculate=None, runner="torch", max_batch=2) as llm:
            dp.tune(llm, PROMPTS, records=records, **OPTIONS)
        return {file.name for file in records.glob("*.npz")}

    one, other = tmp_path / "a" / "final", tmp_path / "b" / "final"
    for folder in (one, other):
        tiny.model().save_pretrained(folder)
    first = kept(one)
    assert len(first) == 2 and kept(one) == first
    assert len(both := kept(other)) == 4
    tiny.model(seed=5).save_pretrained(one)
    assert len(again := kept(one)) == 6 and both < again


def test_only_what_was_recorded_is_removed(tmp_path: Path) -> None:
    records = tmp_path / "work"
    (records / "more").mkdir(parents=True)
    (records / "mine.npz").write_text("mine")
    with dp.LLM(tiny.model(), speculate=None, runner="torch", max_batch=2) as llm:
        found = dp.tune(llm, PROMPTS, records=records, **OPTIONS)
    assert len([*records.glob("*.npz")]) == 3
    found.save(tmp_path / "profile.json")
    assert sorted(each.name for each in records.iterdir()) == ["mine.npz", "more"]
