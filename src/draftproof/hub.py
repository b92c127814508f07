"""Whether the hub can be asked at all, and what it has against a name."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants, errors

REASONS = {  # the first that holds
    errors.GatedRepoError: "the hub lets in who is known: ask on its page, then `hf auth login`",
    errors.RepositoryNotFoundError: "the hub has no such model, or a private one: check the name, "
    "or `hf auth login`",
    errors.RevisionNotFoundError: "the hub has the model without that revision: check --revision",
    errors.RemoteEntryNotFoundError: "what the hub has of that name is no transformers model",
}


def options(name: str) -> dict[str, Any]:
    """Of `from_pretrained`: only what was fetched before, where the hub's name has no address.

    Without this each file of a model is asked for six times, with half a minute in between, before
    the copy that was fetched is used or its absence told.
    """
    return {} if Path(name).is_dir() or _has_address() else {"local_files_only": True}


def _has_address() -> bool:
    if constants.is_offline_mode() or getproxies():
        return True  # nobody will ask for it, or somebody else
    try:
        return bool(socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443))
    except OSError:
        return False


def reason(error: BaseException) -> str:
    """What the hub had against a name; transformers says the same of all of them."""
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    for kind, words in REASONS.items():
        if any(isinstance(cause, kind) for cause in causes):
            return words
    if constants.is_offline_mode():
        return "it was never fetched, and HF_HUB_OFFLINE keeps it so: unset that variable"
    return "the hub cannot be reached"
