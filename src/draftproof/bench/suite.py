"""`draftproof bench` from options to results: loads once, builds the sides, compares them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from draftproof import clock, hub, interrupts, places
from draftproof import prompts as prompt_files
from draftproof.bench.compare import Comparison, Result, Tick, compare, fastest
from draftproof.bench.inflation import inflate
from draftproof.bench.predict import predict
from draftproof.bench.sides import How, assisted, ours, transformers
from draftproof.bundled import located
from draftproof.gguf.reader import located as gguf_file
from draftproof.llm import LLM
from draftproof.methods import listed, named
from draftproof.runners import choice, costs, encoders, loading
from draftproof.sampling import SamplingParams
from draftproof.vocabularies import load_tokenizer

PEERS = ("transformers",)
DRAFT_SHARE = 0.1  # of the inflated target's cost, for an inflated draft


@dataclass(frozen=True)
class Options:
    """What is compared, on what, and how often."""

    model: str  # hub id, folder, or `bundled`
    draft: str | None = None
    heads: str | None = None
    profile: str | None = None  # of `draftproof tune`, a side of its own
    methods: Sequence[str] = ("none",)  # none is always there; a+b are merged into one tree
    against: Sequence[str] = ()
    prompts: Sequence[str] = ()  # files or `prompts.NAMES`; none: the held-out ones
    num_prompts: int | None = None  # of each file; 10 of the held-out ones
    chat: bool = False  # every prompt through the chat template
    system: str | None = None  # what the template is told before a conversation
    max_tokens: int = 128
    temperatures: Sequence[float] = (0.0,)
    batches: Sequence[int] = (1,)
    rounds: int = 5
    seed: int = 0
    ignore_eos: bool = False
    runner: str = "auto"
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    draft_options: dict[str, Any] = field(default_factory=dict)  # of methods that have them
    assistant_lengths: Sequence[int] = (3, 5, 8)
    inflate: str | None = None  # give target and draft the cost of this shape
    revision: str | None = None
    trust_remote_code: bool = False


@dataclass
class Report:
    """Everything that a run found."""

    options: Options
    environment: dict[str, Any]
    pass_seconds: dict[int, float]  # of the target, by tokens in a pass
    prompts: int
    results: list[Result] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    incomplete: str = ""  # where it was interrupted

    def as_dict(self) -> dict[str, Any]:
        """Fit for JSON; texts and tokens left out."""
        options = asdict(self.options)
        options["prompts"] = [Path(name).name for name in self.options.prompts]
        return {
            "options": options,
            "environment": self.environment,
            "pass_seconds": {str(tokens): s for tokens, s in self.pass_seconds.items()},
            "prompts": self.prompts,
            "results": [result.as_dict() for result in self.results],
            "skipped": self.skipped,
            "incomplete": self.incomplete,
        }


def check(options: Options) -> dict[str, list[prompt_files.Prompt]]:
    """Refuse what cannot be compared, before anything is loaded; what the prompts' files hold."""
    for name, value in (("rounds", options.rounds), ("max_tokens", options.max_tokens)):
        if value < 1:
            raise ValueError(f"{name} is {value}, but a comparison needs 1 or more")
    if options.num_prompts is not None and options.num_prompts < 1:
        raise ValueError(f"num_prompts is {options.num_prompts}, but must be 1 or more")
    if not options.batches or min(options.batches) < 1:
        raise ValueError("a batch size must be 1 or more")
    for temperature in options.temperatures:
        SamplingParams(temperature=temperature, seed=options.seed)
    for name in options.against:
        if name not in PEERS:
            raise ValueError(f"--against {name} is unknown: use {', '.join(PEERS)}, or '' for none")
    parsed = prompt_files.files_of(options.prompts)
    places.check(options.model, options.revision)
    places.check(options.draft)
    listed(options.methods, _sources(options, options.draft))
    return parsed


def run(options: Options, progress: Tick) -> Report:
    """All comparisons; `progress` is told what runs, and the share that is done (None: not known).

    An interrupt after the first timed round gives what is finished, marked incomplete.
    """
    parsed = check(options)
    progress("loading", None)
    with interrupts.kept():
        model, plain, assistant = load(options)
    if plain.tokenizer is None:
        raise ValueError("a comparison reads text, and this model came without a tokenizer")
    plain.memory.check_batch(max(options.batches), plain.runner.device)
    prompts = prompt_files.read(
        options.prompts,
        options.num_prompts,
        plain.tokenizer,
        options.chat,
        options.system,
        parsed,
    )
    llms = {"none": plain}
    for method in options.methods:
        if method not in llms:
            drafter = _drafter(method, options, assistant)
            llms[method] = LLM(plain, speculate=drafter, max_batch=max(options.batches))
    if options.profile is not None:
        llms["profile"] = LLM(plain, speculate=options.profile, max_batch=max(options.batches))
    progress("measuring passes", None)
    cost = costs.pass_seconds(plain.runner, 128)
    report = Report(options, environment(model, plain), cost, len(prompts))
    mine = [ours(name, llm) for name, llm in llms.items()]
    cases = [(t, b) for t in options.temperatures for b in options.batches]
    for number, (temperature, batch) in enumerate(cases):
        where = f"T={temperature:g}, batch {batch}"
        comparison = Comparison(
            list(mine),
            prompts,
            plain.tokenizer,
            How(temperature, options.max_tokens, options.seed, options.ignore_eos),
            _within(progress, where, number, len(cases)),
            batch,
            plain.max_length,
            model,
            reads=getattr(plain.runner, "longest_input", None),
        )
        try:
            if "transformers" in options.against:
                _add_transformers(comparison, model, plain.end_ids, assistant, options)
            comparison.run(options.rounds)
        except KeyboardInterrupt:
            if not (report.results or comparison.finished()):
                raise
            rounds = max((len(each.tokens_per_s) for each in comparison.finished()), default=0)
            report.incomplete = f"interrupted after {rounds} of {options.rounds} rounds at {where}"
        compare(comparison)
        predict(comparison, costs.of(plain.runner))
        report.results += comparison.finished()
        report.skipped += [f"{text} ({where})" for text in comparison.skipped]
        if report.incomplete:
            break
    report.environment["load_after"] = clock.load()
    return report


def _within(progress: Tick, where: str, case: int, cases: int) -> Tick:
    """The share of one case becomes a share of all; none until the first has been warm."""

    def tick(text: str, share: float | None) -> None:
        done = None if share is None and not case else (case + (share or 0.0)) / cases
        progress(f"{where}, {text}" if cases > 1 else text, done)

    return tick


def load(options: Options) -> tuple[PreTrainedModel, LLM, PreTrainedModel | None]:
    """The target as peers run it, in a plain engine, and the draft; inflated if asked for.

    What the native runner packs is a copy of the weights that peers compute with. Of a GGUF file
    those are its numbers in bfloat16, and our own side's, unless a dtype was asked for, its blocks.
    """
    rounded = options.dtype in choice.QUANTISED
    source = hub.fetched(located(options.model, "target"), options.revision)
    must = rounded or options.runner == "native"
    where = loading.pick_device(options.device, must)
    common: dict[str, Any] = {
        "device": where,
        "trust_remote_code": options.trust_remote_code,
    }
    named_by = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
    encodes = encoders.is_one(source, **named_by)
    if encodes and (must or options.inflate is not None):
        raise ValueError(
            "an encoder-decoder runs on torch at its own size: drop --inflate, --runner native, "
            "and --dtype int8 or int4"
        )
    loads = encoders.load if encodes else choice.load
    model = loads(
        source,
        dtype=torch.bfloat16 if rounded else loading.pick_dtype(options.dtype),
        revision=options.revision,
        **common,
    )
    assistant: Any = None
    if options.draft is not None:
        draft = hub.fetched(located(options.draft, "draft"))
        trust = options.trust_remote_code
        if not encodes:
            encoders.check_kind(draft, encodes, trust_remote_code=trust)
        # A decoder alone drafts for an encoder-decoder too.
        reads = encodes and encoders.is_one(draft, trust_remote_code=trust)
        assistant = (encoders if reads else choice).load(draft, dtype=model.dtype, **common)
    if options.inflate is not None:
        model = inflate(model, like=options.inflate)
        if assistant is not None:
            assistant = inflate(assistant, like=options.inflate, share=DRAFT_SHARE)
    natively = not encodes and options.runner == "auto" and choice.suits(model)
    lies = natively and options.dtype == "auto" and options.inflate is None
    plain = LLM(
        source if lies and gguf_file(source) is not None else model,
        tokenizer=load_tokenizer(source, None, named_by),
        runner="native" if natively else options.runner,
        dtype=options.dtype if rounded else "auto",
        threads=options.threads,
        max_batch=max(options.batches),
        speculate=None,
    )
    if options.threads is not None:
        torch.set_num_threads(options.threads)  # of all sides: the others are not ours
    return model, plain, assistant


def _drafter(name: str, options: Options, assistant: PreTrainedModel | None) -> Any:
    # No memory of earlier outputs: every round writes the same ones again.
    return named(name, _sources(options, assistant), **options.draft_options, corpus=0)


def _sources(options: Options, draft: Any) -> dict[str, Any]:
    heads = None if options.heads is None else located(options.heads, "heads")
    return {"draft": draft, "heads": heads}


def _add_transformers(
    comparison: Comparison,
    model: PreTrainedModel,
    ends: Sequence[int],
    assistant: PreTrainedModel | None,
    options: Options,
) -> None:
    """transformers' own loop, prompt lookup, and its assistant at the best of several lengths."""
    comparison.sides.append(transformers("", model, ends))
    if comparison.batch > 1:
        comparison.skipped.append("transformers assistant and lookup: they take one prompt at once")
        return
    lookup = transformers("lookup", model, ends, batches=False, prompt_lookup_num_tokens=10)
    comparison.sides.append(lookup)
    if assistant is not None and (
        model.config.is_encoder_decoder and not assistant.config.is_encoder_decoder
    ):
        comparison.skipped.append("transformers assistant: that of an encoder-decoder is one too")
    elif assistant is not None:
        lengths = (None, *options.assistant_lengths)
        best, _, skipped = fastest(
            [assisted(model, assistant, ends, n) for n in lengths], comparison
        )
        comparison.skipped += skipped
        comparison.sides += [best] if best is not None else []


def environment(model: PreTrainedModel, plain: LLM) -> dict[str, Any]:
    """The machine, the versions and the model, as they were."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "processor": clock.computes(model.device),
        "machine": clock.machine(),
        "load_before": clock.load(),
        "threads": torch.get_num_threads(),
        **{name: version(name) for name in ("draftproof", "torch", "transformers")},
        "device": str(model.device),
        "runner": plain.runner.name,
        "dtype": plain.runner.precision,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
