"""The model that a command names, and what drafts for it: refused by name, then loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from draftproof import LLM, interrupts, memory, methods, places
from draftproof.bundled import BUNDLED, located
from draftproof.cli.files import text_of
from draftproof.cli.progress import Running
from draftproof.cli.talk import render, system_messages
from draftproof.demo import precision
from draftproof.drafting.beside import check_rows
from draftproof.hub import names_gguf
from draftproof.models import hears, is_encoder_decoder
from draftproof.profiles import choice_of, is_profile, read
from draftproof.runners import lengths
from draftproof.runners.loading import ENCODERS_IN, described
from draftproof.vocabularies import load_tokenizer


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Imports in it that fail are told as `ValueError`, with the extra that brings them."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{what} needs {error.name}, which is not installed: pip install 'draftproof[{extra}]'"
        ) from error


def hub_options(given: SimpleNamespace) -> dict[str, Any]:
    """How files of the target are found and trusted."""
    return {"revision": given.revision, "trust_remote_code": given.trust_remote_code}


def target(given: SimpleNamespace) -> str:
    """What MODEL names, `bundled` located. Raises `ValueError`: it can be no model."""
    places.check(given.model, given.revision)
    name: str = located(given.model, "target")
    return name


def check_hub(given: SimpleNamespace) -> None:
    """Ask the hub, or what was fetched of it, for the target's configuration; of a GGUF file and of
    a folder nothing. Raises `ValueError`: there is none."""
    name = target(given)
    if not (Path(name).exists() or names_gguf(name)):
        described(name, **hub_options(given))


def tokenizer(given: SimpleNamespace) -> Any:
    """The target's, or None: it has none."""
    return load_tokenizer(target(given), None, hub_options(given))


def give_template(tokenizer: Any, model: str, file: Path | None, system: str | None = None) -> None:
    """Take the template from `file` if there is one, and try it on a first message."""
    if tokenizer is None:
        raise ValueError(f"{model} came without a tokenizer: there is none to give a template")
    if file is not None:
        tokenizer.chat_template = text_of(file, "chat template")
    if not tokenizer.chat_template:
        raise ValueError(f"{model} has no chat template: give one with --chat-template FILE")
    render(tokenizer, [*system_messages(system), {"role": "user", "content": "hello"}])


def sources(given: SimpleNamespace) -> dict[str, Any]:
    """What methods draft with, by its kind; `bundled` located.

    A draft with --any-tokenizer brings its own tokenizer and the target's, which are loaded.
    """
    places.check(given.draft)
    draft, heads = located(given.draft, "draft"), located(given.heads, "heads")
    if not getattr(given, "any_tokenizer", False):
        foreign = {"foreign": None} if hasattr(given, "any_tokenizer") else {}
        return {"draft": draft, "heads": heads, **foreign}
    if draft is None:
        raise ValueError("--any-tokenizer is about a draft: add --draft MODEL")
    own = load_tokenizer(draft, None, {"trust_remote_code": given.trust_remote_code})
    return {"draft": None, "heads": heads, "foreign": (draft, own, tokenizer(given))}


def tuning(given: SimpleNamespace) -> dict[str, Any]:
    """Options of methods; None: not given."""
    return {name: getattr(given, name) for name in ("num_draft_tokens", "min_confidence", "branch")}


def speculate(given: SimpleNamespace) -> Any:
    """What drafts: a profile, or what the options say. Raises `ValueError` for both."""
    if given.profile is None:
        return methods.merged(given.method or [], sources(given), **tuning(given))
    alone(given)
    return str(given.profile)


def alone(given: SimpleNamespace) -> None:
    """Raises `ValueError` where something is given besides a profile that says what drafts."""
    names = ("method", "draft", "heads", "any_tokenizer", *tuning(given))
    for name in names:
        if getattr(given, name, None):
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"--profile says what drafts: drop {flag}, or the profile")
    check_profile(given.profile)


def check_profile(path: Path) -> None:
    """Raises `ValueError` for what is no profile, before anything is loaded."""
    if not is_profile(path):
        raise ValueError(f"--profile {path} is no .json file: draftproof tune makes one")
    choice_of(read(path), str(path))


def encodes(given: SimpleNamespace, *, taken: bool = True) -> bool:
    """Whether the target is an encoder-decoder. taken: whether the command takes those.

    Raises `ValueError` where it does not, and for a model that hears: commands give text.
    """
    name, options = target(given), hub_options(given)
    if not is_encoder_decoder(name, **options):
        return False
    if hears(name, **options):
        raise ValueError(
            f"{given.model} reads audio, and a command gives text: use it in Python, "
            "draftproof.LLM(...).generate(inputs=wave, sampling_rate=16000)"
        )
    if not taken:
        raise ValueError(f"{given.model} is an encoder-decoder, and {ENCODERS_IN}")
    return True


def load(given: SimpleNamespace, *, encoders: bool = False, **options: Any) -> LLM:
    """The target as its options say, in an engine; a terminal shows that it is on its way.

    encoders: whether the command takes encoder-decoders; raises `ValueError` where it does not.
    A prefix_cache is for decoders, and left out for others.
    """
    natural = precision(given.dtype, given.runner, given.device)
    name = target(given)
    if encodes(given, taken=encoders):
        options.pop("prefix_cache", None)
    else:
        _check_draft(given, name)
    fetching = not Path(name).exists()  # which has bars of its own
    with interrupts.kept(), nullcontext() if fetching else Running() as running:
        if running is not None:
            running(f"loading {given.model}", None)
        return LLM(
            name,
            rule=given.rule,
            runner=given.runner,
            dtype=natural if given.model == BUNDLED else given.dtype or "auto",
            device=given.device,
            max_length=given.max_length,
            threads=given.threads,
            **hub_options(given),
            **options,
        )


def _check_draft(given: SimpleNamespace, name: str) -> None:
    """Refuse a draft of another vocabulary by configurations alone, before a target is packed."""
    draft = getattr(given, "draft", None)
    if not isinstance(draft, str) or getattr(given, "any_tokenizer", True):
        return  # the others look by themselves
    draft, trust = located(draft, "draft"), {"trust_remote_code": given.trust_remote_code}
    if any(map(places.in_a_file, (name, draft))):
        return
    models = described(draft, **trust), described(name, **hub_options(given))
    if getattr(models[0], "is_encoder_decoder", False):
        return
    rows = [getattr(each.get_text_config(), "vocab_size", None) for each in models]
    if rows[0] is not None and rows[1] is not None:
        check_rows(rows[0], rows[1])


def _check_room(given: SimpleNamespace, itl_target: float | None) -> None:
    """Refuse what would be refused once a model is loaded, whichever that is."""
    lengths.check_length(given.max_length)
    if itl_target is not None and not itl_target > 0:
        raise ValueError(f"--itl-target is {itl_target:g} ms: give more than 0, or drop it")
    if 0 < (room := memory.bytes_of(given.kv_memory)) < memory.LEAST:
        raise ValueError(
            f"--kv-memory is {room:,} bytes, in which no text has room: write 8GB, say"
        )


def for_many(given: SimpleNamespace, **options: Any) -> Callable[[], LLM]:
    """What loads a model for several texts at once, as a server's or a batch's.

    options: as `load` takes them. Raises `ValueError` for what can be no model, before that.
    """
    _check_room(given, options.get("itl_target"))
    target(given)
    shared = {name: getattr(given, name) for name in ("max_batch", "kv_memory", "cache_weights")}
    shared |= {"speculate": speculate(given), "tokenizer": (own := tokenizer(given))}
    if given.chat_template is not None:
        give_template(own, given.model, given.chat_template)
    return lambda: load(given, encoders=True, **shared, **options)
