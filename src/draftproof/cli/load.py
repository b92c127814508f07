"""`draftproof load`: from arguments to calls, their table, JSON and picture."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from draftproof import __version__, clock
from draftproof import prompts as prompt_files
from draftproof.cli.files import place
from draftproof.cli.progress import Running
from draftproof.interrupts import INTERRUPTED
from draftproof.out_folders import results_in, try_folder, whole
from draftproof.prompts import Prompt
from draftproof.traffic import arrivals, reference, report, summary
from draftproof.traffic.answers import Answer
from draftproof.traffic.client import STREAMED, Client, shown
from draftproof.traffic.levels import Asked, Level, Sweep

CHANGED = 1  # the exit code where a text is not the reference's
USUAL = "humaneval"  # prompts, unless others are given


@dataclass(slots=True)
class Plan:
    """What is to be done, once every argument has been read."""

    prompts: list[Prompt]
    asked: Asked
    levels: list[Level]
    texts: dict[str, str] | None  # of the reference
    out: Path | None
    interrupted: bool = False

    @property
    def answers(self) -> list[Answer]:
        return [answer for level in self.levels for answer in level.answers]


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    plan = _planned(given)
    _call(given, plan)
    if not plan.answers:  # an interrupt before anything was measured
        return INTERRUPTED
    compared = None if plan.texts is None else reference.compared(plan.answers, plan.texts)
    found = _found(given, plan, compared)
    _tell(found, given)
    _write(found, plan, given.picture)
    if plan.interrupted:
        return INTERRUPTED
    if (said := report.failures(plan.answers)) is not None:
        raise ValueError(said)
    if compared is not None and not (compared.equal or compared.differing):
        raise ValueError(
            "the reference has none of these answers: ask with the same prompts, --max-tokens, "
            "--temperature and --seed"
        )
    return CHANGED if compared is not None and compared.differing else 0


def _planned(given: SimpleNamespace) -> Plan:
    """Raises `ValueError` for all that is wrong before anything is called."""
    if (count := given.num_prompts) is not None and count < 1:
        raise ValueError("--num-prompts must be 1 or more")
    if given.max_tokens < 1:
        raise ValueError("--max-tokens must be 1 or more")
    for name in ("temperature", "ttft_limit", "tpot_limit"):
        if not math.isfinite(number := getattr(given, name) or 0.0):  # JSON has no such number
            raise ValueError(f"--{name.replace('_', '-')} is {number:g}: give a finite number")
    deciding = {"max_tokens": given.max_tokens, "temperature": given.temperature}
    deciding |= {"seed": given.seed or 0} | ({"ignore_eos": True} if given.ignore_eos else {})
    more = _fields(given.body, deciding)
    files = given.prompts or [USUAL]
    prompts = prompt_files.read(files, given.num_prompts, None, given.chat, given.system)
    try:
        texts = [[each.turns, each.opening] for each in prompts]
        json.dumps([texts, deciding, more], allow_nan=False, ensure_ascii=False).encode()
    except ValueError as error:
        raise ValueError(f"what is asked cannot be sent as JSON: {error}") from error
    levels, calls = _levels(given, len(prompts))
    if given.picture is not None:
        _check_picture(given.picture)
    out = None if given.out is None else place(given.out, "load.json")
    compared = given.reference is not None and given.reference.exists()
    if compared and out is not None and out.exists() and out.samefile(given.reference):
        raise ValueError(f"--out would replace the reference {out}: give it another name")
    return Plan(
        prompts,
        Asked(given.model or "", calls, deciding, more, given.warm, given.cold),
        levels,
        None if given.reference is None else reference.read(given.reference),
        out,
    )


def _check_picture(path: Path) -> None:
    """Raises `ValueError` where none can be drawn or written; its folder is made."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--picture needs matplotlib: pip install 'draftproof[bench]'")
    from matplotlib.backend_bases import FigureCanvasBase

    if path.suffix[1:].lower() not in (known := FigureCanvasBase.filetypes) or path.is_dir():
        endings = ", ".join(f".{each}" for each in known)
        raise ValueError(f"--picture {path} is no file that ends in {endings}: name it so")
    try:
        try_folder(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot write --picture {path}: {error.strerror or error}; give another folder"
        ) from error


def _call(given: SimpleNamespace, plan: Plan) -> None:
    """All calls, or those until an interrupt."""

    async def calling(running: Running) -> None:
        async with Client(given.url, given.api_key, given.timeout) as client:
            if not plan.asked.model:
                plan.asked = replace(plan.asked, model=await client.model())
            await Sweep(client, plan.prompts, plan.asked, plan.levels, running).run()

    try:
        with Running() as running:
            asyncio.run(calling(running))
    except KeyboardInterrupt:
        plan.interrupted = True
    plan.levels = [level for level in plan.levels if level.answers]


def _found(
    given: SimpleNamespace, plan: Plan, compared: reference.Comparison | None
) -> dict[str, Any]:
    """All but the answers, fit for JSON."""
    limits = summary.Limits(given.ttft_limit, given.tpot_limit)
    named = ("chat", "system", "arrivals", "warm", "cold", "ttft_limit", "tpot_limit")
    return {
        "draftproof": __version__,
        "url": shown(given.url),
        "model": plan.asked.model,
        "client": clock.processor(),
        "incomplete": plan.interrupted,
        "options": {
            "prompts": given.prompts or [USUAL],
            "num_prompts": len(plan.prompts),
            "calls": plan.asked.calls,
            **{name: getattr(given, name) for name in named},
            **plan.asked.deciding,
            "body": plan.asked.more,
        },
        "compared": None if compared is None else asdict(compared) | {"summary": str(compared)},
        "levels": [summary.summary(level, limits) for level in plan.levels],
    }


def _fields(body: str | None, deciding: dict[str, Any]) -> dict[str, Any]:
    """What is sent besides. Raises `ValueError` for what has an option of its own."""
    try:
        more = json.loads(body or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"--body is not JSON: {error.msg}") from error
    if not isinstance(more, dict):
        raise ValueError("--body must be an object: '{\"speculative\": false}', say")
    owned = {*deciding, *STREAMED, "model", "prompt", "messages", "n", "ignore_eos", "cache_salt"}
    if taken := sorted(owned & {*more}):
        raise ValueError(f"--body may not have {', '.join(taken)}: load sets that itself")
    return more


def _numbers(option: str, text: str) -> list[float]:
    """A list of positive numbers, none of them twice."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(math.isfinite(each) and each > 0 for each in numbers):
        raise ValueError(f"{option} is {text!r}: give numbers above 0, with commas between")
    if len(numbers) > len({*numbers}):
        raise ValueError(f"{option} is {text!r}: name each number once")
    return numbers


def _levels(given: SimpleNamespace, prompts: int) -> tuple[list[Level], int]:
    """The loads, and how many conversations each of them has. Raises `ValueError`."""
    kind, calls = given.arrivals, given.calls or prompts
    if kind is None:
        if given.request_rate is not None:
            raise ValueError("--request-rate needs --arrivals fixed or poisson")
        counts = _numbers("--clients", given.clients or "1")
        if not all(count.is_integer() for count in counts):
            raise ValueError(f"--clients is {given.clients!r}: give whole numbers")
        if most := [f"{count:g}" for count in counts if count > calls]:
            raise ValueError(f"{most[0]} clients have {calls} calls in all: add --calls N")
        named = [f"{count:g} client{'s' if count > 1 else ''}" for count in counts]
        return [
            Level(name, clients=int(count)) for name, count in zip(named, counts, strict=True)
        ], calls
    if given.clients is not None:
        raise ValueError("--arrivals wait for no client: drop --clients")
    if kind in arrivals.PROCESSES:
        if given.request_rate is None:
            raise ValueError(f"--arrivals {kind} needs --request-rate, calls in a second")
        process, seed = arrivals.PROCESSES[kind], given.seed or 0
        return [
            Level(f"{rate:g}/s {kind}", rate=rate, due=process(rate, calls, seed))
            for rate in _numbers("--request-rate", given.request_rate)
        ], calls
    if given.request_rate is not None:
        raise ValueError("a file of arrivals has a rate of its own: drop --request-rate")
    times = arrivals.read(Path(kind))
    if given.calls is not None and given.calls > len(times):
        raise ValueError(f"{kind} has {len(times)} arrivals: drop --calls")
    times = times[: given.calls]
    rate = len(times) / times[-1] if times[-1] else None
    return [Level(Path(kind).name, rate=rate, due=times)], len(times)


def _write(found: dict[str, Any], plan: Plan, picture: Path | None) -> None:
    """The files that were asked for, which are named on stderr."""
    written = []
    if (path := plan.out) is not None:
        each = [
            [summary.as_dict(answer, level.began) for answer in level.answers]
            for level in plan.levels
        ]
        pairs = zip(found["levels"], each, strict=True)
        levels = [level | {"answers": answers} for level, answers in pairs]
        with results_in(path.parent, path.suffix), whole(path) as part:
            part.write_text(json.dumps(found | {"levels": levels}, indent=1) + "\n")
        written.append(path)
    if picture is not None:
        from draftproof.traffic.picture import draw

        draw(found["levels"], _heading(found), picture)
        written.append(picture)
    if written:
        print("written:", ", ".join(map(str, written)), file=sys.stderr)


def _heading(found: dict[str, Any]) -> str:
    options = found["options"]
    texts, calls = ", ".join(options["prompts"]), options["calls"]
    return (
        f"{found['model']} at {found['url']}: {calls} of {texts} each, at most "
        f"{options['max_tokens']} tokens; client on {found['client']}"
    )


def _tell(found: dict[str, Any], given: SimpleNamespace) -> None:
    """The table and what has to be known of it, or one JSON object."""
    if given.as_json:
        print(json.dumps(found), flush=True)
        return
    console = Console(highlight=False, markup=False)
    limited = given.ttft_limit is not None or given.tpot_limit is not None
    console.print(_heading(found), soft_wrap=True)
    console.print(report.table(found["levels"], console.width, limited))
    if found["incomplete"]:
        console.print("incomplete: interrupted", style="bold")
    for line in report.notes(found["levels"]):
        console.print(line, soft_wrap=True)
    if (compared := found["compared"]) is not None:
        console.print(compared["summary"], style="bold")
        for line in compared["differing"][:3]:
            console.print(line, soft_wrap=True)
