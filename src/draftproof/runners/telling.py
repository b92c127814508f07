"""What a user is told who has made no mistake: warnings to the log, which is standard error."""

from __future__ import annotations

import functools
import logging

LOG = logging.getLogger("draftproof")


@functools.cache
def say_once(text: str) -> None:
    """A warning, the first time that this process has a reason for it."""
    LOG.warning("%s", text)
