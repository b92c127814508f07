"""What a grammar costs, and what its forced tokens and a prediction save, beside plain decoding.

    python benchmarks/structured.py build/smollm2 --out docs/structured/smollm2.json

Greedy; the sides of a comparison in turn, medians of `--rounds` behind one that warms up. A text
that differs between sides ends the run. Best on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import draftproof as dp
from draftproof import clock
from draftproof.proposers.forced import Forced

ANSWER = 200  # tokens of an answer
CHANGED = 0.1  # of the lines of a prediction
PROMPTS = (
    "Write a Python class for a bank account, with ten short methods.",
    "List twenty animals, one a line, each with a few words about it.",
    "Write a poem of twenty lines about the sea.",
    "Write the rules of a chess club, as a list of short points.",
)
RECORD = "Describe a person who lives in Oslo and repairs bicycles, as JSON."
TEXT = {"type": "string", "maxLength": 24}
WORD = {"type": "string", "pattern": "^[a-z]{2,12}$"}
NUMBER = {"type": "integer", "minimum": 0, "maximum": 9999}
FIELDS: dict[str, Any] = {
    "first_name": TEXT,
    "last_name": TEXT,
    "date_of_birth": {"type": "string", "pattern": "^(19|20)[0-9]{2}-[01][0-9]-[0-3][0-9]$"},
    "occupation": WORD,
    "street_address": TEXT,
    "house_number": NUMBER,
    "postal_code": {"type": "string", "pattern": "^[0-9]{4}$"},
    "country_code": {"enum": ["NO", "SE", "DK", "FI"]},
    "is_self_employed": {"type": "boolean"},
    "years_of_experience": {"type": "integer", "minimum": 0, "maximum": 60},
    "preferred_language": WORD,
    "monthly_income": NUMBER,
}
SCHEMA = {
    "type": "object",
    "properties": FIELDS,
    "required": [*FIELDS],
    "additionalProperties": False,
}
ANYTHING = dp.Grammar.regex(r"[\s\S]*")


@dataclass
class Side:
    """A way to write the same texts: with which LLM, from what, with which parameters of each."""

    llm: dp.LLM
    prompts: Sequence[list[int]]
    params: Sequence[dp.SamplingParams]

    def write(self) -> tuple[float, list[list[int]]]:
        """Seconds, one text after another; and their tokens."""
        began, written = time.perf_counter(), []
        for prompt, one in zip(self.prompts, self.params, strict=True):
            written.append(write(self.llm, prompt, one).token_ids)
        return time.perf_counter() - began, written


SALTS = itertools.count()


def write(llm: dp.LLM, prompt: list[int], params: dp.SamplingParams) -> dp.Completion:
    """With a salt of its own: else a text that was written before would be looked up."""
    (request,) = llm.prepare(prompt, params, salt=str(next(SALTS)))
    for _ in llm.engine.run([request]):
        pass
    return request.completion()


def ratios(sides: Mapping[str, Side], rounds: int) -> dict[str, list[float]]:
    """Of every round: seconds of the first side over each other one's; the texts have to agree."""
    plain, *others = sides
    found: dict[str, list[float]] = {name: [] for name in others}
    first = None
    for turn in range(rounds + 1):
        seconds = {}
        for name in clock.in_turn([*sides], turn):
            seconds[name], written = sides[name].write()
            first = first or written
            if written != first:
                raise SystemExit(f"{name} writes another text than {plain}")
        for name in others if turn else ():
            found[name].append(seconds[plain] / seconds[name])
    return found


def edited(text: str, seed: int) -> str:
    """With some of its lines replaced by others of the same length, one at least."""
    lines, rng = text.split("\n"), random.Random(seed)
    full = [at for at, line in enumerate(lines) if line.strip()]
    for at in rng.sample(full, max(1, round(CHANGED * len(full)))):
        words = lines[at].split(" ")
        rng.shuffle(words)
        lines[at] = " ".join([*words[::2], "altogether", *words[1::2]])
    return "\n".join(lines)


class Benchmark:
    def __init__(self, plain: dp.LLM, rounds: int) -> None:
        self.plain, self.rounds = plain, rounds
        self.auto = dp.LLM(plain, speculate="auto")
        chats = bool(getattr(plain.tokenizer, "chat_template", None))
        of: Callable[[str], list[int]] = plain.intake.chat_ids if chats else plain.intake.ids
        self.prompts, self.record = [of(prompt) for prompt in PROMPTS], [of(RECORD)]

    def free(self, **more: Any) -> list[dp.SamplingParams]:
        return [dp.SamplingParams(max_tokens=ANSWER, **more)] * len(self.prompts)

    def a_token_under_a_grammar(self) -> dict[str, list[float]]:
        """Whose every pick is allowed."""
        sides = {
            "free": Side(self.plain, self.prompts, self.free()),
            "grammar": Side(self.plain, self.prompts, self.free(grammar=ANYTHING)),
        }
        return ratios(sides, self.rounds)

    def forced(self) -> dict[str, list[float]]:
        """A document of twelve fields."""
        params = [dp.SamplingParams(max_tokens=600, grammar=dp.Grammar.json(SCHEMA))]
        with dp.LLM(self.plain, speculate=Forced()) as alone:
            sides = {
                "plain": Side(self.plain, self.record, params),
                "json-auto": Side(self.auto, self.record, params),
                "json-forced": Side(alone, self.record, params),
            }
            return ratios(sides, self.rounds)

    def predictions(self) -> dict[str, list[float]]:
        """The answer itself, in part changed; and one that has nothing to do with it."""
        (one, *_) = self.free()
        texts = [write(self.plain, prompt, one).text for prompt in self.prompts]
        sides = {"plain": Side(self.plain, self.prompts, self.free())}
        for name, given in (
            ("prediction-changed", [edited(text, seed) for seed, text in enumerate(texts)]),
            ("prediction-unrelated", [*texts[1:], texts[0]]),
        ):
            params = [replace(one, prediction=text) for text in given]
            sides[name] = Side(self.auto, self.prompts, params)
        sides["prediction-none"] = Side(self.auto, self.prompts, self.free())
        return ratios(sides, self.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with dp.LLM(asked.model, speculate=None, threads=asked.threads) as plain:
        print(plain, flush=True)
        made, runner = Benchmark(plain, asked.rounds), plain.runner
        found = made.a_token_under_a_grammar() | made.forced() | made.predictions()
    for name, each in found.items():
        print(f"{name}: {statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})")
    if asked.out is not None:
        about = {
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "machine": clock.machine(),
            "model": Path(asked.model).name,
            "runner": f"{runner.name}, {runner.precision}",
            "rounds": asked.rounds,
        }
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps({**about, "ratios": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
