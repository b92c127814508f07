"""Configurations that are read without transformers' classes of them say what those would say."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoTokenizer
from transformers.models.llama import LlamaConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

import gguf_files
from draftproof import configurations
from draftproof.bundled import DRAFT, TARGET
from draftproof.gguf import configuration as gguf
from draftproof.gguf.configuration import configuration as of_gguf
from draftproof.gguf.reader import read as gguf_file
from draftproof.runners import loading
from draftproof.vocabularies import load_tokenizer
from native_models import CONFIGS

THEIRS: dict[str, Any] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
ARCHITECTURES |= {"qwen3": "Qwen3ForCausalLM"}

# The other is not of them, or says of its positions what is not read.
SAVED = [name for name in CONFIGS if name not in ("mistral", "linear rope")]


def saved(said: dict[str, Any], folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(said))
    return str(folder)


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours).__module__ == configurations.__name__ != type(theirs).__module__
    assert type(ours).__name__ == type(theirs).__name__
    assert vars(ours) == vars(theirs)
    assert ours.to_dict() == theirs.to_dict()
    whole = configurations.whole(ours)
    assert type(whole) is type(theirs) and whole.to_dict() == theirs.to_dict()
    assert whole.name_or_path == theirs.name_or_path
    assert configurations.whole(theirs) is theirs


@pytest.mark.parametrize("name", SAVED)
def test_what_transformers_saved(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]()
    config.architectures = [ARCHITECTURES[config.model_type]]
    config.save_pretrained(tmp_path)
    ours = configurations.read(str(tmp_path))
    assert_same(ours, AutoConfig.from_pretrained(tmp_path))
    assert type(loading.described(str(tmp_path))) is type(ours)


@pytest.mark.parametrize("folder", [TARGET, DRAFT])
def test_the_bundled_models(folder: Path) -> None:
    assert_same(configurations.read(str(folder)), AutoConfig.from_pretrained(folder))


@pytest.mark.parametrize("name", THEIRS)
def test_defaults_are_transformers_own(name: str) -> None:
    """Of a GGUF file's model, whose fields do not say everything."""
    ours, theirs = (
        {each.name: each.default for each in fields(kind) if each.name != "initializer_range"}
        for kind in (configurations.KINDS[name], THEIRS[name])
    )  # whose own is of a checking field
    assert ours == theirs
    assert_same(configurations.KINDS[name](), THEIRS[name]())


@pytest.mark.parametrize("kind", THEIRS)
def test_gguf_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = gguf_file(gguf_files.write(tmp_path / "m.gguf", gguf_files.model(kind)))
    ours = of_gguf(file)
    monkeypatch.setattr(gguf, "CONFIGS", THEIRS)
    assert_same(ours, of_gguf(file))


# Configurations as files have them, of which some are not as they should be.
NUMBERS = st.sampled_from([1, 2, 8, 12, 64])
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "dynamic": {"factor": 2.0},
}
WRONG = st.sampled_from([None, "x", -1, 0, 1, 0.5, 1e9, True, [], [2, 3], ["full_attention"], {}])
STRANGE = {
    "quantization_config": {"quant_method": "gptq"},
    "auto_map": {"AutoConfig": "code.Config"},
    "per_layer_config": {"0": {"hidden_act": "gelu"}},
    "is_encoder_decoder": False,
    "partial_rotary_factor": 0.5,
    "draft_vocab_size": 8,
    "tokenizer_class": "LlamaTokenizer",
    "rope_interleaved": False,
    "unk_token_id": 0,
}


@st.composite
def described(draw: st.DrawFn) -> dict[str, Any]:
    """A config.json that nothing is wrong with."""
    kind = draw(st.sampled_from([*THEIRS]))
    heads, layers = draw(NUMBERS), draw(NUMBERS)
    said: dict[str, Any] = {
        "model_type": kind,
        "architectures": [ARCHITECTURES[kind]],
        "vocab_size": draw(NUMBERS),
        "hidden_size": heads * draw(NUMBERS),
        "intermediate_size": draw(NUMBERS),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": draw(NUMBERS),
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": draw(st.booleans()),
        "bos_token_id": draw(st.sampled_from([None, 0, 5])),
        "eos_token_id": draw(st.sampled_from([None, 0, [1, 2]])),
        draw(st.sampled_from(["dtype", "torch_dtype"])): draw(
            st.sampled_from(["bfloat16", "float16", "float32"])
        ),
    }
    if kind == "llama":
        said |= {"mlp_bias": draw(st.booleans())}
    else:
        said |= {
            "use_sliding_window": draw(st.booleans()),
            "sliding_window": draw(st.sampled_from([None, 4])),
            "max_window_layers": draw(NUMBERS),
        }
        if draw(st.booleans()):
            kinds = st.sampled_from(["full_attention", "sliding_attention"])
            said["layer_types"] = draw(st.lists(kinds, min_size=layers, max_size=layers))
    if kind != "qwen2":
        said |= {"attention_bias": draw(st.booleans())}
    if kind == "qwen3" or (kind == "llama" and draw(st.booleans())):
        said["head_dim"] = 2 * draw(NUMBERS)
    turns = draw(st.sampled_from([*ROPES][:4]))
    base, scaling = draw(st.sampled_from([1e4, 500000])), {"rope_type": turns, **ROPES[turns]}
    if draw(st.booleans()):  # as transformers 5 writes it
        return said | {"rope_parameters": {"rope_theta": base, **scaling}}
    if turns == "default":
        return said | draw(st.sampled_from([{}, {"rope_scaling": None}])) | {"rope_theta": base}
    return said | {"rope_theta": base, "rope_scaling": scaling}


def agree(said: dict[str, Any]) -> bool:
    """Whether it is read without transformers' classes; then as they would read it."""
    logging.disable(logging.WARNING)
    try:
        with TemporaryDirectory() as folder:
            name = saved(said, Path(folder))
            ours = configurations.read(name)
            if ours is not None:
                assert_same(ours, AutoConfig.from_pretrained(name))
    finally:
        logging.disable(logging.NOTSET)
    return ours is not None


@given(described())
def test_whatever_a_file_says(said: dict[str, Any]) -> None:
    odd = said["model_type"] == "llama" and said["hidden_size"] // said["num_attention_heads"] % 2
    assert agree(said) or odd  # which its checks refuse, or not, as they like


@given(described(), st.data())
def test_nothing_is_guessed(said: dict[str, Any], data: st.DataObject) -> None:
    """What is missing, of another form or not known is the same, or left to transformers."""
    name = data.draw(st.sampled_from(sorted({*said})))
    change = data.draw(st.sampled_from(["gone", "wrong", "strange", "in the rope"]))
    if change == "gone":
        del said[name]
    elif change == "wrong":
        said[name] = data.draw(WRONG)
    elif change == "strange":
        said |= data.draw(st.sampled_from([{name: value} for name, value in STRANGE.items()]))
    else:
        key = "rope_parameters" if "rope_parameters" in said else "rope_scaling"
        turns = dict(said.get(key) or {})
        turns[data.draw(st.sampled_from(["factor", "rope_type", "type", "mscale"]))] = data.draw(
            st.one_of(WRONG, st.sampled_from([*ROPES]))
        )
        said[key] = turns
    agree(said)


PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 1e4,
}
NEEDED = sorted(PLAIN.keys() - {"model_type"})


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_missing_is_asked_of_transformers(name: str, tmp_path: Path) -> None:
    assert configurations.read(saved(PLAIN, tmp_path)) is not None
    rest = {each: value for each, value in PLAIN.items() if each != name}
    assert configurations.read(saved(rest, tmp_path)) is None


@pytest.mark.parametrize("name", ["quantization_config", "auto_map", "per_layer_config"])
def test_what_is_not_known_is_left_to_transformers(name: str, tmp_path: Path) -> None:
    assert configurations.read(saved(PLAIN | {name: STRANGE[name]}, tmp_path)) is None


def test_who_trusts_code_gets_transformers_own(tmp_path: Path) -> None:
    made = loading.described(saved(PLAIN, tmp_path), trust_remote_code=True)
    assert type(made) is LlamaConfig


CLASSES: list[str | None] = [
    *("TokenizersBackend", "PreTrainedTokenizerFast", "LlamaTokenizerFast", "Qwen2Tokenizer"),
    *("GPT2TokenizerFast", "NoSuchTokenizer", None),
]


@pytest.mark.parametrize("kind", THEIRS)
@pytest.mark.parametrize("named", CLASSES)
def test_the_tokenizer_is_the_same(named: str | None, kind: str, tmp_path: Path) -> None:
    bundled = AutoTokenizer.from_pretrained(TARGET)
    bundled.chat_template = "{{ messages[0].content }}"
    bundled.save_pretrained(tmp_path)
    said = PLAIN | {"model_type": kind, "architectures": [ARCHITECTURES[kind]]}
    if kind != "llama":
        said |= {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 0}
        del said["mlp_bias"]
    if kind == "qwen2":
        del said["attention_bias"]
    if kind == "qwen3":
        said["head_dim"] = 16
    assert configurations.read(saved(said, tmp_path)) is not None
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text()) | {"tokenizer_class": named}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    logging.disable(logging.WARNING)
    try:
        ours, theirs = load_tokenizer(tmp_path, None, {}), AutoTokenizer.from_pretrained(tmp_path)
    finally:
        logging.disable(logging.NOTSET)
    assert type(ours) is type(theirs) and ours.special_tokens_map == theirs.special_tokens_map
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert ours.chat_template == theirs.chat_template and ours.init_kwargs == theirs.init_kwargs
    text = "def f(x):\n    return 'wörld' + x  # <|endoftext|> 12345"
    assert ours(text).input_ids == theirs(text).input_ids


UNREADABLE: dict[str, Callable[[Path], Any]] = {
    "missing": lambda at: None,
    "no JSON": lambda at: at.write_text("{"),
    "a list": lambda at: at.write_text("[]"),
    "no text": lambda at: at.write_bytes(b"\xff\xfe"),
    "a number": lambda at: at.write_text(json.dumps(PLAIN | {"hidden_size": "many"})),
    "no name": lambda at: at.write_text(json.dumps(PLAIN | {"model_type": []})),
    "no divisor": lambda at: at.write_text(json.dumps(PLAIN | {"hidden_size": 33})),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_refusals_are_transformers_own(case: str, tmp_path: Path) -> None:
    UNREADABLE[case](tmp_path / "config.json")
    with pytest.raises(Exception) as theirs:  # noqa: PT011  # whatever it has against it
        AutoConfig.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="cannot load the model") as ours:
        loading.described(str(tmp_path))
    assert str(ours.value.__cause__) == str(theirs.value)
