"""The demo: `race` measures, `show` displays, `train` made the models."""

from draftproof.models import native_runs


def precision(dtype: str | None, runner: str = "auto", device: str = "auto") -> str:
    """The bundled models' dtype unless one is given: their own bfloat16 natively, else float32.

    On torch bfloat16 is equal to plain decoding up to near-ties only.
    """
    return dtype or ("bfloat16" if runner != "torch" and native_runs(device) else "float32")
