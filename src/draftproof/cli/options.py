"""Options that several commands share: one name, one meaning, one line of help."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def option(panel: str, help: str, *names: str, **more: Any) -> Any:
    """An option of a command, in its panel of the help."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=False, **more)


SAMPLING, DRAFTING, LOADING = "Sampling", "Drafting", "The model"

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, folder, or `bundled`.")]
Method = Annotated[
    list[str] | None,
    option(
        DRAFTING,
        "none, ngram, suffix, lookahead, early-exit; draft, staged, specinfer, medusa; several are "
        "merged.",
        metavar="NAME",
    ),
]
Draft = Annotated[str | None, option(DRAFTING, "The draft: id, folder or `bundled`.")]
Heads = Annotated[str | None, option(DRAFTING, "Medusa or exit heads: folder or `bundled`.")]
NumDraftTokens = Annotated[int | None, option(DRAFTING, "The longest draft.")]
MinConfidence = Annotated[
    float | None, option(DRAFTING, "A draft stops where it is less sure (0 to 1).")
]
Branch = Annotated[int | None, option(DRAFTING, "Alternatives at each depth of a draft.")]
Rule = Annotated[str, option(DRAFTING, "coupled (default), rejection, or typical (lossy).")]
Temperature = Annotated[float, option(SAMPLING, "0 (default) is greedy.")]
TopK = Annotated[int, option(SAMPLING, "Keep the k likeliest; 0 is off.")]
TopP = Annotated[float, option(SAMPLING, "Keep this share of the mass.")]
MinP = Annotated[float, option(SAMPLING, "Keep what has this share of the best.")]
RepetitionPenalty = Annotated[float, option(SAMPLING, "1 is off.")]
Runner = Annotated[str, option(LOADING, "auto, native (bfloat16 and int8, CPU) or torch.")]
Dtype = Annotated[
    str | None, option(LOADING, "auto, float32, bfloat16, int8 (native), float16 or float64.")
]
Device = Annotated[str, option(LOADING, "auto, cpu, cuda or cuda:N.")]
Threads = Annotated[int | None, option(LOADING, "CPU threads.")]
TrustRemoteCode = Annotated[
    bool, option(LOADING, "Run the model's own code.", "--trust-remote-code")
]
Methods = Annotated[
    list[str] | None,
    option(
        DRAFTING,
        "Methods by name; A+B merges, a comma or repetition lists; all: every one that can run.",
        "--method",
        "--methods",
        metavar="NAME",
    ),
]
Prompts = Annotated[
    list[str] | None,
    option(
        "What is written",
        "A file (JSON lines, or text by paragraph), bundled or held-out; repeatable.",
        metavar="FILE",
    ),
]
NumPrompts = Annotated[int | None, option("What is written", "The first so many of each file.")]
Chat = Annotated[
    bool, option("What is written", "Prompts are messages: use the chat template.", "--chat")
]
System = Annotated[str | None, option("What is written", "A system message; needs --chat.")]
Revision = Annotated[str | None, option(LOADING, "Branch, tag or commit on the hub.")]
