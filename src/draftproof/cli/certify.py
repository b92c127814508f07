"""`draftproof certify`: from arguments to a certificate, its table and its verdict."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from draftproof import certify as certificates
from draftproof import clock, interrupts
from draftproof import prompts as texts
from draftproof.certify import report, script
from draftproof.cli import defaults, opening
from draftproof.cli.progress import Running
from draftproof.llm import LLM
from draftproof.methods import ALL, EXIT, Sources, given_options, listed, named
from draftproof.out_folders import check_folder, whole

QUICK = {"num_prompts": 2, "max_tokens": 24, "runs": 100}
WITHOUT_EXIT = "a model with one layer has none"


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    defaults.quicken(given, QUICK)
    for name in ("num_prompts", "max_tokens", "runs"):
        value = getattr(given, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}, but must be 1 or more")
    rules = given.rule or list(certificates.RULES)
    for name in rules:
        if name not in certificates.RULES:
            raise ValueError(
                f"rule {name!r} cannot be certified: use {', '.join(certificates.RULES)}"
            )
    methods, how = _methods(given.method or [], opening.sources(given), given.num_draft_tokens)
    target = opening.target(given)
    opening.encodes(given)  # which refuses what hears
    loading: dict[str, Any] = {
        "runner": given.runner,
        "dtype": given.dtype or "auto",
        "device": given.device,
        "threads": given.threads,
        **opening.hub_options(given),
    }
    if given.out != Path():  # hours may lie before a defect, and its script
        check_folder(given.out)
    sources = given.prompts or [texts.HELD_OUT]
    parsed = texts.files_of(sources)
    with Running() as running:
        running("loading", None)
        with interrupts.kept():
            loaded = LLM(target, speculate=None, **loading)
        with loaded as llm:
            if llm.runner.layers < 2 and methods.keys() & {EXIT} and not _named(given.method, EXIT):
                del methods[EXIT]
                print(f"{EXIT} is left out: {WITHOUT_EXIT}", file=sys.stderr)
            prompts = texts.read(
                sources, given.num_prompts, llm.tokenizer, given.chat, given.system, parsed
            )
            machine = clock.ran_on(llm.runner)
            certificate = certificates.certify(
                llm,
                methods,
                _ids(llm, prompts, given.max_tokens),
                rules=rules,
                max_tokens=given.max_tokens,
                seed=given.seed or 0,
                runs=given.runs,
                tick=running,
            )
    path = _save(script.text(certificate, target, loading, how), given.out)
    if given.as_json:
        print(json.dumps(report.as_dict(certificate, given.model) | {"script": path}), flush=True)
    else:
        shown = Console(highlight=False, markup=False)
        shown.print(report.heading(certificate, given.model, machine, sources, len(prompts)))
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


def _named(asked: list[str] | None, method: str) -> bool:
    """Whether a user named it, and not only all that there are."""
    return any(method in part.split("+") for name in asked or () for part in name.split(","))


def _ids(llm: LLM, prompts: Sequence[texts.Prompt], max_tokens: int) -> list[list[int]]:
    """Token ids of the prompts, each cut so that the answer has room."""
    room = llm.max_length - max_tokens
    if room < 1:
        raise ValueError(f"{max_tokens} tokens do not fit in max_length {llm.max_length}")
    if llm.runner.encodes:
        room = int(getattr(llm.runner, "longest_input", room))
    return [prompt.ids(llm.tokenizer, ())[-room:] for prompt in prompts]


def _save(text: str | None, folder: Path) -> str | None:
    if text is None:
        return None
    path = folder / time.strftime("draftproof-defect-%Y%m%d-%H%M%S.py")
    try:
        with whole(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"warning: no script at {path}: {error.strerror}", file=sys.stderr)
        return None
    return str(path)
