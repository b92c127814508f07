"""What comes with the package: two small models of Python code, and what they are asked.

A target, its draft and its heads; `prompts` for them, and the `corpus` that they were made from.
"""

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MODELS = FOLDER / "models"
ENGLISH = FOLDER / "texts" / "english.txt"  # prose that no model has read: written for this package
TARGET, DRAFT = MODELS / "target", MODELS / "draft"
BUNDLED = "bundled"  # what a user writes where a model is asked for


def folder(name: str) -> Path:
    """The folder of the bundled `target`, `draft` or `heads`; `ValueError` if never trained."""
    found = MODELS / name
    if not (found / "model.safetensors").exists():
        raise ValueError(
            f"{found} has no weights: install draftproof again, or train them with `make models` "
            "in its repository"
        )
    return found


def located(model: Any, part: str) -> Any:
    """The folder of the bundled `part` where a user wrote `bundled`; else `model` as it is."""
    return str(folder(part)) if isinstance(model, str) and model == BUNDLED else model
