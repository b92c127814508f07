"""`auto` against the best fixed setting, found afterwards.

    python benchmarks/never_slower/hindsight.py --only "smollm2, bfloat16, humaneval, batch 1, T=0"

Texts of a cell (`cells.py`) are written once, plainly, and what every source drafts at every
position is kept: under the coupled rule that does not depend on what is run. Then every subset of
the sources, each with drafts of 1, 2, 4 and 8 tokens and 1 and 2 branches, is replayed over them
with the measured costs of passes and of drafting. The best three, plain decoding and `auto` write
the texts for real, in turn, and every text must be the plain one. `auto` is compared with the best
of the others, which nobody could have known beforehand.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import cells
import forest
import typer
from cells import CELLS, Cell
from rich.console import Console
from torch import Tensor

import draftproof as dp
from draftproof import bundled, clock
from draftproof.drafting.base import Drafter
from draftproof.runners import costs, measuring
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree, merge
from draftproof.writing import Writing

LENGTHS, WIDTHS = (1, 2, 4, 8), (1, 2)
BEST = 3  # settings that are run for real


@dataclass(frozen=True)
class Setting:
    """Sources whose trees are merged, and cut to so many levels and children of a node."""

    sources: tuple[str, ...] = ()
    length: int = 0
    width: int = 0

    @property
    def name(self) -> str:
        if not self.sources:
            return "plain"
        return f"{' + '.join(self.sources)}, {self.length} long, {self.width} wide"


def settings(sources: Sequence[str]) -> Iterator[Setting]:
    """Every subset with every length and width; plain decoding first."""
    yield Setting()
    for size in range(1, len(sources) + 1):
        for some in combinations(sources, size):
            for length in LENGTHS:
                for width in WIDTHS:
                    yield Setting(some, length, width)


def drafter(name: str, length: int, width: int, hopeless: bool = False) -> Drafter:
    """A source that drafts no more than is asked for."""
    if name == "ngram":
        return dp.NGram(length, branches=width)
    if name == "suffix":
        return dp.SuffixAutomaton(length * width, corpus=0)
    if name == "heads":
        return dp.Medusa(bundled.folder("heads"), nodes=length * width)
    model = cells.hopeless() if hopeless else bundled.folder("draft")
    return dp.DraftModel(model, length, branch=width, min_confidence=0.0)


def cut(tree: TokenTree, length: int, width: int) -> TokenTree:
    """At most so many levels, and so many children of each node, the first ones."""
    kept, children = [0], defaultdict[int, int](int)
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        if parent in kept and tree.depths[node] <= length and children[parent] < width:
            children[parent] += 1
            kept.append(node)
    new = {old: at for at, old in enumerate(kept)}
    return TokenTree(
        [tree.tokens[node] for node in kept],
        [-1, *(new[tree.parents[node]] for node in kept[1:])],
    )


class Several(Drafter):
    """Asks drafters at every step; `made` makes a tree of theirs."""

    name = "several"

    def __init__(self, drafters: Mapping[str, Drafter]) -> None:
        self.drafters = drafters
        self.taps = tuple(sorted({tap for each in drafters.values() for tap in each.taps}))

    def bind(self, target: Target, load: Load) -> None:
        for each in self.drafters.values():
            each.bind(target, load)

    def observe(self, request: Writing, position: int, hidden: Mapping[int, Tensor]) -> None:
        raise AssertionError("none of the sources observes")

    def read_along(self, requests: Sequence[Writing]) -> None:
        for each in self.drafters.values():
            each.read_along(requests)

    def release(self, request: Writing) -> None:
        for each in self.drafters.values():
            each.release(request)

    def close(self) -> None:
        for each in self.drafters.values():
            each.close()


class Recorder(Several):
    """Drafts nothing, and keeps what others would."""

    def __init__(self, drafters: Mapping[str, Drafter]) -> None:
        super().__init__(drafters)
        # source -> key of a request -> length of the text -> tree
        self.trees: dict[str, dict[int, dict[int, TokenTree]]] = {
            name: defaultdict(dict) for name in drafters
        }
        self.seconds: dict[str, list[float]] = {name: [] for name in drafters}

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        for name, each in self.drafters.items():
            began = time.perf_counter()
            trees = each.propose(requests)
            self.seconds[name].append(time.perf_counter() - began)
            for request, tree in zip(requests, trees, strict=True):
                self.trees[name][request.key][len(request.tokens)] = tree
        return [TokenTree.chain(request.tokens[-1:]) for request in requests]


class Fixed(Several):
    """Drafts by one setting in every step."""

    def __init__(self, setting: Setting, hopeless: bool) -> None:
        self.setting = setting
        size = setting.length, setting.width
        super().__init__({name: drafter(name, *size, hopeless) for name in setting.sources})

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        each = [one.propose(requests) for one in self.drafters.values()]
        length, width = self.setting.length, self.setting.width
        return [cut(merge(trees), length, width) for trees in zip(*each, strict=True)]


@dataclass
class Recording:
    """Texts that were written together, in groups, and what was drafted in them."""

    groups: list[list[Writing]]
    trees: dict[str, dict[int, dict[int, TokenTree]]]
    seconds: dict[str, float]  # of drafting `LENGTHS[-1]` tokens, once for all texts
    pass_costs: costs.PassCosts

    def replay(self, setting: Setting) -> float:
        """Seconds that the setting would have taken, prompts left out."""
        return sum(self._replay(setting, group) for group in self.groups)

    def _replay(self, setting: Setting, group: Sequence[Writing]) -> float:
        at = {request.key: len(request.prompt) + 1 for request in group}
        took = 0.0
        while at:
            rows = attended = 0
            for request in group:
                if (here := at.get(request.key)) is None:
                    continue
                tree = self._tree(setting, request, here)
                node, right = 0, 0
                while True:
                    token = (
                        request.tokens[here + right] if here + right < len(request.tokens) else -1
                    )
                    following = [c for c in tree.children(node) if tree.tokens[c] == token]
                    if not following:
                        break
                    node, right = following[0], right + 1
                rows, attended = rows + len(tree), attended + len(tree) * here
                at[request.key] = here + right + 1
                if at[request.key] >= len(request.tokens):
                    del at[request.key]
            took += self.pass_costs.seconds(rows, attended)
            for name in setting.sources:
                share = setting.length / LENGTHS[-1] if name == "draft" else 1.0
                took += self.seconds[name] * share
        return took

    def _tree(self, setting: Setting, request: Writing, at: int) -> TokenTree:
        found = [
            tree
            for name in setting.sources
            if (tree := self.trees[name][request.key].get(at)) is not None
        ]
        if not found:
            return TokenTree.chain(request.tokens[at - 1 : at])
        return cut(merge(found), setting.length, setting.width)


def record(llm: dp.LLM, cell: Cell, prompts: Sequence[Any], params: dp.SamplingParams) -> Recording:
    """Write every turn's prompts plainly, and keep what the sources draft."""
    names = ["ngram", "suffix"] + ([_dear(cell)] if cell.drafts else [])
    hopeless = cell.drafts == "hopeless"
    recorder = Recorder({name: drafter(name, LENGTHS[-1], WIDTHS[-1], hopeless) for name in names})
    llm.use(recorder)
    groups: list[list[Writing]] = []
    for turn in prompts:
        requests = [made for prompt in turn for made in llm.prepare(prompt, params)]
        for _ in llm.engine.run(requests):
            pass
        groups.append([*requests])
    table = costs.of(llm.runner)
    measuring.measure(llm.runner, table)
    seconds = {name: statistics.median(took) for name, took in recorder.seconds.items()}
    return Recording(groups, recorder.trees, seconds, table)


def _dear(cell: Cell) -> str:
    return "heads" if cell.drafts == "heads" else "draft"


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="Part of a cell's name; repeatable, all must match.")
    ] = None,
    out: Annotated[Path, typer.Option(help="JSON of all cells; those there are kept.")] = Path(
        "bench-results/hindsight.json"
    ),
    turns: Annotated[int, typer.Option(help="Calls of a cell's batch that are recorded.")] = 8,
    rounds: Annotated[int, typer.Option(help="In which each side writes one of them.")] = 24,
    max_tokens: int = 128,
) -> None:
    """Measure, and print a line per cell."""
    console = Console()
    console.print(clock.machine(), highlight=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(out.read_text()) if out.exists() else {"cells": {}}
    for cell in CELLS:
        if not all(part in cell.name for part in only or ()):
            continue
        found["cells"][cell.name] = measured(cell, turns, rounds, max_tokens)
        found |= {"machine": clock.machine(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
        out.write_text(json.dumps(found, indent=1) + "\n")
        console.print(line(cell.name, found["cells"][cell.name]), highlight=False)


def measured(cell: Cell, turns: int, rounds: int, max_tokens: int) -> dict[str, Any]:
    """The best settings by replay, and paired ratios of real runs."""
    plain = cells.writer(cell)
    params = dp.SamplingParams(
        temperature=cell.temperature, max_tokens=max_tokens, seed=1, ignore_eos=True
    )
    pool = cells.turns(cell, plain)
    prompts = [next(pool)[0] for _ in range(turns)]
    llm = dp.LLM(plain, speculate=None, max_batch=16)
    recording = record(llm, cell, prompts, params)
    took = {setting: recording.replay(setting) for setting in settings([*recording.trees])}
    best = sorted(took, key=lambda setting: took[setting])[:BEST]
    hopeless = cell.drafts == "hopeless"
    methods: dict[str, Callable[[], Any]] = {
        setting.name: lambda setting=setting: Fixed(setting, hopeless) if setting.sources else None
        for setting in {Setting(): None} | dict.fromkeys(best)
    }
    methods["auto"] = lambda: cells.speculation(cell.drafts)
    sides = {name: dp.LLM(plain, speculate=make(), max_batch=16) for name, make in methods.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        turn = number % turns
        if number and turn == 0:  # what was remembered of earlier outputs would be the answer
            sides["auto"].use(methods["auto"]())
        texts = {}
        for name in random.Random(f"{cell.name} {number}").sample([*sides], len(sides)):
            began = time.perf_counter()
            done = sides[name].generate(prompts[turn], params)
            seconds[name].append(time.perf_counter() - began)
            texts[name] = [one.token_ids for one in done]
        if cell.runner == "native" and any(each != texts["plain"] for each in texts.values()):
            raise SystemExit(f"{cell.name}: a text differs: a defect")
    for each in [*sides.values(), llm]:
        each.close()
    ratios = {
        name: forest.interval([a / b for a, b in zip(each, seconds["auto"], strict=True)])
        for name, each in seconds.items()
        if name != "auto"
    }
    fastest = min(ratios, key=lambda name: ratios[name][0])
    return {
        "best": fastest,
        "auto": ratios[fastest],
        "of plain": ratios["plain"],
        "others": ratios,
        "replayed": {setting.name: seconds for setting, seconds in took.items()},
        "rounds": rounds,
    }


def line(name: str, cell: Mapping[str, Any]) -> str:
    """What a cell came to."""
    middle, low, high = cell["auto"]
    return (
        f"{name}: auto has {middle:.3f} ({low:.3f}-{high:.3f}) of the speed of the best fixed "
        f"setting ({cell['best']}), and {cell['of plain'][0]:.3f} of plain decoding's"
    )


if __name__ == "__main__":
    typer.run(main)
