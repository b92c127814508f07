"""A batch told line by line, and written by several engines of which some are lost; without Ray."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import serving
from batches import line, write
from draftproof.batch.calls import Calls
from draftproof.batch.lines import Input
from draftproof.batch.run import Batch, Done

DEFAULTS = {"max_tokens": None, "temperature": 1.0}


def asked(folder: Path, count: int = 12) -> Input:
    """Lines of different lengths; some are refused."""
    bodies = [{"prompt": [5, 6, at], "max_tokens": 2 + 5 * (at % 4)} for at in range(count)]
    bodies[3]["max_tokens"] = 10**6
    lines = [line(str(at), body) for at, body in enumerate(bodies)]
    return Input(write(folder / "in.jsonl", lines))


def told(every: list[Done]) -> dict[str, str]:
    found = {each.id: json.dumps(each.answer, sort_keys=True) for each in every}
    assert len(found) == len(every)
    return found


def test_a_line_is_told_while_others_are_written(tmp_path: Path) -> None:
    """And what was told before somebody stopped listening need not be written again."""
    given = asked(tmp_path)
    with serving.llm(speculate=None) as llm:
        calls = Calls(llm, "m", DEFAULTS)
        whole = told(list(Batch(calls).write(given.lines)))
    assert whole.keys() == given.by_id.keys()
    with serving.llm(speculate=None) as llm:
        stream = Batch(Calls(llm, "m", DEFAULTS)).write(given.lines)
        first = [next(stream) for _ in range(4)]
        assert llm.engine.scheduler.running
        first = pickle.loads(pickle.dumps(first))  # as it comes from another process
    rest = [each for each in given.lines if each.id not in {done.id for done in first}]
    with serving.llm(speculate=None) as llm:
        assert told(first + list(Batch(Calls(llm, "m", DEFAULTS)).write(rest))) == whole
