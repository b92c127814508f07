"""From what a user names to runners: the target's, and those of models that draft beside it.

Whether a model is a decoder or an encoder-decoder is found out here, and asked nowhere behind.
"""

from __future__ import annotations

from typing import Any

import torch

from draftproof import hub, native, places
from draftproof.bundled import located
from draftproof.runners import choice, costs, encoder_probe, encoders, loading, reading
from draftproof.runners.base import Target
from draftproof.runners.encoder_decoder import EncoderDecoder
from draftproof.runners.native import NativeRunner
from draftproof.runners.takeover import on_threads
from draftproof.runners.team import check_threads
from draftproof.runners.torch import TorchRunner


def make(model: Any, **options: Any) -> TorchRunner | NativeRunner:
    """The target, loaded, in its runner; see `choice.make`."""
    if options["revision"] is not None and isinstance(model, torch.nn.Module):
        raise ValueError("revision is for models of the hub, and this one is loaded: drop revision")
    source = {name: options[name] for name in ("revision", "trust_remote_code")}
    if not encoders.is_one(model, **source):
        return choice.make(model, **options)
    dtype, device = options.pop("dtype"), options.pop("device")
    kept, revision = options.pop("cache_weights"), options.pop("revision")
    if (runner := options.pop("runner")) not in choice.RUNNERS:
        raise ValueError(f"runner {runner!r} is unknown: use {', '.join(choice.RUNNERS)}")
    check_threads(options["threads"])
    if runner == "native" or dtype in choice.QUANTISED or kept:
        raise ValueError(
            "the native runner, which alone has int8, int4 and cache_weights, takes no "
            "encoder-decoders: use runner auto and dtype auto"
        )
    where, number = loading.pick_device(device), loading.pick_dtype(dtype)
    trust = options["trust_remote_code"]
    source = {"dtype": number, "device": where, "revision": revision, "trust_remote_code": trust}
    if isinstance(model, torch.nn.Module):
        loading.refuse_to_convert(model, device, dtype)
    return encoder_decoder(encoders.load(model, **source), **options)


def is_encoder_decoder(name: str, **options: Any) -> bool:
    """What its configuration says; False where none can be read. options: revision and trust."""
    return encoders.is_one(name, **options)


def hears(name: str, **options: Any) -> bool:
    """Whether its configuration says that it reads audio; as `is_encoder_decoder`."""
    return encoders.hears(name, **options)


def encoder_decoder(model: Any, **options: Any) -> EncoderDecoder:
    """The runner of a loaded encoder-decoder, whose packed pass was found to be the model's own."""
    runner = EncoderDecoder(model, **options)
    on_threads(runner.threads, lambda: runner.takeover.alone(lambda: encoder_probe.check(runner)))
    if runner.threads is None:
        runner.threads = costs.threads_of_torch(runner)
    return runner


def beside(target: Target, model: Any, quantize: str | None = None) -> Target:
    """See `choice.beside`; `bundled` is the draft of that name.

    A draft with an encoder reads what the target's reads; where that is the target's own, or the
    draft goes by an encoder and has none, the target's reads for both. One without sees the output
    alone.
    """
    if hasattr(model, "engine"):
        raise ValueError(
            "a draft is a model, and an LLM writes by itself: give what it was made from"
        )
    if hasattr(model, "propose"):
        raise ValueError(
            f"a draft is a model, and {type(model).__name__} a method: give a model's name, folder "
            "or object here, and merge methods by a list"
        )
    places.check(model)
    model = hub.fetched(located(model, "draft"))
    trust = bool(getattr(target, "trust_remote_code", False))
    reads, listens = (
        told(model, trust_remote_code=trust) for told in (encoders.is_one, encoders.listens)
    )
    if reads:
        encoders.check_kind(model, target.encodes, trust_remote_code=trust)
    elif not listens or not target.encodes:
        return choice.beside(target, model, quantize)
    if quantize not in (None, "none"):
        raise ValueError("a draft with an encoder cannot be quantised: drop quantize")
    assert isinstance(target, EncoderDecoder)
    loaded, shared = _reading(target, model, reads, trust)
    draft = encoder_decoder(
        loaded,
        max_batch=target.max_batch,
        threads=target.threads,
        trust_remote_code=trust,
    )
    encoders.check_ears(draft.ear, target.ear)
    if draft.input_vocabulary != target.input_vocabulary:
        raise ValueError(
            f"the draft's encoder reads {draft.input_vocabulary} ids and the target's "
            f"{target.input_vocabulary}: use a draft with the target's tokenizer"
        )
    if shared:
        draft.read_with(target)
    return draft


def _reading(target: EncoderDecoder, model: Any, reads: bool, trust: bool) -> tuple[Any, bool]:
    """A draft, loaded, and whether the target's encoder reads for it.

    reads: whether it has an encoder. A user's model stays as it is.
    """
    source: Any = {"dtype": target.dtype, "device": target.device, "trust_remote_code": trust}
    if not reads:
        decoder = loading.unwrap(loading.load(model, **source))
        return reading.completed(decoder, target.model), True
    loaded = encoders.load(model, **source)
    bare = loading.unwrap(loaded)
    encoders.settle(bare)  # as the target is
    shared = reading.same(bare, target.model, target.example(1))
    if shared and not isinstance(model, torch.nn.Module):
        reading.adopt(loaded, target.model)
    return loaded, shared


def native_runs(device: str | torch.device = "auto") -> bool:
    """Whether `runner="auto"` can be the native one on this device."""
    return native.found() is not None and loading.pick_device(device).type == "cpu"
