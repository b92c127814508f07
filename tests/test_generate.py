"""`draftproof generate`: prompts, chat models, their defaults, and what it notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, GenerationConfig

import tiny
from commands import SIZES, TOKENIZER
from draftproof import LLM, methods

TEMPLATE = "{% for m in messages %}<{{ m.role }}> {{ m.content }}{% endfor %}"


@pytest.fixture
def chatty(tmp_path: Path) -> Path:
    """A model with a chat template and a generation_config."""
    model = tiny.model(**SIZES)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.6, top_p=0.9, eos_token_id=0
    )
    model.save_pretrained(tmp_path / "chatty")
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path / "chatty")
    return tmp_path / "chatty"


@pytest.mark.parametrize(
    ("words", "stdin", "prompt"),
    [
        (["what is it?"], b"import os\n", "import os\nwhat is it?"),
        (["what is it?"], b"import os", "import os\nwhat is it?"),
        (["what is it?"], b"", "what is it?"),
        (["-"], b"import os", "import os"),
        ([], b"import os", "import os"),
        (["--prompt-file", "-"], b"import os", "import os"),
        (["--prompt-file", "FILE"], b"a\n", "a\nfrom a file"),
        (["--prompt-file", "FILE"], b"\xef\xbb\xbfa\n", "a\nfrom a file"),
    ],
)
def test_standard_input(
    run: Any, tmp_path: Path, words: list[str], stdin: bytes, prompt: str
) -> None:
    file = tmp_path / "prompt"
    file.write_bytes(b"\xef\xbb\xbffrom a file")  # as editors of Windows begin one
    words = [str(file) if word == "FILE" else word for word in words]
    result = run("generate", "T", *words, "--json", "--max-tokens", "1", stdin=stdin)
    assert result.code == 0 and json.loads(result.out)["prompt"] == prompt


def test_a_terminal_is_not_read_beside_a_prompt(run: Any) -> None:
    words = ("generate", "T", "what?", "--json", "--max-tokens", "1")
    result = run(*words, stdin=b"not read", tty=True)
    assert json.loads(result.out)["prompt"] == "what?"


def test_a_system_prompt_is_a_conversation(run: Any, chatty: Path) -> None:
    result = run(
        "generate", str(chatty), "hello", "--system", "be short", "--json", "--max-tokens", "1"
    )
    ids = json.loads(result.out)["prompt_token_ids"]
    text = AutoTokenizer.from_pretrained(TOKENIZER).decode(ids)
    assert "<system> be short<user> hello" in text


def test_a_chat_model_that_writes_nothing(run: Any, chatty: Path) -> None:
    silent = tiny.model(**SIZES)
    silent.generation_config.eos_token_id = list(range(8192))
    silent.save_pretrained(chatty)
    hint = "(nothing was written: the model has a chat template, add --chat)\n"
    assert run("generate", str(chatty), "hello") == (0, "\n", hint)
    assert run("generate", str(chatty), "hello", "--chat") == (0, "\n", "")
    assert run("generate", "T", "hello", "--max-tokens", "0").err == ""


def test_what_cut_a_text(run: Any) -> None:
    assert run("generate", "T", "x", "--max-tokens", "3").err == "(cut: --max-tokens 3)\n"
    assert run("generate", "T", "x", "--max-length", "9").err == "(cut: the context is full)\n"
    assert run("generate", "T", "x", "--max-tokens", "3", "--json").err == ""


SAYS = "temperature=0.6, top_p=0.9"


@pytest.mark.parametrize(
    ("options", "temperature", "line"),
    [
        ([], 0.0, f"(not taken of the model's generation_config: {SAYS}; --model-defaults "),
        (["--model-defaults"], 0.6, f"(as the model's generation_config says: {SAYS})"),
        (["--model-defaults", "--temperature", "0.2"], 0.2, "says: top_p=0.9)"),
        (["--temperature", "1", "--top-p", "0.5"], 1.0, ""),
    ],
)
def test_the_models_own_defaults(
    run: Any,
    chatty: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    temperature: float,
    line: str,
) -> None:
    seen = []
    real = LLM.submit

    def spy(self: Any, prompt: Any, params: Any, **more: Any) -> Any:
        seen.append(params)
        return real(self, prompt, params, **more)

    monkeypatch.setattr(LLM, "submit", spy)
    result = run("generate", str(chatty), "hello", "--max-tokens", "2", *options)
    assert result.code == 0 and seen[0].temperature == temperature
    assert line in result.err if line else "generation_config" not in result.err


def test_a_model_without_defaults_says_nothing(run: Any) -> None:
    assert run("generate", "T", "x", "--max-tokens", "0").err == ""


def test_a_draft_with_any_tokenizer(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = methods.merged

    def spy(*given: Any, **options: Any) -> Any:
        seen.append(real(*given, **options))
        return seen[-1]

    monkeypatch.setattr(methods, "merged", spy)
    common = ("generate", "T", "def main():", "--max-tokens", "16")
    plain = run(*common)
    assert run(*common, "--draft", "D", "--any-tokenizer", "--num-draft-tokens", "3") == plain
    assert run(*common, "--draft", "D", "--any-tokenizer", "--method", "ngram") == plain
    assert [source.name for source in seen[1].sources] == [
        "prediction",
        "ngram",
        "suffix",
        "foreign",
        "forced",
    ]
    refused = run(*common, "--any-tokenizer")
    assert refused.code == 2 and "add --draft MODEL" in refused.err
    refused = run(*common, "--method", "foreign", "--draft", "D")
    assert refused.code == 2 and "add --draft MODEL --any-tokenizer" in refused.err


@pytest.mark.parametrize("columns", [30, 45, 80])
def test_a_narrow_table_is_stacked(run: Any, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    common = ("generate", "T", "def main():", "--max-tokens", "4", "--stats", "--completions", "2")
    err = run(*common, "--method", "ngram").err
    assert "…" not in err and max(map(len, err.splitlines())) <= columns
    assert err.count("length") == (4 if columns < 76 else 3)  # a name and an end, each twice
    assert ("acceptance rate" in err) == (columns < 76)


def test_all_that_fit(run: Any) -> None:
    told = run("generate", "T", "x", "--max-length", "9", "--max-tokens", "-1")
    assert told == run("generate", "T", "x", "--max-length", "9")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--top-p 0.9 --min-p 0.1", "temperature 0 is greedy with --top-p, --min-p or without"),
        ("--stop a\\n", "(--stop 'a\\n' has a backslash and an n"),
        ("--top-p 0.9 --temperature 1", ""),
        ("--stop a", ""),
    ],
)
def test_options_that_do_not_do_what_is_meant(run: Any, words: str, said: str) -> None:
    code, _, err = run("generate", "T", "x", "--max-tokens", "0", *words.split())
    assert code == 0 and (said in err if said else not err)


def test_lossy_acceptance_is_always_told(run: Any) -> None:
    drafting = ("--draft", "D", "--method", "draft")
    words = ("generate", "T", "x", "--max-tokens", "9", *drafting, "--seed", "1")
    drawn = (*words, "--temperature", "1", "--rule")
    assert "warning: the typical rule is lossy" in run(*drawn, "typical").err
    assert "lossy" not in run(*drawn, "coupled").err
    assert "lossy" not in run(*words, "0", "--rule", "typical").err  # greedy stays greedy


def test_a_prediction_from_a_file(run: Any, tmp_path: Path) -> None:
    words = ("generate", "T", "import os", "--max-tokens", "40", "--json")
    (plain,) = json.loads(run(*words, "--method", "none").out)["completions"]
    (tmp_path / "text").write_text(plain["text"])
    code, out, err = run(*words, "--prediction", str(tmp_path / "text"))
    (done,) = json.loads(out)["completions"]
    assert (code, err) == (0, "") and done["token_ids"] == plain["token_ids"]
    assert "prediction" in done["stats"]["decisions"]["sources"]


def test_answers_bound_to_a_grammar(run: Any, tmp_path: Path) -> None:
    schema = {"type": "array", "items": {"enum": [1, 22]}, "minItems": 2, "maxItems": 3}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    (tmp_path / "some.lark").write_text('start: "up" | "down"')
    for words, fits in (
        (["--json-schema", str(tmp_path / "schema.json")], lambda text: {*json.loads(text)}),
        (["--json-schema", json.dumps(schema)], lambda text: {*json.loads(text)}),
        (["--grammar", 'root ::= "a" [xy]'], lambda text: text in ("ax", "ay")),
        (["--grammar", str(tmp_path / "some.lark")], lambda text: text in ("up", "down")),
        (["--regex", "[xy]{3}"], lambda text: len(text) == 3 and {*text} <= {*"xy"}),
        (["--choice", "yes", "--choice", "no"], lambda text: text in ("yes", "no")),
    ):
        code, out, err = run("generate", "bundled", "x = ", *words, "--temperature", "1")
        assert (code, err) == (0, "")
        assert fits(out.removesuffix("\n"))
