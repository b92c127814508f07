"""Are texts those of an earlier run? Answers are matched by all that a text hangs on.

Not by how many clients there were, nor by fields that were sent besides: a run without speculation
is compared with one that has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from draftproof.traffic.answers import Answer

SHOWN = 24  # characters of a text, from where it differs


@dataclass(slots=True)
class Comparison:
    """equal: answers; differing: a line each; unknown: answers that the reference has not."""

    equal: int = 0
    differing: list[str] = field(default_factory=list)
    unknown: int = 0

    def __str__(self) -> str:
        parts = [f"{self.equal} texts equal the reference's", f"{len(self.differing)} differ"]
        return ", ".join(parts + ([f"{self.unknown} are not in it"] if self.unknown else []))


def read(path: Path) -> dict[str, str]:
    """Texts by what was asked, of a file that `--out` wrote.

    Raises `ValueError`: no such file, or one whose own texts differ.
    """
    texts: dict[str, str] = {}
    try:
        levels = json.loads(path.read_bytes())["levels"]
        answers = [each for level in levels for each in level["answers"] if each["fault"] is None]
        for each in answers:
            asked, text = str(each["asked"]), str(each["text"])
            if texts.setdefault(asked, text) != text:
                raise ValueError(
                    f"the reference {path} has several texts for {each['prompt']}: nothing can be "
                    "compared with it"
                )
    except OSError as error:
        raise ValueError(
            f"cannot read the reference {path}: {error.strerror}; give what load --out wrote"
        ) from error
    except (LookupError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no reference: give what load --out wrote") from error
    if not texts:
        raise ValueError(f"the reference {path} has no answers")
    return texts


def compared(answers: Iterable[Answer], texts: dict[str, str]) -> Comparison:
    """Every answer that came, beside the reference's."""
    found = Comparison()
    for answer in answers:
        if answer.fault is not None:
            continue
        text = texts.get(answer.asked)
        if text is None:
            found.unknown += 1
        elif text == answer.text:
            found.equal += 1
        else:
            found.differing.append(_difference(answer, text))
    return found


def _difference(answer: Answer, text: str) -> str:
    pairs = zip(answer.text, text, strict=False)
    shorter = min(len(answer.text), len(text))
    at = next((n for n, (own, other) in enumerate(pairs) if own != other), shorter)
    own, other = answer.text[at : at + SHOWN], text[at : at + SHOWN]
    return (
        f"{answer.question.prompt}, turn {answer.question.turn + 1}, character {at}: "
        f"{own!r} instead of {other!r}"
    )
