"""What a precision costs an encoder-decoder: pairs of what is read and what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from draftproof import bundled
from encoder_folders import saved

PAIRS = [("c b d c b", "ba bo"), ("ba bo du", "du c b d fa"), ("fa fe fi fo fu ga", "h ho")]
SMALL = ("--num-prompts", "3", "--max-tokens", "6")


def file_of(folder: Path, pairs: list[tuple[str, str]] = PAIRS) -> str:
    path = folder / "pairs.jsonl"
    rows = [{"prompt": read, "completion": written} for read, written in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("family", ["T5", "BART"])
def test_every_number_is_that_of_transformers(run: Any, tmp_path: Path, family: str) -> None:
    folder = str(saved(tmp_path / "model", family))
    words = ("--prompts", file_of(tmp_path), "--dtype", "float32,bfloat16,int8", "--json")
    code, out, err = run("quality", folder, *SMALL, *words, "--out", f"{tmp_path}")
    assert code == 0, err
    found = json.loads(out)
    same, half = found["costs"]
    assert same["divergence"] == 0 and same["agreement"] == 1 and same["same_texts"] == 3
    assert half["divergence"] > 0 and "takes no encoder-decoders" in found["refused"]["int8"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows: dict[str, list[torch.Tensor]] = {"float32": [], "bfloat16": []}
    nats = []
    for dtype, kept in rows.items():
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype).eval()
        for read, written in PAIRS:
            ids = tokenizer(read, return_tensors="pt")["input_ids"]
            labels = torch.tensor([tokenizer(text_target=written)["input_ids"]])
            start = torch.tensor([[model.config.decoder_start_token_id]])
            with torch.inference_mode():
                given = {"decoder_input_ids": torch.cat([start, labels], 1), "use_cache": False}
                logits = model(input_ids=ids, **given).logits[0, :-1].float()
            kept.append(logits.log_softmax(-1))
            if dtype == "float32":
                nats.append(F.cross_entropy(logits, labels[0], reduction="none"))
    assert found["tokens"] == len(torch.cat(nats))
    assert found["perplexity"] == pytest.approx(float(torch.cat(nats).mean().exp()), rel=1e-3)
    laws = torch.cat(rows["bfloat16"]), torch.cat(rows["float32"])
    divergence = F.kl_div(*laws, log_target=True, reduction="none").sum(-1).mean()
    assert half["divergence"] == pytest.approx(float(divergence), rel=0.2)


def test_the_bundled_one_is_judged_by_damaged_code(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bundled, "MODELS", bundled.FOLDER / "models")
    words = ("--max-tokens", "40", "--num-prompts", "4", "--json", "--out", f"{tmp_path}")
    code, out, err = run("quality", "bundled-mender", *words)
    assert code == 0, err
    found = json.loads(out)
    assert found["text"] == "damaged pairs" and len(found["costs"]) == 1
    # It was trained to write the clean text, and does so nearly as a reader would.
    assert found["perplexity"] < 2 and found["costs"][0]["divergence"] < 0.05


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--text", "README.md"), "give pairs by --prompts instead of --text"),
        ((), "is judged by pairs: give --prompts FILE"),
        (("--prompts", "ALONE"), "has no answer: an encoder-decoder needs pairs"),
        (("--prompts", "LONG"), "the encoder reads at most 96"),
        (("--prompts", "PAIRS", "--dtype", "int8"), "takes no encoder-decoders"),
        (("--prompts", "PAIRS", "--max-tokens", "96"), "does not fit in the model's 96"),
    ],
)
def test_bad_input_is_one_sentence(
    run: Any, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "alone.jsonl").write_text('{"prompt": "c b"}\n')
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "c " * 99, "completion": "b"}))
    files = {"ALONE": tmp_path / "alone.jsonl", "LONG": tmp_path / "long.jsonl"}
    files["PAIRS"] = Path(file_of(tmp_path))
    listed = [str(files.get(word, word)) for word in words]
    folder = str(saved(tmp_path / "model", "BART"))
    code, out, err = run("quality", folder, *SMALL, "--out", f"{tmp_path / 'out'}", *listed)
    lines = err.strip().splitlines()
    assert code == 2 and not out and said in lines[-1] and "Traceback" not in err, err
