"""The demo: what it measures is what was written, and its verdict is the truth."""

from __future__ import annotations

import io
import json
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from commands import Result
from draftproof import DraftModel, bundled, native
from draftproof.bundled.prompts import PROMPTS
from draftproof.demo import show
from draftproof.demo.race import Race, Writer
from draftproof.engine import Engine

SHORT = ("demo", "--max-tokens", "8", "--num-prompts", "2")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(autouse=True)
def tiny_models(monkeypatch: pytest.MonkeyPatch, pair: Path) -> None:  # noqa: F811
    monkeypatch.setattr(bundled, "MODELS", pair)


def screen(width: int, options: show.Options) -> tuple[int, str]:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, width=width, height=30, color_system="truecolor"
    )
    return show.demo(options, console), file.getvalue()


def test_plain_text_for_pipes(run: Any) -> None:  # noqa: F811
    code, out, err = run(*SHORT, "--method", "draft,ngram", "--temperature", "0.7")
    assert (code, err) == (0, "")
    assert all(prompt in out for prompt in PROMPTS[:2]) and PROMPTS[2] not in out
    assert "identical: yes" in out.splitlines()
    assert out.count("identical: yes") == 5 and "\x1b" not in out
    assert re.search(r"^ *ngram +[\d.]+ +[\d.]+ +\S+ +[\d.]+x +yes yes *$", out, re.MULTILINE)
    assert out.rstrip().endswith("time it takes.")


def test_json_adds_up(run: Any) -> None:  # noqa: F811
    code, out, err = run(*SHORT, "--json", "--seed", "3", "--temperature", "1")
    assert (code, err) == (0, "")
    found = json.loads(out)
    plain, draft = found["methods"]
    assert found["identical"] is True and draft["identical"] == [True, True]
    assert plain["tokens"] == plain["steps"] == draft["tokens"] == 16
    assert draft["tokens_per_step"] == pytest.approx(16 / draft["steps"])
    assert draft["speed_up"] == pytest.approx(plain["seconds"] / draft["seconds"])
    for prompt in found["prompts"]:
        assert prompt["text"]["plain"] == prompt["text"]["draft"] and prompt["differences"] == []


@pytest.mark.parametrize("width", [50, 80, 120])
def test_panels_fit_and_are_coloured(width: int) -> None:
    code, out = screen(width, show.Options(prompts=1, max_tokens=12))
    assert code == 0 and "\x1b[1;32m" in out  # something was drafted and accepted
    text = ESCAPES.sub("", out).replace("\r", "\n")
    text = text[text.rindex("╭─ plain, prompt 1 of 1") :]
    assert max(map(cell_len, text.splitlines())) <= width
    assert "identical: yes" in text and "draft" in text
    if width >= 80:
        assert text.count("class") == PROMPTS[0].count("class")
        assert re.search(r"│ import argparse +││ import argparse +│", text)


def test_the_colour_of_a_token_is_where_it_came_from() -> None:
    writer: Any = SimpleNamespace(
        pieces=["a", "\tb", "c"], request=SimpleNamespace(from_draft=[False, True, False])
    )
    text = show.written("p", writer)
    assert text.plain.split() == ["pa", "bc"]
    drafted = [text.plain[s.start : s.end] for s in text.spans if s.style == show.DRAFTED]
    assert "".join(drafted).strip() == "b"
    assert [line.plain for line in show.folded(show.Text("abcdef\n\ngh"), 4)] == [
        "abcd",
        "ef",
        "",
        "gh",
    ]


class Fake:
    """A writer whose steps take a known time."""

    def __init__(self, name: str, step_s: float, log: list[str]) -> None:
        self.method, self.step_s, self.log = name, step_s, log
        self.seconds, self.left = 0.0, 3
        self.request = SimpleNamespace(error=None)

    @property
    def finished(self) -> bool:
        return self.left == 0

    def step(self) -> None:
        self.log.append(self.method)
        self.seconds += self.step_s
        self.left -= 1

    def stop(self) -> None:
        self.log.append("stop")


@pytest.mark.parametrize(
    ("together", "order", "expected"),
    [(False, 0, "sssfff"), (False, 1, "fffsss"), (True, 0, "sfffss"), (True, 1, "fsffss")],
)
def test_who_moves_next(together: bool, order: int, expected: str) -> None:
    log: list[str] = []
    writers: list[Any] = [Fake("s", 2.0, log), Fake("f", 0.9, log)]
    Race("", writers).run(together, order, lambda: None)
    assert "".join(log).replace("stop", "") == expected and log[-2:] == ["stop", "stop"]


def test_pieces_make_the_text(pair: Path) -> None:  # noqa: F811
    import draftproof

    llm = draftproof.LLM(pair / "target", dtype="float32", speculate=None)
    writer = Writer(
        "plain",
        llm,
        "é = '",
        draftproof.SamplingParams(max_tokens=60, temperature=2.0, ignore_eos=True),
    )
    while not writer.finished:
        writer.step()
    assert len(writer.pieces) == 60 and writer.seconds > 0
    assert writer.text.startswith("".join(writer.pieces))
    assert set(writer.text[len("".join(writer.pieces)) :]) <= {"\ufffd"}


def test_a_difference_is_shown(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    real = Writer.token_ids.fget
    assert real is not None

    def lying(self: Writer) -> list[int]:
        ids = real(self)
        return [*ids[:5], ids[5] + 1, *ids[6:]] if self.method == "draft" and len(ids) > 5 else ids

    monkeypatch.setattr(Writer, "token_ids", property(lying))
    code, out, _ = run(*SHORT)
    assert code == 1 and "identical: no" in out.splitlines()
    assert "prompt 2, token 5: draft wrote" in out and "please report" in out
    code, out, _ = run(*SHORT, "--dtype", "bfloat16", "--json")
    assert code == 1 and json.loads(out)["identical"] is False
    assert "near-tie" in show.sentence(False, show.Options(dtype="bfloat16", runner="torch"), [])
    if native.found() is not None:  # equal bit for bit, or it is a fault
        assert "must never" in show.sentence(False, show.Options(dtype="bfloat16"), [])


def test_an_interrupt_keeps_what_is_done(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    real, requests = Engine._step, set()

    def interrupted(self: Engine) -> Any:
        drafts = self.proposer is not None
        requests.update(request.key for request in self.scheduler.running if drafts)
        written = real(self)
        if len(requests) == 3 and drafts:  # prompt 2, behind one that warms up
            signal.raise_signal(signal.SIGINT)
        return written

    monkeypatch.setattr(Engine, "_step", interrupted)
    code, out, err = run(*SHORT)
    assert code == 130 and "Traceback" not in err
    assert "--- prompt 1 of 2 ---" in out and "--- prompt 2" not in out and "speed-up" in out


def test_a_draft_that_fails_is_reported(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def fail(self: Any, requests: Any) -> Any:
        raise RuntimeError("the draft has lost its mind")

    monkeypatch.setattr(DraftModel, "propose", fail)
    code, out, err = run(*SHORT)
    assert code == 0 and "identical: yes" in out
    says = r"warning: draft: drafting stopped: RuntimeError: the draft has lost its mind \(test_d.*"
    assert re.fullmatch(rf"({says}\n){{2}}", err)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("--method magic", "magic"),
        ("--method none", "compared"),
        ("--num-prompts 0", "num-prompts"),
        ("--num-prompts 99", "99"),
        ("--max-tokens 0", "max_tokens"),
        ("--temperature -1", "temperature"),
        ("--seed -1", "seed"),
        ("--dtype int3", "int3"),
        ("--threads 0", "threads"),
        ("what", "what"),
    ],
)
def test_bad_input_is_one_sentence(run: Any, line: str, names: str) -> None:  # noqa: F811
    code, out, err = run("demo", *line.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and names in err


def test_missing_weights_name_the_way_out(
    run: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(bundled, "MODELS", tmp_path)
    for words in (("demo",), ("generate", "bundled", "p"), ("generate", "p", "--draft", "bundled")):
        code, out, err = run(*words, stdin=b"p")
        assert (code, out) == (2, "") and "make models" in err


def test_the_bundled_pair(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(bundled, "MODELS", bundled.TARGET.parent)
    result: Result = run("demo", "--num-prompts", "1", "--max-tokens", "12")
    assert result.code == 0 and "identical: yes" in result.out.splitlines(), result.err


def test_the_bundled_heads(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(bundled, "MODELS", bundled.TARGET.parent)
    result: Result = run(
        "demo", "--method", "medusa", "--num-prompts", "1", "--max-tokens", "32", "--json"
    )
    found = json.loads(result.out)
    plain, heads = found["methods"]
    assert result.code == 0 and found["identical"] is True
    assert plain["tokens_per_step"] == 1 < heads["tokens_per_step"]
