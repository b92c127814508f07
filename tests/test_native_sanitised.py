"""The kernels under thread, address and undefined-behaviour sanitisers: slow, and once for all.

The portable kernels, and those of AMX on emulated tiles: other intrinsics are no code of ours, and
the loops around them are shared.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import compiled
import emulated
from draftproof import native

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.found() is None, reason="the kernels were not built"),
]
FLAGS = {
    "thread": ("-fsanitize=thread",),
    "address": compiled.ADDRESS,
}
WORDS = {
    "race": ("thread", "data race"),
    "overflow": ("address", "heap-buffer-overflow"),
    "undefined": ("address", "misaligned address"),
}


@pytest.fixture(scope="module", params=FLAGS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, named by the sanitiser, of the program; skips where there is none."""
    flags = FLAGS[request.param]
    trial = subprocess.run(
        ["c++", "-x", "c++", "-", *flags, "-o", os.devnull], input=b"int main() {}", check=False
    )
    if trial.returncode:
        pytest.skip(f"the compiler has no {request.param} sanitiser")
    folder = tmp_path_factory.mktemp("sanitised") / request.param
    folder.mkdir()
    program = compiled.SUPPORT / "native_stress.cpp"
    compiled.build(folder, "stress", [program], "-O1", "-g", *flags, link=())
    return folder


def run(*command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", **more}
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)


def test_threads_that_share_models_and_teams(built: Path) -> None:
    done = run(built / "stress")
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr[-6000:]


def test_threads_on_emulated_tiles(built: Path) -> None:
    sources = [compiled.SUPPORT / "native_stress.cpp", *emulated.MORE]
    flags = ("-O1", "-g", *FLAGS[built.name], *emulated.flags())
    done = run(compiled.build(built, "tiles", sources, *flags, link=emulated.LINK))
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr[-6000:]


@pytest.mark.parametrize("fault", WORDS)
def test_a_planted_fault_is_noticed(built: Path, fault: str) -> None:
    sanitiser, words = WORDS[fault]
    if built.name == sanitiser:
        done = run(built / "stress", fault)
        assert done.returncode and words in done.stderr, done.stderr[-6000:]


def test_generation_from_python(built: Path) -> None:
    """With torch in the process only the address sanitiser can tell what is ours."""
    if built.name != "address":
        return
    library, more = compiled.sanitised(built)
    program = compiled.SUPPORT / "native_workload.py"
    done = run(sys.executable, program, library, **more)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr[-6000:]
    planted = run(sys.executable, program, library, "overflow", **more)
    assert planted.returncode and "heap-buffer-overflow" in planted.stderr, planted.stderr[-6000:]
