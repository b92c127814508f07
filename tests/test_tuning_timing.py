"""What steps take beside their passes is measured on steps of the size that is asked about."""

from __future__ import annotations

from contextlib import ExitStack

import draftproof as dp
import tiny
from draftproof.scheduler import PROMPT_BUDGET
from draftproof.tuning import recording, sources, timing

MODEL = tiny.model(max_position_embeddings=512)
LONG = PROMPT_BUDGET // 3  # tokens of a prompt: not all of them fit into one pass beside others


def test_texts_with_long_prompts_are_timed_together() -> None:
    """Read beside texts that are written, the last ones would begin when the first have ended."""
    prompts = [[1 + (text + at) % 90 for at in range(LONG)] for text in range(4)]
    params = dp.SamplingParams(max_tokens=24, ignore_eos=True)
    with dp.LLM(MODEL, speculate=None, max_batch=4) as llm, ExitStack() as stack:
        texts = recording.write(llm, prompts, ["all"] * 4, params, sources.look_ups())
        # Behind wrong drafts the last four steps have no room for as many tokens.
        for right, steps, timed in ((None, 23, 23), (False, 23, 19), (True, 5, 5)):
            side = timing._Side(llm, texts, 3, right, stack)
            side.steps(1)  # reads the prompts, and writes what comes first
            side.steps(1 + steps)
            assert len(side._took) == timed
            assert [request.output for request in side.requests] == [text.output for text in texts]


def test_texts_that_are_long_enough_are_timed_first() -> None:
    params = dp.SamplingParams(max_tokens=8, ignore_eos=True)
    with dp.LLM(MODEL, speculate=None, max_batch=4) as llm:
        texts = recording.write(llm, [[5] * 9, [6] * 3], ["all"] * 2, params, sources.look_ups())
    assert timing._fitting(texts, 1) == [texts[1]]
    texts[0].output *= 1 + timing.STEPS
    assert timing._fitting(texts, 1) == [texts[0]]
