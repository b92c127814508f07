"""Configurations of the native runner's architectures, without transformers' own classes of them.

To import such a class takes longer than to load a small model: with it come torch's compiler, sympy
and the code of all of transformers' models. Those below have the fields, the defaults and the
checks of the class of that name, and the same base, so what goes by the name of a configuration's
class takes them too. What is not sure to be the same is left to transformers (`read`, None).
"""

from collections.abc import Callable, Mapping
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

WHOLE, SLIDING = "full_attention", "sliding_attention"
DTYPES = ("bfloat16", "float16", "float32", "float64", None)
MOST = 10_000  # layers of a model; whoever says more is refused by `runners.claims`


class _Shared(PreTrainedConfig):
    hidden_size: int = 4096
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    hidden_act: str = "silu"
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False
    rope_parameters: dict[str, Any] | None = None
    attention_dropout: int | float | None = 0.0


@strict
class LlamaConfig(_Shared):
    model_type = "llama"
    vocab_size: int = 32000
    intermediate_size: int = 11008
    num_key_value_heads: int | None = None
    max_position_embeddings: int = 2048
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pretraining_tp: int | None = 1
    attention_bias: bool = False
    mlp_bias: bool = False
    head_dim: int | None = None

    def __post_init__(self, **more: Any) -> None:
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        super().__post_init__(**more)  # type: ignore[no-untyped-call]

    def validate_architecture(self) -> None:
        """Raises `ValueError`; called by `strict`."""
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"The hidden size ({self.hidden_size}) is not a multiple of the number of "
                f"attention heads ({self.num_attention_heads})."
            )


class _Qwen(_Shared):
    vocab_size: int = 151936
    intermediate_size: int = 22016
    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32768
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None

    def __post_init__(self, **more: Any) -> None:
        self.sliding_window = self.sliding_window if self.use_sliding_window else None
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.layer_types is None:
            first = (
                self.num_hidden_layers if self.sliding_window is None else self.max_window_layers
            )
            self.layer_types = [
                SLIDING if layer >= first else WHOLE for layer in range(self.num_hidden_layers)
            ]
        super().__post_init__(**more)  # type: ignore[no-untyped-call]


@strict
class Qwen2Config(_Qwen):
    model_type = "qwen2"


@strict
class Qwen3Config(_Qwen):
    model_type = "qwen3"
    head_dim: int = 128
    attention_bias: bool = False


KINDS: Mapping[str, Any] = {
    each.model_type: each for each in (LlamaConfig, Qwen2Config, Qwen3Config)
}
_COUNTS = {
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings"),
}
_WINDOWS = {"use_sliding_window", "sliding_window", "max_window_layers"}
_TOKENS = {"bos_token_id", "eos_token_id"}
# What a config.json has to say, besides how positions are told apart: nothing is guessed.
_NEEDED = _COUNTS | _TOKENS | {"hidden_act", "rms_norm_eps", "tie_word_embeddings", "architectures"}
_NEEDED_BY = {
    "llama": {"attention_bias", "mlp_bias"},
    "qwen2": _WINDOWS,
    "qwen3": {"attention_bias", "head_dim", *_WINDOWS},
}
_MAY_BE = {"llama": {"head_dim", "pretraining_tp"}, "qwen2": {"head_dim", "layer_types"}}
_MAY_BE["qwen3"] = {"layer_types"}
# And what changes no logit of these. Who says anything else has something that is not known here.
_IDLE = {
    *("model_type", "dtype", "torch_dtype", "transformers_version", "_name_or_path"),
    *("_model_name_or_path", "initializer_range", "attention_dropout", "use_cache"),
    *("pad_token_id", "unk_token_id", "is_llama_config", "rope_interleaved"),
}
_ROPES = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {
        *("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    },
    "yarn": {"factor", "original_max_position_embeddings"},
}


def read(name: str, **options: Any) -> PreTrainedConfig | None:
    """What transformers' AutoConfig would make of a folder or hub id; None: let it do so.

    Raises what AutoConfig raises where nothing can be read.
    """
    as_auto = {"_from_auto": True, "name_or_path": name}
    said, rest = PreTrainedConfig.get_config_dict(name, **as_auto, **options)
    if not _is_known(said):
        return None
    try:
        made: PreTrainedConfig = KINDS[said["model_type"]].from_dict(said, **rest)
    except Exception:  # whatever its checks have against it: AutoConfig says it in its own words
        return None
    return made


def whole(config: Any) -> Any:
    """The configuration in transformers' own class, which it may be already."""
    if type(config).__module__ != __name__:
        return config
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    said = config.to_dict() | {"transformers_version": config.transformers_version}
    return CONFIG_MAPPING[config.model_type].from_dict(said, name_or_path=config.name_or_path)


def _is_known(said: Any) -> bool:
    """Whether a config.json has all that is needed, in its usual form, and nothing unknown."""
    kind = said.get("model_type") if isinstance(said, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        return False
    needed = _NEEDED | _NEEDED_BY[kind]
    rest = said.keys() - needed - _MAY_BE[kind] - _IDLE
    return (
        needed <= said.keys()
        and said["architectures"] == [KINDS[kind].__name__.replace("Config", "ForCausalLM")]
        and all(_is_size(said[name]) for name in _COUNTS)
        and said["num_hidden_layers"] <= MOST
        and all(fits(said[name]) for name, fits in _FORMS.items() if name in said)
        and _turns(said, rest)
    )


def _turns(said: Mapping[str, Any], rest: set[str]) -> bool:
    """Whether what is left is how positions are told apart, in one of the two ways to say it.

    transformers 5 writes one dictionary; 4 a base, and beside it what it is scaled by.
    """
    if rest == {"rope_parameters"}:
        given = said["rope_parameters"]
        inside = {"rope_theta"}
    elif "rope_theta" in rest and rest <= {"rope_theta", "rope_scaling"}:
        if not _is_number(said["rope_theta"]):
            return False
        given, inside = said.get("rope_scaling") or {"rope_type": "default"}, set[str]()
    else:
        return False
    kind = given.get("rope_type") if isinstance(given, dict) else None
    if not isinstance(kind, str) or kind not in _ROPES:
        return False
    numbers = given.keys() - {"rope_type"}
    return numbers == _ROPES[kind] | inside and all(_is_number(given[name]) for name in numbers)


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value > 0


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_token(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 0)


def _are_tokens(value: Any) -> bool:
    return _is_token(value) or (type(value) is list and all(type(each) is int for each in value))


_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "hidden_act": lambda value: value == "silu",
    "rms_norm_eps": lambda value: type(value) is float and 0 < value < 1,
    "initializer_range": lambda value: type(value) is float and 0 <= value <= 1,
    "head_dim": _is_size,
    "max_window_layers": lambda value: type(value) is int and value >= 0,
    "sliding_window": lambda value: value is None or _is_size(value),
    "layer_types": lambda value: type(value) is list and {*map(str, value)} <= {WHOLE, SLIDING},
    "bos_token_id": _is_token,
    "eos_token_id": _are_tokens,
    "pad_token_id": _is_token,
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias"), _is_flag),
    **dict.fromkeys(("use_sliding_window", "use_cache"), _is_flag),
    **dict.fromkeys(("dtype", "torch_dtype"), lambda value: value in DTYPES),
}
