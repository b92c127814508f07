"""A folder of transformers weights as OpenVINO reads them: `export_openvino.py FROM TO 4|8|16`.

Runs in the peers' environment (optimum-intel), once per model and precision; measures nothing.
16 keeps the weights as they are in the folder, 8 and 4 have optimum-intel compress them, to four
bits as its command line does without further options: groups of 128, a zero for each.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import openvino
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
from transformers import AutoTokenizer


def main(source: str, target: str, bits: str) -> None:
    """Export model, tokenizer and detokenizer."""
    folder = Path(target)
    options: dict[str, Any] = {"load_in_8bit": bits == "8"}
    if bits == "4":
        rounded = OVWeightQuantizationConfig(bits=4, sym=False, group_size=128)
        options = {"quantization_config": rounded}
    model = OVModelForCausalLM.from_pretrained(
        source, export=True, compile=False, use_cache=True, **options
    )
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.save_pretrained(folder)
    for part, name in zip(
        convert_tokenizer(tokenizer, with_detokenizer=True),
        ("openvino_tokenizer.xml", "openvino_detokenizer.xml"),
        strict=True,
    ):
        openvino.save_model(part, folder / name)
    held: Counter[str] = Counter()
    for op in openvino.Core().read_model(folder / "openvino_model.xml").get_ops():
        if op.get_type_name() == "Constant":
            held[op.get_element_type().get_type_name()] += op.get_byte_size()
    print("bytes of constants by type:", dict(held.most_common(3)))


if __name__ == "__main__":
    main(*sys.argv[1:4])
