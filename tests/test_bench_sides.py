"""Who writes in a comparison: each side writes what plain decoding writes, and is counted."""

from __future__ import annotations

from typing import Any

import pytest

import draftproof as dp
import tiny
from draftproof.bench import sides
from draftproof.bench.sides import How
from spelling import model

HOW = How(temperature=0.0, max_tokens=12, seed=3, ignore_eos=True)
IDS = [[5, 6, 7, 5, 6], [9, 8, 7, 9, 8, 7, 9]]


@pytest.mark.parametrize("ignore_eos", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_all_sides_write_the_same_greedily(temperature: float, ignore_eos: bool) -> None:
    draft, how = tiny.relative(model()), How(temperature, 12, 3, ignore_eos)
    plain = dp.LLM(model(), speculate=None)
    ends = plain.end_ids
    everyone = [
        sides.ours("none", plain),
        sides.ours("ngram", dp.LLM(model(), speculate="ngram")),
        sides.ours("draft", dp.LLM(model(), speculate=dp.DraftModel(draft))),
        sides.transformers("", model(), ends),
        sides.transformers("lookup", model(), ends, batches=False, prompt_lookup_num_tokens=3),
        sides.assisted(model(), draft, ends, None),
        sides.assisted(model(), draft, ends, 3),
    ]
    reference = everyone[0].write(IDS, how)
    assert [len(w.token_ids) for w in reference] == [12, 12] or not ignore_eos
    for side in everyone:
        together = side.write(IDS, how) if side.batches else []
        alone = [side.write([ids], how)[0] for ids in IDS]
        if temperature == 0 or not side.peer:
            assert [w.token_ids for w in alone] == [w.token_ids for w in reference], side.name
            assert not together or [w.token_ids for w in together] == [
                w.token_ids for w in reference
            ]
        for written in alone:
            assert written.per_step is None or sum(written.per_step) == len(written.token_ids)
    assert model().generation_config.eos_token_id == 2
    assert getattr(draft.generation_config, "num_assistant_tokens", None) in (None, 20)


def test_steps_are_told_apart() -> None:
    assert sides._per_step([True, True, False, False, True]) == [3, 1, 1]
    assert sides._per_step([]) == []


def test_it_is_counted_what_was_drafted() -> None:
    llm = dp.LLM(model(), speculate=dp.DraftModel(tiny.relative(model()), 3, branch=2))
    side = sides.ours("draft", llm)
    assert side.drafted is not None
    (written,) = side.write(IDS[:1], HOW)
    assert written.stats is not None
    assert side.drafted.nodes - side.drafted.trees == written.stats.drafted
    assert 0 < side.drafted.depth < written.stats.drafted and side.drafted.seconds > 0
    side.drafted.reset()
    assert side.drafted == type(side.drafted)()


@pytest.mark.parametrize("method", [dp.Lookahead, lambda: dp.Hybrid([dp.NGram(), dp.Lookahead()])])
def test_a_side_drafts_as_generate_does(method: Any) -> None:
    """Lookahead reads the target's picks for its window: a wrapper that drops that drafts worse."""
    params = dp.SamplingParams(max_tokens=48, ignore_eos=True, seed=3)
    (wanted,) = dp.LLM(model(), speculate=method()).generate(IDS[:1], params)
    how = How(temperature=0.0, max_tokens=48, seed=3, ignore_eos=True)
    (written,) = sides.ours("lookahead", dp.LLM(model(), speculate=method())).write(IDS[:1], how)
    assert written.stats is not None and wanted.stats.steps < 48
    assert written.stats.steps == wanted.stats.steps
