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
