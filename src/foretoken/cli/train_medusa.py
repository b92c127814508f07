"""`foretoken train medusa`: from arguments to trained heads, their card, and what they gave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from foretoken import checkpoints
from foretoken.cli import options, training
from foretoken.cli.options import option
from foretoken.cli.training import DATA, RESULTS, TRAINING
from foretoken.demo import located
from foretoken.runners import loading
from foretoken.training import card_medusa, run_medusa

HEADS = "The heads"
LAYOUTS = ("original", "vllm")


def medusa(
    target: training.Target,
    data: training.Data,
    out: Annotated[Path, option(RESULTS, "Folder for the heads.")],
    held_out: training.HeldOut = None,
    limit: training.Limit = None,
    self_distill: training.SelfDistill = False,
    capture: Annotated[
        bool, option(DATA, "Hidden states once to disk, not every epoch.", "--capture")
    ] = False,
    length: training.Length = None,
    heads: Annotated[int, option(HEADS, "How many; 5.")] = 5,
    layers: Annotated[int, option(HEADS, "Blocks of each; 1.")] = 1,
    own_head: Annotated[
        bool, option(HEADS, "A projection for each, not the target's.", "--own-head")
    ] = False,
    start: Annotated[str | None, option(HEADS, "Heads to go on from.", metavar="HEADS")] = None,
    joint: Annotated[
        bool, option(TRAINING, "Medusa-2: the target learns too, by adapters.", "--joint")
    ] = False,
    full: Annotated[bool, option(TRAINING, "With --joint: all of the target.", "--full")] = False,
    steps: training.Steps = None,
    rows: training.Rows = None,
    accumulate: training.Accumulate = 1,
    rate: Annotated[
        float | None,
        option(
            TRAINING, "Peak learning rate of the heads; 4.1 / width, 0.01 at most, joint 0.002."
        ),
    ] = None,
    seed: training.Seed = 0,
    resume: training.Resume = False,
    nodes: Annotated[int, option(RESULTS, "Nodes of the tree, at most; 32.")] = 32,
    calibration_tokens: Annotated[
        int, option(RESULTS, "Of the target's own text, for the tree and again to check it; 20000.")
    ] = 20_000,
    export: Annotated[
        list[str] | None, option(RESULTS, "Also write: original, vllm.", metavar="LAYOUT")
    ] = None,
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> int:
    """Medusa heads for a target: trained, their tree calibrated, and served once to be sure."""
    training.check_numbers(
        rate,
        heads=heads,
        layers=layers,
        steps=steps,
        rows=rows,
        accumulate=accumulate,
        limit=limit,
        nodes=nodes,
        calibration_tokens=calibration_tokens,
        threads=threads,
    )
    if full and not joint:
        raise ValueError("--full is for --joint: add that")
    if joint and capture:
        raise ValueError("--joint changes the states that --capture keeps: drop one")
    for name in export or ():
        if name not in LAYOUTS:
            raise ValueError(f"export {name!r} is unknown: use {', '.join(LAYOUTS)}")
    chosen = run_medusa.Options(
        target=target,
        source=located(target, "target"),
        data=data,
        out=out,
        held_out=held_out or (),
        heads=heads,
        layers=layers,
        own_head=own_head,
        start=start,
        joint=joint,
        full=full,
        steps=steps,
        rows=rows,
        length=length,
        rate=rate,
        accumulate=accumulate,
        limit=limit,
        self_distill=self_distill,
        capture=capture,
        resume=resume,
        calibration_tokens=calibration_tokens,
        nodes=nodes,
        seed=seed,
        dtype=dtype or "auto",
        device=device,
        threads=threads,
        trust_remote_code=trust_remote_code,
    )
    found = training.watched(lambda shown: run_medusa.heads(chosen, shown), _told, out)
    if found is None:
        return 130
    if found.process:
        return 0
    _export(chosen, export or ())
    print(card_medusa.line(found))
    print(f"written: {out}")
    return 0


def _told(shown: dict[str, float]) -> str:
    shares = (value for name, value in shown.items() if name.startswith("head "))
    return "heads " + " ".join(f"{share:.0%}" for share in shares)


def _export(chosen: run_medusa.Options, layouts: list[str] | tuple[()]) -> None:
    """The heads as others read them; where they share the LM head they are given it."""
    for name in layouts:
        made = checkpoints.load(chosen.out)
        target = loading.load(chosen.source, device=loading.pick_device("cpu"))
        weight = target.get_output_embeddings().weight.detach()
        writer = {"original": checkpoints.export_original, "vllm": checkpoints.export_vllm}[name]
        writer(chosen.out / name, made, weight)
