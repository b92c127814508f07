"""The weights that are compared: one folder for everybody, and what peers make of it, made once.

Four kinds of target: the bundled pair; the pair inflated to the cost of Qwen3-0.6B, which writes
the same text; a published model that `make real` fetches, without a draft; random weights of a
published shape, for costs only. Measures nothing.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from draftproof import bundled
from draftproof.bench.inflation import SHAPES, inflate
from draftproof.bench.suite import DRAFT_SHARE
from peer_sides import HERE, Failed

INFLATED_LIKE = "Qwen3-0.6B"
BITS = {"bf16": "16", "int8": "8", "int4": "4"}
POSITIONS = 4096  # of random weights
REAL = Path(__file__).resolve().parents[2] / "build" / "smollm2"
TARGETS = ("bundled", "inflated", "smollm2", *(name for name in SHAPES if name != "Qwen3-1.7B"))


@dataclass(frozen=True)
class Models:
    """Folders that transformers reads, and where what is made of them goes."""

    name: str
    target: Path
    draft: Path | None
    scratch: Path
    context: int  # positions that prompt and output may take in a measurement


def prepare(name: str, scratch: Path) -> Models:
    """The folders of a target, written if they are not there."""
    own = scratch / name
    own.mkdir(parents=True, exist_ok=True)
    if name == "bundled":
        return Models(name, bundled.folder("target"), bundled.folder("draft"), own, 2048)
    if name == "inflated":
        pair = {part: own / part for part in ("target", "draft")}
        for part, folder in pair.items():
            share = 1.0 if part == "target" else DRAFT_SHARE
            _once(folder, lambda at, part=part, share=share: _inflate(part, share, at))
        return Models(name, pair["target"], pair["draft"], own, 2048)
    if name == "smollm2":
        if not REAL.is_dir():
            raise ValueError(f"{REAL} is not there: make real fetches it")
        return Models(name, REAL, None, own, 2560)
    if name not in TARGETS:
        raise ValueError(f"target {name!r} is unknown: use one of {', '.join(TARGETS)}")
    _once(own / "target", lambda at: _random(name, at))
    return Models(name, own / "target", None, own, 2560)


def _inflate(part: str, share: float, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(bundled.folder(part), dtype=torch.bfloat16)
    _save(inflate(model, like=INFLATED_LIKE, share=share), folder)


def _random(name: str, folder: Path) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(**SHAPES[name], max_position_embeddings=POSITIONS)
    config.bos_token_id = config.eos_token_id = 0
    _save(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16), folder)


def _save(model: Any, folder: Path) -> None:
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(bundled.folder("target")).save_pretrained(folder)


def openvino_folder(models: Models, part: str, precision: str, env: Path) -> Path:
    """The model as OpenVINO reads it; `Failed` if it cannot be exported."""
    bits = BITS[precision]
    made = models.scratch / f"{part}.openvino-{bits}"
    script = HERE / "export_openvino.py"
    python = env / "bin" / "python"
    return _once(made, lambda at: _run([python, script, _folder(models, part), at, bits]))


def gguf_file(models: Models, part: str, precision: str, env: Path, tools: Path) -> Path:
    """The model as llama.cpp reads it; `Failed` if it cannot be converted."""
    kind = {"bf16": "bf16", "int8": "q8_0", "int4": "q4_k_m"}[precision]
    made = models.scratch / f"{part}-{kind}.gguf"
    if precision == "int4":
        program = tools / "vendor" / "llama.cpp" / "build" / "bin" / "llama-quantize"
        whole = gguf_file(models, part, "bf16", env, tools)
        return _once(made, lambda at: _run([program, whole, at, kind.upper()]))
    script, python = HERE / "convert_gguf.py", env / "bin" / "python"
    source = [tools / "vendor" / "llama.cpp", _folder(models, part)]
    return _once(
        made, lambda at: _run([python, script, *source, "--outtype", kind, "--outfile", at])
    )


def _folder(models: Models, part: str) -> Path:
    folder = models.target if part == "target" else models.draft
    assert folder is not None
    return folder


def _once(made: Path, make: Callable[[Path], None]) -> Path:
    """`made`, which is there whole or not at all, and newer than what it is made of."""
    part = "draft" if made.name.startswith("draft") else "target"
    weights = bundled.folder(part) / "model.safetensors"
    if not made.exists() or made.stat().st_mtime < weights.stat().st_mtime:
        half = made.with_name(f"half-{made.name}")
        for old in (made, half):
            if old.is_dir():
                shutil.rmtree(old)
            old.unlink(missing_ok=True)
        make(half)
        half.rename(made)
    return made


def _run(command: list[str | Path]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Failed(f"{Path(command[1]).name} failed: {lines[-1][:300]}")
