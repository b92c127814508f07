"""A folder of transformers weights as llama.cpp reads them: `convert_gguf.py LLAMA.CPP FROM ...`.

Runs llama.cpp's own convert_hf_to_gguf.py in the peers' environment; what follows LLAMA.CPP are its
arguments. Differs from it in two things: a byte-level tokenizer whose hash llama.cpp does not know
is taken for GPT-2's, which splits text as ours does, and a folder without SentencePiece's file has
such a tokenizer, whatever its architecture. Measures nothing.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main(llama_cpp: str, *arguments: str) -> None:
    """Run the converter as a program."""
    folder = Path(llama_cpp)
    sys.path[:0] = [str(folder / "gguf-py"), str(folder)]
    from conversion.base import TextModel

    usual = TextModel._set_vocab_sentencepiece

    def vocabulary(self: TextModel, *more: bool) -> None:
        there = (self.dir_model / "tokenizer.model").is_file()
        usual(self, *more) if there else self._set_vocab_gpt2()

    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    TextModel._set_vocab_sentencepiece = vocabulary
    script = folder / "convert_hf_to_gguf.py"
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
