"""The checkpoint that an interrupted training goes on from: whole, and of the same training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.training.files import CHECKPOINT, writing


class Checkpoint:
    """In `folder`: what the accelerator holds, and how far training is.

    about: what it must agree with to be gone on from, of what JSON can say.
    """

    def __init__(self, accelerator: Any, folder: Path, about: Mapping[str, Any]) -> None:
        self.accelerator, self.there = accelerator, folder / CHECKPOINT
        self.about = json.loads(json.dumps(about))

    def load(self) -> dict[str, Any] | None:
        """The state that was saved, the rest in its place; None if there is no checkpoint."""
        if not self.there.exists():
            return None
        said = json.loads((self.there / "about.json").read_text())
        if other := _difference(said, self.about):
            raise ValueError(
                f"{self.there} was made with {other}: give the same options and data, or write to "
                "another folder"
            )
        self.accelerator.load_state(str(self.there))
        state: dict[str, Any] = json.loads((self.there / "state.json").read_text())
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        """A checkpoint in place of the last one, which stays until this one is whole."""
        fresh = self.there.with_name(CHECKPOINT + ".new")
        if self.accelerator.is_main_process:
            shutil.rmtree(fresh, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        with writing(self.there):
            self.accelerator.save_state(str(fresh))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            (fresh / "about.json").write_text(json.dumps(self.about))
            (fresh / "state.json").write_text(json.dumps(state))
            old = self.there.with_name(CHECKPOINT + ".old")
            if self.there.exists():
                self.there.rename(old)
            fresh.rename(self.there)
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
