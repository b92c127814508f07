"""What `draftproof export` wrote, shown to the other engine's own code, without a GPU.

    python benchmarks/peers/export_check.py vllm TARGET FOLDER
    python benchmarks/peers/export_check.py sglang TARGET FOLDER
    python benchmarks/peers/export_check.py llama.cpp TARGET.gguf FOLDER --server PATH/llama-server

The first two by a Python that has the engine. vLLM's and SGLang's configuration, registry and
parser are run, and none of their kernels; llama.cpp's server writes a text. Exit code 1 where
something was refused. Knows nothing of draftproof.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

PORT = 18311
PROMPT = "def add(a, b):\n"


def vllm(target: str, folder: Path) -> str:
    from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig

    said = json.loads((folder / "speculative-config.json").read_text())
    made = SpeculativeConfig(
        **said,
        target_model_config=ModelConfig(model=target),
        target_parallel_config=ParallelConfig(),
    )
    if made.method != "draft_model":
        raise ValueError(f"vLLM takes the folder for a draft of {made.method}")
    draft = made.draft_model_config
    return f"{made.method}, {draft.architecture}, {draft.get_vocab_size()} tokens"


def sglang(target: str, folder: Path) -> str:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.models.registry import ModelRegistry
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils.hf_transformers_utils import get_tokenizer

    flags = shlex.split((folder / "flags.txt").read_text())
    args = prepare_server_args(["--model-path", target, "--device", "cpu", *flags])
    path = args.speculative_draft_model_path
    own = ModelConfig(target, context_length=args.context_length)
    draft = ModelConfig(
        path,
        is_draft_model=True,
        context_length=own.context_len,
        speculative_algorithm=args.speculative_algorithm,
    )
    if draft.vocab_size != own.vocab_size:
        raise ValueError(f"{draft.vocab_size} tokens, and the target has {own.vocab_size}")
    if get_tokenizer(path).get_vocab() != get_tokenizer(target).get_vocab():
        raise ValueError("the tokenizers differ")
    _, name = ModelRegistry.resolve_model_cls(draft.hf_config.architectures)
    steps = args.speculative_num_steps, args.speculative_num_draft_tokens
    return f"{args.speculative_algorithm}, {name}, steps and tokens {steps}"


def llama(target: str, folder: Path, server: str) -> str:
    flags = shlex.split((folder / "flags.txt").read_text())
    command = [server, "--model", target, *flags, "--port", str(PORT), "--ctx-size", "512"]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        address = f"http://localhost:{PORT}"
        while running.poll() is None:
            try:
                urllib.request.urlopen(f"{address}/health").close()
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.5)
        body = json.dumps({"prompt": PROMPT, "n_predict": 48, "temperature": 0}).encode()
        with urllib.request.urlopen(f"{address}/completion", body) as answer:
            timings = json.load(answer)["timings"]
    finally:
        running.terminate()
    if not timings.get("draft_n_accepted"):
        raise ValueError("no drafted token was accepted")
    return f"drafted {timings['draft_n']}, accepted {timings['draft_n_accepted']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=("vllm", "sglang", "llama.cpp"))
    parser.add_argument("target")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--server", help="llama.cpp's llama-server")
    given = parser.parse_args()
    if (given.engine == "llama.cpp") != (given.server is not None):
        parser.error("--server is for llama.cpp, and needed there")
    try:
        if given.engine == "llama.cpp":
            print(llama(given.target, given.folder, given.server))
        else:
            print({"vllm": vllm, "sglang": sglang}[given.engine](given.target, given.folder))
    except (ValueError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
