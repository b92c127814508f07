"""Models in GGUF files: weights, rotations and words are those that the files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import draftproof as dp
import gguf_files
from draftproof import bundled, native
from draftproof.gguf import blocks
from draftproof.gguf.configuration import configuration
from draftproof.gguf.reader import read
from draftproof.gguf.tokenizer import of_gguf
from draftproof.gguf.weights import Tensors
from draftproof.runners import gguf_checkpoint
from draftproof.runners.base import Work
from draftproof.tree import TokenTree

KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
PROMPT = [5, 9, 33, 21]
GREEDY = dp.SamplingParams(max_tokens=24, ignore_eos=True)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"use_sliding_window": False, "layer_types": ["full_attention"] * 2},
    "llama tied": {"tie_word_embeddings": True},
    "llama biased": {"attention_bias": False},
    "llama 3": {"rope_parameters": LLAMA3},
}


def made(name: str) -> Any:
    return gguf_files.model(name.split()[0], **MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_a_file_writes_what_its_model_writes(tmp_path: Path, name: str) -> None:
    model = made(name)
    file = gguf_files.write(tmp_path / "m.gguf", model)
    wanted = dp.LLM(model, speculate=None).generate([PROMPT], GREEDY)[0].token_ids
    for speculate in (None, "auto"):
        llm = dp.LLM(file, dtype="float32", speculate=speculate)
        assert llm.generate([PROMPT], GREEDY)[0].token_ids == wanted


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_rotations_are_the_models_own(tmp_path: Path, name: str) -> None:
    model = made(name)
    loaded = gguf_checkpoint.load(
        gguf_files.write(tmp_path / "m.gguf", model),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for each, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[each], tensor), each
    turning = loaded.model.rotary_emb.inv_freq
    assert torch.allclose(turning, model.model.rotary_emb.inv_freq, rtol=1e-6)


@pytest.mark.parametrize("name", ["llama__rope__scaling__factor", "llama__rope__scale_linear"])
def test_a_factor_without_a_type_is_linear_scaling(tmp_path: Path, name: str) -> None:
    model = made("llama")
    file = gguf_files.write(tmp_path / "m.gguf", model, **{name: 4.0})
    loaded = gguf_checkpoint.load(file, dtype=torch.float32, device=torch.device("cpu"))
    turning = loaded.model.rotary_emb.inv_freq
    assert torch.allclose(turning, model.model.rotary_emb.inv_freq / 4)


def test_where_yarn_begins_and_ends_is_read(tmp_path: Path) -> None:
    model = made("qwen2")
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
    rope |= {"original_max_position_embeddings": 32}
    model.config.rope_parameters = {**rope, "beta_fast": 4.0, "beta_slow": 2.0}
    wanted = type(model.model.rotary_emb)(model.config).inv_freq
    fields = {"scaling__type": "yarn", "scaling__factor": 4.0}
    fields |= {"scaling__original_context_length": 32}
    fields |= {"scaling__yarn_beta_fast": 4.0, "scaling__yarn_beta_slow": 2.0}
    fields = {f"qwen2__rope__{name}": value for name, value in fields.items()}
    file = gguf_files.write(tmp_path / "m.gguf", model, **fields)
    loaded = gguf_checkpoint.load(file, dtype=torch.float32, device=torch.device("cpu"))
    assert torch.allclose(loaded.model.rotary_emb.inv_freq, wanted)
    model.config.rope_parameters = rope
    assert not torch.allclose(type(model.model.rotary_emb)(model.config).inv_freq, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_what_the_formats_makers_say(tmp_path: Path, kind: str) -> None:
    """Weight by weight, what lies in the file as their library reads it; queries turned back."""
    model = made("llama")
    file = read(gguf_files.write(tmp_path / "m.gguf", model, kind))
    tensors = Tensors(file, configuration(file))
    theirs = {each.name: each for each in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    for name, stored in (
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight"),
        ("model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight"),
        ("model.embed_tokens.weight", "token_embd.weight"),
    ):
        values = gguf.quants.dequantize(theirs[stored].data, theirs[stored].tensor_type)
        ours = tensors[name].float().numpy()
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if heads is not None:
            ours = gguf_files.permuted(ours, heads)
        assert (ours == values.reshape(ours.shape)).all(), name


@pytest.mark.parametrize("kind", blocks.KINDS)
def test_any_bytes_are_unpacked_as_the_formats_makers_do(kind: str) -> None:
    """Random bytes reach every bit of a format, which weights that were quantised may not."""
    size, _ = blocks.KINDS[kind]
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (300, size), dtype=np.uint8)
    with np.errstate(invalid="ignore"):  # some scales are no numbers
        wanted = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    found = blocks.numbers(kind, torch.from_numpy(data)).view(wanted.shape).numpy()
    assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
def test_the_native_runner_reads_it_tensor_by_tensor(tmp_path: Path) -> None:
    """A file in bfloat16 writes bit for bit what the folder writes that it was made from."""
    folder = bundled.folder("target")
    model = gguf_checkpoint.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    file = gguf_files.write(tmp_path / "m.gguf", model, "BF16", tokenizer)
    own, ours = dp.LLM("bundled", speculate=None), dp.LLM(file, tokenizer=tokenizer)
    assert "native" in ours.runner.name
    prompts = ["def mean(values):\n", "class Stack:\n"]
    assert [each.token_ids for each in ours.generate(prompts, GREEDY)] == [
        each.token_ids for each in own.generate(prompts, GREEDY)
    ]


@pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
@pytest.mark.parametrize("kind", ["MXFP4", "IQ4_NL"])
def test_tables_of_four_bits_are_multiplied_as_they_lie(tmp_path: Path, kind: str) -> None:
    """Close to the file's own numbers in float32: activations alone are rounded."""
    file = gguf_files.write(tmp_path / "m.gguf", made("llama"), kind)
    ids = torch.tensor([[5, 9, 33, 21, 60, 3, 41]])
    numbers = gguf_checkpoint.load(file, dtype=torch.float32, device=torch.device("cpu"))
    want = numbers(ids).logits[0]
    with dp.LLM(file, speculate=None) as llm:
        assert "native" in llm.runner.name and llm.runner.precision == kind.lower()
        work = Work(0, [], TokenTree.chain(ids[0].tolist()))
        (output,) = llm.runner.forward([work])
        off = (output.logits - want).norm() / (want - want.mean(-1, keepdim=True)).norm()
    assert off < 0.12


def test_a_folder_with_one_file_and_a_draft(tmp_path: Path) -> None:
    model = made("llama")
    (tmp_path / "one").mkdir()
    gguf_files.write(tmp_path / "one" / "m.gguf", model, "Q8_0")
    llm = dp.LLM(tmp_path / "one", dtype="float32", speculate=None)
    drafted = dp.LLM(llm, speculate=dp.DraftModel(tmp_path / "one" / "m.gguf"))
    plain = llm.generate([PROMPT], GREEDY)[0].token_ids
    (out,) = drafted.generate([PROMPT], GREEDY)
    assert out.token_ids == plain and out.stats.accepted > 10


def test_parts_of_one_file(tmp_path: Path) -> None:
    model = made("llama")
    whole = gguf_files.write(tmp_path / "m.gguf", model)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama", split_max_tensors=6)
    theirs = gguf.GGUFReader(whole)
    for each in theirs.fields.values():
        if not each.name.startswith(("GGUF.", "general.architecture")):
            kind = each.types[0]
            writer.add_key_value(each.name, each.contents(), kind)
    for tensor in theirs.tensors:
        writer.add_tensor(tensor.name, tensor.data.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first, *others = sorted(tmp_path.glob("x-*.gguf"))
    assert len(others) > 1
    assert read(first).tensors.keys() == read(whole).tensors.keys()
    with pytest.raises(ValueError, match="later part: give .*00001"):
        read(others[0])
    others[-1].unlink()
    with pytest.raises(ValueError, match="is missing"):
        read(first)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"general__architecture": "mamba"}, "of architecture 'mamba'"),
        ({"llama__expert_count": 8}, "mixture of experts"),
        ({"llama__rope__dimension_count": 8}, "only a part is rotated"),
        ({"llama__rope__scaling__type": "longrope", "llama__rope__scaling__factor": 1}, "rotary"),
        ({"llama__rope__scaling__yarn_attn_factor": 2.0}, "yarn_attn_factor, which is not read"),
        ({"llama__attention__scale": 0.5}, "attention.scale, which is not read"),
        ({"llama__logit_scale": 0.5}, "logit_scale, which is not read"),
    ],
)
def test_what_is_not_supported_is_refused(
    tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    arch = fields.pop("general__architecture", None)
    file = gguf_files.write(tmp_path / "m.gguf", made("llama"), **fields)
    if arch is not None:
        file.write_bytes(file.read_bytes().replace(b"llama", b"mamba"))
    with pytest.raises(ValueError, match=says):
        dp.LLM(file, speculate=None)


HARD = (
    "Hello,  world!\n\n\tI'm 1234567 years old \N{GRINNING FACE} \u4f60\u597d cafe\u0301 "
    "<|end|> x==y\r\n   DON'T \u00e9\u00e8  "
)


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "smollm", "llama-bpe"])
def test_the_tokenizer_of_the_fields(tmp_path: Path, pre: str) -> None:
    """Splits differ; what is written is what was read, and special tokens are one token."""
    own = AutoTokenizer.from_pretrained(bundled.folder("target"))
    model = gguf_files.model("llama", vocab_size=len(own))
    found = of_gguf(gguf_files.write(tmp_path / "m.gguf", model, "F32", own, pre))
    ids = found(HARD, add_special_tokens=False)["input_ids"]
    composed = HARD.replace("e\u0301", "\u00e9") if pre == "qwen2" else HARD
    assert found.decode(ids) == composed
    assert found.eos_token == own.eos_token
    assert found(own.eos_token, add_special_tokens=False)["input_ids"] == [own.eos_token_id]
    digits = found("1234567", add_special_tokens=False)["input_ids"]
    if pre in ("qwen2", "smollm"):
        assert len(digits) == 7
    if pre == "llama-bpe":
        assert len(digits) >= 3 and found.decode(digits[-1:]) == "7"


def test_a_tokenizer_beside_the_file_comes_first(tmp_path: Path) -> None:
    own = AutoTokenizer.from_pretrained(bundled.folder("target"))
    file = gguf_files.write(tmp_path / "m.gguf", made("llama"), pre="unheard-of", tokenizer=own)
    with pytest.raises(ValueError, match="'unheard-of', which is not known: put the model's"):
        of_gguf(file)
    own.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = of_gguf(file)
    assert found("def f(x):")["input_ids"] == own("def f(x):")["input_ids"]
    assert found.eos_token == own.eos_token


VOCABULARIES = (
    Path(__file__).parents[1] / "build/peers/llama_cpp_python-0.3.36/vendor/llama.cpp/models"
)


@pytest.mark.real
@pytest.mark.skipif(not VOCABULARIES.is_dir(), reason="benchmarks/peers/setup_peers.sh fetches it")
@pytest.mark.parametrize(
    "name",
    ["command-r", "deepseek-coder", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2"]
    + ["qwen35", "refact", "starcoder"],
)
def test_ids_are_those_that_llama_cpp_publishes(name: str) -> None:
    """Its own test files: hard texts, and their ids by the tokenizers that the models came with."""
    file = VOCABULARIES / f"ggml-vocab-{name}.gguf"
    found = of_gguf(file)
    texts = file.with_name(f"{file.name}.inp").read_text().split("\n__ggml_vocab_test__\n")
    lines = file.with_name(f"{file.name}.out").read_text().split("\n")
    for text, line in zip(texts, lines, strict=False):
        assert found(text, add_special_tokens=False)["input_ids"] == [*map(int, line.split())]


PUBLISHED = Path(__file__).parents[1] / "build" / "gguf" / "SmolLM2-135M-Instruct.Q4_1.gguf"
IDS = Path(__file__).parent / "support" / "smollm2_ids.jsonl"


@pytest.mark.real
@pytest.mark.skipif(not PUBLISHED.is_file(), reason="make real fetches it")
def test_a_published_file(tmp_path: Path) -> None:
    """Its ids are llama.cpp's; it writes what the folder that transformers makes of it writes."""
    llm = dp.LLM(PUBLISHED, speculate=None)
    for line in IDS.read_text(encoding="utf-8").splitlines():
        each = json.loads(line)
        assert llm.tokenizer(each["text"])["input_ids"] == each["ids"]
    folder = dp.LLM(PUBLISHED.parents[1] / "smollm2", speculate=None)
    question = [{"role": "user", "content": "What is 2 + 2?"}]
    ours, theirs = (each.chat([question], GREEDY)[0] for each in (llm, folder))
    assert ours.token_ids == theirs.token_ids and "4" in ours.text
