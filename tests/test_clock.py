"""Figures, and costs that are learnt, stand beside the processor: its name and instructions."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
import torch

from draftproof import clock

ZEN_4 = {"model name": "AMD EPYC", "cpu family": "25", "model": "17", "flags": "avx2 avx512f"}
TOLD = {
    "AMD EPYC, AVX2": {"model name": "AMD EPYC", "flags": "fpu avx2 fma"},
    "AMD EPYC, AVX512": {"model name": "AMD EPYC", "flags": "avx2 avx512f avx512_vnni"},
    "AMD EPYC (family 25 model 17), AVX512": ZEN_4,
    "AMD EPYC (family 26 model 2), AVX512": {**ZEN_4, "cpu family": "26", "model": "2"},
    "A Xeon, AMX": {"model name": "A Xeon", "flags": "avx2 avx512f amx_tile amx_bf16"},
    "Old": {"model name": "Old", "flags": "fpu sse2"},
    "aarch64": {"Features": "fp asimd"},
}


@pytest.mark.parametrize("wanted", TOLD)
def test_processors_of_one_name_are_told_apart(
    wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_told", lambda: TOLD[wanted])
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert clock.processor() == wanted
    name, cores, instructions, threads, *_ = clock.machine().split(", ")
    assert name == wanted.partition(", ")[0] and cores.endswith(" cores")
    assert instructions == (wanted.partition(", ")[2] or "aarch64")
    assert threads == f"{torch.get_num_threads()} threads"


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="Linux tells")
@pytest.mark.skipif("ATEN_CPU_CAPABILITY" in os.environ, reason="torch was told otherwise")
def test_here() -> None:
    """By torch's words."""
    alike = {"AVX2": ("AVX2",), "AVX512": ("AVX512", "AMX")}
    widest = torch.backends.cpu.get_cpu_capability()
    assert widest not in alike or clock.widest() in alike[widest]
