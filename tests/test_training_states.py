"""Hidden states of a target: captured to disk, and targets that have none are refused."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

import tiny
from cyclic import cycle
from draftproof.training.data.capture import Captured, capture, key
from draftproof.training.data.rows import Document, pack
from draftproof.training.data.states import check, states_of


class Quiet:
    def phase(self, text: str) -> None: ...
    def share(self, done: float) -> None: ...
    def line(self, text: str) -> None: ...


def test_captured_states_are_the_targets(
    cyclic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.training.data.capture.SHARD", 2)
    rows = pack([Document(cycle(i, 6 + i)) for i in range(7)], 12)
    capture(cyclic, rows, tmp_path, Quiet())
    kept = Captured(rows, tmp_path)
    for i in range(len(rows)):
        batch = {name: tensor[None] for name, tensor in kept[i].items()}
        wanted = states_of(cyclic, {k: t for k, t in batch.items() if k != "states"})
        torch.testing.assert_close(states_of(cyclic, batch), wanted)
    # What is there is not made again: a shard that is missing is.
    shards = sorted(tmp_path.iterdir())
    times = [file.stat().st_mtime_ns for file in shards]
    shards[1].unlink()
    capture(cyclic, rows, tmp_path, Quiet())
    again = [file.stat().st_mtime_ns for file in sorted(tmp_path.iterdir())]
    assert [a == b for a, b in zip(times, again, strict=True)].count(False) == 1


def test_states_of_another_target_have_another_name(cyclic: Any) -> None:
    rows = pack([Document(cycle(i, 6)) for i in range(4)], 12)
    moved, other = copy.deepcopy(cyclic), copy.deepcopy(cyclic)
    with torch.no_grad():
        moved.lm_head.weight += 1e-3
    other.config.rope_parameters = other.config.rope_parameters | {"rope_theta": 2e4}
    joined = pack([Document([*cycle(i, 6), *cycle(i + 1, 6)]) for i in (0, 2)], 12)
    assert torch.equal(joined.ids, rows.ids)
    found = [key(target, rows) for target in (cyclic, moved, other, copy.deepcopy(cyclic).half())]
    assert len({*found, key(cyclic, joined)}) == 5
    assert key(copy.deepcopy(cyclic), rows) == found[0]


def test_a_disk_that_is_full_costs_the_shard_it_was_met_at(
    cyclic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library raises neither `OSError` nor `ValueError`, and leaves what it had written."""
    monkeypatch.setattr("draftproof.training.data.capture.SHARD", 2)
    rows = pack([Document(cycle(i, 6 + i)) for i in range(7)], 12)
    honest, written = save_file, []

    def full(tensors: dict[str, Tensor], file: Path) -> None:
        honest(tensors, file)
        written.append(file)
        if len(written) == 2:
            raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("draftproof.training.data.capture.save_file", full)
    with pytest.raises(OSError, match=r"cannot write .*MB are free \(No space left.*: make room"):
        capture(cyclic, rows, tmp_path, Quiet())
    assert [file.name for file in tmp_path.iterdir()] == ["00000000.safetensors"]
    capture(cyclic, rows, tmp_path, Quiet())
    assert len(list(tmp_path.iterdir())) == -(-len(rows) // 2)


def test_states_that_do_not_fit_are_refused_before(
    cyclic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    rows = pack([Document(cycle(0, 12))], 12)
    with pytest.raises(ValueError, match="are free in .*: drop --capture"):
        capture(cyclic, rows, tmp_path, Quiet())


@pytest.mark.parametrize("name", sorted(tiny.CONFIGS))
def test_targets_are_tried_before(name: str) -> None:
    target = tiny.model(name)
    ids = torch.randint(3, tiny.VOCABULARY, (24,), generator=torch.Generator().manual_seed(0))
    check(target, {"ids": ids})


def test_a_target_that_packs_wrongly_is_refused() -> None:
    target = tiny.model("llama")
    honest = target.model.forward

    def ignores(input_ids: Any, position_ids: Any = None, **more: Any) -> Any:
        return honest(input_ids=input_ids, **more)

    target.model.forward = ignores
    with pytest.raises(ValueError, match="see each other"):
        check(target, {"ids": torch.arange(3, 27)})


def test_a_target_whose_states_are_not_its_heads_is_refused() -> None:
    target = tiny.model("llama")
    target.model.norm.register_forward_hook(lambda module, given, states: 2 * states)
    honest = target.forward
    target.forward = lambda **more: type(out := honest(**more))(logits=out.logits / 2)
    with pytest.raises(ValueError, match="are not its LM head over its last hidden states"):
        check(target, {"ids": torch.arange(3, 27)})


def test_a_target_without_states_is_refused() -> None:
    with pytest.raises(ValueError, match="gives no hidden states"):
        check(torch.nn.Linear(2, 2), {"ids": torch.arange(3, 27)})
