"""What drafts and heads of SmolLM2-135M-Instruct learn from: `python scripts/real_drafts.py`.

No text of anybody else is needed but the standard library of this Python. The model samples
instructions behind the user header of its own template (Xu et al. 2024, arXiv 2406.08464), answers
them, and goes on with the heads of the library's documented functions; a third of the answers is
drawn at temperature 0.7, the rest is greedy. Instructions and heads that share `SHARED` words in a
row with HumanEval or MT-bench, which stay held out, are left out and counted.

`draftproof batch` writes the answers: kill this at any time and run it again. They come in portions
of `PORTION` calls, since a batch answers calls that begin alike one behind the other:
OUT/texts.jsonl, which `draftproof train` takes as `--data`, has chats and functions from the first
on.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import random
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from draftproof import prompts

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"  # its template's
HEADER = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
ASKED, ANSWER = 96, 256  # tokens of an instruction and of an answer, at most
SHARED = 8  # words in a row
LONGEST = 1200  # characters of a function's head
DRAWN = 3  # one answer in so many is drawn, the rest is greedy
PORTION = 1000  # calls of a batch


def instructions(count: int) -> Iterator[dict[str, Any]]:
    """Calls that let the model write what a user would ask it."""
    for number in range(count):
        body = {"prompt": HEADER, "max_tokens": ASKED, "temperature": 1.0, "top_p": 0.95}
        yield _call(f"instruction-{number}", "/v1/completions", body | {"seed": number})


def answers(asked: Iterable[str], heads: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Calls for answers to instructions, and for what follows the heads of functions."""
    chat = "/v1/chat/completions", "messages"
    wanted = [(*chat, [{"role": "user", "content": text}]) for text in asked]
    wanted += [("/v1/completions", "prompt", head) for head in heads]
    random.Random(0).shuffle(wanted)
    for number, (url, field, given) in enumerate(wanted):
        drawn = {"temperature": 0.7, "seed": number} if number % DRAWN == 0 else {"temperature": 0}
        yield _call(f"answer-{number}", url, {field: given, "max_tokens": ANSWER} | drawn)


def _call(name: str, url: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def functions(count: int) -> list[str]:
    """Heads of the standard library's documented functions: signature and docstring."""
    found: list[str] = []
    for file in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in file.parts or "test" in file.parts:
            continue
        try:
            source = file.read_text()
            lines, tree = source.splitlines(), ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and node.body[1:]:
                head = "\n".join(lines[node.lineno - 1 : node.body[0].end_lineno]) + "\n"
                if len(head) <= LONGEST:
                    found.append(head)
    random.Random(1).shuffle(found)
    return list(dict.fromkeys(found))[:count]


class HeldOut:
    """Whether a text shares `SHARED` words in a row with a prompt that stays held out."""

    def __init__(self) -> None:
        files = [prompts.load(name, False) for name in ("humaneval", "mt-bench")]
        texts = [turn for file in files for prompt in file for turn in prompt.turns]
        self._known = {run for text in texts for run in _runs(text)}

    def __contains__(self, text: str) -> bool:
        return not self._known.isdisjoint(_runs(text))


def _runs(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[at : at + SHARED]) for at in range(len(words) - SHARED + 1)}


def written(file: Path) -> Iterator[tuple[str, str, str]]:
    """Of the answered lines of a results file: name, text and why it ended."""
    for line in file.read_text().splitlines():
        result = json.loads(line)
        if (response := result.get("response")) and response["status_code"] == 200:
            choice = response["body"]["choices"][0]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            yield result["custom_id"], text, choice["finish_reason"]


def run(calls: Iterable[dict[str, Any]], model: Path, threads: int, out: Path) -> Path:
    """Write the calls, let `draftproof batch` answer them, and return its results."""
    asked = out.with_suffix(".asked.jsonl")
    lines = [json.dumps(one | {"body": {"model": str(model)} | one["body"]}) for one in calls]
    asked.write_text("\n".join(lines) + "\n")
    options = ["--dtype", "bfloat16", "--threads", str(threads), "--out", str(out)]
    code = subprocess.run([sys.executable, "-m", "draftproof", "batch", str(asked), *options])
    if code.returncode > 1:  # 1: a line has an error, which is left out
        raise SystemExit(code.returncode)
    return out


def learnable(calls: Iterable[dict[str, Any]], results: Path) -> Iterator[str]:
    """Lines of conversations, or of prompts with what follows them."""
    given = {call["custom_id"]: call["body"] for call in calls}
    for name, text, _ in written(results):
        if (turns := given[name].get("messages")) is not None:
            yield json.dumps({"messages": [*turns, {"role": "assistant", "content": text}]})
        else:
            yield json.dumps({"prompt": given[name]["prompt"], "completion": text})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("build/smollm2"))
    parser.add_argument("--out", type=Path, default=Path("build/real_drafts"))
    parser.add_argument("--instructions", type=int, default=4000)
    parser.add_argument("--functions", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    held_out = HeldOut()
    file = run(
        instructions(options.instructions),
        options.model,
        options.threads,
        options.out / "instructions.jsonl",
    )
    asked = sorted(
        {text.strip() for _, text, why in written(file) if why == "stop" and text.strip()}
    )
    heads = functions(options.functions)
    learnt = [[text for text in texts if text not in held_out] for texts in (asked, heads)]
    calls = list(answers(*learnt))
    told: dict[str, Any] = {
        "instructions": {
            "asked": options.instructions,
            "different": len(asked),
            "learnt": len(learnt[0]),
        },
        "functions": {"found": len(heads), "learnt": len(learnt[1])},
        "python": sys.version.split()[0],
    }
    texts = options.out / "texts.jsonl"
    lines: list[str] = []
    for at in range(0, len(calls), PORTION):
        portion = calls[at : at + PORTION]
        out = options.out / f"answers-{at // PORTION}.jsonl"
        lines += learnable(portion, run(portion, options.model, options.threads, out))
        texts.write_text("\n".join(lines) + "\n")
        told |= {"answers": len(lines), "sha256": hashlib.sha256(texts.read_bytes()).hexdigest()}
        (options.out / "provenance.json").write_text(json.dumps(told, indent=2) + "\n")
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
