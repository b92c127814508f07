"""Commands take a checkpoint of four bits as they take any other model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import draftproof as dp
import gguf_files
import quantised_files
from draftproof import bundled, native
from quantised_files import Layout

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
SMALL = ("--num-prompts", "1", "--max-tokens", "4", "--num-tokens", "80", "--window", "80")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, symmetric four bits of GPTQ in groups of 32, with a tokenizer."""
    made = tmp_path_factory.mktemp("gptq")
    tokenizer = AutoTokenizer.from_pretrained(bundled.folder("target"))
    model = gguf_files.model("llama", dtype=torch.bfloat16, vocab_size=len(tokenizer))
    quantised_files.write(made, model, Layout("gptq", 32, symmetric=True))
    tokenizer.save_pretrained(made)
    return made


def test_quality_asks_what_it_costs_as_it_lies(run: Any, folder: Path, tmp_path: Path) -> None:
    code, out, err = run("quality", f"{folder}", *SMALL, "--json", "--out", f"{tmp_path}")
    assert code == 0, err
    found = json.loads(out)
    (cost,) = found["costs"]
    assert (cost["precision"], found["reference"]) == ("gptq", "float32")
    assert "native" in cost["runner"] and 0 < cost["divergence"] < 0.1
    assert cost["weight_bytes"] < found["weight_bytes"] / 2


def test_info_tells_kernels_precision_and_memory(run: Any, folder: Path) -> None:
    code, out, err = run("info", f"{folder}", "--json")
    assert code == 0, err
    (costs,) = json.loads(out)["costs"]
    assert (costs["of"]["precision"], costs["of"]["runner"]) == (
        "gptq",
        f"native ({native.kernels()})",
    )
    with dp.LLM(folder, speculate=None) as llm:
        assert costs["weight_bytes"] == llm.runner.packed.bytes  # type: ignore[union-attr]
    code, out, _ = run("info", f"{folder}")
    line = " ".join(out.split())
    assert code == 0 and "gptq, " in line and "MB of weights" in line


def test_convert_writes_its_numbers(run: Any, folder: Path, tmp_path: Path) -> None:
    """Exactly, in float32: files of both then write the same."""
    code, _, err = run(
        "convert", f"{folder}", "--dtype", "float32", "--out", f"{tmp_path / 'm.gguf'}"
    )
    assert code == 0, err
    params = dp.SamplingParams(max_tokens=8, ignore_eos=True)
    written = [
        dp.LLM(each, dtype="float32", speculate=None).generate(["x = "], params)[0].token_ids
        for each in (folder, tmp_path / "m.gguf")
    ]
    assert written[0] == written[1]


def test_a_draft_of_four_bits(folder: Path) -> None:
    with dp.LLM(folder, speculate=dp.DraftModel(folder)) as llm:
        (out,) = llm.generate(["x = "], dp.SamplingParams(max_tokens=12, ignore_eos=True))
        assert out.stats.accepted > 5
