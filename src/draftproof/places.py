"""Where a model is said to lie: what is no model is told apart, with what to give instead.

Looks at names and the first bytes of files; loads nothing and asks no hub.
"""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any

from draftproof.bundled import FOLDERS as BUNDLED
from draftproof.gguf.reader import located
from draftproof.hub import names_gguf

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
GIVE = "a model is a hub id, a GGUF file, or a folder as transformers' save_pretrained writes it"
# Of its library; on the hub these families have an owner and a slash.
OLLAMAS = re.compile(r"(codellama|deepseek|gemma|llama|mistral|phi|qwen|smollm|tinyllama)[\w.-]*")
HUBS = ("https://huggingface.co/", "http://huggingface.co/", "huggingface.co/", "hf.co/")


def check(model: Any, revision: str | None = None) -> None:
    """Refuse what cannot be a model by name or folder; `ValueError` says what it is instead.

    A loaded model, and a name that only the hub can know, pass. revision: a branch, tag or commit,
    which only models of the hub have.
    """
    if not isinstance(model, str | Path):
        return
    if not str(model).strip():
        raise ValueError(f"the name of the model is empty: {GIVE}")
    path = Path(model)
    try:
        path.exists()
    except OSError as error:  # a name that no file can have, or a folder that may not be read
        name = f"{str(model)[:80]}..." if len(str(model)) > 80 else str(model)
        raise ValueError(f"{name!r} cannot be looked at ({error.strerror}): {GIVE}") from error
    if revision is not None and (str(model) in BUNDLED or path.exists()):
        raise ValueError(
            f"revision {revision!r} is for models of the hub, and {str(model)!r} is none"
        )
    if path.is_file():
        if not located(path):
            raise ValueError(_of_file(path))
        return
    reason = _of_folder(path) if path.is_dir() else _of_name(str(model))
    if reason is not None:
        raise ValueError(reason)


def in_a_file(model: str | Path) -> bool:
    """Whether weights are in a GGUF file, here or, by its name, on the hub."""
    return names_gguf(model) or located(model) is not None


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse a path at which nothing lies, names of files, and what is no tokenizer at all.

    `ValueError`, as `check`.
    """
    if not isinstance(tokenizer, str | Path | None) and not hasattr(tokenizer, "decode"):
        raise ValueError(
            f"tokenizer is a folder, a name or a tokenizer of transformers, and no "
            f"{type(tokenizer).__name__}"
        )
    if isinstance(tokenizer, str | Path) and not Path(tokenizer).is_dir():
        if Path(tokenizer).is_file():
            raise ValueError(f"the tokenizer {str(tokenizer)!r} is a file: give its folder")
        if (reason := _of_name(str(tokenizer))) is not None:
            raise ValueError(f"tokenizer: {reason}")


def _of_file(path: Path) -> str:
    folder = path.absolute().parent
    whole = (folder / "config.json").is_file()
    if whole:
        return f"{path} is one file of a model: give its folder, {folder}"
    if not path.stat().st_size:
        return f"{path} is empty: fetch it again, and {GIVE}"
    if path.suffix in WEIGHTS:
        return f"{path} holds weights without a config.json beside them: {GIVE}"
    return f"{path} is a file and no model: {GIVE}"


def _of_folder(path: Path) -> str | None:
    if (path / "config.json").is_file():
        return f"{path} holds heads, and no model: they are --heads" if holds_heads(path) else None
    if held := sorted(file for file in path.glob("*.gguf") if located(file)):
        # Several may be the parts of one.
        return None if located(path) else f"{path} has several GGUF files: give one, {held[0]}"
    if (path / "adapter_config.json").is_file():
        return f"{path} holds an adapter: merge it into its model with peft's merge_and_unload"
    for pattern in ("*/config.json", "snapshots/*/config.json"):
        for inner in sorted(path.glob(pattern)):
            return f"{path} has no config.json, but {inner.parent} in it has one: give that folder"
    return None


def holds_heads(folder: Path) -> bool:
    """Whether a configuration is that of heads, which name no type of a model."""
    try:
        said = json.loads((folder / "config.json").read_bytes())
    except (ValueError, OSError, RecursionError):
        return False  # whoever reads it says what is wrong
    return (
        isinstance(said, dict)
        and "model_type" not in said
        and bool(said.keys() & {"heads", "medusa_num_heads"})
    )


def _of_name(name: str) -> str | None:
    if names_gguf(name):
        return None
    for hub in HUBS:
        if name.startswith(hub):
            parts = name.removeprefix(hub).strip("/").split("/")
            return f"{name!r} is an address: write {'/'.join(parts[:2])}"
    if name.startswith((".", "/", "~")) or name.endswith((".gguf", *WEIGHTS)):
        return f"there is no file or folder {name!r}: {GIVE}"
    if name.upper().endswith("-GGUF"):
        return f"{name!r} has GGUF files: say which, as in {name}:Q4_K_M or {name}/FILE.gguf"
    if name not in BUNDLED and (near := difflib.get_close_matches(name.lower(), BUNDLED, 1, 0.8)):
        return f"there is no model {name!r}: did you mean {near[0]}?"
    if ":" in name or OLLAMAS.fullmatch(name.lower()):
        return f"{name!r} looks like a name of Ollama's: {GIVE}, such as Qwen/Qwen3-0.6B"
    return None
