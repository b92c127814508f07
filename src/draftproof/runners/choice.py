"""Which runner a model gets, and the words for it where it is not the one that was hoped for.

`auto` is the native runner where it can run what was asked for without changing a number's type:
a CPU, a model by name or folder (a loaded model belongs to the user, who may change its weights),
bfloat16 or int8, an architecture it knows. Everything else runs on torch.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

import torch

from draftproof import native
from draftproof.runners import loading, packing
from draftproof.runners.native import NativeRunner
from draftproof.runners.takeover import Takeover
from draftproof.runners.team import Team
from draftproof.runners.torch import TorchRunner

RUNNERS = ("auto", "torch", "native")
INT8 = "int8"


def make(
    model: Any,
    *,
    runner: str,
    device: str | torch.device,
    dtype: str | torch.dtype,
    threads: int | None,
    revision: str | None,
    trust_remote_code: bool,
    **options: Any,
) -> TorchRunner | NativeRunner:
    """The model, loaded, in its runner; `options` are those of any runner.

    Raises `ValueError`, in one sentence, for what cannot run.
    """
    if runner not in RUNNERS:
        raise ValueError(f"runner {runner!r} is unknown: use {', '.join(RUNNERS)}")
    _check(threads)
    owned = not isinstance(model, torch.nn.Module)
    where = loading.pick_device(device)
    wanted = None if dtype == INT8 else loading.pick_dtype(dtype)
    must = runner == "native" or dtype == INT8
    if must:
        _refuse(runner, where, wanted)
    loaded = loading.load(
        model,
        dtype=wanted,
        device=where,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    if not owned:
        loading.refuse_to_convert(loaded, device, "auto" if dtype == INT8 else dtype)
    options["trust_remote_code"] = trust_remote_code
    if must or (runner == "auto" and owned and suits(loaded)):
        return _native(loaded, dtype == INT8, owned, threads, options)
    return TorchRunner(loaded, threads=threads, **options)


def _native(
    model: Any, int8: bool, owned: bool, threads: int | None, options: dict[str, Any]
) -> NativeRunner:
    if not int8 and model.dtype != torch.bfloat16:
        raise ValueError(
            f"the native runner computes in bfloat16 or int8, and the model is in {model.dtype}: "
            "give dtype='bfloat16' or dtype='int8'"
        )
    team = Team(threads or torch.get_num_threads())
    precision = INT8 if int8 else "bfloat16"
    options |= {"precision": precision, "team": team, "release": owned}
    # Another runner of the same model in another thread may be in the middle of a pass.
    made = Takeover(loading.unwrap(model)).alone(lambda: NativeRunner(model, **options))
    if native.kernels() != "avx512":
        say_once(f"no AVX512 with BF16 and VNNI here: {native.kernels()} kernels, slower")
    return made


def _check(threads: int | None) -> None:
    if threads is None:
        return
    if threads < 1:
        raise ValueError(f"threads={threads} computes nothing: use 1 or more")
    cores = os.cpu_count() or threads
    if threads > cores:
        say_once(f"{threads} threads on {cores} cores wait for one another: use {cores}")


def _refuse(runner: str, device: torch.device, dtype: torch.dtype | None) -> None:
    """Raise where the native runner was asked for and cannot be had."""
    if runner == "torch":
        raise ValueError("the torch runner has no int8: drop runner='torch', or use bfloat16")
    if device.type != "cpu":
        raise ValueError(f"the native runner is for the CPU, not for {device}: use device='cpu'")
    if dtype not in (None, torch.bfloat16):
        raise ValueError(f"the native runner has bfloat16 and int8, not {dtype}: change dtype")
    try:
        native.library()
    except native.Missing as error:
        raise ValueError(str(error)) from error


def suits(model: Any) -> bool:
    """Whether the native runner is there and takes the model in its own precision."""
    if model.device.type != "cpu" or model.dtype != torch.bfloat16:
        return False
    try:
        native.library()
    except native.Missing as error:
        say_once(f"the torch runner is used: {error}")
        return False
    reason = packing.refusal(loading.unwrap(model))
    if reason:
        say_once(f"the torch runner is used: {reason}")
    return reason is None


@functools.cache
def say_once(text: str) -> None:
    """A warning to the log, which without other orders goes to standard error."""
    logging.getLogger("draftproof").warning("%s", text)
