"""`draftproof train` on encoder-decoders: pairs, the target's own answers, and what is refused."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import draftproof as dp
from draftproof import cli
from draftproof.runners import wide
from draftproof.training.data.pairs import PairRows, pack, split
from draftproof.training.data.rows import Document
from draftproof.training.data.states import check, logits_of, states_of
from draftproof.training.recipes.student import depth_of, student
from encoder_folders import saved
from encoders import FAMILIES, model

QUICK = ["--steps", "4", "--rows", "2", "--length", "24", "--calibration-tokens", "100"]
QUICK += ["--device", "cpu"]
PAIRS = [  # they begin with no padding, which T5Gemma never looks at
    Document([2, 7, 8, 9, 2], [False, True, True, True, True], [5, 6, 7]),
    Document([2, 11, 2], [False, True, True], [4, 5, 6, 9, 8, 3]),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder-decoder `T5`, and `pairs.jsonl`."""
    there = tmp_path_factory.mktemp("pairs")
    saved(there / "T5")
    words = ["ba", "bo", "du", "fa", "fe", "fi", "ge", "c", "d", "h"]
    lines = [
        {"prompt": f"{a} {b} {a} c", "completion": f"{b} {a}"} for a in words for b in words[:3]
    ]
    (there / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return there


def train(
    capsys: pytest.CaptureFixture[str], folder: Path, *words: str, data: str = "pairs.jsonl"
) -> tuple[int, str]:
    kind, *rest = words
    given = [kind, str(folder / "T5"), "--data", str(folder / data), *rest, *QUICK]
    with pytest.raises(SystemExit) as end:
        cli.main(["train", *given])
    out, err = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, out + err


@pytest.mark.parametrize("family", [*FAMILIES])
def test_states_of_padded_pairs_are_the_models_own(family: str) -> None:
    """In a batch with a longer input; and the LM head over them gives its logits.

    Compared in float64 all through: routers of experts would else reckon in float32.
    """
    rows = pack(PAIRS, 32)
    check(model(family), rows[0])
    made = wide.of(model(family))
    batch = {name: torch.stack([rows[0][name], rows[1][name]]) for name in rows[0]}

    def same() -> None:
        logits = logits_of(made, states_of(made, batch))
        for row, one in enumerate(PAIRS):
            ids = torch.tensor([one.ids])
            own = made(input_ids=torch.tensor([one.read]), decoder_input_ids=ids, use_cache=False)
            torch.testing.assert_close(logits[row, : len(one.ids)], own.logits[0])

    wide.during(same)


def test_a_model_that_padding_changes_is_refused() -> None:
    made = copy.deepcopy(model("T5"))

    def mixed(module: Any, args: Any, output: Any) -> Any:
        output.last_hidden_state = (
            output.last_hidden_state + output.last_hidden_state.mean(1)[:, None]
        )
        return output

    made.get_encoder().register_forward_hook(mixed)
    with pytest.raises(ValueError, match="padding of what it reads changes them"):
        check(made, pack(PAIRS, 32)[0])


@pytest.mark.parametrize("family", ["T5", "UMT5", "BART", "Marian"])
def test_a_draft_of_all_layers_is_the_target(family: str) -> None:
    made = model(family)
    whole, part = student(made, [0, 1]), student(made, [0])
    assert (depth_of(whole), depth_of(part)) == (2, 1)
    batch = {name: tensor[None] for name, tensor in pack(PAIRS, 32)[0].items()}
    theirs, own = (states_of(each.double(), batch) for each in (made, whole))
    torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(states_of(part.double(), batch), theirs)


def test_pairs_that_read_the_same_stay_together() -> None:
    many = [Document([0, i + 3], [False, True], [5, i // 2]) for i in range(40)]
    kept, held = split(many, 0.05)
    assert held and not {tuple(one.read or ()) for one in kept} & {
        tuple(one.read or ()) for one in held
    }
    assert len(kept) + len(held) == 40
    with pytest.raises(ValueError, match="read the same"):
        split([many[0], many[1]], 0.05)


def test_what_is_read_belongs_to_what_is_learnt() -> None:
    one, other = pack(PAIRS, 32), pack([Document(p.ids, p.taught, [9]) for p in PAIRS], 32)
    assert isinstance(one, PairRows) and one.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("words", "use"),
    [
        (["medusa", "--num-heads", "2"], dp.Medusa),
        (["draft", "--size", "1"], dp.DraftModel),
        (["draft", "--exit-layer", "1"], lambda out: dp.EarlyExit(heads=out)),
    ],
)
def test_what_is_trained_serves(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], use: Any
) -> None:
    """It learnt the target's own answers, what was predicted is served, and no token changes."""
    out = tmp_path / "out"
    code, said = train(capsys, folder, *words, "--out", str(out))
    assert code == 0 and "the target writes" in said and "report it" not in said, said
    asked, params = ["ba c du", "fa fa"], dp.SamplingParams(temperature=0, max_tokens=12)
    with dp.LLM(str(folder / "T5"), speculate=None) as llm:
        plain = [one.token_ids for one in llm.generate(asked, params)]
        llm.use(use(str(out)))
        found = llm.generate(asked, params)
    assert [one.token_ids for one in found] == plain
    assert sum(one.stats.drafted for one in found)


KILLED = """
import os, signal
from draftproof.cli import main
from draftproof.training import trainer

inner, steps = trainer._Loop._step, []

def step(self, batches):
    steps.append(1)
    if len(steps) == 4:  # one step behind the checkpoint, which is in place by then
        assert (self.checkpoint.path / "state.json").exists()
        os.kill(os.getpid(), signal.SIGKILL)
    object.__setattr__(self.plan, "checkpoint_seconds", 1e9 if len(steps) != 2 else -1.0)
    return inner(self, batches)

trainer._Loop._step = step
main()
"""


@pytest.mark.parametrize(
    "words",
    [
        ["draft", "--size", "1"],
        pytest.param(["medusa", "--num-heads", "2"], marks=pytest.mark.slow),
    ],
)
def test_killed_behind_a_checkpoint_it_ends_as_if_it_had_not_been(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """By a signal that nothing catches, after the second of four steps was kept."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    code, said = train(capsys, folder, *words, "--out", str(whole))
    assert code == 0, said
    kind, *rest = words
    given = [kind, str(folder / "T5"), "--data", str(folder / "pairs.jsonl"), *rest, *QUICK]
    command = [sys.executable, "-c", KILLED, "train", *given, "--out", str(cut)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    state = json.loads((cut / "checkpoint" / "state.json").read_text())
    assert state["step"] == 2
    code, said = train(capsys, folder, *words, "--out", str(cut), "--resume")
    assert code == 0, said
    ours, theirs = (load_file(next(there.glob("*.safetensors"))) for there in (whole, cut))
    assert ours.keys() == theirs.keys() and ours
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-6, msg=name)


def test_completions_are_learnt_where_that_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["draft", "--size", "1", "--no-self-distill", "--loss", "text"]
    code, said = train(capsys, folder, *words, "--out", str(tmp_path / "out"))
    assert code == 0 and "the target writes" not in said, said


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["draft", "--size", "1x8"], "--size NxW is random"),
        (["draft", "--size", "1", "--on-policy", "0.5"], "--on-policy goes on"),
        (["draft", "--size", "1", "--draft-vocabulary", "9"], "--draft-vocabulary spares"),
        (["draft", "--start", "bundled"], "the target is an encoder-decoder and the draft"),
        (["draft", "--size", "3"], "1 to the target's 2 layers"),
    ],
)
def test_what_is_for_decoders_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], cause: str
) -> None:
    code, said = train(capsys, folder, *words, "--out", str(tmp_path / "out"))
    assert code == 2 and cause in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('{"text": "ba bo"}', "line 1 has no `prompt`"),
        ('{"messages": []}', "line 1 has no `prompt`"),
        ('{"prompt": 3, "completion": "ba"}', "must be text"),
        ('{"prompt": "  ", "completion": "ba"}', "nothing to learn"),
        ('{"prompt": "ba"}', "read the same"),
    ],
)
def test_data_that_is_no_pairs_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, cause: str
) -> None:
    (folder / "odd.jsonl").write_text(text + "\n")
    words = ["draft", "--size", "1", "--out", str(tmp_path / "out")]
    code, said = train(capsys, folder, *words, data="odd.jsonl")
    assert code == 2 and cause in said and "Traceback" not in said


def test_a_plain_text_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "plain.txt").write_text("ba bo du\n")
    words = ["medusa", "--out", str(tmp_path / "out")]
    code, said = train(capsys, folder, *words, data="plain.txt")
    assert code == 2 and "is a text: an encoder-decoder learns from pairs" in said


@pytest.mark.parametrize("command", ["chat", "convert"])
def test_who_takes_none_says_who_does(run: Any, folder: Path, tmp_path: Path, command: str) -> None:
    more = ["--out", str(tmp_path / "made.gguf")] if command == "convert" else []
    code, _, err = run(command, str(folder / "T5"), *more)
    said = " ".join(err.split())
    assert code == 2 and "generate, batch, serve, bench, certify, quality, tune, train" in said
    assert command not in said.partition("of the commands")[2].partition("alone")[0]
