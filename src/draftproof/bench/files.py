"""What `draftproof bench` writes: JSON, a picture, Spec-Bench's JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from draftproof.bench.compare import Result
from draftproof.bench.picture import draw
from draftproof.bench.suite import Report
from draftproof.out_folders import whole


def write(report: Report, folder: Path, formats: Iterable[str] = ()) -> list[Path]:
    """JSON, a picture if matplotlib is there, and what `formats` asks for; the paths written.

    Raises `OSError` where a file cannot be written.
    """
    stem = time.strftime("%Y%m%d-%H%M%S") + ("-incomplete" if report.incomplete else "")
    written = [folder / f"{stem}.json"]
    found = report.as_dict()
    with whole(written[0]) as part:
        part.write_text(json.dumps(found, indent=1) + "\n")
    if "spec-bench" in formats:
        for each in filter(tells_steps, report.results):
            name = each.side.replace(" ", "-").translate({40: None, 41: None})
            path = folder / f"{stem}-{name}-T{each.temperature:g}-batch{each.batch}.jsonl"
            with whole(path) as part:
                part.write_text("".join(json.dumps(line) + "\n" for line in spec_bench(each)))
            written.append(path)
    picture = folder / f"{stem}.png"
    if draw(found, picture):
        written.append(picture)
    return written


def tells_steps(result: Result) -> bool:
    """Whether the side says what every step wrote; transformers' assistants do not."""
    return all(words.per_step is not None for each in result.answers for words in each.turns)


def spec_bench(result: Result) -> Iterable[dict[str, Any]]:
    """Lines as Spec-Bench's evaluation writes and reads them (hemingkx/Spec-Bench)."""
    for number, answer in enumerate(result.answers):
        steps = [words.per_step or [] for words in answer.turns]
        yield {
            "question_id": answer.prompt.id,
            "category": answer.prompt.category,
            "answer_id": f"{result.side}-{number}",
            "model_id": result.side,
            "choices": [
                {
                    "index": 0,
                    "turns": answer.texts,
                    "decoding_steps": [len(each) for each in steps],
                    "new_tokens": [written.tokens for written in answer.turns],
                    "wall_time": answer.seconds,
                    "accept_lengths": [size for each in steps for size in each],
                }
            ],
            "tstamp": time.time(),
        }
