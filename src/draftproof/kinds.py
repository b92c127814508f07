"""Arguments of which the annotation says that they are numbers or switches, and that are none."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
KINDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "int": ("an integer", operator.index),
    "float": ("a number", float),
    "bool": ("True or False", bool),
}


def numbers_checked(call: Callable[P, R]) -> Callable[P, R]:
    """The callable, with a `ValueError` that names what is no number or switch where one is meant.

    Reads annotations as they are written: `int`, `float`, `bool`, and these with `| None`.
    """
    signature = inspect.signature(call)
    kinds = {
        name: KINDS[kind]
        for name, each in signature.parameters.items()
        if (kind := str(each.annotation).removesuffix(" | None")) in KINDS
    }
    optional = {n for n, each in signature.parameters.items() if "None" in str(each.annotation)}

    @functools.wraps(call)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        given = {**dict(zip(signature.parameters, args, strict=False)), **options}
        for name, (noun, read) in kinds.items():
            value = given.get(name, signature.parameters[name].default)
            if value is signature.parameters[name].default or (value is None and name in optional):
                continue
            if not _is(value, read):
                raise ValueError(f"{name} is {value!r}, but must be {noun}")
        return call(*args, **options)

    return checked


def _is(value: Any, read: Callable[[Any], Any]) -> bool:
    if read is bool:
        return isinstance(value, bool)  # text is true, "no" too
    try:
        read(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, bool | str | bytes)


def check_batch(max_batch: int) -> None:
    """Raises `ValueError` where no text could run."""
    if max_batch < 1:
        raise ValueError(f"max_batch is {max_batch}: give 1 or more")
