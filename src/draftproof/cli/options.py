"""One table of option names: every command draws from it, in its order.

One name has one meaning, one type and one line of help. A command that needs another option adds it
here, unless it is the only one that will ever have it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def option(panel: str, help: str, *names: str, **more: Any) -> Any:
    """An option of a command, in its panel of the help."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


PROMPTS, OUTPUT = "What is written", "Output"
SAMPLING, DRAFTING, LOADING = "Sampling", "Drafting", "The model"
CLIENTS = "Its clients"
DATA, TRAINING, RESULTS = "The data", "Training", OUTPUT
HEADS, DRAFT = "The heads", "The draft"

MODEL = "Hub id, folder, GGUF file, or `bundled`."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)]

# What is written
Prompts = Annotated[
    list[str] | None,
    option(
        PROMPTS,
        "JSON lines (`prompt`, `text`, `messages` or `turns`), a text, or bundled, held-out, "
        "damaged, humaneval, mt-bench; repeatable.",
        metavar="FILE",
    ),
]
NumPrompts = Annotated[int | None, option(PROMPTS, "The first so many of each file.")]
Chat = Annotated[bool, option(PROMPTS, "Through the model's chat template.", "--chat")]
System = Annotated[
    str | None, option(PROMPTS, "What a chat model is told before all.", metavar="TEXT")
]
ChatTemplate = Annotated[
    Path | None, option(PROMPTS, "A Jinja template, instead of the model's own.", metavar="FILE")
]

# Drafting
Method = Annotated[
    list[str] | None,
    option(
        DRAFTING,
        "auto, none, ngram, suffix, lookahead, early-exit; draft, staged, specinfer, foreign, "
        "medusa; A+B merges, a comma or repetition lists; all.",
        "--method",
        "--methods",
        metavar="NAME",
    ),
]
Draft = Annotated[
    str | None, option(DRAFTING, "The draft: id, folder or `bundled`.", metavar="MODEL")
]
AnyTokenizer = Annotated[
    bool, option(DRAFTING, "The draft has a tokenizer of its own.", "--any-tokenizer")
]
Heads = Annotated[
    str | None, option(DRAFTING, "Medusa or exit heads: folder or `bundled`.", metavar="FOLDER")
]
Drafts = Annotated[
    list[str] | None,
    option(DRAFTING, "The draft: id, folder or `bundled`; repeatable.", "--draft", metavar="MODEL"),
]
HeadsOfAll = Annotated[
    list[str] | None,
    option(
        DRAFTING,
        "Medusa or exit heads: folder or `bundled`; repeatable.",
        "--heads",
        metavar="FOLDER",
    ),
]
Profile = Annotated[
    Path | None,
    option(DRAFTING, "What `draftproof tune` wrote: it says what drafts.", metavar="FILE"),
]
NumDraftTokens = Annotated[int | None, option(DRAFTING, "The longest draft.")]
MinConfidence = Annotated[
    float | None, option(DRAFTING, "A draft stops where it is less sure (0 to 1).")
]
Branch = Annotated[int | None, option(DRAFTING, "Alternatives at each depth of a draft.")]
MaxDraftNodes = Annotated[int | None, option(DRAFTING, "Tokens drafted in a step, at most.")]
Rule = Annotated[str, option(DRAFTING, "coupled, rejection, or typical (lossy).")]

# Sampling
ModelDefaults = Annotated[
    bool, option(SAMPLING, "As the model's generation_config says.", "--model-defaults")
]
Temperature = Annotated[float, option(SAMPLING, "0 is greedy.")]
TopK = Annotated[int, option(SAMPLING, "Keep the k likeliest; 0 is off.")]
TopP = Annotated[float, option(SAMPLING, "Keep this share of the mass; 1 is off.")]
MinP = Annotated[float, option(SAMPLING, "Keep what has this share of the best; 0 is off.")]
RepetitionPenalty = Annotated[float, option(SAMPLING, "1 is off.")]
PresencePenalty = Annotated[float, option(SAMPLING, "-2 to 2, 0 is off.")]
FrequencyPenalty = Annotated[float, option(SAMPLING, "-2 to 2, 0 is off.")]
LogitBias = Annotated[
    list[str] | None, option(SAMPLING, "Token id and bias; repeatable.", metavar="ID=VALUE")
]
BadTokenIds = Annotated[
    list[int] | None,
    option(SAMPLING, "Never written; repeatable.", "--bad-token-id", metavar="ID"),
]
MinTokens = Annotated[int, option(SAMPLING, "No end before these.")]
MaxTokens = Annotated[int, option(SAMPLING, "Tokens of one answer, at most.")]
Quick = Annotated[
    bool,
    option(SAMPLING, "Fewer prompts, shorter answers, fewer rounds or runs.", "--quick"),
]
Batch = Annotated[list[int] | None, option(SAMPLING, "Prompts at once; repeatable.")]
Rounds = Annotated[int, option(SAMPLING, "Timed rounds, after one to warm up.")]
Stop = Annotated[list[str] | None, option(SAMPLING, "End before it; repeatable.", metavar="TEXT")]
StopTokenIds = Annotated[
    list[int] | None,
    option(SAMPLING, "End with it; repeatable.", "--stop-token-id", metavar="ID"),
]
IgnoreEos = Annotated[bool, option(SAMPLING, "Write on behind an end of text.", "--ignore-eos")]
Seed = Annotated[int | None, option(SAMPLING, "Of all that is drawn.", min=0)]
JsonSchema = Annotated[
    str | None, option(SAMPLING, "The answer is JSON by this schema.", metavar="FILE|JSON")
]
Regex = Annotated[
    str | None, option(SAMPLING, "The whole answer matches it.", metavar="EXPRESSION")
]
GrammarText = Annotated[
    str | None,
    option(
        SAMPLING,
        "The answer follows it: GBNF as llama.cpp's, or Lark in a .lark file.",
        "--grammar",
        metavar="FILE|GBNF",
    ),
]
Choice = Annotated[
    list[str] | None, option(SAMPLING, "The answer is one of these; repeatable.", metavar="TEXT")
]
Prediction = Annotated[
    Path | None,
    option(SAMPLING, "A text file that the answer is thought to be like.", metavar="FILE"),
]
Logprobs = Annotated[int | None, option(SAMPLING, "The best k per token, in --json.")]
PromptLogprobs = Annotated[
    int | None, option(SAMPLING, "The best k per token of the prompt, in --json.")
]
N = Annotated[int, option(SAMPLING, "Several answers are not streamed.", "--completions")]

# The model
Runner = Annotated[str, option(LOADING, "auto, native (bfloat16, int8 and int4, CPU) or torch.")]
Dtype = Annotated[
    str | None,
    option(LOADING, "auto, float32, bfloat16, int8, int4 (native), float16, float64."),
]
Dtypes = Annotated[
    list[str] | None,
    option(LOADING, "auto, float32, bfloat16, int8, int4 (native), float16, float64; repeatable."),
]
Device = Annotated[str, option(LOADING, "auto, cpu, cuda or cuda:N.")]
MaxLength = Annotated[int | None, option(LOADING, "Tokens of prompt and output.")]
Threads = Annotated[int | None, option(LOADING, "CPU threads.")]
Revision = Annotated[str | None, option(LOADING, "Branch, tag or commit on the hub.")]
TrustRemoteCode = Annotated[
    bool, option(LOADING, "Run the model's own code.", "--trust-remote-code")
]
CacheWeights = Annotated[
    bool, option(LOADING, "Keep packed weights on disk, for a quick start.", "--cache")
]
MaxBatch = Annotated[int, option(LOADING, "Texts written at once.", min=1)]
KvMemory = Annotated[
    str, option(LOADING, "Of keys and values: 8GB, or most of what is free.", metavar="BYTES")
]

# Output
Stats = Annotated[bool, option(OUTPUT, "A table on stderr at the end.", "--stats")]
Decisions = Annotated[
    bool,
    option(OUTPUT, "A line on stderr when a method is taken up or dropped.", "--decisions"),
]
Quiet = Annotated[bool, option(OUTPUT, "No notes on stderr.", "--quiet")]
AsJson = Annotated[bool, option(OUTPUT, "One JSON object, at the end.", "--json")]
Out = Annotated[Path, option(OUTPUT, "The folder that results are written to.")]
Export = Annotated[
    list[str] | None,
    option(
        OUTPUT,
        "Also write: spec-bench (of a comparison), original or vllm (of heads); repeatable.",
        metavar="FORMAT",
    ),
]

# Between a server and its clients
ApiKey = Annotated[
    str | None,
    option(CLIENTS, "A key that lets in.", "--api-key", metavar="KEY", envvar="DRAFTPROOF_API_KEY"),
]
Timeout = Annotated[float, option(CLIENTS, "Seconds of an answer, at most.", min=0.1)]

# Training
Data = Annotated[
    list[str], option(DATA, "Text, JSON lines, a folder, or a data set's name; repeatable.")
]
HeldOut = Annotated[
    list[str] | None, option(DATA, "What it is judged on; a twentieth of the data unless given.")
]
Limit = Annotated[int | None, option(DATA, "So many tokens of it.")]
SelfDistill = Annotated[
    bool | None,
    option(
        DATA,
        "The model writes the answers itself: prompts are enough. An encoder-decoder does "
        "unless told not to.",
        "--self-distill/--no-self-distill",
    ),
]
Length = Annotated[int | None, option(DATA, "Tokens of a row; 512 or what there is.")]
Steps = Annotated[
    int | None, option(TRAINING, "At most; two epochs and 300 at least unless given.")
]
Rows = Annotated[int | None, option(TRAINING, "Rows of a step; about 8,192 tokens.")]
Accumulate = Annotated[int, option(TRAINING, "Passes that a step is made of.")]
Rate = Annotated[
    float | None, option(TRAINING, "Peak learning rate; by kind and width unless given.")
]
Start = Annotated[
    str | None,
    option(TRAINING, "A draft or heads to go on from: id, folder or `bundled`.", metavar="MODEL"),
]
DraftVocabulary = Annotated[
    int | None,
    option(TRAINING, "So many tokens are drafted only, those that the data has most: less work."),
]
Resume = Annotated[bool, option(TRAINING, "Go on from the checkpoint in --out.", "--resume")]
CalibrationTokens = Annotated[int, option(RESULTS, "Of text that the result is judged on.")]
Overwrite = Annotated[bool, option(RESULTS, "Replace the model in --out.", "--overwrite")]
