"""How a process with native passes ends; run as a program by test_native_endings.py.

Every round is a forked child, so that one import serves them all and a crash is a status.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from random import Random

import torch

import draftproof as dp
import tiny
from draftproof.runners.base import Work
from draftproof.runners.native import NativeRunner
from draftproof.runners.team import Team
from draftproof.tree import TokenTree

MODEL = tiny.model(
    "llama", dtype=torch.bfloat16, head_dim=16, hidden_size=256, max_position_embeddings=4096
)
IDS = [3 + i % 90 for i in range(200)]


def runner(threads: int = 2) -> NativeRunner:
    return NativeRunner(MODEL, team=Team(threads))


def passes(made: NativeRunner) -> None:
    """Long passes, for ever; closed in between, a key begins anew."""
    while True:
        made.forward([Work(7, IDS, TokenTree.chain([5]))])
        made.free(7)


def daemon(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def exit_under_a_pass(rng: Random) -> None:
    """The main thread ends while a daemon thread is in a pass."""
    daemon(passes, runner())
    time.sleep(rng.random() / 20)
    sys.exit(0)


def close_under_a_pass(rng: Random) -> None:
    """close() comes from another thread, again and again, and takes the rows that the pass uses."""
    made, done = runner(), threading.Event()

    def closing() -> None:
        while not done.is_set():
            made.close()
            time.sleep(rng.random() / 500)

    thread = threading.Thread(target=closing)
    thread.start()
    for _ in range(10):
        made.forward([Work(7, IDS, TokenTree.chain([5]))])
        made.free(7)
    done.set()
    thread.join()
    made.close()
    made.close()


def generate_at_exit(rng: Random) -> None:
    """An LLM writes in a daemon thread when the process ends, which closes it last of all."""
    weakref.finalize(os, lambda: llm.close())  # before its own finalizers, so run after them
    llm = dp.LLM(MODEL, runner="native", speculate="ngram")
    params = dp.SamplingParams(max_tokens=3000, ignore_eos=True)

    def write() -> None:
        while True:
            llm.generate(IDS[:9], params)

    daemon(write)
    time.sleep(rng.random() / 10)
    sys.exit(0)


def no_room_for_threads(rng: Random) -> None:
    """A team of more threads than there is room for stacks; a smaller one then works."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (96 << 20), resource.RLIM_INFINITY))
    try:
        Team(1000)
    except ValueError as error:
        assert str(error) == "the system gives no 1000 threads: use fewer"
    else:
        raise AssertionError("there was room for 1000 stacks")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    runner().forward([Work(7, IDS, TokenTree.chain([5]))])


def child_of_a_pass(rng: Random) -> None:
    """Forked while another thread is in a pass: the child lets go of everything, and ends.

    A pass of its own over the same weights is refused there, or right where the fork fell between
    two passes; it does not wait for who stayed in the parent.
    """
    made = [runner()]
    made.append(made[0].again())
    daemon(passes, made[0])
    time.sleep(rng.random() / 50)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(RuntimeError):
            made[1].forward([Work(7, IDS, TokenTree.chain([5]))])
        made.clear()
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status


def child_of_sleepers(rng: Random) -> None:
    """Forked while the team's threads sleep: who lets go of the team there waits for nobody."""
    made = [runner()]
    made[0].forward([Work(7, IDS, TokenTree.chain([5]))])
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        made.clear()
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status


ENDINGS = {
    ending.__name__: ending
    for ending in (
        exit_under_a_pass,
        close_under_a_pass,
        generate_at_exit,
        no_room_for_threads,
        child_of_a_pass,
        child_of_sleepers,
    )
}


def status_of(child: int, seconds: float) -> int | str:
    """How a child ended; one that does not is killed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


def main(rounds: int, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        statuses = []
        for number in range(rounds):
            child = os.fork()
            if child == 0:
                os.setpgid(0, 0)  # so that its own children end with it
                ENDINGS[name](Random(number))
                sys.exit(0)
            statuses.append(status_of(child, 60))
        print(name, *statuses, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or [*ENDINGS])
