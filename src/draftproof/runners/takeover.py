"""What a pass changes on a model and gives back: our attention function, its depth, its mode.

Several runners may have one model, or models that share parts, in several threads: whoever changes
them is alone with them. What is changed are configurations, and every attention layer carries its
own, so models that share layers share a configuration, and that is what the lock belongs to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import torch

from draftproof.runners.base import of_torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")


class _Lock:
    """The lock of one object, which lives as long as somebody may lock it."""

    __slots__ = ("__weakref__", "lock", "of")

    def __init__(self, of: Any) -> None:
        self.of, self.lock = of, threading.RLock()


_LOCKS: WeakValueDictionary[int, _Lock] = WeakValueDictionary()  # by the object's id
_MAKING = threading.Lock()


def _lock_of(thing: Any) -> _Lock:
    with _MAKING:
        lock = _LOCKS.get(id(thing))  # which keeps the object, so that no other has its id
        if lock is None:
            lock = _LOCKS[id(thing)] = _Lock(thing)
        return lock


class Takeover:
    """The model for the length of a call, by one thread at a time.

    Calls, not context managers: an interrupt between entering one and its body would leave the
    model changed for as long as somebody holds the traceback.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._modules = list(model.modules())
        self._configs = _configs(self._modules)
        self._text: Any = model.config.get_text_config()
        changed = {id(config): config for config in (*self._configs, self._text)}
        # In one order for all, so that no two runners wait for one another.
        self._locks = [_lock_of(changed[number]) for number in sorted(changed)]

    def alone(self, call: Callable[[], T]) -> T:
        """`call` while nobody else has the model."""
        return _locked(self._locks, call)

    def look(self, call: Callable[[], T]) -> T:
        """`call` with the model as its owner has it, without dropout."""
        return self.alone(lambda: self._evaluating(call))

    def run(self, attention: str, call: Callable[[], T], layers: int = 0) -> T:
        """`call` with that attention function and so many layers (0: all)."""
        return self.alone(lambda: self._evaluating(lambda: self._changed(attention, call, layers)))

    def _changed(self, attention: str, call: Callable[[], T], layers: int) -> T:
        # Parents are restored before their children: setting a parent's sets its children's.
        before = [config._attn_implementation for config in self._configs]
        depth = self._text.num_hidden_layers
        try:
            for config in self._configs:
                config._attn_implementation = attention
            if layers:
                self._text.num_hidden_layers = layers
            return call()
        finally:
            if layers:
                self._text.num_hidden_layers = depth
            for config, old in zip(self._configs, before, strict=True):
                config._attn_implementation = old

    def _evaluating(self, call: Callable[[], T]) -> T:
        training = [module for module in self._modules if module.training]
        try:
            for module in training:
                module.training = False
            with torch.inference_mode():
                return call()
        finally:
            for module in training:
                module.training = True


def on_threads(threads: int | None, call: Callable[[], T]) -> T:
    """`call` on so many of torch's threads; None: on as many as there are."""
    with of_torch(threads):
        return call()


def _locked(locks: Sequence[_Lock], call: Callable[[], T]) -> T:
    if not locks:
        return call()
    with locks[0].lock:
        return _locked(locks[1:], call)


def _configs(modules: Sequence[torch.nn.Module]) -> list[Any]:
    """Every distinct config in use, parents first."""
    found: dict[int, Any] = {}
    for module in modules:
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            found.setdefault(id(config), config)
    return list(found.values())
