"""`draftproof chat`: turns, commands, interrupts; the answers are the library's."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Sequence
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import draftproof as dp
import tiny
from draftproof import cli
from draftproof.cli.chat import Conversation
from draftproof.engine import Engine
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.runners.torch import TorchRunner
from draftproof.sampling import NoCandidate

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
ROOM = 400  # context of the model
SHORT = ("--max-tokens", "20")


class Result(NamedTuple):
    code: int
    out: str
    err: str


def tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token for each printable character: what is decoded is encoded to the same tokens."""
    characters = [chr(i) for i in range(32, 127)]
    vocabulary = {name: i for i, name in enumerate(["<pad>", "<s>", "</s>", *characters])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = template
    return fast


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """T: a random target; D: a draft that often agrees; N: the target without a template."""
    folder = tmp_path_factory.mktemp("chat")
    sizes = {"vocab_size": len(tokenizer()), "max_position_embeddings": ROOM}
    target = tiny.model(dtype=torch.float64, **sizes)
    for name, model in (("T", target), ("D", tiny.relative(target, 0.03)), ("N", target)):
        model.save_pretrained(folder / name)
        tokenizer(None if name == "N" else TEMPLATE).save_pretrained(folder / name)
    return folder


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`draftproof chat` with these options and these lines on standard input."""

    def run(*arguments: str, lines: Sequence[str] = (), model: str = "T", tty: bool = False) -> Any:
        words = [str(folder / word) if word in ("T", "D", "N") else word for word in arguments]
        source = io.TextIOWrapper(io.BytesIO("".join(f"{line}\n" for line in lines).encode()))
        monkeypatch.setattr(source, "isatty", lambda: tty)
        monkeypatch.setattr(sys, "stdin", source)
        capsys.readouterr()  # others' progress bars
        with pytest.raises(SystemExit) as end:
            cli.main(["chat", str(folder / model), *words])
        return Result(end.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], str]]:
    """What the model is given: prompts, and the class of what drafts."""
    seen: list[tuple[list[int], str]] = []
    real = dp.LLM.submit

    def spy(self: dp.LLM, prompt: Any, params: Any = None) -> Any:
        seen.append((list(prompt), type(self.engine.proposer).__name__))
        return real(self, prompt, params)

    monkeypatch.setattr(dp.LLM, "submit", spy)
    return seen


def talk(folder: Path, contents: Sequence[str], system: str = "", **options: Any) -> list[str]:
    """The answers of the library, without any cache between turns."""
    messages = [{"role": "system", "content": system}] if system else []
    answers = []
    with dp.LLM(folder / "T") as llm:
        for content in contents:
            messages.append({"role": "user", "content": content})
            params = dp.SamplingParams(**{"max_tokens": 20, **options})
            answers.append(llm.chat(messages, params)[0].text)
            messages.append({"role": "assistant", "content": answers[-1]})
    return answers


def printed(answers: Sequence[str]) -> str:
    return "".join(f"{answer}\n" for answer in answers)


METHODS = [
    (),
    ("--method", "ngram"),
    ("--draft", "D", "--num-draft-tokens", "3", "--branch", "1"),
    ("--method", "ngram", "--draft", "D"),
]
WORDS = ["hello", "what is a list?", "and a tuple?", "hello"]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("options", METHODS)
def test_the_answers_are_the_librarys(
    run: Any, folder: Path, options: tuple[str, ...], temperature: float
) -> None:
    wanted = talk(folder, WORDS, "be brief", temperature=temperature, seed=5)
    assert len(set(wanted)) > 2 and any(wanted)
    options += ("--temperature", str(temperature), "--seed", "5", "--system", "be brief")
    code, out, err = run(*options, *SHORT, lines=WORDS)
    assert (code, out) == (0, printed(wanted))
    assert set(err.splitlines()) <= {"(cut: --max-tokens 20)"}


def test_the_second_turn_reads_only_what_is_new(
    run: Any, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[list[int]] = []
    real = TorchRunner.forward

    def spy(self: TorchRunner, work: Any, taps: Any = ()) -> Any:
        passes.append([token for item in work for token in item.new])
        return real(self, work, taps)

    monkeypatch.setattr(TorchRunner, "forward", spy)
    assert run(*SHORT, lines=["hello", "what now?"]).code == 0
    (first, _), (second, _) = asked
    known = len(commonprefix([first, second]))
    assert known == len(first)  # the template only adds
    read = [tokens for tokens in passes if tokens]
    assert read[0] == first[:-1] and len(read) == 2
    assert read[1] == second[-1 - len(read[1]) : -1]
    # The answer's last tokens are not cached: what the end of a turn writes is never run.
    assert len(read[1]) <= len(tokenizer()(";[user]what now?;[assistant]")["input_ids"]) + 2


def test_a_head_that_reads_a_layer_comes_with_early_exit(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, used = torch.zeros(1, 1, 48, 48), []
    files.save(tmp_path, Heads(weights, vocab_size=len(tokenizer()), exit=2))
    real = dp.LLM.use

    def spy(self: dp.LLM, speculate: Any) -> None:
        real(self, speculate)
        used.append(self.engine.proposer)

    monkeypatch.setattr(dp.LLM, "use", spy)
    lines = ["/method ngram", "/method early-exit", "hello", "/method"]
    code, _, err = run(*SHORT, "--heads", str(tmp_path), lines=lines)
    assert code == 0 and err.endswith("method: early-exit\n"), err
    assert isinstance(used[-1], dp.EarlyExit) and used[-1].exit == 2 and used[-1].heads is not None


def test_methods_are_switched_between_turns(run: Any, folder: Path, asked: Any) -> None:
    lines = ["hello", "/method ngram", "and?", "/method none", "so", "/method ngram,draft", "no"]
    lines += ["/method draft", "why", "/method", "/method magic", "/method none ngram", "ah"]
    code, out, err = run("--draft", "D", "--branch", "2", *SHORT, lines=lines)
    words = [line for line in lines if not line.startswith("/")]
    assert (code, out) == (0, printed(talk(folder, words)))
    drafted = ["DraftModel", "NGram", "NoneType", "Hybrid", "DraftModel", "DraftModel"]
    assert [name for _, name in asked] == drafted
    told = [line for line in err.splitlines() if not line.startswith("(cut")]
    assert told[:5] == [
        "method: ngram",
        "method: none",
        "method: ngram, draft",
        "method: draft",
        "method: draft",
    ]
    assert told[5].startswith("error: ") and "magic" in told[5]
    assert told[6].startswith("error: ") and "contradicts" in told[6]


def test_a_draft_needs_a_model(run: Any) -> None:
    code, _, err = run(*SHORT, lines=["/method draft", "/method"])
    assert code == 0 and "--draft" in err and err.endswith("method: none\n")


def test_stats(run: Any) -> None:
    code, out, err = run(*SHORT, lines=["/stats"])
    assert (code, out, err) == (0, "", "nothing was written yet\n")
    code, out, err = run("--draft", "D", "--seed", "7", *SHORT, lines=["a", "b", "/stats"])
    assert code == 0 and out.count("\n") == 2
    assert "seed 7" in err and "all 2 answers" in err and err.count("acceptance") == 4
    assert max(map(len, err.splitlines())) <= 80


def test_reset_forgets_all_but_the_system_message(run: Any, asked: Any) -> None:
    code, out, err = run("--system", "be brief", *SHORT, lines=["hello", "/reset", "hello", "so"])
    first, second, _ = out.splitlines()
    assert code == 0 and first == second and "forgotten" in err
    assert asked[0][0] == asked[1][0]
    assert "be brief" in tokenizer().decode(asked[1][0])


def test_commands(run: Any, folder: Path) -> None:
    lines = ["/help", "/dance", "/", "/reset now", "", "   ", " /etc", "/exit", "never asked"]
    code, out, err = run(*SHORT, lines=lines)
    assert (code, out) == (0, printed(talk(folder, ["/etc"])))
    for name in ("/help", "/stats", "/method", "/reset", "/exit", "Ctrl-C"):
        assert name in err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 3 and "/dance" in errors[0] and "now" in errors[2]


def test_what_does_not_fit_is_refused_and_forgotten(run: Any, folder: Path) -> None:
    lines = ["hello", "x" * ROOM, "and?"]
    code, out, err = run(*SHORT, lines=lines)
    assert (code, out) == (0, printed(talk(folder, ["hello", "and?"])))
    (error,) = (line for line in err.splitlines() if line.startswith("error: "))
    assert f"{ROOM - 1} fit" in error and "/reset" in error


def test_an_answer_ends_with_the_context(run: Any, folder: Path) -> None:
    content = "x" * (ROOM - 30)
    (wanted,) = talk(folder, [content])
    code, out, err = run(lines=[content, "more"])
    assert (code, out) == (0, printed([wanted]))
    assert "(cut: the context is full)" in err and "error: " in err  # no room for another


def test_a_line_that_is_not_text(
    run: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: Any
) -> None:
    source = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\nhello\r\nso"))
    monkeypatch.setattr(sys, "stdin", source)
    with pytest.raises(SystemExit) as end:
        cli.main(["chat", str(folder / "T"), *SHORT])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (0, printed(talk(folder, ["hello", "so"])))
    assert err.startswith("error: ") and "0xff" in err


@pytest.mark.parametrize("options", METHODS)
def test_an_interrupt_ends_the_answer_only(
    run: Any, asked: Any, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    whole = run(*options, *SHORT, lines=["hello"]).out
    steps, real = [0], Engine._step

    def interrupted(self: Engine) -> Any:
        steps[0] += 1
        if steps[0] == 4:
            signal.raise_signal(signal.SIGINT)
        return real(self)

    del asked[:]
    monkeypatch.setattr(Engine, "_step", interrupted)
    code, out, _ = run(*options, *SHORT, lines=["hello", "again", "/exit"])
    first, second = out.splitlines()
    assert code == 0 and second
    assert first and whole.startswith(first) and len(first) < len(whole) - 1
    assert f"[assistant]{first};[user]again;" in tokenizer().decode(asked[1][0])


def test_a_message_interrupted_before_its_answer_is_taken_back(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, real = [0], Engine._step

    def interrupted(self: Engine) -> Any:
        steps[0] += 1
        if steps[0] == 1:
            raise KeyboardInterrupt
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_step", interrupted)
        code, out, _ = run(*SHORT, lines=["oops", "hello"])
    assert (code, out) == (0, "\n" + printed(talk(folder, ["hello"])))


def test_an_interrupt_at_the_prompt(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Conversation.take, []

    def take(self: Conversation, line: str) -> None:
        calls.append(line)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(self, line)

    monkeypatch.setattr(Conversation, "take", take)
    code, out, err = run(*SHORT, lines=["x", "hello"], tty=True)
    assert (code, out) == (0, printed(talk(folder, ["hello"])))
    assert "/exit or Ctrl-D leaves\n> " in err
    del calls[:]
    assert run(*SHORT, lines=["x", "hello"]).code == 130  # a script is ended


def test_a_terminal_is_prompted_on_stderr(run: Any) -> None:
    code, out, err = run(*SHORT, lines=["hello"], tty=True)
    assert code == 0 and "> " not in out and err.count("> ") == 2
    assert "/help" in err.splitlines()[0]
    assert "> " not in run(*SHORT, lines=["hello"]).err


def test_an_answer_that_fails_is_told_and_forgotten(
    run: Any, asked: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picks, real = [0], dp.sampling.pick

    def pick(*args: Any) -> int:
        picks[0] += 1
        if picks[0] == 3:
            raise NoCandidate("no token can be picked, the logits are NaN")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr("draftproof.sampling.pick", pick)
        code, out, err = run(*SHORT, lines=["oops", "hello"])
    _, answer = out.splitlines()
    assert (code, answer) == (0, talk(folder, ["hello"])[0])
    assert "error: no token can be picked, the logits are NaN\n" in err
    assert "oops" not in tokenizer().decode(asked[1][0])


def test_a_template_from_a_file(run: Any, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    wanted = printed(talk(folder, WORDS))
    assert run("--chat-template", str(file), *SHORT, lines=WORDS, model="N")[:2] == (0, wanted)
    file.write_text(TEMPLATE.replace("[", "<"))
    code, out, _ = run("--chat-template", str(file), *SHORT, lines=WORDS)  # not the model's own
    assert code == 0 and out != wanted


@pytest.mark.parametrize(
    ("template", "names"),
    [
        (None, "no/such/file"),
        (b"", "--chat-template"),
        (b"\xff\xfe", "UTF-8"),
        (b"{% for m in messages %}", "template"),
        (b"{{ raise_exception('no system here') }}", "no system here"),
        (b"{{ messages + 1 }}", "template"),
        (b"{# nothing #}", "nothing"),
    ],
)
def test_templates_that_cannot_be_used(
    run: Any, tmp_path: Path, template: bytes | None, names: str
) -> None:
    file = tmp_path / "chat.jinja"
    if template is not None:
        file.write_bytes(template)
    path = str(file) if template is not None else "no/such/file"
    code, out, err = run("--chat-template", path, lines=["hello"])
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    assert names in err


@pytest.mark.parametrize(
    ("model", "options", "names"),
    [
        ("N", "", "--chat-template"),
        ("no-such-model", "", "no-such-model"),
        ("T", "--method magic", "magic"),
        ("T", "--method draft", "--draft"),
        ("T", "--branch 2", "--draft"),
        ("T", "--draft no-such-draft", "no-such-draft"),
        ("T", "--temperature -1", "temperature"),
        ("T", "--rule luck", "luck"),
        ("T", "--max-length 9999", "9999"),
        ("T", "--device mps", "mps"),
        ("T", "more", "more"),
    ],
)
def test_bad_input_is_one_sentence(run: Any, model: str, options: str, names: str) -> None:
    code, out, err = run(*options.split(), model=model, lines=["hello"])
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    assert names in err


def test_a_model_without_a_tokenizer(run: Any, folder: Path, tmp_path: Path) -> None:
    tiny.model().save_pretrained(tmp_path)
    code, _, err = run(model=str(tmp_path), lines=["hello"])
    assert code == 2 and "tokenizer" in err and err.count("\n") == 1
