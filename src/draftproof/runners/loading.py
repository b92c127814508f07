"""From a name, a folder or an object to a model that may be run; refusals in one sentence.

Knows checkpoints and configurations, not how a pass is made. What no configuration tells is
found out by `probe`.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from draftproof import configurations, hub
from draftproof.runners import claims
from draftproof.runners.kv import available_bytes
from draftproof.runners.outline import Outline

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEVICES = "cpu", "cuda"
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
KNOWN = ("int8", "int4", *DTYPES)
ENCODERS_IN = (
    "of the commands generate, batch, serve, bench, certify, quality, tune, train and info alone "
    "take those yet: use a causal language model here"
)
OTHER_NAMES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
OTHER_NAMES |= {"float": "float32", "fp64": "float64", "double": "float64"}


def pick_device(device: str | torch.device, natively: bool = False) -> torch.device:
    """`auto` is the first CUDA device, else the CPU; for the native runner it is the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() and not natively else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device {str(device)!r} is unknown: use cpu, cuda or cuda:N") from None
    if chosen.type == "mps":
        raise ValueError("device mps is not supported (no test machine): use device='cpu'")
    if chosen.type not in DEVICES:
        raise ValueError(f"device {str(device)!r} is not supported: use cpu, cuda or cuda:N")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for and torch sees no GPU: use device='cpu'")
    if chosen.type == "cuda" and (chosen.index or 0) >= (seen := torch.cuda.device_count()):
        raise ValueError(f"device {chosen} was asked for and torch sees {seen} of them: use cuda:0")
    return chosen


def pick_dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    """None means the model's own."""
    if dtype == "auto":
        return None
    if isinstance(dtype, str):
        name = OTHER_NAMES.get(dtype, dtype)
        if name not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is unknown: use auto, {', '.join(KNOWN)}")
        return DTYPES[name]
    if dtype not in DTYPES.values():
        raise ValueError(f"dtype {dtype!r} is not supported: use auto, {', '.join(KNOWN)}")
    return dtype


def load(
    model: Any,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device,
    revision: str | None = None,
    trust_remote_code: bool = False,
    kind: Any = AutoModelForCausalLM,
) -> PreTrainedModel:
    """A hub id, a folder, or a loaded model (returned as it is, wherever it is).

    kind: transformers' class that loads it. Of causal models alone the configuration is checked.
    """
    if isinstance(model, torch.nn.Module):
        return model  # type: ignore[return-value]
    if not isinstance(model, str | Path):
        raise ValueError(
            "a model is a hub id, a folder or a loaded transformers model, not of type "
            f"{type(model).__name__}"
        )
    name = str(model)
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if kind is AutoModelForCausalLM:
        config = configuration(name, **options)
    else:
        config = described(name, **options)
    if device.type == "cpu":
        _refuse_what_does_not_fit(Path(name), config, dtype)
    try:
        for index in Path(name).glob("*.index.json"):
            claims.check_index(index)
        options |= hub.options(name)
        answer: Any = kind.from_pretrained(
            name, dtype=dtype or "auto", output_loading_info=True, **options
        )
        loaded, info = answer
        if missing := sorted(info["missing_keys"]):
            raise Refused(
                f"the checkpoint {name!r} lacks {len(missing)} weights, {missing[0]} first, which "
                "would be random: save the whole model"
            )
    except Refused:
        raise
    except Exception as error:  # whatever a checkpoint, its own code or the hub comes up with
        raise ValueError(f"cannot load the model {name!r}: {_reason(name, error)}") from error
    placed: PreTrainedModel = loaded.to(device).eval()
    return with_caps(placed)


def with_caps(model: PreTrainedModel) -> PreTrainedModel:
    """The model, with an attention of transformers' that caps scores if it wants them capped."""
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
        model.set_attn_implementation("eager")  # sdpa has no cap; older transformers let it pass
    return model


def configuration(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> Any:
    """What lies beside the weights and describes them. Raises `ValueError`, as `load`."""
    config = described(name, revision=revision, trust_remote_code=trust_remote_code)
    refuse_config(config)
    return config


def described(name: str, **options: Any) -> Any:
    """A model's configuration, of whatever kind. Raises `ValueError`, as `load`."""
    try:
        options |= hub.options(name)
        trusts = options.pop("trust_remote_code", False)
        config = None if trusts else configurations.read(name, **options)
        if config is None:
            config = AutoConfig.from_pretrained(name, trust_remote_code=trusts, **options)
        return claims.checked(config)
    except Exception as error:  # whatever a folder or the hub comes up with
        raise ValueError(f"cannot load the model {name!r}: {_reason(name, error)}") from error


def parameters(config: Any) -> int | None:
    """How many the model has; None where only its own code could tell."""
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(configurations.whole(config))
    except Exception:  # whatever a model's own code comes up with
        return None
    return sum(int(each.numel()) for each in model.parameters())


def _refuse_what_does_not_fit(folder: Path, config: Any, dtype: torch.dtype | None) -> None:
    """Before the system ends the process for it; what lies on the hub is not known yet."""
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    own = getattr(config, "dtype", None)
    factor = dtype.itemsize / own.itemsize if dtype and isinstance(own, torch.dtype) else 1.0
    _refuse_without_room(stored * factor)


def refuse_what_has_no_room(count: int | None, dtype: torch.dtype) -> None:
    """Raise `Refused` where so many numbers do not fit in memory; None: nobody knows how many."""
    _refuse_without_room((count or 0) * dtype.itemsize)


def _refuse_without_room(needed: float) -> None:
    room = available_bytes(torch.device("cpu"))
    if room is not None and needed > room:
        raise Refused(
            f"the weights take {needed / 1e9:.3g} GB on torch and {room / 1e9:.3g} GB are free: "
            "use bfloat16 or int8 on the native runner, or a smaller model"
        )


def refuse_to_convert(model: Any, device: Any, dtype: Any) -> None:
    """A loaded model belongs to the user: it is not moved or converted behind their back."""
    wanted = pick_dtype(dtype)
    if wanted is not None and wanted != model.dtype:
        raise ValueError(
            f"the model is loaded in {model.dtype}: convert it yourself, or drop dtype="
        )
    if device != "auto" and pick_device(device).type != model.device.type:
        raise ValueError(f"the model is on {model.device}: move it yourself, or drop device=")


class Refused(ValueError):
    """The model is known and not supported; the text says why and what to do."""


def refuse_config(config: Any) -> None:
    """Refuse what the configuration alone gives away."""
    kind = getattr(config, "model_type", type(config).__name__)
    if getattr(config, "is_encoder_decoder", False):
        raise Refused(f"{kind} is an encoder-decoder model, and {ENCODERS_IN}")


def refuse_loaded(model: PreTrainedModel, kind: Any = AutoModelForCausalLM) -> None:
    """Refuse what is no such model with a head, on a device that passes can be run on.

    kind: as `load` takes it. Raises `ValueError` naming the class and the cause.
    """
    from transformers import PreTrainedModel  # here, as `attention.known_as` imports

    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise Refused(f"{name} is not a transformers model: pass a PreTrainedModel")
    if kind is AutoModelForCausalLM:
        refuse_config(model.config)
    if model.device.type not in DEVICES:
        raise Refused(f"{name} is on {model.device.type}, which is not supported: move it to cpu")
    if model.get_output_embeddings() is None:
        raise Refused(f"{name} has no language-model head: load it with {kind.__name__}")


def refuse_unsupported(model: PreTrainedModel) -> None:
    """Refuse what cannot be run by the registered attention function.

    Raises `ValueError` naming the class and the cause.
    """
    refuse_loaded(model)
    name = type(model).__name__
    if listens(type(model)):
        raise Refused(
            f"{name} goes by what an encoder made and has none itself: give the whole "
            "encoder-decoder, for which it can be the draft"
        )
    if getattr(model, "_is_stateful", False):
        raise Refused(
            f"{name} has recurrent layers, whose state cannot be rolled back: "
            "use a model with attention only"
        )
    if not model._can_set_attn_implementation():
        raise Refused(
            f"{name} does not use transformers' attention interface: use an architecture that does"
        )
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if foreign := kinds - {"full_attention", "sliding_attention"}:
        raise Refused(
            f"{name} has layers of type {', '.join(sorted(foreign))}, and only full and sliding "
            "attention can be rolled back: use another architecture"
        )


def listens(kind: Any) -> bool:
    """Whether models of a class go by what an encoder made."""
    return "encoder_outputs" in inspect.signature(getattr(kind, "forward", len)).parameters


def unwrap(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper; its adapters live in the layers."""
    if isinstance(model, Outline):
        return model
    if not hasattr(model, "peft_config") or not hasattr(model, "get_base_model"):
        return model
    if getattr(model, "active_peft_config", None) is not None and getattr(
        model.active_peft_config, "is_prompt_learning", False
    ):
        raise Refused("a PEFT model with prompt learning adds hidden tokens: merge or drop it")
    return model.get_base_model()


def _reason(name: str, error: Exception) -> str:
    if Path(name).is_dir():
        held = {path.name for path in Path(name).iterdir()}
        if "config.json" not in held:
            return "the folder has no config.json; save the model there with save_pretrained"
        if not any(file.endswith((".safetensors", ".bin", ".index.json")) for file in held):
            return "the folder has no weights; save the model there with save_pretrained"
    elif isinstance(error, OSError):
        return f"no such folder, and {hub.reason(error)}"
    if "weights_only" in str(error):  # torch's words advise to run the code
        return claims.UNSAFE
    said = " ".join(str(error).split())[:300]
    # Both libraries tell what is wrong with the file, and not what to do about it.
    if type(error).__name__ == "SafetensorError" or "is not a valid JSON file" in said:
        return f"{said.rstrip('.')}: a file there is damaged, fetch or save the model again"
    return said
