"""From a command's arguments to what it does, which is imported here and nowhere above."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from draftproof.cli import interrupts


def launch(name: str, arguments: dict[str, Any]) -> int:
    """The exit code of `run(arguments)` in the command's module.

    The libraries that it uses say nothing of their own on a terminal.
    """
    with interrupts.kept():
        command = import_module(f"draftproof.cli.{name}")
        from huggingface_hub.utils.tqdm import enable_progress_bars
        from transformers.utils import logging as transformers_logging
    transformers_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of every retry
    transformers_logging.disable_progress_bar()
    if sys.stderr is not None and sys.stderr.isatty():
        enable_progress_bars()  # a download is worth watching
    code: int = command.run(SimpleNamespace(**arguments))
    return code
