"""What holds for every test: no network, at most two threads, the same examples on every run."""

import os
import signal

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported, so it comes first

import torch
from hypothesis import settings

# Fixtures: pair, run; chat, chat_models; folder, train.
pytest_plugins = ("commands", "conversing", "training_folders")

# A shell that starts the tests with & has them ignore interrupts, which some of them raise.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Several workers with as many threads each would wait for one another.
most = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
torch.set_num_threads(min(most, torch.get_num_threads()))

# No deadline: the first call into torch is slow, and so is a busy machine.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")
