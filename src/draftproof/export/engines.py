"""What each engine is given, and what it has to be told, by the version that was read.

Knows their options and file layouts as their sources have them; runs none of them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from draftproof import out_folders
from draftproof.convert import convert
from draftproof.export import draft
from draftproof.export.asked import MEDUSA, Asked
from draftproof.export.card import LLAMA, READ, SGLANG, TRANSFORMERS, VLLM, card
from draftproof.gguf import writing
from draftproof.gguf.reader import located
from draftproof.heads import files

# Classes of plain decoders that both servers' registries have, under the names of transformers'.
# Others of SGLang's are taken for the extra layers of a target where they are a draft.
SERVED = frozenset(
    """CohereForCausalLM Cohere2ForCausalLM Exaone4ForCausalLM GPT2LMHeadModel GemmaForCausalLM
    Gemma2ForCausalLM Gemma3ForCausalLM Glm4ForCausalLM GptOssForCausalLM GraniteForCausalLM
    LlamaForCausalLM Ministral3ForCausalLM MistralForCausalLM MixtralForCausalLM OPTForCausalLM
    OlmoeForCausalLM Phi3ForCausalLM Qwen2ForCausalLM Qwen2MoeForCausalLM Qwen3ForCausalLM
    Qwen3MoeForCausalLM StableLmForCausalLM""".split()  # noqa: SIM905
)
# vLLM takes a draft's method from its path, whatever `method` says.
TELLING = ("eagle-", "eagle3", "dflash", "dspark")


def check(engine: str, asked: Asked, out: Path, precision: str | None) -> None:
    """Refuse what the engine cannot be given, before anything is loaded."""
    if asked.method == MEDUSA and engine != VLLM:
        raise ValueError(
            f"{engine} {READ[engine].version} reads no Medusa heads: export a draft, or write the "
            "files that vLLM took until mid-2026 with --for vllm"
        )
    if precision is not None and engine != LLAMA:
        raise ValueError(
            "--dtype is of a GGUF file, for llama.cpp: a folder keeps the draft's own numbers"
        )
    if precision is not None and precision not in writing.KINDS:
        raise ValueError(f"dtype {precision!r} is unknown: use {', '.join(writing.KINDS)}")
    found = next((word for word in TELLING if word in str(out / "draft").lower()), None)
    if engine == VLLM and asked.method != MEDUSA and found:
        raise ValueError(
            f"{out} has {found!r} in it, and vLLM takes the draft's method from such a path: give "
            "another --out"
        )


def vllm(asked: Asked, part: Path, out: Path, precision: str | None) -> list[str]:
    """A folder and a `--speculative-config`; of heads the files alone."""
    if asked.method == MEDUSA:
        return _heads(asked, part)
    facts = draft.write(asked, part / "draft", SERVED)
    config = {
        "method": "draft_model",
        "model": str(out / "draft"),
        "num_speculative_tokens": asked.length,
    }
    _json(part / "speculative-config.json", config)
    serve = f"vllm serve {_name(asked)} --speculative-config {shlex.quote(json.dumps(config))}"
    notes = []
    if facts.is_shorter:
        notes.append(
            f"The draft's context ends at {facts.length:,} tokens and the target's at "
            f"{facts.target_length:,}: vLLM's second model runner then ends the target's there too."
        )
    notes.append(
        'Drafts are the draft\'s likeliest tokens; `"draft_sample_method": "probabilistic"` draws '
        "them, for texts that are sampled."
    )
    return card(part, VLLM, asked, facts, serve, notes)


def sglang(asked: Asked, part: Path, out: Path, precision: str | None) -> list[str]:
    """A folder and flags of `sglang.launch_server`."""
    facts = draft.write(asked, part / "draft", SERVED)
    flags = {
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": str(out / "draft"),
        "--speculative-num-steps": str(asked.length),
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": str(asked.length + 1),
    }
    notes = []
    if facts.is_shorter:
        flags["--context-length"] = str(facts.length)
        notes.append(
            f"The draft's context ends at {facts.length:,} tokens and the target's at "
            f"{facts.target_length:,}: SGLang refuses that unless --context-length is the draft's."
        )
    line = _flags(part, flags)
    serve = f"python -m sglang.launch_server --model-path {_name(asked)} {line}"
    return card(part, SGLANG, asked, facts, serve, notes)


def llama(asked: Asked, part: Path, out: Path, precision: str | None) -> list[str]:
    """A GGUF file and flags of `llama-server`."""
    folder, kind = part / "draft", precision or asked.quantize or "bfloat16"
    facts = draft.write(asked, folder, None)
    convert(folder, part / "draft.gguf", kind)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    flags = {
        "--spec-type": "draft-simple",
        "--spec-draft-model": str(out / "draft.gguf"),
        "--spec-draft-n-max": str(asked.length),
    }
    notes = [
        f"Weights are {writing.KINDS[kind]}.",
        "The target has to be a GGUF file of the same vocabulary: `draftproof convert` makes one.",
    ]
    if asked.confidence:
        flags["--spec-draft-p-min"] = f"{asked.confidence:g}"
        notes.append(
            "`--spec-draft-p-min` looks at each token alone; here the limit is on the whole path, "
            "so drafts are somewhat longer there."
        )
    line = _flags(part, flags)
    target = asked.target if located(asked.target) else "TARGET.gguf"
    serve = f"llama-server --model {shlex.quote(target)} {line}"
    return card(part, LLAMA, asked, facts, serve, notes)


def transformers(asked: Asked, part: Path, out: Path, precision: str | None) -> list[str]:
    """A folder that says itself how far it drafts."""
    further: dict[str, Any] = {
        "num_assistant_tokens": asked.length,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": asked.confidence,
    }
    facts = draft.write(asked, part / "draft", None, **further)
    call = (
        f"draft = AutoModelForCausalLM.from_pretrained({str(out / 'draft')!r})\n"
        "model.generate(**inputs, assistant_model=draft)"
    )
    notes = [
        "The confidence limit is used where scikit-learn is installed; it looks at each token "
        "alone, here it is on the whole path."
    ]
    return card(part, TRANSFORMERS, asked, facts, call, notes)


def _heads(asked: Asked, part: Path) -> list[str]:
    heads = files.load(asked.source)
    weight = draft.head_of_target(asked) if heads.outputs is None else None
    if weight is not None and tuple(weight.shape) != (heads.vocab_size, heads.hidden_size):
        raise ValueError(
            f"the heads in {asked.source} are for a model of {heads.vocab_size} tokens and width "
            f"{heads.hidden_size}, and {asked.target} has {weight.shape[0]} and {weight.shape[1]}"
        )
    with out_folders.writing(part / "heads"):
        files.export_vllm(part / "heads", heads, weight)
    return card(part, VLLM, asked, None, None, [])


def _json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _flags(part: Path, flags: Mapping[str, str]) -> str:
    line = " ".join(f"{name} {shlex.quote(value)}" for name, value in flags.items())
    (part / "flags.txt").write_text(line + "\n", encoding="utf-8")
    return line


def _name(asked: Asked) -> str:
    return shlex.quote(str(draft.target_of(asked)[0]))


# By name: fills a folder that will lie elsewhere; lines that tell what is in it.
Write = Callable[[Asked, Path, Path, str | None], list[str]]
ENGINES: Mapping[str, Write] = {
    VLLM: vllm,
    SGLANG: sglang,
    LLAMA: llama,
    TRANSFORMERS: transformers,
}
