"""Hidden states that a pass hands out, of a tree's nodes and of committed tokens, on both runners.

What a drafter with a cache of its own reads must be what transformers computes for every token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from transformers import PreTrainedModel

import tiny
from draftproof import native
from draftproof.runners.base import Output, Work
from draftproof.runners.native import NativeRunner
from draftproof.runners.torch import TorchRunner
from draftproof.tree import TokenTree

TAPS = (0, 1, -1, 2)
IDS = [3 + (7 * i) % 80 for i in range(40)]
NEAR = {torch.float32: 1e-4, torch.bfloat16: 0.1}  # of a wrong row it is more than 1
Made = Callable[[], TorchRunner | NativeRunner]
RUNNERS = [
    pytest.param(lambda: TorchRunner(model(torch.float32)), id="torch"),
    pytest.param(
        lambda: NativeRunner(model(torch.bfloat16)),
        id="native",
        marks=pytest.mark.skipif(native.found() is None, reason="the kernels were not built"),
    ),
]


@cache
def model(dtype: torch.dtype) -> PreTrainedModel:
    made: PreTrainedModel = tiny.model("llama", dtype=dtype, head_dim=16, num_hidden_layers=3)
    return made


def off(runner: TorchRunner | NativeRunner, rows: torch.Tensor, tap: int, begin: int) -> float:
    """How far rows are from those of transformers in fp32, relative to their spread."""
    with torch.no_grad():
        given = torch.tensor([IDS])
        want = model(torch.float32)(given, output_hidden_states=True).hidden_states[tap][0]
    want = want[begin : begin + len(rows)]
    return float((rows.float() - want).norm() / want.norm())


@pytest.fixture(name="runner", params=RUNNERS)
def _runner(request: pytest.FixtureRequest) -> TorchRunner | NativeRunner:
    made: Made = request.param
    return made()


def close(runner: TorchRunner | NativeRunner, output: Output, begin: int, new: int) -> None:
    """The committed tokens and then the nodes of the pass stand in the text from `begin`."""
    for tap in TAPS:
        assert len(output.read[tap]) == new
        assert off(runner, output.read[tap], tap, begin) < NEAR[runner.dtype], tap
        assert off(runner, output.hidden[tap], tap, begin + new) < NEAR[runner.dtype], tap


def test_a_prompt_in_slices_and_the_tree_behind_it(
    runner: TorchRunner | NativeRunner,
) -> None:
    (first,) = runner.forward([Work(0, IDS[:13], None, read=True)], TAPS)
    for tap in TAPS:
        assert off(runner, first.read[tap], tap, 0) < NEAR[runner.dtype]
    assert len(first.read) == len(TAPS) and len(first.read[0]) == 13
    assert first.hidden[0].shape[0] == 0 and len(first.logits) == 0
    works = [
        Work(1, IDS[:9], TokenTree.chain(IDS[9:12])),
        Work(0, IDS[13:30], TokenTree.chain(IDS[30:36]), read=True),
        Work(2, IDS[:20], None, read=True),
    ]
    outputs = runner.forward(works, TAPS)
    close(runner, outputs[1], 13, 17)
    assert off(runner, outputs[2].read[-1], -1, 0) < NEAR[runner.dtype]
    assert not outputs[0].read
    assert all(off(runner, outputs[0].hidden[tap], tap, 9) < NEAR[runner.dtype] for tap in TAPS)


def test_every_committed_token_is_seen_once(runner: TorchRunner | NativeRunner) -> None:
    """What was read, and what was kept of trees, make the text without a gap."""
    seen, at = [], 0
    for new, kept in ((7, 3), (0, 4), (5, 1), (0, 2)):
        nodes = IDS[at + new : at + new + kept]
        tree = TokenTree([*nodes, 5], [-1, *range(kept)])
        (output,) = runner.forward([Work(0, IDS[at : at + new], tree, read=True)], (-1,))
        runner.keep(0, list(range(kept)))
        seen += [output.read[-1].clone(), output.hidden[-1][:kept].clone()]
        at += new + kept
        assert runner.cached(0) == at
    rows = torch.cat(seen)
    assert len(rows) == at and off(runner, rows, -1, 0) < NEAR[runner.dtype]


def test_what_is_read_is_handed_out_only_where_asked(
    runner: TorchRunner | NativeRunner,
) -> None:
    (output,) = runner.forward([Work(0, IDS[:8], TokenTree.chain(IDS[8:10]), read=True)])
    assert not output.read and not output.hidden  # no layer is tapped
    (output,) = runner.forward([Work(1, IDS[:8], TokenTree.chain(IDS[8:10]))], (-1,))
    assert not output.read and len(output.hidden[-1]) == 2


@pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
def test_natively_what_is_read_changes_no_bit() -> None:
    made = NativeRunner(model(torch.bfloat16))
    tree = TokenTree.chain(IDS[20:25])
    (plain,) = made.forward([Work(0, IDS[:20], tree)])
    logits = plain.logits.clone()
    (read,) = made.forward([Work(1, IDS[:20], tree, read=True)], (1, -1))
    assert torch.equal(read.logits, logits)
    (whole,) = made.forward([Work(2, [], TokenTree.chain(IDS[:25]))], (1, -1))
    for tap in (1, -1):  # a token's states are the same bits, committed or a node
        assert torch.equal(torch.cat([read.read[tap], read.hidden[tap]]), whole.hidden[tap])
