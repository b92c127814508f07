"""What `draftproof load` takes, and the first words of its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from draftproof.cli import options
from draftproof.cli.launch import start
from draftproof.cli.options import CLIENTS, OUTPUT, SAMPLING, option

CALLS, JUDGED = "The calls", "What is judged"


def load(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Of the server: http://127.0.0.1:8000, say.")
    ],
    prompts: options.Prompts = None,
    num_prompts: options.NumPrompts = None,
    chat: options.Chat = False,
    system: options.System = None,
    clients: Annotated[
        str | None,
        option(CALLS, "At once, each waiting for its answer: 1,4,16, say.", metavar="LIST"),
    ] = None,
    arrivals: Annotated[
        str | None,
        option(
            CALLS,
            "Calls that wait for none: fixed, poisson, or a file of seconds.",
            metavar="KIND",
        ),
    ] = None,
    request_rate: Annotated[
        str | None, option(CALLS, "Arrivals in a second: 0.5,1,2, say.", metavar="LIST")
    ] = None,
    calls: Annotated[
        int | None,
        option(CALLS, "Of each load, prompts in turn; each prompt once unless given.", min=1),
    ] = None,
    warm: Annotated[int, option(CALLS, "First calls that are not counted.", min=0)] = 2,
    cold: Annotated[
        bool, option(CALLS, "No load finds prompts that another one had read.", "--cold")
    ] = False,
    temperature: options.Temperature = 0.0,
    max_tokens: options.MaxTokens = 128,
    ignore_eos: options.IgnoreEos = False,
    seed: options.Seed = 0,
    body: Annotated[
        str | None,
        option(SAMPLING, "Further fields of each call, which are not compared.", metavar="JSON"),
    ] = None,
    model: Annotated[
        str | None,
        option(CLIENTS, "As the server calls it; its first one unless given.", metavar="NAME"),
    ] = None,
    api_key: options.ApiKey = None,
    timeout: options.Timeout = 600.0,
    ttft_limit: Annotated[
        float | None, option(JUDGED, "Milliseconds to the first token of a good answer.", min=0)
    ] = None,
    tpot_limit: Annotated[
        float | None, option(JUDGED, "Milliseconds per token of a good answer.", min=0)
    ] = None,
    reference: Annotated[
        Path | None,
        option(JUDGED, "Texts have to be those of this file, from --out.", metavar="FILE"),
    ] = None,
    as_json: options.AsJson = False,
    out: Annotated[Path | None, get_args(options.Out)[1]] = None,
    picture: Annotated[
        Path | None, option(OUTPUT, "Draw it: speed and times of each load.", metavar="FILE")
    ] = None,
) -> int:
    """Call a server as many clients would, and tell how long they wait.

    Any server of OpenAI's API; one client unless --clients or --arrivals, HumanEval's prompts
    unless --prompts. Written to load.json in --out, unless that ends in .json itself.
    Exit codes: 0 all answered, 1 a text is not the reference's, 2 a call failed,
    130 interrupted: what was finished is shown.
    """
    return start("load", locals())
