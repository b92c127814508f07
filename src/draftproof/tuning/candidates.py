"""Drafts before they are tried: do they fit a model, what do they cost, and when would they pay?

Judged by their vocabulary and by passes alone, so one that is not trained yet will do.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from draftproof import analysis, interrupts
from draftproof.drafting.beside import stranger
from draftproof.gguf.reader import later
from draftproof.heads.files import ORIGINAL_FILES, load
from draftproof.heads.placed import Placed, placed
from draftproof.llm import LLM
from draftproof.models import beside
from draftproof.runners import costs
from draftproof.runners.base import KEY, Target, Work
from draftproof.runners.curves import MOST
from draftproof.runners.measuring import BEHIND, measure
from draftproof.tree import TokenTree
from draftproof.vocabularies import load_tokenizer

QUARTER = 1.25  # times as fast as plain decoding
LENGTHS = 8  # of the drafts that are thought of
SECONDS = 1.5  # of measuring each model
TIMES = 9  # that an exit is timed
SAME, MAPPED = "same", "mapped"


@dataclass
class Judged:
    """A draft beside a model. batches: by size, what a token of it costs and must bring.

    "of_a_pass": of a pass of the model over one token of each text. "needed": the share of its
    tokens that must be accepted; None: no draft of up to `LENGTHS` pays at any.
    "needed_for_a_quarter": the same for `QUARTER`. vocabulary: "same" or "mapped". refused: why it
    cannot draft at all.
    """

    name: str
    vocabulary: str = SAME
    batches: list[dict[str, Any]] = field(default_factory=list)
    refused: str = ""

    @property
    def why(self) -> str:
        """It need not be tried, for this reason; "" : it may pay."""
        if self.refused or self.vocabulary == MAPPED:
            return (
                self.refused or "another tokenizer: --any-tokenizer of the other commands maps it"
            )
        never = self.batches and all(each["needed"] is None for each in self.batches)
        return "it costs too much to pay at any acceptance" if never else ""

    def as_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return asdict(self) | {"left_out": self.why}


def within(folder: Path) -> tuple[list[str], list[str]]:
    """The models and the heads that lie in a folder. Raises `ValueError` where there are none."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: give one with a draft in each subfolder")
    if (folder / "config.json").exists():
        raise ValueError(f"{folder} is one draft, not a folder of them: use --draft {folder}")
    models, heads = list[str](), list[str]()
    for each in sorted(folder.iterdir()):
        if _of_heads(each):
            heads.append(str(each))
        elif (each / "config.json").exists() or _in_a_file(each):
            models.append(str(each))
    if not models and not heads:
        raise ValueError(
            f"no draft lies in {folder}: put models, GGUF files and heads there, each in its folder"
        )
    return models, heads


def measured(llm: LLM) -> None:
    """See what passes of the model take now."""
    measure(llm.runner, costs.of(llm.runner), SECONDS)


def judged(
    llm: LLM,
    model: str,
    quantize: str | None,
    batches: Sequence[int],
    trust_remote_code: bool = False,
) -> Judged:
    """A draft model beside the one that `measured` measured. Raises `ValueError`: it cannot run."""
    draft = beside(llm.runner, model, quantize)
    try:
        own = costs.of(draft)
        measure(draft, own, SECONDS)
        options = {"trust_remote_code": trust_remote_code}
        tokenizers = load_tokenizer(model, None, options), llm.tokenizer
        other = stranger(draft.vocabulary, llm.runner.vocabulary, *tokenizers)
        found = [_paying(llm, batch, own.seconds(batch)) for batch in batches]
        return Judged(_name(model, quantize), MAPPED if other else SAME, found)
    finally:
        draft.close()


def judged_heads(llm: LLM, folder: str, batches: Sequence[int]) -> Judged:
    """Heads on a model; `ValueError`: of another one. A draft of Medusa's costs no pass."""
    heads = load(folder)
    on = placed(heads, llm.runner)
    if heads.exit is None:
        return Judged(_name(folder))
    llm.runner.check_exit(heads.exit)
    return Judged(
        _name(folder),
        batches=[_paying(llm, each, _exit(llm.runner, on, heads.exit, each)) for each in batches],
    )


def look(
    llm: LLM,
    folder: Path,
    dtypes: Sequence[str],
    batches: Sequence[int],
    trust_remote_code: bool = False,
) -> tuple[list[Judged], list[tuple[str, str]], list[str]]:
    """All in a folder, judged; and of its models, each with a dtype, and heads those that may pay.

    dtypes: "auto", "int8" or "int4", each model in each. One that cannot run is no error here.
    """
    models, heads = within(folder)
    measured(llm)
    found, drafts, fitting = list[Judged](), list[tuple[str, str]](), list[str]()
    for model in models:
        for dtype in dtypes:
            quantize = None if dtype == "auto" else dtype
            given = batches, trust_remote_code
            found.append(_tried(_name(model, quantize), judged, llm, model, quantize, *given))
            drafts += [(model, dtype)] * (not found[-1].why)
    for place in heads:
        found.append(_tried(_name(place), judged_heads, llm, place, batches))
        fitting += [place] * (not found[-1].why)
    return found, drafts, fitting


def _tried(name: str, judge: Callable[..., Judged], *given: Any) -> Judged:
    try:
        with interrupts.kept():  # else one while it loads would be told as refused
            return judge(*given)
    except ValueError as error:
        return Judged(name, refused=str(error))


def _paying(llm: LLM, batch: int, seconds: float) -> dict[str, Any]:
    """Where a token for each text of a batch takes so long to draft."""
    target = costs.of(llm.runner)
    c = seconds / target.seconds(batch)
    rows = {n: target.seconds(min(MOST, batch * n)) for n in range(1, LENGTHS + 2)}
    needed = [analysis.break_even(c, rows, LENGTHS, gain) for gain in (1.0, QUARTER)]
    return {"batch": batch, "of_a_pass": c, "needed": needed[0], "needed_for_a_quarter": needed[1]}


@torch.inference_mode()
def _exit(runner: Target, head: Placed, layers: int, rows: int) -> float:
    """Median seconds of so many drafted tokens: layers of the model, and the head behind them."""
    tree, took = TokenTree([0] * rows, [-1, *[0] * (rows - 1)]), list[float]()
    try:
        runner.forward([Work(KEY, [0] * BEHIND, TokenTree.chain([0]))])
        for _ in range(TIMES):
            began = time.perf_counter()
            (read,) = runner.forward([Work(KEY, [], tree)], (-1,), layers, head=False)
            head.logits(read.hidden[-1])
            took.append(time.perf_counter() - began)
    finally:
        runner.free(KEY)
    return statistics.median(took)


def _name(place: str, quantize: str | None = None) -> str:
    name = Path(place).name
    return f"{name} {quantize}" if quantize else name


def _in_a_file(place: Path) -> bool:
    """Whether it is a GGUF file, or a folder with one; what is in it is told where it is loaded."""
    if place.is_dir():
        return any(_in_a_file(each) for each in place.glob("*.gguf"))
    return place.suffix == ".gguf" and not later(place)


def _of_heads(folder: Path) -> bool:
    """By what its config says; what cannot be read is told where it is loaded as a model."""
    if any((folder / name).exists() for name in ORIGINAL_FILES):
        return True
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return str(config.get("format", config.get("model_type", ""))).endswith("medusa")
    except (OSError, ValueError, AttributeError):
        return False
