"""The tokenizer that lies with a model, and the tokens that end its texts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from draftproof import configurations, hub
from draftproof.allocator import give_back
from draftproof.gguf.reader import located
from draftproof.gguf.tokenizer import of_gguf


def load_tokenizer(model: Any, tokenizer: Any, options: dict[str, Any]) -> Any:
    """The given tokenizer, or the one that lies with the model; None if there is none."""
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return tokenizer
    name = tokenizer if tokenizer is not None else model
    if not isinstance(name, str | Path):
        return tokenizer  # any object with a tokenizer's calls, or None
    if tokenizer is not None and str(tokenizer) != str(model):
        options = options | {"revision": None}  # which is the model's
    try:
        return _read(name, tokenizer is not None, options)
    finally:
        give_back()  # a vocabulary is much larger on its way


def _read(name: str | Path, asked_for: bool, options: dict[str, Any]) -> Any:
    """asked_for: raise `ValueError` where there is none."""
    if (file := located(hub.fetched(name, options.get("revision")))) is not None:
        return of_gguf(file)
    try:
        options = options | hub.options(str(name))
        options |= _known(str(name), options)
        made: Any = AutoTokenizer.from_pretrained(str(name), **options)
        if Path(name).is_dir() and not _lies_there(made, Path(name)):
            raise ValueError("the folder has no tokenizer")  # and transformers made an empty one
        return made
    except Exception as error:  # of whatever reads the files that are there
        told = isinstance(error, OSError | ValueError | KeyError)
        if told and not asked_for and not (Path(name) / "tokenizer.json").exists():
            return None  # a folder with weights only: token ids in, token ids out
        asked = isinstance(error, OSError) and not Path(name).is_dir()
        reason = hub.reason(error) if asked else " ".join(str(error).split())[:200]
        raise ValueError(f"cannot load the tokenizer {str(name)!r}: {reason}") from error


def _known(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The configuration that says which tokenizer it is, where its own class need not be loaded."""
    if options.get("trust_remote_code"):
        return {}
    options = {each: value for each, value in options.items() if each != "trust_remote_code"}
    with suppress(Exception):  # of whatever is read: the tokenizer's own reading tells of it
        return {"config": found} if (found := configurations.read(name, **options)) else {}
    return {}


def _lies_there(tokenizer: Any, folder: Path) -> bool:
    """Whether any file of a tokenizer is in the folder that it was said to come from."""
    names = {*getattr(tokenizer, "vocab_files_names", {}).values()}
    names |= {"tokenizer.json", "tokenizer_config.json"}
    return any((folder / name).exists() for name in names)


def end_ids(model: Any, tokenizer: Any) -> list[int]:
    """End-of-text ids of the generation config and of the tokenizer; one below 0 is none."""
    listed = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = listed if listed is not None else getattr(model.config, "eos_token_id", None)
    ids = set(listed if isinstance(listed, list) else [] if listed is None else [listed])
    own = getattr(tokenizer, "eos_token_id", None)
    return sorted(each for each in ids | (set() if own is None else {own}) if each >= 0)
