"""What an output may look like: a JSON schema, a regular expression, a choice, or a grammar.

A specification, checked for its form only; what follows it is made elsewhere, where the tokenizer
is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST = 1 << 18  # bytes of a grammar
KINDS = ("json", "regex", "choice", "lark", "gbnf")
OBJECT = '{"type":"object"}'


class Busy(ValueError):
    """Grammars of others are compiled just now: the same one may be taken later."""

    def __init__(self) -> None:
        super().__init__(
            "grammars of others are being compiled, and take long: try again in a second"
        )


@dataclass(frozen=True)
class Grammar:
    """What the whole output has to match, by `Grammar.json(schema)` and the like.

    kind: of what `source` is, one of `KINDS`; of a choice, a JSON list of texts. Raises
    `ValueError` for what has not even the form; whether it compiles is seen when a prompt comes.
    """

    kind: str
    source: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"grammar kind {self.kind!r} is unknown: use {', '.join(KINDS)}")
        if not isinstance(self.source, str):
            kind = type(self.source).__name__
            raise ValueError(f"a grammar is written as text, not as {kind}")
        try:
            size = len(self.source.encode())
        except UnicodeEncodeError:
            raise ValueError("the grammar holds half a character, which no text has") from None
        if size > MOST:
            raise ValueError(f"the grammar has {size:,} bytes, and at most {MOST:,} are taken")

    @classmethod
    def json(cls, schema: Any) -> Grammar:
        """JSON that a schema allows: a dict, its text, true, or a pydantic model."""
        if callable(getattr(schema, "model_json_schema", None)):
            schema = schema.model_json_schema()
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"the schema is no JSON: {error}") from None
        if not isinstance(schema, Mapping | bool):
            raise ValueError(f"a schema is an object, not {type(schema).__name__}")
        if schema is False:
            raise ValueError("the schema false allows nothing: give one that some text fulfils")
        try:
            written = json.dumps(schema, allow_nan=False, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the schema cannot be written as JSON: {error}") from None
        return cls("json", "{}" if schema is True else written)

    @classmethod
    def any_json(cls) -> Grammar:
        """Any JSON object."""
        return cls("json", OBJECT)

    @classmethod
    def regex(cls, pattern: str | re.Pattern[str]) -> Grammar:
        """Text that a regular expression matches as a whole, without look-around."""
        return cls("regex", pattern.pattern if isinstance(pattern, re.Pattern) else pattern)

    @classmethod
    def choice(cls, options: Sequence[str]) -> Grammar:
        """One of these texts."""
        texts = [] if isinstance(options, str) else list(options)
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise ValueError("a choice is a list of texts, at least one, none of them empty")
        return cls("choice", json.dumps(list(dict.fromkeys(texts)), ensure_ascii=False))

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """What a grammar in llguidance's variant of Lark derives from its rule `start`."""
        return cls("lark", grammar)

    @classmethod
    def gbnf(cls, grammar: str) -> Grammar:
        """What a grammar of llama.cpp derives from its rule `root`."""
        return cls("gbnf", grammar)

    def __repr__(self) -> str:
        short = self.source if len(self.source) <= 60 else self.source[:57] + "..."
        return f"Grammar.{self.kind}({short!r})"
