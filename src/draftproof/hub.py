"""Whether the hub can be asked, what it has against a name, and GGUF files that lie there."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import HfApi, constants, errors, hf_hub_download, snapshot_download

REASONS = {  # the first that holds
    errors.GatedRepoError: "the hub lets in who is known: ask on its page, then `hf auth login`",
    errors.RepositoryNotFoundError: "the hub has no such model, or a private one: check the name, "
    "or `hf auth login`",
    errors.RevisionNotFoundError: "the hub has the model without that revision: check --revision",
    errors.RemoteEntryNotFoundError: "what the hub has of that name is no transformers model",
}

# OWNER/NAME/FILE.gguf, or OWNER/NAME:TYPE, as llama.cpp's users write it.
GGUF = re.compile(r"([\w.-]+/[\w.-]+)(?:/((?:\w[\w.-]*/)*\w[\w.-]*\.gguf)|:(\w[\w.-]*))")
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


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


def names_gguf(model: object) -> bool:
    """Whether a name means a GGUF file on the hub; something of that name may lie here."""
    return isinstance(model, str) and GGUF.fullmatch(model) is not None and not Path(model).exists()


def fetched(model: Any, revision: str | None = None) -> Any:
    """The path of a GGUF file on the hub, with all of its parts; else `model` as it is.

    Raises `ValueError`, in one sentence.
    """
    if not names_gguf(model):
        return model
    repository, file, kind = GGUF.fullmatch(model).groups()  # type: ignore[union-attr]
    known = {"revision": revision, **options(repository)}
    try:
        files = _files(repository, known) if kind or PART.search(file) else [file]
        first = file or _of_kind(model, kind, files)
        begin = PART.sub("", first)
        parts = [each for each in files if PART.search(each) and PART.sub("", each) == begin]
        paths = [hf_hub_download(repository, each, **known) for each in sorted(parts) or [first]]
    except (errors.HfHubHTTPError, OSError) as error:
        here = "there is no such file here, and " if file else ""
        raise ValueError(f"cannot fetch {model!r}: {here}{reason(error)}") from error
    return paths[0]


def _files(repository: str, known: dict[str, Any]) -> list[str]:
    """Of the hub's copy; where it cannot be asked, of the one that was fetched before."""
    if "local_files_only" not in known and not constants.is_offline_mode():
        return HfApi().list_repo_files(repository, revision=known["revision"])
    offline = {**known, "local_files_only": True}
    folder = Path(snapshot_download(repository, allow_patterns="*.gguf", **offline))
    return [str(path.relative_to(folder)) for path in folder.rglob("*.gguf")]


def _of_kind(model: str, kind: str, files: Sequence[str]) -> str:
    """The only file, or first part, that bears the name of the type."""
    firsts = [file for file in files if file.endswith(".gguf") and _is_first(file)]
    wanted = re.compile(rf"(?<![a-z0-9]){re.escape(kind)}(?![a-z0-9_])", re.IGNORECASE)
    found = sorted(file for file in firsts if wanted.search(file))
    if len(found) == 1:
        return found[0]
    there = ", ".join((found or sorted(firsts))[:6]) or "no GGUF file at all"
    repository = model.rpartition(":")[0]
    raise ValueError(
        f"{repository} has {len(found) or 'no'} files of type {kind}: give {repository}/FILE, of "
        f"{there}"
    )


def _is_first(file: str) -> bool:
    split = PART.search(file)
    return split is None or int(split[1]) == 1
