"""A GPU that is the CPU under another name: whatever a real one refuses is found without one.

Tensors there say that they lie on `cuda` and mix with those of the CPU as little as CUDA's do:
every operation is made on the CPU by `__torch_dispatch__`, after that has been checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

from draftproof.runners import loading

NAME = "pretended"
MOVES = "aten::_to_copy", "aten::to", "aten::copy_"  # these may be given tensors of both


class There(Tensor):
    """A tensor of the CPU that says it lies on the GPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> There:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
            requires_grad=held.requires_grad,
        )
        made.held = held
        return made

    def __repr__(self, *words: Any, **options: Any) -> str:
        return f"There({self.held!r})"

    def tolist(self) -> Any:
        return self.held.tolist()

    def __format__(self, spec: str) -> str:
        return format(self.held, spec)

    def new_tensor(self, data: Any, **options: Any) -> There:  # type: ignore[override]
        return There(self.held.new_tensor(data, **options))

    def numpy(self, *words: Any, **options: Any) -> Any:
        raise TypeError("can't convert pretended:0 device type tensor to numpy")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat, _ = tree_flatten((args, kwargs))
    tensors = [each for each in flat if isinstance(each, Tensor)]
    there = [each for each in tensors if isinstance(each, There)]
    name = func._schema.name
    asked = next((each for each in flat if isinstance(each, torch.device)), None)
    if there and name not in MOVES:
        mixed = [each for each in tensors if not isinstance(each, There) and each.dim()]
        index = name.startswith(("aten::index", "aten::_index"))
        if index and isinstance(args[0], There):  # CUDA takes indices that lie on the CPU
            mixed = [each for each in mixed if each.dtype not in (torch.long, torch.bool)]
        if mixed:
            raise RuntimeError(
                f"{name}: expected all tensors to be on one device, pretended:0 and cpu"
            )
    out_there = bool(there) if asked is None else asked.type == NAME
    if name == "aten::copy_":
        out_there = isinstance(args[0], There)
    args_here, kwargs_here = tree_map(_here, (args, kwargs))
    made = func(*args_here, **kwargs_here)
    writes = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
    if any(writes):  # what was written to is given back as itself
        own = args[writes.index(True)] if writes.index(True) < len(args) else kwargs.get("out")
        if isinstance(made, Tensor) and isinstance(own, Tensor):
            return own
    return tree_map(lambda x: There(x) if out_there and isinstance(x, Tensor) else x, made)


def _here(x: Any) -> Any:
    if isinstance(x, There):
        return x.held
    return torch.device("cpu") if isinstance(x, torch.device) else x


class Pretended(TorchDispatchMode):
    """What is made on `cuda` is made on the CPU, and says otherwise."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


@contextmanager
def pretended(patch: pytest.MonkeyPatch) -> Iterator[None]:
    own = torch.tensor  # the only maker of tensors that asks the device before any dispatch

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        made = own(data, **options)
        return made if device is None else made.to(device)

    patch.setattr(loading, "DEVICES", (*loading.DEVICES, NAME))
    patch.setattr(torch, "tensor", tensor)
    patch.setattr(torch, "inference_mode", torch.no_grad)  # which takes views of no such tensors
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with Pretended():
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


class Module(_DummyBackendModule):
    """What torch asks of any device."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        """It has no random numbers of its own."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return []  # torch asks for it once the device is known, whatever runs where

    def synchronize(self, device: Any = None) -> None:
        """All is done."""


_setup_privateuseone_for_python_backend(NAME, backend_module=Module())
