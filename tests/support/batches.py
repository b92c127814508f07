"""Files of batches: lines as clients of OpenAI write them, and what an output has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


def line(name: Any, body: dict[str, Any], url: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": body, **more}


def some(count: int, scored: bool = False) -> list[dict[str, Any]]:
    """Half of them begin alike; lengths, seeds and numbers of completions differ.

    scored: with log-probabilities, whose last bits are not the same in every batch on torch.
    """
    shared = "import sys\n\n\ndef main(arguments):\n" + "    print(arguments)\n" * 6
    made = []
    for at in range(count):
        own: dict[str, Any] = {"model": "m", "max_tokens": 3 + at % 7}
        own["prompt"] = (shared if at % 2 else "") + f"def f{at}(x):"
        own |= [{}, {"temperature": 0}, {"n": 2}, {"seed": 5}, {"stop": ["\n"]}][at % 5]
        own |= [{}, {"logprobs": 1} if scored else {}, {"repetition_penalty": 1.2}][at % 3]
        made.append(line(f"id {at}", own))
    return made


def write(path: Path, lines: list[Any]) -> Path:
    """Text as it is, everything else as JSON."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def answers(path: Path) -> dict[str, dict[str, Any]]:
    """By custom_id, each of which is there once."""
    listed = [json.loads(each) for each in path.read_text().splitlines()]
    found = {each["custom_id"]: each for each in listed}
    assert len(found) == len(listed)
    return found


def in_order(path: Path) -> list[bytes]:
    return sorted(path.read_bytes().splitlines(keepends=True))


def statistics(out: Path) -> list[dict[str, Any]]:
    """Who writes, a line for each answer, and what the run took."""
    return [json.loads(each) for each in Path(f"{out}.stats.jsonl").read_text().splitlines()]
