"""The native library for ARM, cross-compiled as a wheel builds it, and run by an emulator.

`neon_loops.cpp` and `neon_passes.cpp` are the programs; `neon_twin.h` has the twin of the loops.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

import compiled

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
CPUS = {  # what an emulated processor has, the best set first
    "cortex-a72": ("neon",),
    "neoverse-n1": ("neon-dot", "neon"),
    "max": ("neon-matrix", "neon-dot", "neon"),
}
FLAGS = ("-O1", "-Wall", "-Wextra", "-static", "-DDP_ARM", "-DDP_ARM_MORE")


def library(folder: Path, *options: str) -> Path:
    """The folder where CMake built the library; skips where that cannot be.

    options: of CMake, more.
    """
    missing = [name for name in (COMPILER, EMULATOR, "cmake") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    target = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
    compiler = f"-DCMAKE_CXX_COMPILER={COMPILER}"
    run("cmake", "-S", compiled.SOURCES, "-B", folder, *target, compiler, *options)
    run("cmake", "--build", folder, "--parallel", "2")
    return folder


@cache
def program(library: Path, source: str) -> Path:
    """A source of tests/support linked with all of the library, not with what it exports."""
    made = library / Path(source).stem
    objects = sorted(library.glob("CMakeFiles/_draftproof.dir/*.o"))
    assert len(objects) > 10
    given = compiled.SUPPORT / source, *objects
    run(COMPILER, *compiled.FLAGS, *FLAGS, include(), *given, "-pthread", "-o", made)
    return made


@cache
def client(library: Path, source: Path) -> Path:
    """A program that uses the library by its C interface, as Python does."""
    made = library / source.stem
    shared = library / "_draftproof.so"
    run(COMPILER, "-O1", include(), source, shared, f"-Wl,-rpath,{library}", "-pthread", "-o", made)
    return made


def on(cpu: str, program: Path, *arguments: str | Path) -> list[str]:
    """The lines that a program prints on an emulated processor."""
    libc = Path(run(COMPILER, "-print-file-name=libc.so.6").strip())
    root = libc.resolve().parent.parent
    return run(EMULATOR, "-L", root, "-cpu", cpu, program, *arguments).splitlines()


def include() -> str:
    return f"-I{compiled.SOURCES}"


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout
