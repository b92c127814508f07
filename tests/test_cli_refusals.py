"""The command line: one sentence and exit code 2 for whatever is wrong."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from transformers import T5Config

import tiny
from draftproof.cli import prompting
from draftproof.cli.files import text_of
from draftproof.sampling import NoCandidate

BAD_INPUT: list[tuple[str, str]] = [
    ("", "Missing argument"),
    ("T p --nonsense", "--nonsense"),
    ("T p --top-k many", "--top-k"),
    ("T p more", "a prompt is one argument: write it in quotation marks"),
    ("no-such-model p", "no-such-model"),
    ("EMPTY p", "config.json"),
    ("NO_WEIGHTS p", "no weights"),
    ("T5 p", "no weights"),
    ("T p --decoder-prompt x", "decoder_prompt"),
    ("T p --draft no-such-draft", "no-such-draft"),
    ("T p --method magic", "magic"),
    ("T p --method draft", "--draft"),
    ("T p --method none --draft D", "contradicts"),
    ("T p --method none --method ngram", "contradicts"),
    ("T p --branch 2", "--draft"),
    ("T p --method ngram --min-confidence 0.5", "--draft"),
    ("T p --draft D --num-draft-tokens 0", "num_draft_tokens"),
    ("T p --draft D --min-confidence 2", "min_confidence"),
    ("T p --rule luck", "luck"),
    ("T p --prompt-file x", "both"),
    ("T --prompt-file no/such/file", "no/such/file"),
    ("T --prompt-file BINARY", "UTF-8"),
    ("T --prompt-file EMPTY", "EMPTY"),
    ("T", "empty"),  # standard input holds nothing
    ("T LONG", "256"),
    ("T p --temperature -1", "temperature"),
    ("T p --temperature nan", "--temperature is nan"),
    ("T p --min-confidence nan", "--min-confidence is nan"),
    ("T p --stop a --stop \udcff", "--stop is not UTF-8 text (byte 0)"),
    ("T p --system ab\udcff", "--system is not UTF-8 text (byte 2)"),
    ("T p --regex \udcff", "--regex is not UTF-8 text"),
    ("T p --top-p 0", "top_p"),
    ("T p --min-tokens 9 --max-tokens 8", "min_tokens"),
    ("T p --max-tokens -2", "--max-tokens is -2, but must be >= 0, or -1 for all that fit"),
    ("T p --completions 0", "n is 0"),
    ("T p --completions 100000000", "n is 100000000, but must be an integer in [1, 10000]"),
    ("T p --logit-bias 5", "ID=VALUE"),
    ("T p --logit-bias 5=1 --logit-bias 5=2", "twice"),
    ("T p --logit-bias 9999=1", "9999"),
    ("T p --bad-token-id 8192", "8192"),
    ("T p --logprobs 2", "--json"),
    ("T p --chat", "template"),
    ("T p --dtype int3", "int3"),
    ("T p --json-schema missing.json", "missing.json"),
    ("T p --json-schema BINARY", "not UTF-8"),
    ("T p --json-schema EMPTY", "schema"),
    ("T p --prediction missing.txt", "cannot read the prediction missing.txt"),
    ("T p --prediction BINARY", "not UTF-8"),
    ("T p --prediction EMPTY", "cannot read the prediction"),
    ("T p --regex ((", "cannot be followed"),
    ("T p --regex a --choice b", "--regex and --choice"),
    # By its configuration alone: no weights lie there, which would be told next.
    ("T p --draft NO_WEIGHTS", "the draft's vocabulary has 97 tokens and the target's 8192"),
    ("T p --grammar missing.gbnf", "cannot read the grammar missing.gbnf"),
    ("T p --grammar root::=(", "cannot be followed"),
    ("T p --json-schema {", "the schema is no JSON"),
    ("T p --grammar-file x", "write --grammar FILE"),
    ("T p --device toaster", "toaster"),
    ("T p --device mps", "mps"),
    ("T p --max-length 1", "max_length"),
    ("T p --max-length 9999", "9999"),
    ("T p --threads 0", "threads"),
    ("T p --revision main", "revision"),
    ("bundled p --revision main", "revision"),
]


@pytest.mark.parametrize(("line", "names"), BAD_INPUT)
def test_bad_input_is_one_sentence(run: Any, tmp_path: Path, line: str, names: str) -> None:
    (tmp_path / "empty").mkdir()
    for name, config in (("no_weights", tiny.CONFIGS["llama"]()), ("t5", T5Config())):
        config.save_pretrained(tmp_path / name)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    words = [
        str(tmp_path / word.lower()) if word in ("EMPTY", "NO_WEIGHTS", "T5", "BINARY") else word
        for word in line.split()
    ]
    words = ["x " * 300 if word == "LONG" else word for word in words]
    code, out, err = run("generate", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err
    assert names.lower() in err.lower()


def test_unknown_commands_and_a_terminal_without_a_prompt(run: Any) -> None:
    for words in (("dance",), ("generate", "T")):
        code, out, err = run(*words, tty=True)
        assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1


def test_no_candidate_left_ends_with_an_error(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> int:
        raise NoCandidate("no token can be picked, the logits are NaN")

    monkeypatch.setattr("draftproof.sampling.pick", nothing)
    assert run("generate", "T", "def main():") == (
        2,
        "\n",
        "error: no token can be picked, the logits are NaN\n",
    )


def test_too_little_memory_is_one_sentence(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, work: Any, taps: Any = ()) -> Any:
        raise MemoryError("keys take 9 bytes and 8 are free:\nlower max_length")

    monkeypatch.setattr("draftproof.runners.torch.TorchRunner.forward", full)
    code, _, err = run("generate", "T", "def main():")
    assert (code, err) == (2, "error: keys take 9 bytes and 8 are free: lower max_length\n")


def test_standard_input_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(prompting, "_standard_input", broken)
    for prompt, file in ((None, Path("-")), ("-", None), ("what?", None)):
        with pytest.raises(ValueError, match="cannot read standard input: Input/output error"):
            prompting.read(prompt, file)


@pytest.mark.parametrize("command", ["bench", "certify", "tune"])
def test_prompts_are_looked_for_before_a_model_is_loaded(
    run: Any, tmp_path: Path, command: str
) -> None:
    tiny.model("llama").config.save_pretrained(tmp_path)  # and no weights
    refused = run(command, str(tmp_path), "--prompts", "no/such.jsonl", "--out", str(tmp_path))
    assert refused.code == 2 and "cannot read the prompts no/such.jsonl" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        "bench T --against= --method ngram --rounds 1",
        "certify T --rule coupled --method ngram --runs 20",
        "tune T --rounds 1",
    ],
)
def test_a_file_of_prompts_is_read_once(
    run: Any, tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it may be a pipe, such as a shell's <(head prompts.jsonl)."""
    read, given = Path.read_bytes, tmp_path / "p.txt"
    times = list[Path]()
    monkeypatch.setattr(Path, "read_bytes", lambda path: (times.append(path), read(path))[1])
    given.write_text("def f(x):\n\nclass A:\n")
    few = ("--num-prompts=2", "--max-tokens=4", f"--prompts={given}", f"--out={tmp_path}")
    code, _, err = run(*words.split(), *few)
    assert code in (0, 4) and times.count(given) == 1, err  # 4: too few for a verdict


def test_a_template_needs_a_tokenizer(run: Any, tmp_path: Path) -> None:
    tiny.model("llama").save_pretrained(tmp_path / "bare")
    (tmp_path / "template").write_text("{{ messages }}")
    given = (str(tmp_path / "bare"), "--chat-template", str(tmp_path / "template"), "--port", "0")
    refused = run("serve", *given)
    assert refused.code == 2 and "bare came without a tokenizer: there is none" in refused.err


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_bytes(b'\xef\xbb\xbf{"type": "null"}')
    assert text_of(tmp_path / "schema.json", "schema") == '{"type": "null"}'
