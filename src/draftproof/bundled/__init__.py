"""What comes with the package: small models of Python code, and what they are asked.

A target, its draft and its heads; an encoder-decoder, which mends damaged code, and its draft;
`prompts` for them, the `corpus` that they were made from, and how code was `damaged`.
"""

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MODELS = FOLDER / "models"
ENGLISH = FOLDER / "texts" / "english.txt"  # prose that no model has read: written for this package
TARGET, DRAFT = MODELS / "target", MODELS / "draft"
BUNDLED, MENDER = "bundled", "bundled-mender"  # what a user writes where a model is asked for
FOLDERS = {  # of the parts that a name has
    BUNDLED: {"target": "target", "draft": "draft", "heads": "heads"},
    MENDER: {"target": "mender", "draft": "mender-draft"},
}
ALL = tuple(name for parts in FOLDERS.values() for name in parts.values())


def folder(name: str) -> Path:
    """The folder of a bundled model, as `target` or `mender`; `ValueError` if never trained."""
    found = MODELS / name
    if not (found / "model.safetensors").exists():
        raise ValueError(
            f"{found} has no weights: install draftproof again, or train them with `make models` "
            "in its repository"
        )
    return found


def located(model: Any, part: str) -> Any:
    """The folder of the `part` of a bundled model where a user wrote its name; else `model` as is.

    part: target, draft or heads. Raises `ValueError` where the name has no such part.
    """
    if not isinstance(model, str) or model not in FOLDERS:
        return model
    if (name := FOLDERS[model].get(part)) is None:
        raise ValueError(f"{model} has no {part}: draft with ngram, or with its draft")
    return str(folder(name))
