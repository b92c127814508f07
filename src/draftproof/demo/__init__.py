"""The bundled models, and the demo that shows them at work.

Two small models of Python code come with the package: a target and its draft. This file says where
they lie; `prompts` is what they are asked, `race` measures, `show` displays, `train` made them.
"""

from pathlib import Path

from draftproof.llm import native_runs

MODELS = Path(__file__).parent / "models"
TARGET, DRAFT = MODELS / "target", MODELS / "draft"
BUNDLED = "bundled"  # what a user writes where a model is asked for


def bundled(name: str) -> Path:
    """The folder of the bundled `target`, `draft` or `heads`; `ValueError` if never trained."""
    folder = MODELS / name
    if not (folder / "model.safetensors").exists():
        raise ValueError(
            f"{folder} has no weights: install draftproof again, or train them with `make models` "
            "in its repository"
        )
    return folder


def located(model: str, part: str) -> str:
    """The folder of the bundled `part` where a user wrote `bundled`; else `model` as it is."""
    return str(bundled(part)) if model == BUNDLED else model


def precision(dtype: str | None, runner: str = "auto", device: str = "auto") -> str:
    """The bundled models' dtype unless one is given: their own bfloat16 natively, else float32.

    On torch bfloat16 is equal to plain decoding up to near-ties only.
    """
    return dtype or ("bfloat16" if runner != "torch" and native_runs(device) else "float32")
