"""From a command's arguments to what it does, which is imported here and nowhere above."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from draftproof import interrupts

TALK = "chat"  # where an interrupt ends an answer, and not the command


def start(name: str, arguments: dict[str, Any]) -> int:
    """The exit code of `run(arguments)` in the module of a command that knows no model."""
    with interrupts.kept():
        command = import_module(f"draftproof.cli.{name}")
    with nullcontext() if name == TALK else interrupts.ended():
        code: int = command.run(SimpleNamespace(**arguments))
    return code


def launch(name: str, arguments: dict[str, Any]) -> int:
    """As `start`, of one that loads models: their libraries say nothing of their own."""
    with interrupts.kept():
        import_module(f"draftproof.cli.{name}")
        hush()
    return start(name, arguments)


def hush() -> None:
    """Libraries that load models say nothing of their own."""
    from huggingface_hub.utils.tqdm import enable_progress_bars
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of every retry
    transformers_logging.disable_progress_bar()
    if sys.stderr is not None and sys.stderr.isatty():
        enable_progress_bars()  # a download is worth watching
