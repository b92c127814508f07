"""The native runner: which models, machines and processes get it, and how others are refused."""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig

import draftproof as dp
import tiny
from draftproof import native
from draftproof.runners import choice, packing, telling
from draftproof.runners.matrix import Linear
from draftproof.runners.native import NativeRunner
from draftproof.runners.torch import TorchRunner
from draftproof.runners.weights import LoadedWeights
from native_models import PRECISIONS, ROPE, SIZES, V, model, team, tokens

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("native") / "m"
    copy.deepcopy(model("llama")).save_pretrained(path)
    return str(path)


def test_a_folder_in_bfloat16_runs_natively_and_holds_its_weights_once(folder: str) -> None:
    llm = dp.LLM(folder, speculate=None)
    assert isinstance(llm.runner, NativeRunner) and llm.runner.precision == "bfloat16"
    assert all(p.is_meta for p in llm.runner.model.parameters())
    want = (
        dp.LLM(model("llama"), runner="native", speculate=None).generate(tokens(1, 5))[0].token_ids
    )
    assert llm.generate(tokens(1, 5))[0].token_ids == want
    assert dp.LLM(folder, dtype="int8", speculate=None).runner.precision == "int8"
    for options in ({"dtype": "float32"}, {"runner": "torch"}):
        assert isinstance(dp.LLM(folder, **options).runner, TorchRunner)
    assert isinstance(
        dp.LLM(model("llama"), speculate=None).runner, TorchRunner
    )  # its owner may change it


def test_a_draft_of_another_shape_runs_on_torch(caplog: pytest.LogCaptureFixture) -> None:
    config = Gemma3TextConfig(**{**tiny.COMMON, "vocab_size": V}, query_pre_attn_scalar=12)
    draft = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with caplog.at_level(logging.WARNING):
        llm = dp.LLM(model("llama"), runner="native", speculate=dp.DraftModel(draft))
    assert "the draft runs on torch: Gemma3ForCausalLM" in caplog.text
    plain = dp.LLM(model("llama"), runner="native", speculate=None)
    prompt, params = tokens(3, 8), dp.SamplingParams(max_tokens=12, ignore_eos=True)
    assert llm.generate(prompt, params)[0].token_ids == plain.generate(prompt, params)[0].token_ids


def test_what_auto_cannot_run_is_said_once(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    tiny.model("gemma3", dtype=torch.bfloat16).save_pretrained(tmp_path)
    telling.say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert isinstance(dp.LLM(str(tmp_path), speculate=None).runner, TorchRunner)
    assert caplog.text.count("the torch runner is used: Gemma3ForCausalLM is not one of") == 1


def test_without_kernels_torch_is_used_and_native_refused(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise native.Missing("the native kernels were not built")

    monkeypatch.setattr(native, "library", missing)
    telling.say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert isinstance(dp.LLM(folder, speculate=None).runner, TorchRunner)
    assert "the torch runner is used: the native kernels were not built" in caplog.text
    for options in ({"runner": "native"}, {"dtype": "int8"}):
        with pytest.raises(ValueError, match="not built"):
            dp.LLM(folder, **options)


def damaged(path: str, value: float) -> PreTrainedModel:
    made = copy.deepcopy(model("llama"))
    with torch.no_grad():
        made.get_parameter(path).view(-1)[3] = value
    return made


def adapted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, about itself
        return get_peft_model(copy.deepcopy(model("llama")), LoraConfig(target_modules=["q_proj"]))


@pytest.mark.parametrize(
    ("made", "options", "words"),
    [
        (lambda: damaged("model.layers.2.mlp.up_proj.weight", float("nan")), {}, "layer 2 mlp.up"),
        (lambda: damaged("lm_head.weight", float("inf")), {"dtype": "int8"}, "lm_head hold NaN"),
        (lambda: damaged("model.norm.weight", float("nan")), {}, "norm hold NaN"),
        (lambda: model("llama", torch.float32), {}, "bfloat16, int8 or int4, and the model is in"),
        (lambda: model("llama"), {"dtype": "float16"}, "not torch.float16"),
        (lambda: model("llama"), {"device": "cuda"}, "cuda"),
        (lambda: tiny.model("llama", dtype=torch.bfloat16), {}, "heads have 12 elements"),
        (lambda: tiny.model("gemma3", dtype=torch.bfloat16), {}, "Gemma3ForCausalLM is not one"),
        (lambda: adapted(), {}, "q_proj is a"),
    ],
)
def test_refusals(made: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dp.LLM(made(), **{"runner": "native", **options})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "its activation is gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", **ROPE}}, "rotary scaling is dynamic"),
    ],
)
def test_refused_configurations(changes: dict[str, Any], words: str) -> None:
    config = LlamaConfig(**{**SIZES, **changes})
    made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with pytest.raises(ValueError, match=words):
        dp.LLM(made, runner="native", speculate=None)


def test_int8_is_not_torch_s() -> None:
    with pytest.raises(ValueError, match="torch runner has no int8"):
        dp.LLM(model("llama"), runner="torch", dtype="int8", speculate=None)


def test_a_model_that_hides_something_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook on a layer is in no configuration; the probe sees its effect."""
    made = copy.deepcopy(model("llama"))
    made.model.layers[1].register_forward_hook(lambda m, args, out: out * 1.5)
    with pytest.raises(ValueError, match="off those of transformers"):
        dp.LLM(made, runner="native", speculate=None)


@pytest.mark.parametrize(
    ("room", "way"), [(1000, "use a smaller model"), (0.8, r"dtype='int8' takes [\d.e-]+ GB")]
)
def test_too_little_memory_is_told_with_what_would_fit(
    room: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = packing.Packed(LoadedWeights(model("llama")), "bfloat16").bytes
    room = round(room * whole) if room < 1 else room
    monkeypatch.setattr(packing, "available_bytes", lambda device: room)
    with pytest.raises(MemoryError, match=rf"take [\d.e-]+ GB and [\d.e-]+ GB are free: {way}"):
        packing.Packed(LoadedWeights(model("llama")), "bfloat16")


def test_more_threads_than_cores_work_and_are_told(caplog: pytest.LogCaptureFixture) -> None:
    before = torch.get_num_threads()
    telling.say_once.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            llm = dp.LLM(model("llama"), runner="native", threads=16, speculate=None)
        want = dp.LLM(model("llama"), runner="native", threads=1, speculate=None).generate(
            tokens(1, 5)
        )[0]
        assert llm.generate(tokens(1, 5))[0].token_ids == want.token_ids
    finally:
        torch.set_num_threads(before)
    assert "16 threads on" in caplog.text
    slower = native.kernels() not in choice.WITH_BFLOAT16
    assert (f"bfloat16 here: {native.kernels()} kernels, slower" in caplog.text) == slower


def test_another_llm_is_shared_as_it_is() -> None:
    first = dp.LLM(model("llama"), runner="native", speculate=None)
    second = dp.LLM(first, speculate="ngram")
    assert isinstance(second.runner, NativeRunner)
    assert second.runner.packed is first.runner.packed  # type: ignore[union-attr]
    first.close()
    assert second.generate(tokens(1, 5))[0].token_ids
    with pytest.raises(ValueError, match="as they are"):
        dp.LLM(second, dtype="int8", speculate=None)


FORK = """
import os, sys
sys.path[:0] = {paths}
import native_models as t
made = t.runner()
ids = t.tokens(1, 30)
want = t.one_by_one(made, ids)
child = os.fork()
if child == 0:
    os._exit(0 if t.torch.equal(t.one_by_one(made, ids), want) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_works_alone() -> None:
    """The threads stay in the parent; a child must neither hang nor write other bits."""
    script = FORK.format(paths=[str(Path(__file__).parent), str(Path(tiny.__file__).parent)])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert done.stdout.split()[-1:] == [b"0"], done.stderr


def test_two_python_threads_share_weights() -> None:
    """A pass of one waits for the other's: they have one room to work in."""
    params = dp.SamplingParams(max_tokens=60, ignore_eos=True)
    first = dp.LLM(model("llama"), runner="native", speculate=None)
    llms = [first, dp.LLM(first, speculate="ngram")]
    want = [first.generate([tokens(i, 9)], params)[0].token_ids for i in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            got = pool.map(lambda i: llms[i].generate([tokens(i, 9)], params), range(2))
            assert [one[0].token_ids for one in got] == want


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("outputs, inputs", [(70, 48), (1600, 320), (33, 7)])
def test_a_matrix_of_its_own(precision: str, outputs: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator).bfloat16()
    rows = torch.randn(5, inputs, generator=generator).bfloat16().float()
    linear = Linear(weight, precision, team(2))
    found, want = linear(rows), rows @ weight.float().T
    assert (found - want).abs().max() <= {"bfloat16": 2e-4, "int8": 0.02, "int4": 0.2}[
        precision
    ] * want.abs().max()
    for i in range(5):  # a row's bits do not depend on the others
        assert torch.equal(linear(rows[i : i + 1])[0], found[i])
    drafting = "int4" if precision == "int4" else "int8"  # which is half of bfloat16's bytes
    runner = NativeRunner(model("llama"), precision=precision, team=team(2))
    assert torch.equal(runner.linear(weight)(rows), Linear(weight, drafting, team(2))(rows))
    weight[3, 2] = torch.nan
    with pytest.raises(ValueError, match="holds NaN"):
        Linear(weight, precision, team(2))


def test_the_machine_has_limits() -> None:
    library, made = native.library(), team(2)
    assert library.dp_read_rate(made.handle, 1 << 24, 1) > 1e7
    assert library.dp_tile_rate(made.handle, native.INT8, 50) > 1e7


# --- on a machine with a GPU, which this one pretends to be ---


def test_what_is_native_goes_to_the_cpu_by_itself(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for given, options in [
        (folder, {"dtype": "int8"}),
        (folder, {"runner": "native"}),
        (model("llama"), {"runner": "native"}),
        (model("llama"), {"dtype": "int8"}),
    ]:
        with dp.LLM(given, speculate=None, **options) as llm:
            assert isinstance(llm.runner, NativeRunner), options


def test_the_native_runner_is_refused_where_the_gpu_was_asked_for(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="native .int8 and int4 too. is for CPUs, not for cuda"):
        dp.LLM(folder, dtype="int8", device="cuda")
    with pytest.raises(ValueError, match="cuda:7 was asked for and torch sees 1 of them"):
        dp.LLM(folder, device="cuda:7")
