"""`draftproof info`: versions, devices, kernels, and what is available or why not.

For a person a table, for a bug report or a program one JSON object. Loads no model, unless one is
named whose passes' costs are asked for.
"""

from __future__ import annotations

import json
import math
import os
import platform
import warnings
from collections.abc import Iterator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError, safe_open

import draftproof
from draftproof import bundled, clock, native, quality
from draftproof.cli import opening, pairing
from draftproof.methods import METHODS
from draftproof.runners import costs, kept, packed_files
from draftproof.runners.measuring import measure

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy")
ROWS = (2, 4, 8, 12, 16, 32)  # of which a table tells what a pass costs
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}  # safetensors' names
OPTIONAL = {
    "accelerate": "`draftproof train`",
    "datasets": "data sets to train on",
    "fastapi": "`draftproof serve` and `batch`",
    "llguidance": "output that is bound to a schema",
    "matplotlib": "pictures of `draftproof bench` and of training",
    "peft": "targets with adapters",
    "ray": "replicas, and `batch --ray`",
}


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    found = facts()
    if given.measure and given.model is None:
        raise ValueError("--measure is about a model: draftproof info MODEL --measure")
    if given.draft is not None and given.model is None:
        raise ValueError("--draft is about a model: draftproof info MODEL --draft DRAFT")
    if given.model is not None:
        found |= of_model(given)
    if given.as_json:
        print(json.dumps(found), flush=True)
        return 0
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in _rows(found):
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)
    return 0


def facts() -> dict[str, Any]:
    """Everything there is to tell, fit for JSON."""
    return {
        "versions": {
            "draftproof": draftproof.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in LIBRARIES},
        },
        "machine": {
            "platform": platform.platform(),
            "processor": clock.processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "kernels": {
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "onednn": torch.backends.mkldnn.is_available(),
            "mkl": torch.backends.mkl.is_available(),
        },
        "devices": {
            "cpu": _state(),
            "cuda": _cuda(),
            "mps": _state("not supported (no test machine)"),
        },
        "runners": {"torch": _state(), "native": _native()},
        "methods": [*METHODS],
        "optional": {
            name: {"version": _version(name), "adds": adds} for name, adds in OPTIONAL.items()
        },
        "costs": [*kept.listed()],
        "weights": {"folder": str(packed_files.folder()), "bytes": packed_files.kept()},
        "bundled": {name: _bundled(name) for name in bundled.ALL},
    }


def of_model(given: SimpleNamespace) -> dict[str, Any]:
    """What passes of the model that is named cost, and of a draft beside it."""
    own = SimpleNamespace(rule="coupled", **vars(given))
    with opening.load(own, encoders=True, speculate=None) as llm:
        known = costs.of(llm.runner)
        told = {} if given.draft is None else {"pair": pairing.of_pair(given, llm)}
        source = "kept from earlier runs" if known.passes else "estimated: add --measure"
        if given.measure:
            source = f"measured, {measure(llm.runner, known)} passes"
        if told:
            source = "measured beside the draft"
        about = {
            "of": kept.description(llm.runner),
            "from": source,
            "weight_bytes": quality.weight_bytes(llm),
            **known.learnt(),
        }
        return {"costs": [about], **told}


def _state(reason: str | None = None, **more: Any) -> dict[str, Any]:
    """Available, or not for a reason."""
    return {"available": reason is None, "reason": reason, **more}


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _native() -> dict[str, Any]:
    try:
        kernels, missed = native.kernels(), native.missed() or None
        return _state(kernels=kernels, missed=missed, precisions=[*native.PRECISIONS])
    except native.Missing as error:
        return _state(str(error), kernels=None, missed=None, precisions=[])


def _cuda() -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if available:
        found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        return _state(
            devices=[
                {
                    "name": device.name,
                    "memory_bytes": device.total_memory,
                    "compute_capability": f"{device.major}.{device.minor}",
                }
                for device in found
            ]
        )
    if torch.version.cuda is None and torch.version.hip is None:
        reason = "this torch was built without CUDA"
    else:  # a driver that is too old is told in a warning
        reason = " ".join(str(told[0].message).split()) if told else "torch sees no GPU"
    return _state(reason, devices=[])


def _bundled(name: str) -> dict[str, Any]:
    try:
        folder = bundled.folder(name)
        file = folder / "model.safetensors"
        with safe_open(file, framework="pt") as weights:  # shapes only: no tensor is read
            tensors = [weights.get_slice(key) for key in weights.keys()]  # noqa: SIM118
            shapes = [tensor.get_shape() for tensor in tensors]
            kinds = {tensor.get_dtype() for tensor in tensors}
        config = json.loads((folder / "config.json").read_text())
    except (ValueError, OSError, SafetensorError) as error:
        return _state(" ".join(str(error).split()))
    return _state(
        parameters=sum(map(math.prod, shapes)),
        bytes=file.stat().st_size,
        dtype=" and ".join(sorted(DTYPES.get(kind, kind) for kind in kinds)),
        max_length=config.get("max_position_embeddings"),  # heads have none
    )


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The table's lines: what, and how it is with it."""
    yield from found["versions"].items()
    machine, kernels = found["machine"], found["kernels"]
    yield "platform", machine["platform"]
    yield "processor", f"{machine['processor']}, {machine['cores']} cores"
    yield "threads", str(machine["threads"])
    libraries = [name for name in ("onednn", "mkl") if kernels[name]]
    yield "kernels", ", ".join(["torch", kernels["cpu_capability"], *libraries])
    for device, state in found["devices"].items():
        listed = [
            f"{one['name']}, {one['memory_bytes'] / 2**30:.0f} GiB, {one['compute_capability']}"
            for one in state.get("devices", ())
        ]
        yield f"device {device}", _said(state, "; ".join(listed))
    for runner, state in found["runners"].items():
        kernels, kinds = state.get("kernels"), " and ".join(state.get("precisions", ()))
        yield f"runner {runner}", _said(state, f"{kernels} kernels, {kinds}" if kernels else "")
        if state.get("missed"):
            yield "", state["missed"]
    yield "methods", ", ".join(found["methods"])
    for name, library in found["optional"].items():
        yield name, f"{library['version'] or 'not installed'} ({library['adds']})"
    for each in found["costs"]:
        yield _costs(each)
    if sizes := found["weights"]["bytes"]:
        of = f"{len(sizes)} files, {sum(sizes) / 1e6:.3g} MB"
        yield "packed weights", f"{of}, in {found['weights']['folder']}"
    if "pair" in found:
        yield from pairing.rows(found["pair"])
    for name, state in found["bundled"].items():
        size = ""
        if state["available"]:
            size = f"{state['parameters'] / 1e6:.1f} million parameters, {state['dtype']}, "
            size += f"{state['bytes'] / 1e6:.1f} MB"
            size += f", {state['max_length']} tokens" if state["max_length"] else ""
        yield f"bundled {name}", _said(state, size)


def _said(state: dict[str, Any], more: str = "") -> str:
    return f"no: {state['reason']}" if state["reason"] else more or "yes"


def _costs(found: dict[str, Any]) -> tuple[str, str]:
    """Seconds of a pass over one row, and how many of those it takes over more rows."""
    of, seconds = found["of"], {int(rows): each for rows, each in found["costs"].items()}
    shares = [(rows, seconds[rows] / seconds[1]) for rows in ROWS if rows in seconds]
    listed = ", ".join(f"{rows}: {share:.2f}" for rows, share in shares)
    told = f"1 row {seconds[1] * 1e3:.3g} ms; {listed} of that ({found.get('from', 'kept')})"
    size = f", {found['weight_bytes'] / 1e6:.1f} MB of weights" if "weight_bytes" in found else ""
    thread = "thread" if of["threads"] == 1 else "threads"
    return (
        f"costs {of['model']}",
        f"{of['runner']}, {of['precision']}{size}, {of['threads']} {thread}: {told}",
    )
