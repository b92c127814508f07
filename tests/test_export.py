"""`draftproof export`: what other engines get drafts as ours do; what they cannot is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    Phi3Config,
    PreTrainedModel,
)

import draftproof as dp
import exporting
import tiny
from draftproof import export, native
from draftproof.export import draft as drafts
from draftproof.export import engines
from draftproof.heads import files
from draftproof.profiles import Choice, Part
from exporting import ROWS, SIZES, TOKENIZER, loaded, profile

NATIVE = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
PROMPT = "def add(a, b):\n    return "


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return exporting.models(tmp_path_factory.mktemp("models"))


def written(target: str, draft: str, engine: str, out: Path, **options: Any) -> list[str]:
    return export.export(export.by_hand(target, draft, **options), engine, out)


@pytest.mark.parametrize("name", ["fewer", "more", "tied"])
def test_the_folder_drafts_what_our_draft_drafts(
    models: dict[str, str], tmp_path: Path, name: str
) -> None:
    written(models["target"], models[name], "transformers", tmp_path / "out")
    theirs, target = loaded(tmp_path / "out" / "draft"), loaded(models["target"])
    assert theirs.config.vocab_size == target.config.vocab_size == ROWS
    ids = TOKENIZER(PROMPT, return_tensors="pt")["input_ids"]
    greedy = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    with dp.LLM(models[name], dtype="float32", speculate=None, runner="torch") as own:
        params = dp.SamplingParams(max_tokens=24, ignore_eos=True, temperature=0)
        (one,) = own.generate([ids[0].tolist()], params)
    if name != "more":  # there it may write what the target does not know
        text = theirs.generate(ids, **greedy)[0, ids.shape[1] :].tolist()
        assert text == list(one.token_ids)
    # As transformers uses it: no other tokenizer is asked for, and the text is the target's.
    assert theirs.generation_config.num_assistant_tokens == 5
    alone = target.generate(ids, **greedy)
    assert torch.equal(target.generate(ids, assistant_model=theirs, **greedy), alone)


@pytest.mark.parametrize("name", ["fewer", "tied", "phi3", "biased"])
def test_an_unknown_id_is_never_the_first_choice(models: dict[str, str], name: str) -> None:
    """Its logit is the mean of the draft's logits, whatever the architecture."""
    if name == "phi3":
        config = Phi3Config(**{**tiny.COMMON, **SIZES, "vocab_size": 400, "pad_token_id": 0})
        model: Any = AutoModelForCausalLM.from_config(config).eval()
    elif name == "biased":
        config = GPT2Config(vocab_size=300, n_embd=32, n_layer=1, n_head=2)
        model = AutoModelForCausalLM.from_config(config).eval()
        head = torch.nn.Linear(32, 300)
        head.weight.data = model.lm_head.weight.data
        head.bias.data = torch.randn(300)
        model.lm_head = head
    else:
        model = loaded(models[name])
    rows = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(0, rows, (4, 12), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        before = model(ids).logits
        assert drafts.resized(model, rows + 9) == 9
        after = model(ids).logits
    assert after.shape[-1] == model.config.vocab_size == rows + 9
    assert torch.allclose(after[..., :rows], before, atol=1e-4)
    assert torch.allclose(after[..., rows:], before.mean(-1, keepdim=True), atol=1e-3)
    assert torch.equal(after.argmax(-1), before.argmax(-1))
    assert (after.softmax(-1)[..., rows:] <= 1 / rows).all()
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert tied is (name in ("tied", "biased"))


def test_vllm(models: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    lines = written(models["target"], models["tied"], "vllm", out, length=3)
    config = json.loads((out / "speculative-config.json").read_text())
    assert config == {
        "method": "draft_model",
        "model": str(out / "draft"),
        "num_speculative_tokens": 3,
    }
    assert shlex.split(lines[-1]) == [
        *("vllm", "serve", models["target"], "--speculative-config"),
        json.dumps(config),
    ]
    kept = json.loads((out / "draft" / "config.json").read_text())
    assert kept["architectures"] == ["LlamaForCausalLM"] and kept["vocab_size"] == ROWS
    card = (out / "README.md").read_text()
    assert "128 tokens and the target's at 256" in card and "0.33.0, not run" in card


def test_sglang(models: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    written(models["target"], models["tied"], "sglang", out, length=4)
    given = shlex.split((out / "flags.txt").read_text())
    flags = dict(zip(given[::2], given[1::2], strict=True))
    assert flags["--speculative-algorithm"] == "STANDALONE"
    assert (flags["--speculative-num-steps"], flags["--speculative-eagle-topk"]) == ("4", "1")
    assert flags["--speculative-num-draft-tokens"] == "5"
    assert flags["--context-length"] == "128"  # a longer one than the draft's is refused there
    own = AutoTokenizer.from_pretrained(flags["--speculative-draft-model-path"])
    assert own.get_vocab() == TOKENIZER.get_vocab()


@NATIVE
def test_llama_cpp(models: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = export.by_hand(models["target"], models["fewer"], confidence=0.0)
    export.export(asked, "llama.cpp", out, precision="float32")
    flags = shlex.split((out / "flags.txt").read_text())
    assert "--spec-draft-p-min" not in flags and "draft-simple" in flags
    assert {each.name for each in out.iterdir()} == {"draft.gguf", "flags.txt", "README.md"}
    params = dp.SamplingParams(max_tokens=16, ignore_eos=True)
    texts = []
    for model in (models["fewer"], str(out / "draft.gguf")):
        with dp.LLM(model, dtype="float32", speculate=None) as llm:
            texts.append(llm.generate([PROMPT], params)[0].token_ids)
    assert texts[0] == texts[1]


def test_heads_are_files_that_nobody_reads_any_more(models: dict[str, str], tmp_path: Path) -> None:
    asked = export.by_hand(models["target"], None, models["heads"])
    lines = export.export(asked, "vllm", tmp_path / "out")
    assert any("no current engine reads these files" in line for line in lines)
    one, two = files.load(models["heads"]), files.load(tmp_path / "out" / "heads")
    assert torch.equal(one.weights, two.weights)
    config = json.loads((tmp_path / "out" / "heads" / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"]) == ("medusa", ROWS)
    assert not (tmp_path / "out" / "speculative-config.json").exists()


def test_a_profile_says_what_drafts_and_how_far(
    run: Any, models: dict[str, str], tmp_path: Path
) -> None:
    tree = [[0], [0, 0], [1], [0, 0, 0]]
    part = Part("draft", (("tree", tree), ("quantize", "int8")), models["tied"])
    file = profile(tmp_path, models["target"], Part("ngram"), part, decides=True)
    out = tmp_path / "out"
    code, said, err = run("export", file, "--for", "vllm", "--out", str(out))
    assert code == 0, err
    config = json.loads((out / "speculative-config.json").read_text())
    assert config["num_speculative_tokens"] == 3
    for words in ("controller", "left out: ngram", "Side branches", "in int8"):
        assert words in said and words in (out / "README.md").read_text(), words
    # Where the profile does not know the place, the model is named; another one is refused.
    file = profile(tmp_path, None, part)
    code, _, err = run("export", file, "--for", "vllm", "--out", str(tmp_path / "b"))
    assert code == 2 and f"write draftproof export MODEL --profile {file}" in err
    more = ("--profile", file, "--for", "vllm", "--out", str(tmp_path / "b"))
    code, _, err = run("export", models["target"], *more)
    assert code == 0, err
    file = profile(tmp_path, models["target"], part)
    code, _, err = run("export", models["tied"], *more[:4], "--out", str(tmp_path / "c"))
    assert code == 2 and "the profile was made for another model" in err
    assert not (tmp_path / "c").exists()


def test_the_profile_of_a_run_knows_its_model(models: dict[str, str], tmp_path: Path) -> None:
    with dp.LLM(models["target"], speculate=None, runner="torch") as llm:
        found = dp.tune(
            llm, [PROMPT] * 2, drafts=[models["tied"]], max_tokens=6, batches=(1,), rounds=1
        )
    found.save(tmp_path / "profile.json")
    kept = json.loads((tmp_path / "profile.json").read_text())
    part = Part("draft", (("num_draft_tokens", 2),), models["tied"])
    kept["choice"] = Choice((part,)).as_dict()
    (tmp_path / "profile.json").write_text(json.dumps(kept))
    asked = export.of_profile(tmp_path / "profile.json")
    assert (asked.target, asked.length) == (models["target"], 2)
    export.export(asked, "transformers", tmp_path / "out")


def test_what_goes_wrong_in_the_middle_leaves_nothing(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(engines, "_json", full)
    (tmp_path / "out.part").mkdir()  # somebody's, as far as anyone knows
    with pytest.raises(OSError, match="No space"):
        written(models["target"], models["tied"], "vllm", tmp_path / "out")
    assert [*tmp_path.iterdir()] == [tmp_path / "out.part"]


def test_a_full_disk_is_told_with_a_way_out(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever a library raises."""

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    with pytest.raises(OSError, match=r"cannot write .* \(I/O error.*\): make room, or write"):
        written(models["target"], models["tied"], "vllm", tmp_path / "out")
    assert [*tmp_path.iterdir()] == []
