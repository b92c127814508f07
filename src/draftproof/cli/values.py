"""What no option takes, whatever it is about: a number that is none, text that is none."""

from __future__ import annotations

import math
from typing import Any

TEXTS = "TEXT", "EXPRESSION", "NAME", "JSON"  # what options call their values that go on as text


def check(context: Any, params: Any) -> None:
    """Refuses it as wrong usage, before anything is loaded. context: a command's, once read."""
    for param in params:
        given = context.params.get(param.name)
        for value in given if isinstance(given, list | tuple) else (given,):
            if isinstance(value, float) and math.isnan(value):
                context.fail(f"{param.opts[0]} is nan, which is no number: give one")
            if isinstance(value, str) and param.metavar in TEXTS:
                try:
                    value.encode()
                except UnicodeEncodeError as error:  # a byte, as Python keeps those that are wrong
                    byte = len(value[: error.start].encode())
                    context.fail(f"{param.opts[0]} is not UTF-8 text (byte {byte}): convert it")
