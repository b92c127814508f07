"""Documents under many schemas, at every temperature: valid, and the same with drafts."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest

import draftproof as dp
from drafters import NATIVE, Eager

pytestmark = [pytest.mark.slow, NATIVE]

TEXT = {"type": "string", "maxLength": 12}
NODE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": -5, "maximum": 5},
                "left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            },
            "required": ["value", "left"],
            "additionalProperties": False,
        }
    },
}


def of(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An object of these, all of which it must have unless it says otherwise."""
    made = {"type": "object", "properties": properties, "required": [*properties]}
    return {**made, "additionalProperties": False, **more}


SCHEMAS: dict[str, Any] = {
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer", "minimum": 10, "maximum": 99},
    "exclusive": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 4},
    "number": {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9},
    "multiple": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 500},
    "text": TEXT,
    "length": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "unanchored": {"type": "string", "pattern": "[0-9]", "maxLength": 9},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "mail": {"type": "string", "format": "email", "maxLength": 24},
    "uuid": {"type": "string", "format": "uuid"},
    "address": {"type": "string", "format": "ipv4"},
    "enum": {"enum": ["red", 5, None, True, {"a": 1}, ["x"]]},
    "const": {"const": {"é": "ü\n\"\\"}},
    "any_of": {"anyOf": [{"type": "integer", "maximum": 3, "minimum": 0}, {"enum": ["few"]}]},
    "one_of": {"oneOf": [{"const": "a"}, of({"b": {"type": "boolean"}})]},
    "all_of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 20}]},
    "types": {"type": ["boolean", "null"]},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    "tuple": {"prefixItems": [{"type": "boolean"}, {"enum": [1]}], "items": False, "minItems": 2,
              "type": "array"},
    "rest": {"prefixItems": [{"const": 0}], "items": {"enum": ["z"]}, "type": "array",
             "minItems": 2, "maxItems": 4},
    "flat": of({"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 120}}),
    "optional": of({"a": {"enum": [1, 2]}, "b": {"type": "null"}, "c": TEXT}, required=["b"]),
    "nothing": of({}),
    "nested": of({"a": of({"b": of({"c": {"enum": ["deep"]}})})}),
    "list": {"type": "array", "items": of({"k": {"enum": ["v", "w"]}}), "maxItems": 3},
    "extra": of({"a": {"const": 1}}, additionalProperties={"type": "boolean"}),
    "recursive": NODE,
    "references": {"$ref": "#/$defs/p", "$defs": {"p": of({"x": {"$ref": "#/$defs/n"}}),
                   "n": {"enum": [0, 1]}}},
    "unicode": of({"größe": {"enum": ["klein", "groß", "日本"]}}),
    "twelve": of({f"field_{i}": {"enum": [i, f"value {i}"]} for i in range(12)}),
    "bounded": of({"x": {"type": "number", "minimum": -1.5, "maximum": 2.25}}),
    "tight": of({"s": {"type": "string", "pattern": "^(yes|no|may be)$"}}),
    "escape": of({"s": {"enum": ["a\tb", "/\\", "\u0001"]}}),
    "counts": of({"n": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9},
                        "minItems": 3, "maxItems": 3}}),
    "choice": of({"kind": {"const": "a"}, "v": {"anyOf": [{"type": "null"}, TEXT]}}),
    "long": of({"text": {"type": "string", "maxLength": 60}}),
}  # fmt: skip
TEMPERATURES = (0.0, 0.7, 1.5)
SEEDS = 9


@cache
def plain() -> dp.LLM:
    return dp.LLM("bundled", speculate=None, max_batch=16)


@pytest.mark.parametrize("name", SCHEMAS)
def test_documents_are_valid(name: str) -> None:
    schema = SCHEMAS[name]
    params = [
        dp.SamplingParams(
            grammar=dp.Grammar.json(schema), temperature=heat, seed=seed, max_tokens=160
        )
        for heat in TEMPERATURES
        for seed in range(SEEDS if heat else 1)
    ]
    prompts = ["import json\n\nVALUE = "] * len(params)
    done = plain().generate(prompts, params)
    with dp.LLM(plain(), speculate=Eager("ngram", "suffix"), max_batch=8) as llm:
        drafted = llm.generate(prompts, params)
    assert [one.token_ids for one in drafted] == [one.token_ids for one in done]
    whole = [one for one in done if one.finish_reason == "stop"]
    for one in whole:
        formats = jsonschema.FormatChecker(["date", "email", "uuid", "ipv4"])  # of a time: Python's
        jsonschema.Draft202012Validator(schema, format_checker=formats).validate(
            json.loads(one.text)
        )
    assert {one.finish_reason for one in done} <= {"stop", "length"}
    assert whole  # others are of a number without end, or of white space
