"""What a start imports: no help text waits for torch, and no interrupt leaves a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import draftproof
import gguf_files
from draftproof import cli, interrupts, native
from draftproof.bundled import TARGET
from draftproof.cli import commands

HEAVY = ("torch", "transformers", "matplotlib", "accelerate", "datasets", "peft", "prompt_toolkit")
SAY = f"; import sys; print(*[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"


def loaded(program: str) -> set[str]:
    """The heavy modules that are there after a program of one line."""
    command = [sys.executable, "-c", program + SAY]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


HELPS = [f"{name} --help" for name in commands.every(cli.group())]
WRONG = ["serve", "generate", "generate bundled --nonsense", "bench bundled --rounds x"]
WORDS = ["", "--help", "--version", "train --help", *HELPS, *WRONG]
# One process for all of them, to whose modules each adds; the table is the last line.
RUN = f"""
import contextlib, json, sys
import draftproof.cli
seen = {{}}
for words in {WORDS!r}:
    before = {{*sys.modules}}
    with contextlib.suppress(SystemExit):
        draftproof.cli.main(words.split())
    seen[words] = [name for name in {HEAVY} if name in {{*sys.modules}} - before]
print("\\n" + json.dumps(seen))
"""


@pytest.fixture(scope="module")
def added() -> dict[str, list[str]]:
    """Words -> the heavy modules that they are the first to load."""
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("words", WORDS)
def test_nothing_heavy_before_a_command(words: str, added: dict[str, list[str]]) -> None:
    assert added[words] == []


def test_the_plain_import_is_light() -> None:
    assert loaded("import draftproof; dir(draftproof); draftproof.__version__") == set()
    assert "torch" in loaded("from draftproof import *; LLM")


# What a model of transformers' own brings: its compiler, and the code of all models.
MODELS = ("sympy", "accelerate", "torch._dynamo", "torch.distributed.tensor")
MODELS += ("transformers.modeling_utils",)
WRITE = ["--max-tokens", "3", "def f("]
NATIVE = [
    ["generate", "bundled", *WRITE],
    ["generate", "bundled", "--dtype", "int8", "--draft", "bundled", "--heads", "bundled", *WRITE],
    ["generate", "FILE", *WRITE],
    ["generate", "FILE", "--dtype", "bfloat16", "--draft", "FILE", *WRITE],
    ["info", "bundled"],
    ["chat", "FOLDER", "--max-tokens", "3"],
]
RUN_NATIVE = f"""
import contextlib, json, sys
import draftproof.cli
seen = []
for words in json.loads(sys.argv[1]):
    try:
        draftproof.cli.main(words)
    except SystemExit as end:
        seen.append([end.code, [name for name in {MODELS} if name in sys.modules]])
import draftproof.cli.serve, draftproof.server.app
seen.append([0, [name for name in {MODELS} if name in sys.modules]])
print("\\n" + json.dumps(seen))
"""


@pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
def test_the_native_runner_brings_no_model_of_transformers(tmp_path: Path) -> None:
    own = AutoTokenizer.from_pretrained(TARGET)
    model = gguf_files.model("llama", vocab_size=len(own), dtype=torch.bfloat16)
    file = gguf_files.write(tmp_path / "m.gguf", model, "Q8_0", own)
    own.chat_template = "{% for each in messages %}{{ each.content }}{% endfor %}"
    model.save_pretrained(tmp_path / "folder")
    own.save_pretrained(tmp_path / "folder")
    places = {"FILE": str(file), "FOLDER": str(tmp_path / "folder")}
    words = json.dumps([[places.get(word, word) for word in each] for each in NATIVE])
    command = [sys.executable, "-c", RUN_NATIVE, words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, input="hello\n")
    assert json.loads(done.stdout.splitlines()[-1]) == [[0, []]] * (len(NATIVE) + 1), done.stderr


def test_public_names_are_there_before_they_are_loaded() -> None:
    assert {*draftproof.__all__} <= {*dir(draftproof)}
    with pytest.raises(AttributeError, match="module 'draftproof' has no attribute 'Ngram'"):
        draftproof.Ngram  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("seconds", [0.15, 0.5, 1.0])
def test_an_interrupt_while_modules_load(seconds: float) -> None:
    program = "print(flush=True); from draftproof.__main__ import main; main()"
    command = [sys.executable, "-c", program, "generate", "bundled", "x", "--max-tokens", "999"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # Python itself has started
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, b"")


def test_an_interrupt_while_python_ends() -> None:
    """As of one who presses Ctrl-C twice: nothing is told of what Python was discarding."""
    program = """if True:
        import atexit, os, signal, time
        from draftproof.__main__ import main
        atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(1)))
        main()"""
    done = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
    assert done.stdout.startswith(b"draftproof ")


def test_an_interrupt_before_any_module_of_ours_is_there() -> None:
    """What stands before `main` is Python's own, and two files that load nothing slow."""
    program = """if True:
        import importlib, sys
        before = {*sys.modules}
        from draftproof.__main__ import main
        print(*{each.partition(".")[0] for each in {*sys.modules} - before})

        class Interrupting:
            def find_spec(self, name, *given):
                if name == "draftproof.interrupts":
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupting())
        main()"""
    source = str(Path(draftproof.__file__).parents[1])
    program = f"import sys; sys.path.insert(0, {source!r})\n{program}"
    command = [sys.executable, "-I", "-S", "-c", program]  # without an editable install's finder
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
    assert {*done.stdout.split()} == {"draftproof"}


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)


def swallowed() -> None:
    with contextlib.suppress(BaseException):
        interrupted()


def told_as_another_error() -> None:
    swallowed()
    raise ModuleNotFoundError("are this object's requirements defined correctly?")


class Lock:
    """As an import's lock, which a callback of Python's own discards."""


def dropped_with_an_object(wrong: Callable[[], object] = interrupted) -> None:
    lock = Lock()
    watched = weakref.ref(lock, lambda _: wrong() and None)
    del lock
    assert watched() is None


LOADS = [interrupted, swallowed, told_as_another_error, dropped_with_an_object]


@pytest.mark.parametrize("loads", LOADS)
def test_an_interrupt_stays_one(
    loads: Callable[[], None], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # a user's, not pytest's
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts.kept():
        loads()
    assert signal.getsignal(signal.SIGINT) is before
    assert sys.unraisablehook is sys.__unraisablehook__
    assert not capfd.readouterr().err


def test_what_else_python_drops_is_told(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with interrupts.kept():
        dropped_with_an_object(lambda: 1 // 0)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_an_interrupt_that_python_drops_while_a_command_closes_is_not_told(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the second of two, which comes while what the first has ended is discarded."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    monkeypatch.setattr(cli, "_run", lambda words: dropped_with_an_object() or 130)
    with pytest.raises(SystemExit) as end:
        cli.main(["batch"])
    assert (end.value.code, capfd.readouterr().err) == (130, "")
    assert sys.unraisablehook is sys.__unraisablehook__


def test_without_an_interrupt_nothing_changes() -> None:
    with pytest.raises(ImportError, match="missing"), interrupts.kept():
        raise ImportError("missing")
    with ThreadPoolExecutor() as pool, interrupts.kept():
        pool.submit(interrupts.kept().__enter__).result()  # another thread has no handlers


def test_interrupts_that_a_process_ignores_stay_ignored() -> None:
    """As of a command that a script has put into the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.kept():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("word", commands.ELSEWHERE)
def test_words_of_other_programs(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([word, "some-model"])
    err = capsys.readouterr().err
    assert end.value.code == 2 and err.count("\n") == 1
    assert err.startswith(f"error: there is no command {word!r}: ")
