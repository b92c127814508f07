"""Files that llama.cpp's converter wrote, read by draftproof and by transformers.

`gguf_architectures.py LLAMA.CPP`: a random model of each architecture and of its odd variants
becomes a folder, the converter makes a GGUF file of it, and the logits of both readers are compared
with the folder's over 100 tokens. LLAMA.CPP is its source, as `setup_peers.sh` unpacks it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from draftproof import bundled
from draftproof.runners import gguf_checkpoint

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
import gguf_others


def convert(llama_cpp: Path, folder: Path, out: Path) -> None:
    """Run the converter, on a folder whose odd wishes are met."""
    for name, wish in (("config", "n_ctx"), ("tokenizer_config", "tokenizer_class")):
        file = folder / f"{name}.json"
        said = json.loads(file.read_text())
        said[wish] = said.get("n_positions") if wish == "n_ctx" else "GPT2Tokenizer"
        file.write_text(json.dumps(said))
    program = Path(__file__).with_name("convert_gguf.py")
    command = [str(llama_cpp), str(folder), "--outfile", str(out), "--outtype", "f32"]
    subprocess.run([sys.executable, str(program), *command], check=True, capture_output=True)


def ours(file: Path) -> PreTrainedModel:
    return gguf_checkpoint.load(file, dtype=torch.float32, device=torch.device("cpu"))


def theirs(file: Path) -> PreTrainedModel:
    found: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    return found


def difference(
    read: Callable[[Path], PreTrainedModel], file: Path, ids: Tensor, wanted: Tensor
) -> str:
    """The largest of a reader's logits, or what it says instead."""
    try:
        model = read(file)
        model.set_attn_implementation("eager")
        with torch.inference_mode():
            return f"{(model.eval()(ids).logits - wanted).abs().max():.2g}"
    except Exception as error:  # whatever a reader comes up with
        return f"{type(error).__name__}: {' '.join(str(error).split())[:70]}"


def main(llama_cpp: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bundled.folder("target"))
    ids = torch.randint(0, 8000, (1, 100), generator=torch.Generator().manual_seed(0))
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "max_position_embeddings": 128}
    gguf_others.SIZES.update(sizes)
    print(f"{'':14}{'draftproof':16}transformers")
    for name in gguf_others.CONFIGS:
        with tempfile.TemporaryDirectory() as work:
            folder, file = Path(work) / "folder", Path(work) / "model.gguf"
            model = gguf_others.model(name)
            model.set_attn_implementation("eager")
            with torch.inference_mode():
                wanted = model(ids).logits
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            convert(Path(llama_cpp).resolve(), folder, file)
            found, said = (difference(read, file, ids, wanted) for read in (ours, theirs))
            print(f"{name:14}{found:16}{said}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
