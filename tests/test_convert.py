"""`draftproof convert`: what it writes computes what its model computes, to the bit; refusals."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

import draftproof as dp
import gguf_files
from draftproof import bundled, native
from draftproof import convert as converting
from draftproof.cli.progress import Running
from draftproof.convert import convert
from draftproof.gguf import vocabulary, writing
from draftproof.gguf.reader import File, read
from draftproof.gguf.tokenizer import SPLITS, of_fields
from draftproof.runners import gguf_checkpoint

NATIVE = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
TOKENIZER = AutoTokenizer.from_pretrained(bundled.folder("target"))
TOKENS = len(TOKENIZER)
GREEDY = dp.SamplingParams(max_tokens=24, ignore_eos=True)
PROMPT = [5, 9, 33, 21]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "beta_fast": 4.0}
YARN |= {"original_max_position_embeddings": 16}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama yarn": {"rope_parameters": YARN},
    "mistral": {"sliding_window": None},
    "qwen2": {"layer_types": ["full_attention"] * 2},
    "qwen3": {"use_sliding_window": False, "layer_types": ["full_attention"] * 2},
    "llama tied": {"tie_word_embeddings": True},
    "llama 3": {"rope_parameters": LLAMA3},
    "llama linear": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    },
}


def saved(folder: Path, kind: str = "llama", dtype: Any = torch.float32, **changes: Any) -> Path:
    """A random model with the bundled tokenizer."""
    made = gguf_files.model(kind, **{"vocab_size": TOKENS + 5, **changes}).to(dtype)
    made.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_every_number_and_rotation_is_the_models_own(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "m", name.split()[0], **MODELS[name])
    file = convert(folder, tmp_path / "m.gguf", "float32")
    device = torch.device("cpu")
    own = dp.LLM(folder, dtype="float32", speculate=None)
    model = own.runner.model
    loaded = gguf_checkpoint.load(file, dtype=torch.float32, device=device)
    for each, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[each], tensor), each
    turning = loaded.model.rotary_emb.inv_freq
    assert torch.allclose(turning, model.model.rotary_emb.inv_freq, rtol=1e-6)
    (want,) = own.generate([PROMPT], GREEDY)
    (got,) = dp.LLM(file, dtype="float32").generate([PROMPT], GREEDY)
    assert got.token_ids == want.token_ids


@NATIVE
@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_a_file_has_the_bits_of_its_precision(tmp_path: Path, name: str, precision: str) -> None:
    changes = {**MODELS[name], "tie_word_embeddings": True}
    folder = saved(tmp_path / "m", name, torch.bfloat16, **changes)
    file = convert(folder, tmp_path / "m.gguf", precision)
    ids, logits = torch.tensor([PROMPT]), []
    for llm in (dp.LLM(folder, dtype=precision, runner="native"), dp.LLM(file, runner="native")):
        params = dp.SamplingParams(max_tokens=1, logprobs=20)
        (done,) = llm.generate(ids.tolist(), params)
        assert done.logprobs is not None
        logits.append(done.logprobs[0])
    assert logits[0] == logits[1]
    kinds = {each.kind for each in read(file).tensors.values() if len(each.shape) == 2}
    assert kinds == {writing.KINDS[precision]} | ({"Q8_0"} if precision == "int4" else set())


@NATIVE
def test_the_command(run: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "m", "llama", torch.bfloat16), tmp_path / "in" / "m.gguf"
    code, said, err = run("convert", f"{folder}", "--out", f"{out}")
    assert code == 0, err
    assert said.startswith(f"written: {out}, ") and "Traceback" not in err
    assert read(out).fields["general.name"] == folder.name  # not where it lay
    code, _, err = run("convert", f"{folder}", "--out", f"{out}")
    assert code == 2 and "is there already: give another --out, or remove it" in err
    code, _, err = run("convert", f"{folder}", "--out", f"{out / 'below.gguf'}")
    assert code == 2 and "m.gguf is a file; give another folder as --out" in err
    code, _, err = run("generate", f"{out}", "x = ", "--max-tokens", "2")
    assert code == 0, err
    # What is four bits already, once more in another type.
    again = convert(out, tmp_path / "again.gguf", "int8")
    assert read(again).tensors["output_norm.weight"].kind == "F32"


def test_the_help_names_what_can_be_written(run: Any) -> None:
    code, said, _ = run("convert", "--help")
    told = " ".join(said.split()).partition("Written in ")[2].partition(", and in no other")[0]
    assert code == 0 and {*told.replace(" or ", ", ").split(", ")} == {*writing.KINDS}


@NATIVE
def test_threads_are_as_many_as_asked_for(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools, pool, before = list[int](), converting.ThreadPoolExecutor, torch.get_num_threads()
    counted = lambda count: (pools.append(count), pool(count))[1]  # noqa: E731
    monkeypatch.setattr(converting, "ThreadPoolExecutor", counted)
    folder, out = saved(tmp_path / "m", "llama", torch.bfloat16), tmp_path / "m.gguf"
    code, _, err = run("convert", f"{folder}", "--out", f"{out}", "--threads", "0")
    assert code == 2 and "threads=0 computes nothing" in err and not out.exists()
    code, _, err = run("convert", f"{folder}", "--out", f"{out}", "--threads", f"{before + 1}")
    assert code == 0 and {*pools} == {before + 1}, err
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("pre", dict.fromkeys(SPLITS))
def test_the_way_that_text_is_split_gets_a_name(pre: str) -> None:
    """One that means the same: names of the same way of splitting are as good."""
    made = vocabulary.fields(TOKENIZER, TOKENS)
    named = {**made, "tokenizer.ggml.pre": pre}
    one = of_fields(File(Path("x"), named, {}))
    found = vocabulary.fields(one, TOKENS + 3)
    assert len(found["tokenizer.ggml.tokens"]) == TOKENS + 3
    again = of_fields(File(Path("x"), found, {}))
    text = bundled.ENGLISH.read_text()[:4000]
    for each in (*vocabulary.HARD, text):
        assert again(each)["input_ids"] == one(each)["input_ids"]


@pytest.mark.parametrize(
    ("precision", "out", "changes", "says"),
    [
        ("int3", "m.gguf", {}, "dtype 'int3' is unknown: use float32, "),
        ("float32", "m", {}, "does not end in .gguf"),
        ("int4", "m.gguf", {"intermediate_size": 80}, "has 80 inputs, and Q4_1 blocks are of 32"),
        ("float32", "m.gguf", {"vocab_size": 200}, f"{TOKENS} tokens and the model 200: no pair"),
        ("float32", "m.gguf", {"kind": "mistral", "sliding_window": 8}, "a sliding window is not"),
        (
            *("float32", "m.gguf", {"rope_parameters": {**YARN, "attention_factor": 1.0}}),
            "rotary scaling with attention_factor is not written",
        ),
    ],
)
def test_refused_in_a_sentence(
    tmp_path: Path, precision: str, out: str, changes: dict[str, Any], says: str
) -> None:
    if precision == "int4" and native.found() is None:
        pytest.skip("the kernels were not built")
    folder = saved(tmp_path / "m", **changes)
    with pytest.raises(ValueError, match=says) as error:
        convert(folder, tmp_path / "out" / out, precision)
    assert "\n" not in str(error.value)
    assert not [*tmp_path.glob("out/*")]


@NATIVE
def test_a_number_that_is_none_leaves_no_file(tmp_path: Path) -> None:
    made = gguf_files.model("llama", vocab_size=TOKENS).bfloat16()
    made.model.layers[1].mlp.up_proj.weight.data[3, 7] = float("nan")
    made.save_pretrained(tmp_path / "m")
    TOKENIZER.save_pretrained(tmp_path / "m")
    with pytest.raises(ValueError, match="a weight is not finite"):
        convert(tmp_path / "m", tmp_path / "m.gguf", "int8")
    assert not [*tmp_path.glob("*.gguf*")]


def test_an_architecture_that_files_do_not_have(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=TOKENS, n_embd=32, n_layer=1, n_head=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "m")
    TOKENIZER.save_pretrained(tmp_path / "m")
    with pytest.raises(ValueError, match="'gpt2' is not written as GGUF: llama, qwen2, qwen3 and"):
        convert(tmp_path / "m", tmp_path / "m.gguf", "float32")


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    gguf_files.model("llama").save_pretrained(tmp_path / "m")
    with pytest.raises(ValueError, match="came without a tokenizer, and a GGUF file holds one"):
        convert(tmp_path / "m", tmp_path / "m.gguf", "float32")


@pytest.mark.parametrize("ignored", [False, True])
def test_a_process_that_is_asked_to_end_does_as_interrupted(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ignored: bool
) -> None:
    """SIGTERM, also where a script put the command into the background, which ignores SIGINT."""
    if ignored:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    real = Running.__call__

    def tell(self: Running, text: str, share: float | None) -> None:
        real(self, text, share)
        if list(tmp_path.glob("*.part")):
            monkeypatch.setattr(Running, "__call__", real)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Running, "__call__", tell)
    try:
        result = run("convert", "bundled", "--dtype", "bfloat16", "--out", str(tmp_path))
    finally:
        if ignored:
            signal.signal(signal.SIGINT, before)
    assert (result.code, result.out, result.err) == (130, "", "")
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_tokenizer_of_another_make_is_refused() -> None:
    with pytest.raises(ValueError, match="only byte-level vocabularies can be written"):
        vocabulary.fields(object(), 100)
