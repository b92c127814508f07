"""`draftproof chat`: what is changed while talking, full contexts, the margin of a terminal."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from conversing import ROOM, SHORT, printed, talk, tokenizer
from draftproof.cli.margin import Margin
from draftproof.cli.settings import changed
from draftproof.sampling import SamplingParams

FILL = "x" * 170


def test_the_system_message_changes_while_talking(chat: Any, chat_models: Path, asked: Any) -> None:
    lines = ["/system", "/system be brief", "hello", "/system", '/system """be', 'kind"""', "so"]
    code, out, err = chat("--quiet", *SHORT, lines=lines)
    assert code == 0 and "there is no system message" in err and "be brief\n" in err
    assert out.splitlines()[0] == talk(chat_models, ["hello"], "be brief")[0]
    prompt = tokenizer().decode(asked[1][0])
    assert "[user]hello" in prompt and "be brief" not in prompt and "kind" in prompt


def test_sampling_changes_while_talking(chat: Any, chat_models: Path) -> None:
    lines = ["/set", "/set temperature 0.9", "/set seed=7", "/set max-tokens 9", "hello"]
    code, out, err = chat("--quiet", *SHORT, lines=lines)
    wanted = talk(chat_models, ["hello"], temperature=0.9, seed=7, max_tokens=9)
    assert (code, out) == (0, printed(wanted))
    assert err.splitlines()[:2] == [
        "temperature 0.0, max_tokens 20",
        "temperature 0.9, max_tokens 20",
    ]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("temprature 1", "did you mean temperature?"),
        ("magic 1", "there are temperature"),
        ("top_p", "/set top_p 1.0"),
        ("top_p much", "'much'"),
        ("top_p 7", "top_p"),
        ("top_p none", "number"),
        ("system be brief", "/system be brief"),
    ],
)
def test_what_cannot_be_set(words: str, names: str) -> None:
    with pytest.raises(ValueError, match=re.escape(names)):
        changed(SamplingParams(), words)


def test_nothing_is_a_value_of_some() -> None:
    params = changed(changed(SamplingParams(), "seed 5"), "stop the end")
    assert (params.seed, params.stop) == (5, ("the end",))
    assert changed(changed(params, "seed none"), "stop none") == SamplingParams()


@pytest.mark.parametrize(
    "words", ["parameter temperature 0.7", "temp 0.7", "temperature=0.7", "TEMPERATURE 0.7"]
)
def test_words_of_other_programs_set_the_same(words: str) -> None:
    assert changed(SamplingParams(), words) == SamplingParams(temperature=0.7)
    assert changed(SamplingParams(), "num_predict -1") == SamplingParams(max_tokens=None)


def test_another_answer_to_the_last_message(chat: Any, chat_models: Path, asked: Any) -> None:
    lines = ["/regenerate", "hello", "so", "/regenerate", "/set temperature 0.9", "/regenerate"]
    code, out, err = chat("--quiet", *SHORT, lines=lines)
    first, second, same, other = out.splitlines()
    assert code == 0 and [first, second] == talk(chat_models, ["hello", "so"])
    assert same == second != other
    assert asked[1] == asked[2] == asked[3]  # the answer is no part of what is asked
    assert "nothing was answered yet" in err and err.count("writes the same again") == 1


def test_the_oldest_turns_are_forgotten_after_asking(
    chat: Any, chat_models: Path, asked: Any
) -> None:
    lines = [FILL, "and?", FILL, "y", "again", "/stats"]
    code, _, err = chat("--quiet", "--system", "be brief", *SHORT, lines=lines, tty=True)
    assert code == 0 and f"{ROOM - 1} fit): forget the oldest 1 of 2 turns?" in err
    third, fourth = (tokenizer().decode(prompt) for prompt, _ in asked[2:])
    assert "be brief" in third and third.count("x") == len(FILL) and "and?" in third
    assert "again" in fourth and fourth.startswith(third)


def test_a_full_context_is_kept_unless_the_user_says_so(chat: Any, asked: Any) -> None:
    lines = [FILL, "and?", FILL, "no", "/reset", "hello"]
    code, _, err = chat("--quiet", *SHORT, lines=lines, tty=True)
    assert code == 0 and "error: the conversation has" in err and "/reset" in err
    assert "xxx" not in tokenizer().decode(asked[-1][0])
    _, _, err = chat(*SHORT, lines=[FILL, "and?", FILL])  # a script is not asked
    assert "[Y/n]" not in err and "error: the conversation has" in err


def test_a_line_of_speed(chat: Any) -> None:
    _, _, err = chat("--draft", "D", "--method", "draft", *SHORT, lines=["hello"])
    (line,) = (line for line in err.splitlines() if "tokens/s" in line)
    assert "20 tokens" in line and "tokens/step" in line
    assert "tokens/s" not in chat("--quiet", *SHORT, lines=["hello"]).err


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        (["one two three"], "one two \nthree"),
        (["one tw", "o thr", "ee"], "one two \nthree"),
        (["one\ntwo\n"], "one\ntwo\n"),
        (["a234567890 b"], "a234567890\nb"),  # the space at the margin is the end of the line
        (["abcdefghijklmno p"], "abcdefghij\nklmno p"),
        (["一二三四五六"], "一二三四五\n六"),
        (["  indented"], "  indented"),
        (["\tx"], "\tx"),
    ],
)
def test_words_are_wrapped_at_the_margin(
    pieces: list[str], wanted: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    size = type("Size", (), {"columns": 10})
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: size)
    margin = Margin()
    for piece in pieces:
        margin.write(piece)
    margin.end(line=False)
    assert capsys.readouterr().out == wanted


def test_nothing_is_wrapped_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    margin = Margin()
    margin.write("word " * 100)
    margin.end(line=True)
    assert capsys.readouterr().out == "word " * 100 + "\n"


def test_the_models_own_sampling_is_the_default(
    chat: Any, chat_models: Path, tmp_path: Path
) -> None:
    shutil.copytree(chat_models / "T", tmp_path / "M")
    config = GenerationConfig(do_sample=True, temperature=0.6, top_k=5)
    config.save_pretrained(tmp_path / "M")
    words, seed = ["hello", "so"], ("--seed", "3")
    own = {"temperature": 0.6, "top_k": 5, "seed": 3}
    code, out, err = chat(*SHORT, *seed, lines=[*words, "/set"], model=str(tmp_path / "M"))
    assert (code, out) == (0, printed(talk(chat_models, words, **own)))
    assert err.splitlines()[0] == (
        "(as the model's generation_config says: temperature=0.6, top_k=5)"
    )
    assert err.endswith("temperature 0.6, top_k 5, max_tokens 20, seed 3\n")
    greedy = ("--temperature", "0", "--quiet")
    code, out, err = chat(*SHORT, *greedy, lines=words, model=str(tmp_path / "M"))
    assert (code, out) == (0, printed(talk(chat_models, words))) and "generation_config" not in err
