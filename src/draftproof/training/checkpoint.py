"""What training keeps in its folder: the checkpoint that it resumes from, and the best weights.

Files are there whole or not at all, whoever else writes them at the same time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from draftproof.out_folders import whole, writing

CHECKPOINT, BEST = "checkpoint", "best.pt"
FRESH, OLD = f"{CHECKPOINT}.new", f"{CHECKPOINT}.old"  # while one takes the other's place


def check_unfinished(folder: Path, resume: bool, *more: str) -> None:
    """Refuse a folder with a checkpoint that nobody asked to continue: `ValueError`.

    more: names of files that an unfinished training leaves, too.
    """
    if not (folder / CHECKPOINT).exists():
        with suppress(FileNotFoundError):  # what was killed between two names gets its own back
            (folder / OLD).rename(folder / CHECKPOINT)
    left = [folder / name for name in (CHECKPOINT, *more) if (folder / name).exists()]
    if left and not resume:
        raise ValueError(
            f"{left[0]} is unfinished: add --resume, or --overwrite to begin anew, or write to "
            "another folder"
        )


def check_result(folder: Path, resume: bool) -> None:
    """Refuse a folder with weights that no unfinished training wrote: `ValueError`."""
    unfinished = resume and (folder / CHECKPOINT).exists()
    if not unfinished and any(folder.glob("*.safetensors")):
        raise ValueError(
            f"{folder} holds a finished model: add --overwrite to replace it, or write to another "
            "folder"
        )


def clear(folder: Path) -> None:
    """Remove what a finished training needs no more."""
    for name in (CHECKPOINT, FRESH, OLD):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / BEST).unlink(missing_ok=True)


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """See `out_folders.whole`; what fails is told with a way out."""
    with writing(file), whole(file, f".{os.getpid()}") as fresh:
        yield fresh


@contextmanager
def reading(file: Path, way: str) -> Iterator[None]:
    """`ValueError` with a way out where a library cannot read; they raise what they like."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{file} cannot be read ({cause}): if it is damaged, {way}") from error


class Checkpoint:
    """In `folder`: what the accelerator holds, and how far training is.

    about: what it must agree with to be gone on from, of what JSON can say.
    """

    def __init__(self, accelerator: Any, folder: Path, about: Mapping[str, Any]) -> None:
        self.accelerator, self.path = accelerator, folder / CHECKPOINT
        self.about = json.loads(json.dumps(about))

    def load(self) -> dict[str, Any] | None:
        """The state that was saved, the rest in its place; None if there is no checkpoint."""
        if not self.path.exists():
            return None
        said = self._said("about.json")
        if other := _difference(said, self.about):
            raise ValueError(
                f"{self.path} was made with {other}: give the same options and data, or write to "
                "another folder"
            )
        self._check_random_state()
        with reading(self.path, "begin anew with --overwrite"):
            self.accelerator.load_state(str(self.path))
        return self._said("state.json")

    def _check_random_state(self) -> None:
        """Refuse one that accelerate would pass over, with another result and no word."""
        from accelerate.utils import RNG_STATE_NAME, load

        index = self.accelerator.process_index
        file = self.path / f"{RNG_STATE_NAME}_{index}.pkl"
        if index and not file.exists():  # of more processes than before
            return
        try:
            load(file)
        except Exception as error:  # whatever unpickling raises
            cause = f"{self.path} is damaged: {file.name} cannot be read"
            raise ValueError(f"{cause}; begin anew with --overwrite") from error

    def best(self) -> dict[str, Any] | None:
        """The best weights on held-out text; None where none were kept."""
        if not (file := self.path.with_name(BEST)).exists():
            return None
        with reading(file, "remove it: training goes on without the best weights so far"):
            weights: dict[str, Any] = torch.load(file, "cpu", weights_only=True)
        return weights

    def _said(self, name: str) -> dict[str, Any]:
        """What stands in one of its files. Raises `ValueError` for one that is damaged."""
        try:
            said: dict[str, Any] = dict(json.loads((self.path / name).read_text()))
        except (OSError, ValueError, TypeError) as error:
            cause = f"{self.path} is damaged: {name} cannot be read"
            raise ValueError(f"{cause}; begin anew with --overwrite") from error
        return said

    def save(self, state: Mapping[str, Any]) -> None:
        """A checkpoint in place of the last one, which stays until this one is whole."""
        fresh = self.path.with_name(FRESH)
        if self.accelerator.is_main_process:
            shutil.rmtree(fresh, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        with writing(self.path):
            self.accelerator.save_state(str(fresh))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            with writing(self.path):
                (fresh / "about.json").write_text(json.dumps(self.about))
                (fresh / "state.json").write_text(json.dumps(state))
            old = self.path.with_name(OLD)
            if self.path.exists():
                shutil.rmtree(old, ignore_errors=True)  # of one that was killed here
                self.path.rename(old)
            fresh.rename(self.path)
            shutil.rmtree(old, ignore_errors=True)
        self.accelerator.wait_for_everyone()


def _difference(said: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """What was said otherwise first, by its name; empty if nothing was."""
    for name, value in ours.items():
        other = said.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            if inner := _difference(other, value):
                return inner
        elif other != value:
            return f"{name} {other}, not {value}"
    return ""
