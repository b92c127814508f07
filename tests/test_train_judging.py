"""Precision, device, memory and warnings of `draftproof train`."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tiny
from draftproof.heads.module import Heads
from draftproof.training import trainer
from draftproof.training.data.rows import Document, pack
from draftproof.training.guards import in_single
from draftproof.training.jobs import job, medusa, served, setup
from draftproof.training.recipes import quantised
from training_folders import QUICK, TWO, provenance_of


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_quantised_target(
    dtype: str, train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    honest = medusa.memory

    def memory(target: Any, *rest: Any) -> str:
        layers = target.named_modules()
        seen.extend(name for name, layer in layers if isinstance(layer, quantised.Int8))
        return honest(target, *rest)

    monkeypatch.setattr(medusa, "memory", memory)
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO]
    words += ["--dtype", dtype, "--quantize", "int8"]
    found = train(*words, "--out", str(tmp_path / "heads"), "--capture")
    assert found.code == 0, found.err
    assert len(seen) == 4 * 7 and not any("lm_head" in name for name in seen)
    predicted, served = map(float, re.findall(r"tokens/step (\d+\.\d+)", found.out))
    assert predicted == pytest.approx(served, rel=0.03)
    for more, what in (
        (["--quantize", "int3"], "--quantize int3 is unknown: use int8"),
        (["--joint"], "--quantize is for a target that does not learn"),
    ):
        found = train(*words, *more, "--out", str(tmp_path / "other"))
        assert found.code == 2 and what in found.err


def test_a_quantised_layer_is_near_the_one_it_was_made_of() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        linear, x = torch.nn.Linear(64, 32), torch.randn(5, 64)
    linear.weight.data[3] = 0.0
    made = quantised.Int8(linear)
    step = linear.weight.abs().amax(1, keepdim=True) / 127
    assert ((made.weight * made.scale - linear.weight).abs() <= step / 2 + 1e-9).all()
    assert torch.allclose(made(x), linear(x), atol=0.02) and not torch.equal(made(x), linear(x))


def test_heads_are_judged_in_the_precision_they_serve_in(
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    honest = medusa.Medusa.ranks

    def watched(recipe: Any, batch: Any) -> Any:
        seen.append((recipe.heads.weights.dtype, torch.is_autocast_enabled("cpu")))
        return honest(recipe, batch)

    monkeypatch.setattr(medusa.Medusa, "ranks", watched)
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO]
    found = train(*words, "--dtype", "float16", "--out", str(tmp_path))
    assert found.code == 0, found.err
    assert seen[-1] == (torch.float16, False)


@pytest.mark.parametrize(
    ("capability", "computed"), [("AVX2", ("no", torch.float32)), ("AVX512", ("bf16", None))]
)
@pytest.mark.parametrize("words", [["draft", "--size", "1"], ["medusa", *TWO]])
def test_half_precision_is_computed_in_single_where_that_is_faster(
    words: list[str],
    capability: str,
    computed: tuple[str, Any],
    run: Any,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    honest, made = trainer.train, setup.target

    def target(options: Any) -> Any:
        seen.append(made(options))
        return seen[-1]

    def watched(recipe: Any, stream: Any, plan: Any, *given: Any, **named: Any) -> Any:
        seen.append((plan.precision, seen[0][0].dtype))
        return honest(recipe, stream, plan, *given, **named)

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(setup, "target", target)
    monkeypatch.setattr(trainer, "train", watched)
    given = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, "--dtype", "bfloat16"]
    found = run("train", words[0], *given, *words[1:], "--out", str(tmp_path / "out"))
    assert found.code == 0, found.err
    assert ("training computes in float32" in found.err) == (capability == "AVX2")
    assert seen[1] == (computed[0], computed[1] or torch.bfloat16)
    assert seen[0][0].dtype == torch.bfloat16
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert {one.dtype for one in saved.values()} == {torch.bfloat16}


def test_a_model_is_in_single_meanwhile_and_then_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    model = tiny.model(dtype=torch.bfloat16)
    model.register_buffer("wide", torch.tensor([1 / 3]))
    before = {name: one.clone() for name, one in model.state_dict().items()}
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        want = copy.deepcopy(model).float()(ids).logits
        with pytest.raises(ValueError, match="seen"), in_single(model):
            assert torch.equal(model(ids).logits, want)
            raise ValueError("seen")
    after = model.state_dict()
    for name, one in before.items():
        assert one.dtype == after[name].dtype and torch.equal(one, after[name]), name


def test_memory_is_that_of_all_that_learns(
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def memory(target: Any, *given: Any) -> str:
        counted.append(sum(p.requires_grad for p in target.parameters()))
        raise ValueError("seen")

    monkeypatch.setattr(medusa, "memory", memory)
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, "--out", str(tmp_path)]
    for more in ([], ["--joint"], ["--joint", "--full"]):
        assert train(*words, *more).code == 2
    assert counted[0] == 0 < counted[2] < counted[1]  # an adapter is two matrices
    monkeypatch.undo()
    frozen = torch.nn.Parameter(torch.empty(1_000_000_000, dtype=torch.bfloat16, device="meta"))
    frozen.requires_grad_(False)
    adapter = torch.nn.Parameter(torch.empty(100_000_000, device="meta"))
    config = SimpleNamespace(num_hidden_layers=2, hidden_size=8)
    target: Any = SimpleNamespace(
        parameters=lambda: [frozen, adapter],
        buffers=list,
        config=SimpleNamespace(get_text_config=lambda: config),
        device=torch.device("cpu"),
    )
    heads = Heads(torch.zeros(1, 1, 8, 8), vocab_size=97)
    text = medusa.memory(target, heads, trainer.Plan(1, 1), 8, joint=True)
    assert "target 2.00, what is trained with gradients and moments 1.60" in text


@pytest.mark.parametrize("processes", [1, 3, 6])
def test_rows_of_a_step_divide_among_processes(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    options = job.Options("T", "T", [], tmp_path, accumulate=2)
    rows = pack([Document([1] * 16)] * 400, 16)
    count = setup.plan(options, SimpleNamespace(dtype=torch.float32), rows, 512).rows
    assert count % (2 * processes) == 0 and 16 <= count < 16 + 2 * processes


def test_the_device_that_was_asked_for_is_the_one_that_is_trained_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Any] = []
    gpu = torch.device("cuda:1")
    monkeypatch.setattr(setup.loading, "pick_device", lambda name: gpu)
    monkeypatch.setattr(setup.loading, "load", lambda *given, **named: named["device"])
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    options = job.Options("T", str(folder / "T"), [], tmp_path, device="cuda:1")
    assert setup.target(options)[0] == gpu and chosen == [gpu]


def test_a_difference_between_predicted_and_served_is_said() -> None:
    lines: list[str] = []
    for predicted, got, tokens in ((2.0, 2.05, 20_000), (2.0, 2.2, 100), (2.0, 1.9, 20_000)):
        served.compare(predicted, got, tokens, lines.append)
    assert lines == [
        "warning: 2.00 tokens/step were predicted and 1.90 served: one of them is wrong, so "
        "report it"
    ]
    done = [SimpleNamespace(warnings=some) for some in (["b"], ["a", "b"], [])]
    lines.clear()
    served.pass_on_warnings(done, lines.append)
    assert lines == ["a", "b"]


def test_warnings_of_the_engine_are_passed_on(
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(medusa.served, "pass_on_warnings", lambda _, line: line("the engine warns"))
    monkeypatch.setattr(medusa.served, "compare", lambda *given: given[-1](f"compared {given[:3]}"))
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO]
    found = train(*words, "--out", str(tmp_path))
    report = provenance_of(tmp_path)["report"]
    three = (report["predicted"], report["served"], report["served_tokens"])
    assert "the engine warns" in found.err and f"compared {three}" in found.err
