"""Documents under many schemas: valid unless cut by the length, and the same whatever drafts."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest

import draftproof as dp
from drafters import NATIVE

pytestmark = NATIVE  # the bundled model on torch is slow

SCHEMAS, EACH = 40, 25  # a thousand documents
TEMPERATURES = (0.0, 0.7, 1.5)
LEAVES: list[Any] = [
    {"type": "boolean"},
    {"type": "null"},
    {"type": "integer", "minimum": -9, "maximum": 120},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "string", "maxLength": 10},
    {"type": "string", "pattern": "^[a-z]{2,6}(_[0-9]{1,2})?$"},
    {"enum": ["red", "light green", 3, None, True]},
    {"const": {"v": 1}},
    {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"enum": ["none"]}]},
]
NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": 0, "maximum": 9},
        "next": {"type": "array", "maxItems": 1, "items": {"$ref": "#/$defs/node"}},
    },
    "required": ["value"],
    "additionalProperties": False,
}


def schema(seed: int) -> dict[str, Any]:
    """Nested, with optional fields, and every fourth with a list that refers to itself."""
    rng = Random(seed)

    def part(depth: int) -> Any:
        kind = rng.random()
        if depth and kind < 0.25:
            return fields(depth - 1)
        if depth and kind < 0.45:
            return {"type": "array", "minItems": 1, "maxItems": 2, "items": part(depth - 1)}
        return rng.choice(LEAVES)

    def fields(depth: int) -> dict[str, Any]:
        names = rng.sample(["id", "name", "kind", "a b", "größe", "list"], rng.randint(1, 3))
        return {
            "type": "object",
            "properties": {name: part(depth) for name in names},
            "required": [name for name in names if rng.random() < 0.6],
            "additionalProperties": False,
        }

    made = fields(2)
    if seed % 4 == 0:
        made["properties"]["node"] = {"$ref": "#/$defs/node"}
        made["required"].append("node")
        made["$defs"] = {"node": NODE}
    return made


@pytest.mark.parametrize(
    ("schemas", "each"), [(8, 3), pytest.param(SCHEMAS, EACH, marks=pytest.mark.slow)]
)
def test_documents_are_valid_and_the_same_whatever_drafts(schemas: int, each: int) -> None:
    given = [schema(seed) for seed in range(schemas)]
    asked = [
        dp.SamplingParams(
            grammar=dp.Grammar.json(one),
            temperature=TEMPERATURES[number % len(TEMPERATURES)],
            seed=number,
            max_tokens=160,
        )
        for one in given
        for number in range(each)
    ]
    prompts = [f"DATA_{number} = " for number in range(len(asked))]
    with dp.LLM("bundled", speculate=None) as plain, dp.LLM(plain, speculate="auto") as llm:
        want, done = plain.generate(prompts, asked), llm.generate(prompts, asked)
    assert [one.token_ids for one in done] == [one.token_ids for one in want]
    ended = 0
    for number, one in enumerate(want):
        assert one.finish_reason in ("stop", "length") and not one.error
        if one.finish_reason == "stop":
            ended += 1
            jsonschema.validate(json.loads(one.text), given[number // each])
    assert ended > 0.5 * len(want)  # what is wild at T = 1.5 may go on for long
    assert sum(one.stats.accepted for one in done) > 0
