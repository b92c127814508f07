"""Which runner a model gets, and the words for it where it is not the one that was hoped for.

`auto` is the native runner where it can run what was asked for without changing a number's type:
a CPU, a model by name or folder (a loaded model belongs to the user, who may change its weights),
bfloat16, int8, int4 or the blocks of a file, an architecture it knows. All else runs on torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from draftproof import native
from draftproof.gguf.configuration import configuration as gguf_configuration
from draftproof.gguf.reader import located, read
from draftproof.runners import (
    checkpoint,
    costs,
    gguf_checkpoint,
    loading,
    packing,
    probe,
    quantised_checkpoint,
)
from draftproof.runners.base import Target
from draftproof.runners.checkpoint import Checkpoint
from draftproof.runners.native import NativeRunner
from draftproof.runners.outline import Outline
from draftproof.runners.takeover import Takeover, on_threads
from draftproof.runners.team import Team, check_threads
from draftproof.runners.telling import LOG, say_once
from draftproof.runners.torch import TorchRunner

RUNNERS = ("auto", "torch", "native")
INT8 = "int8"
QUANTISED = (INT8, "int4")
WITH_BFLOAT16 = ("amx", "avx512", "neon-matrix")  # kernels whose instructions multiply it


def make(
    model: Any,
    *,
    runner: str,
    device: str | torch.device,
    dtype: str | torch.dtype,
    threads: int | None,
    revision: str | None,
    trust_remote_code: bool,
    cache_weights: bool = False,
    **options: Any,
) -> TorchRunner | NativeRunner:
    """The model, loaded, in its runner; `options` are those of any runner.

    cache_weights: packed weights are kept in the user's cache folder, and mapped from there.
    Raises `ValueError`, in one sentence, for what cannot run.
    """
    if runner not in RUNNERS:
        raise ValueError(f"runner {runner!r} is unknown: use {', '.join(RUNNERS)}")
    check_threads(threads)
    owned = not isinstance(model, torch.nn.Module)
    quantised = dtype if dtype in QUANTISED else None
    wanted = None if quantised else loading.pick_dtype(dtype)
    must = runner == "native" or quantised is not None
    where = loading.pick_device(device, natively=must)
    if not owned and device == "auto":
        where = getattr(model, "device", where)  # it stays where it is
    if must:
        _refuse(runner, where, wanted)
    source: dict[str, Any] = {
        "dtype": wanted,
        "revision": revision,
        "trust_remote_code": trust_remote_code,
    }
    options["trust_remote_code"] = trust_remote_code
    if cache_weights and not owned:
        raise ValueError(
            "cache_weights keeps what is packed from files: give a folder, a hub id or a GGUF file"
        )
    packed: dict[str, Any] = {**options, "cache_weights": cache_weights}
    if owned and runner != "torch" and where.type == "cpu":
        found = stored(model, as_they_lie=dtype == "auto", **source)
        if found is not None and (must or suits(found.model)):
            return _native(found.model, quantised, threads, weights=found, **packed)
    loaded = load(model, device=where, **source)
    if not owned:
        loading.refuse_to_convert(loaded, device, "auto" if quantised else dtype)
    if must or (runner == "auto" and owned and suits(loaded)):
        return _native(loaded, quantised, threads, release=owned, **packed)
    if cache_weights:
        say_once("no weights are kept: the torch runner packs none")
    return on_torch(loaded, threads=threads, **options)


def beside(target: Target, model: Any, quantize: str | None = None) -> Target:
    """A runner for another model (hub id, folder or loaded): on the device and threads of `target`.

    quantize: "int8" or "int4", which run natively; "none" for the target's precision; None for
    int8 beside a native target in bfloat16, which is half of the bytes to read, and else the
    target's. The blocks of a GGUF file stay as they are. Beside a native target a model that the
    native runner does not take runs on torch.
    Raises `ValueError`, in one sentence, for what cannot run.
    """
    assert isinstance(target, TorchRunner | NativeRunner), "a runner that is not made here"
    same = "max_batch", "trust_remote_code", "prefix_cache", "parked"
    options: dict[str, Any] = {name: getattr(target, name) for name in same}
    threads = target.team.threads if isinstance(target, NativeRunner) else target.threads
    quantised = quantize if quantize in QUANTISED else None
    if quantised is not None and isinstance(target, TorchRunner):
        options |= {"runner": "native", "device": target.device, "revision": None, "draft": True}
        return make(model, dtype=quantised, threads=threads, **options)
    owned = not isinstance(model, torch.nn.Module)
    source = {"dtype": target.dtype, "trust_remote_code": target.trust_remote_code}
    precisions = [quantised or target.precision]
    if quantize is None and target.precision == "bfloat16":
        precisions.insert(0, "int8")
    if owned and isinstance(target, NativeRunner):
        found = stored(model, as_they_lie=quantised is None, **source)
        if found is not None and packing.refusal(found.model) is None:
            options |= {"weights": found, "team": target.team}
            options["cache_weights"] = target.cache_weights
            if quantised is None and found.precision:
                precisions = [found.precision]
            return _first(found.model, precisions, options)
    loaded = load(model, device=target.device, **source)
    if isinstance(target, TorchRunner):
        return on_torch(loaded, threads=threads, **options)
    if reason := packing.refusal(loading.unwrap(loaded)):
        if quantised is not None:
            raise loading.Refused(f"the draft cannot be quantised: {reason}; drop quantize")
        LOG.warning("the draft runs on torch: %s", reason)
        return on_torch(loaded, threads=threads, **options)
    if owned:  # what is packed of it is let go of, so there is one try
        precisions = precisions[-1:]
    return _first(loaded, precisions, options | {"team": target.team, "release": owned})


def _first(model: Any, precisions: Sequence[str], options: dict[str, Any]) -> NativeRunner:
    """A draft in the first of the precisions that its own logits bear."""
    for precision in precisions[:-1]:
        with suppress(loading.Refused):
            return on_native(model, precision=precision, **options)
    return on_native(model, precision=precisions[-1], draft=True, **options)


def on_torch(model: Any, **options: Any) -> TorchRunner:
    """The torch runner of a loaded model, whose packed pass was found to be the model's own."""
    runner = TorchRunner(model, **options)
    checked = functools.partial(probe.check_torch, runner)
    on_threads(runner.threads, lambda: runner.takeover.alone(checked))
    if runner.threads is None:
        runner.threads = costs.threads_of_torch(runner)
    return runner


def on_native(
    model: Any, *, weights: Checkpoint | None = None, draft: bool = False, **options: Any
) -> NativeRunner:
    """The native runner of a model, whose logits were found to be the model's own.

    weights: of a model that is not loaded; without them it is. draft: what its precision loses
    refuses nothing.
    """
    model = loading.unwrap(model)
    if reason := packing.refusal(model):
        raise loading.Refused(
            "the native runner, which alone has int8 and int4, does not take this model: "
            f"{reason}; use runner auto and dtype auto"
        )

    def made() -> NativeRunner:
        # Weights that are loaded may go when they are packed; those in files are there afterwards.
        expected = probe.own_logits(model) if weights is None else None
        runner = NativeRunner(model, weights=weights, **options)
        if weights is not None and not _is_sure(runner, weights):
            with weights.filled():  # which makes modules of an outline, where that is in doubt
                expected = probe.own_logits(model)
        said = "quantize" if draft else "dtype"
        unrounded = None
        if draft and not options.get("release"):  # its tensors would be gone
            unrounded = functools.partial(NativeRunner, model, weights=weights, team=runner.team)
        if expected is None or probe.check_native(runner, expected, said, unrounded):
            _keep(runner)  # what is mapped is not compared again, whatever it is loaded for
        return runner

    if isinstance(model, Outline):
        return made()  # nobody else has it
    # Another runner of the same model in another thread may be in the middle of a pass.
    return Takeover(model).alone(made)


def _is_sure(runner: NativeRunner, weights: Checkpoint) -> bool:
    """Whether its logits need no comparison."""
    # What was kept, by these versions of this library and of transformers, was compared before.
    if not weights.compared or runner.packed.mapped:
        return True
    return isinstance(weights.model, Outline) and probe.agrees(runner, weights)


def _keep(runner: NativeRunner) -> None:
    if not runner.cache_weights or runner.packed.mapped:
        return
    if runner.packed.file is None:
        say_once("no weights are kept: transformers had to load them, they lie in no such files")
    elif runner.packed.keep():
        size = runner.packed.file.path.stat().st_size
        LOG.warning("packed weights are kept: %.3g MB, %s", size / 1e6, runner.packed.file.path)


def stored(model: Any, *, as_they_lie: bool, **options: Any) -> Checkpoint | None:
    """What the native runner, if it is there, can read tensor by tensor."""
    if native.found() is None or not isinstance(model, str | Path):
        return None
    if (file := located(model)) is not None:
        return gguf_checkpoint.find(file, dtype=options["dtype"], as_they_lie=as_they_lie)
    found = quantised_checkpoint.find(str(model), as_they_lie=as_they_lie, **options)
    return found or checkpoint.find(str(model), **options)


def configuration(model: str, **options: Any) -> Any:
    """What describes a model by name, folder or file. Raises `ValueError`, as `make`."""
    if (file := located(model)) is not None:
        return gguf_configuration(read(file))
    return loading.configuration(model, **options)


def load(model: Any, *, device: torch.device, **options: Any) -> Any:
    """In memory, by transformers; blocks and four bits as floating-point numbers."""
    if (file := located(model)) is not None:
        loaded = gguf_checkpoint.load(file, dtype=options["dtype"], device=device)
        if packing.refusal(loaded) is not None:
            size = sum(each.nbytes for each in loaded.parameters()) / 1e9
            kind = str(loaded.dtype).removeprefix("torch.")
            say_once(f"{file.name}: weights become {kind} numbers on torch, {size:.3g} GB")
        return loaded
    if isinstance(model, str | Path):
        numbers = options | {"dtype": options["dtype"] or torch.bfloat16}
        if (found := quantised_checkpoint.find(str(model), **numbers)) is not None:
            return found.loaded(device)
    return loading.load(model, device=device, **options)


def _native(
    model: Any,
    quantised: str | None,
    threads: int | None,
    *,
    weights: Checkpoint | None = None,
    **options: Any,
) -> NativeRunner:
    if quantised is None and model.dtype != torch.bfloat16:
        raise ValueError(
            "the native runner computes in bfloat16, int8 or int4, and the model is in "
            f"{model.dtype}: give dtype='bfloat16', dtype='int8' or dtype='int4'"
        )
    team = Team(threads or torch.get_num_threads())
    lying = None if weights is None else weights.precision
    precision = quantised or lying or "bfloat16"
    made = on_native(model, precision=precision, team=team, weights=weights, **options)
    if precision == "bfloat16" and native.kernels() not in WITH_BFLOAT16:
        say_once(f"no instructions for bfloat16 here: {native.kernels()} kernels, slower")
    return made


def _refuse(runner: str, device: torch.device, dtype: torch.dtype | None) -> None:
    """Raise where the native runner was asked for and cannot be had."""
    if runner == "torch":
        raise ValueError(
            "the torch runner has no int8 and no int4: use runner auto, or dtype bfloat16"
        )
    if device.type != "cpu":
        way = "drop device, or a draft's quantize"
        raise ValueError(f"native (int8 and int4 too) is for CPUs, not for {device}: {way}")
    if dtype not in (None, torch.bfloat16):
        raise ValueError(f"the native runner has bfloat16, int8, int4, not {dtype}: change dtype")
    try:
        native.library()
    except native.Missing as error:
        raise ValueError(str(error)) from error


def suits(model: Any) -> bool:
    """Whether the native runner is there and takes the model in its own precision."""
    if model.device.type == "cuda" or model.dtype != torch.bfloat16:
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
