"""NEON: every loop against its twin, and whole passes, on emulated ARM processors; slow.

The library is built for ARM as a wheel is. Where no cross compiler or emulator is installed
(Debian: g++-aarch64-linux-gnu, qemu-user) only the questions to macOS are tested.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import compiled
import cross
from native_models import spread_error

slow = pytest.mark.slow

PRINTS = """
#include <cstdio>
#include "draftproof.h"
int main() { std::printf("%s\\n%s\\n", dp_kernels(""), dp_kernels_missed()); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cross.library(tmp_path_factory.mktemp("neon"))


@slow
@pytest.mark.parametrize("cpu", cross.CPUS)
def test_every_loop_has_the_bits_of_its_twin(library: Path, cpu: str) -> None:
    """Tiles of every format and number of rows, attention, norms, noise; the sets that run here."""
    assert cross.on(cpu, cross.program(library, "neon_loops.cpp")) == [*cross.CPUS[cpu]]


@slow
def test_whole_passes(library: Path, tmp_path: Path) -> None:
    """Of every format, on the least processor that has a set, beside plain C++ on this machine."""
    source = "neon_passes.cpp"
    here = compiled.build(tmp_path, "passes", [compiled.SUPPORT / source], "-O1", link=())
    arm = cross.program(library, source)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    for name in ("portable", "twin"):
        assert cross.run(here, name, ours / name) == f"{name}\n"
    for cpu, (name, *_) in {**cross.CPUS, "cortex-a53": ("portable",)}.items():
        assert cross.on(cpu, arm, name, theirs / name) == [name]
    # Products and sums come in one order on every machine: what is not fused, and what is.
    assert (theirs / "portable").read_bytes() == (ours / "portable").read_bytes()
    for name in ("neon", "neon-dot"):
        assert (theirs / name).read_bytes() == (ours / "twin").read_bytes()
    # Products of bf16 are added otherwise, in attention with every format.
    got, want = (
        torch.from_numpy(np.fromfile(path, np.float32)).view(-1, 21, 70)
        for path in (theirs / "neon-matrix", ours / "twin")
    )
    for each, other in zip(got, want, strict=True):
        assert 0 < spread_error(each, other) < 0.02


@slow
@pytest.mark.parametrize("cpu", cross.CPUS)
def test_threads_that_share_models_and_teams(library: Path, cpu: str) -> None:
    stress = cross.client(library, compiled.SUPPORT / "native_stress.cpp")
    assert cross.on(cpu, stress) == ["whole"]


@slow
def test_the_best_set_is_taken(library: Path, tmp_path: Path) -> None:
    source = tmp_path / "prints.cpp"
    source.write_text(PRINTS)
    program = cross.client(library, source)
    for cpu, (best, *_) in cross.CPUS.items():
        assert cross.on(cpu, program) == [best, ""]
    # A compiler that is older than the instructions.
    program = cross.client(cross.library(tmp_path / "old", "-Dhas_arm_matrix=OFF"), source)
    why = "dot products are there, but the kernels were built without them"
    assert cross.on("max", program) == ["neon", why]
    assert cross.on("cortex-a72", program) == ["neon", ""]


# --- macOS, of which only the questions can be tried ----------------------------------------------

SYSTEM = """
#include <cstddef>
#include <cstring>
extern const char *there;
inline int sysctlbyname(const char *name, void *to, size_t *size, void *, size_t) {
  if (!std::strstr(there, name)) return -1;
  *static_cast<int *>(to) = name[std::strlen(name) - 1] != '0';
  *size = sizeof(int);
  return 0;
}
"""
ASKS = """
#include <cstdio>
#include "arm.h"
const char *there;
int main(int, char **given) {
  there = given[1];
  std::printf("%d%d\\n", arm::has_dot(), arm::has_matrix());
}
"""


def test_what_macos_is_asked(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys" / "sysctl.h").write_text(SYSTEM)
    (tmp_path / "asks.cpp").write_text(ASKS)
    apple = "-D__APPLE__", "-U__linux__", f"-I{tmp_path}", f"-I{compiled.SOURCES}"
    program = tmp_path / "asks"
    subprocess.run([compiler, *apple, tmp_path / "asks.cpp", "-o", program], check=True)
    dot, int8, bf16 = (f"hw.optional.arm.FEAT_{name}" for name in ("DotProd", "I8MM", "BF16"))
    answers = {"": "00", dot: "10", f"{dot} {int8}": "10", f"{dot} {int8} {bf16}": "11", bf16: "00"}
    for there, answer in answers.items():
        assert cross.run(program, there).strip() == answer
