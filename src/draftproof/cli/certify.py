"""`draftproof certify`: from arguments to a certificate, its table and its verdict."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.console import Console

from draftproof import certify as certificates
from draftproof import clock
from draftproof import prompts as texts
from draftproof.bundled import BUNDLED, located
from draftproof.certify import report, script
from draftproof.cli import options
from draftproof.cli.generate import given_sources
from draftproof.cli.options import DRAFTING, SAMPLING, option
from draftproof.cli.progress import Running
from draftproof.llm import LLM
from draftproof.methods import ALL, Sources, given_options, listed, named


def certify(
    model: options.Model,
    prompts: options.Prompts = None,
    num_prompts: options.NumPrompts = 6,
    chat: options.Chat = False,
    method: options.Method = None,
    draft: options.Draft = None,
    heads: options.Heads = None,
    num_draft_tokens: options.NumDraftTokens = None,
    rule: Annotated[
        list[str] | None, option(DRAFTING, "coupled or rejection; both unless given.")
    ] = None,
    max_tokens: options.MaxTokens = 48,
    seed: options.Seed = 0,
    runs: Annotated[int, option(SAMPLING, "Runs of each test of law.")] = 1000,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
    out: options.Out = Path(),
) -> int:
    """Prove on your model that drafting changes nothing.

    Exit codes: 0 identical, 1 a defect, 3 near-ties, 4 not exercised (nothing was drafted),
    130 interrupted: what was finished is shown.
    All methods that can run unless --method; held-out code unless --prompts.
    """
    for name, value in (("num-prompts", num_prompts), ("max-tokens", max_tokens), ("runs", runs)):
        if value is not None and value < 1:
            raise ValueError(f"--{name} is {value}, but must be 1 or more")
    rules = rule or list(certificates.RULES)
    for name in rules:
        if name not in certificates.RULES:
            raise ValueError(f"rule {name!r} is unknown: use {', '.join(certificates.RULES)}")
    if revision is not None and (model == BUNDLED or Path(model).is_dir()):
        raise ValueError(f"revision {revision!r} is for models of the hub, and {model!r} is none")
    methods, how = _methods(method or [], given_sources(draft, heads), num_draft_tokens)
    target = located(model, "target")
    loading: dict[str, Any] = {
        "runner": runner,
        "dtype": dtype or "auto",
        "device": device,
        "threads": threads,
        "revision": revision,
        "trust_remote_code": trust_remote_code,
    }
    sources = prompts or [texts.HELD_OUT]
    with Running() as running:
        running("loading", None)
        with LLM(target, **loading) as llm:
            certificate = certificates.certify(
                llm,
                methods,
                _ids(llm, texts.read(sources, num_prompts, llm.tokenizer, chat), max_tokens),
                rules=rules,
                max_tokens=max_tokens,
                seed=seed or 0,
                runs=runs,
                tick=running,
            )
    path = _save(script.text(certificate, target, loading, how), out)
    if as_json:
        print(json.dumps(report.as_dict(certificate, model) | {"script": path}), flush=True)
    else:
        used = threads or torch.get_num_threads()
        machine = f"{used} {'thread' if used == 1 else 'threads'}, {clock.processor()}"
        shown = Console(highlight=False, markup=False)
        shown.print(report.heading(certificate, model, machine, sources))
        shown.print(report.table(certificate))
        lines = [report.bound(certificate), report.laws(certificate), *report.idle(certificate)]
        for line in filter(None, [*lines, *report.defects(certificate)]):
            shown.print(line)
        if path:
            shown.print(f"written: {path}")
        shown.print(certificate.verdict)
    return certificate.code


def _methods(
    names: list[str], sources: Sources, tokens: int | None
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """What makes each method, and the text of it in a script; parts of a name are merged."""
    methods = listed(names or [ALL], sources)
    if "none" in methods:
        raise ValueError("method 'none' drafts nothing that could be certified: name another one")
    sources = {kind: source for kind, source in sources.items() if source is not None}
    given = given_options(methods, num_draft_tokens=tokens)
    makers: dict[str, Callable[[], Any]] = {
        name: partial(named, name, sources, **given) for name in methods
    }
    how = {name: f"methods.named({name!r}, {sources!r}, **{given!r})" for name in methods}
    return makers, how


def _ids(llm: LLM, prompts: Sequence[texts.Prompt], max_tokens: int) -> list[list[int]]:
    """Token ids of the prompts, each cut so that the answer has room."""
    room = llm.max_length - max_tokens
    if room < 1:
        raise ValueError(f"{max_tokens} tokens do not fit in max_length {llm.max_length}")
    return [prompt.ids(llm.tokenizer, ())[-room:] for prompt in prompts]


def _save(text: str | None, folder: Path) -> str | None:
    if text is None:
        return None
    path = folder / time.strftime("draftproof-defect-%Y%m%d-%H%M%S.py")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        print(f"warning: no script at {path}: {error.strerror}", file=sys.stderr)
        return None
    return str(path)
