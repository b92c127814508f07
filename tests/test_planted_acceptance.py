"""benchmarks/encoder_decoder.py: what is planted is accepted, ours and transformers' alike."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from draftproof import analysis
from planted_pairs import Plant, assisted, steps_of

ROOT = Path(__file__).resolve().parent.parent


def loaded(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem + "_benchmark", ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return loaded("benchmarks/encoder_decoder.py")


@pytest.mark.parametrize(("alpha", "gamma"), [(0.75, 7), (0.53, 5), (1.0, 3), (0.0, 3)])
def test_planted_tokens_a_step_are_those_of_the_formula(alpha: float, gamma: int) -> None:
    texts = {(n, n): [5] * 64 for n in range(2)}
    plant = Plant(texts, alpha, gamma)
    steps = sum(steps_of(keeps, gamma) for keeps in plant.keeps.values())
    promised = analysis.expected_tokens(alpha, gamma)
    assert 128 / steps == pytest.approx(promised, rel=0.02)
    assert plant.token((0, 0), 64) == 0
    right = [plant.token((1, 1), at) == 5 for at in range(64)]
    assert right == plant.keeps[1, 1]


@pytest.mark.parametrize("batch", [1, 2])
def test_measured_steps_are_the_planted_ones(benchmark: Any, batch: int, monkeypatch: Any) -> None:
    """Of every row of a case, in float64, and transformers' assistant drafts the same tokens."""
    import draftproof as dp

    shapes = {name: {**shape, "num_layers": 1} for name, shape in benchmark.TINY.items()}
    models = {name: benchmark.made(shape, torch.float64) for name, shape in shapes.items()}
    llm = dp.LLM(models["large"], speculate=None, max_batch=batch)
    passes: list[int] = []
    handle = models["large"].register_forward_hook(lambda *_: passes.append(1))
    monkeypatch.setitem(benchmark.READS, "EnDe", 6)
    case = benchmark.Case("EnDe", 0.0, batch)
    rows = benchmark.timed(case, llm, models, 24, 1, lambda text, share: None)
    handle.remove()
    assert [row["draft"] for row in rows] == ["small", "base", "large"] and passes
    for row in rows:
        assert row["differing"] == 0 and len(row["measured"]) == 1
        promised = analysis.expected_tokens(row["alpha"], row["gamma"])
        assert row["tokens_per_step"] == pytest.approx(promised, rel=0.1)
        assert (row["transformers_assisted"] is not None) == (batch == 1)
    if batch > 1:
        return
    prompt = [3, 4, 5]
    how = benchmark.How(0.0, 24, 0, ignore_eos=True)
    plain = benchmark.sides.transformers("", models["large"], [])
    (want,) = plain.write([prompt], how)
    plant = Plant({(3, 4, 5): want.token_ids}, 0.8, 5)
    side = assisted(models["large"], models["small"], 5, plant)
    handle = models["large"].register_forward_hook(lambda *_: passes.append(1))
    passes.clear()
    (written,) = side.write([prompt], how)
    handle.remove()
    assert written.token_ids == want.token_ids
    # transformers drafts as far as the length allows, which its last steps may do otherwise.
    assert abs(len(passes) - steps_of(plant.keeps[3, 4, 5], 5)) <= 1


def test_figures_of_the_runs(benchmark: Any, tmp_path: Path) -> None:
    """A table of every row, whose columns are predicted, measured and published.

    Cell by cell: what has been measured is not measured again, and settings do not mix.
    """
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        encoded = loaded("scripts/encoded.py")
    finally:
        sys.path.pop(0)
    shapes = {name: {**each, "num_layers": 1} for name, each in benchmark.TINY.items()}
    path, told = tmp_path / "planted.json", []

    def run(target: str = "large", until: float | None = None) -> Any:
        told.clear()
        given = shapes, target, "float32", 4, 1, [1], until
        benchmark.table(path, *given, lambda text, share: told.append(text))
        return json.loads(path.read_text())

    honest, calls = benchmark.timed, []

    def killed(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return honest(*given)

    benchmark.timed = killed
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        benchmark.timed = honest
    first = json.loads(path.read_text())["rows"]
    assert len(first) == 3
    assert len(run(until=0.0)["rows"]) == 3, "its minutes had passed"
    found = run()
    assert found["rows"][:3] == first and len(found["rows"]) == 12
    assert not any("passes" in text for text in told) and found == run() and not told
    text = encoded.planted(found)
    assert text.count("cost measured, acceptance planted") == 12
    assert "3.4x" in text and "predicted (Thm 3.8)" in text
    with pytest.raises(typer.BadParameter, match="other settings"):
        run("base")
    path.unlink()
    assert {row["draft"] for row in run("base")["rows"]} == {"small", "base"}


def test_figures_of_a_step_taken_apart() -> None:
    """On tiny shapes, where no share is worth anything."""
    passes = loaded("benchmarks/encoder_passes.py")
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        encoded = loaded("scripts/encoded.py")
    finally:
        sys.path.pop(0)
    found = passes.measured(True, 1, [2], lambda text, share: None)
    for row in found["passes"]:
        assert min(row["products"], row["attention"], row["native_products"]) > 0
        assert row["saved"] < 1
    assert {row["model"] for row in found["rules"]} == set(passes.RULES)
    text = encoded.passes(found)
    assert "`no_repeat_ngram_size`" in text and text.count("| Whisper-tiny |") == 3
