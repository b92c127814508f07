"""What holds for every test: no network, one thread of torch, the same examples on every run."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import cache

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported, so it comes first
os.environ["OMP_NUM_THREADS"] = "1"  # of programs that tests start: two would wait for the cores

import pytest
import torch
from hypothesis import settings
from platformdirs import user_cache_path

from draftproof.bundled import corpus

# Fixtures: pair, run; chat, chat_models; folder, train; plain_llm, drafted_llm; refuse_tensor;
# slow, kernel, turned.
pytest_plugins = ("commands", "conversing", "training_folders", "facade", "halves", "writing_rows")

# What imports and collecting make stays to the end: the collector would look through it in vain,
# and each full collection, those that tests ask for among them, would take half a second.
gc.disable()

# A shell that starts the tests with & has them ignore interrupts, which some of them raise.
signal.signal(signal.SIGINT, signal.default_int_handler)

# These models gain nothing from a second thread, and on a busy machine they wait for it.
torch.set_num_threads(1)

# What passes cost is kept by other runs; tests, and commands that they start, keep their own.
os.environ.setdefault("MPLCONFIGDIR", str(user_cache_path("matplotlib")))  # its fonts stay listed
CACHE = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="draftproof-tests-")
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)

# No deadline: the first call into torch is slow, and so is a busy machine.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def modules_are_read_once() -> Iterator[None]:
    """Finding prompts in the standard library takes a second, and many tests want some."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "modules", cache(corpus.modules))
        yield
