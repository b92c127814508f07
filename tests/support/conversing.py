"""`draftproof chat` as a fixture: a random model that writes characters, lines on its input."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import draftproof as dp
import tiny
from commands import Result
from draftproof import cli

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
ROOM = 400  # context of the model
SHORT = ("--max-tokens", "20")


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
def chat_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """T: a random target; D: a draft that often agrees; N: the target without a template."""
    folder = tmp_path_factory.mktemp("chat")
    sizes = {"vocab_size": len(tokenizer()), "max_position_embeddings": ROOM}
    target = tiny.model(dtype=torch.float64, **sizes)
    for name, model in (("T", target), ("D", tiny.relative(target, 0.03)), ("N", target)):
        model.save_pretrained(folder / name)
        tokenizer(None if name == "N" else TEMPLATE).save_pretrained(folder / name)
    return folder


@pytest.fixture
def chat(
    chat_models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """`draftproof chat` with these options and these lines on standard input."""

    def run(*arguments: str, lines: Sequence[str] = (), model: str = "T", tty: bool = False) -> Any:
        words = [str(chat_models / word) if word in ("T", "D", "N") else word for word in arguments]
        text = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
        source = io.TextIOWrapper(io.BytesIO(text))
        monkeypatch.setattr(source, "isatty", lambda: tty)
        monkeypatch.setattr(sys, "stdin", source)
        capsys.readouterr()  # others' progress bars
        with pytest.raises(SystemExit) as end:
            cli.main(["chat", str(chat_models / model), *words])
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
    with dp.LLM(folder / "T", speculate=None) as llm:
        for content in contents:
            messages.append({"role": "user", "content": content})
            params = dp.SamplingParams(**{"max_tokens": 20, **options})
            answers.append(llm.chat(messages, params)[0].text)
            messages.append({"role": "assistant", "content": answers[-1]})
    return answers


def printed(answers: Sequence[str]) -> str:
    return "".join(f"{answer}\n" for answer in answers)
