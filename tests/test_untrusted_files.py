"""Files of somebody who means harm: nothing of theirs runs, and a sentence says what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import draftproof as dp
from draftproof import bundled, templates
from draftproof.heads import files
from draftproof.runners import claims

RAN = "ran"  # a file that code of the folder would make


class Bomb:
    """What a pickle runs when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder / RAN),)


def edited(file: str, **fields: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        said = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(said | fields))

    return edit


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": Bomb(folder)}, folder / "pytorch_model.bin")


def with_code(file: str, **fields: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / "evil.py").write_text(f"import os\nos.mkdir({str(folder / RAN)!r})\n")
        edited(file, **fields)(folder)

    return edit


def leading_out(folder: Path) -> None:
    shutil.move(folder / "model.safetensors", folder.parent / "other.safetensors")
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def deep(folder: Path) -> None:
    (folder / "config.json").write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")


OWN = {"auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
TOKENIZER = {"auto_map": {"AutoTokenizer": ["evil.T", None]}, "tokenizer_class": "T"}
FOLDERS: list[tuple[Callable[[Path], None], str]] = [
    (pickled, "use a copy in safetensors"),
    (with_code("config.json", model_type="evil", **OWN), "custom code"),
    (with_code("tokenizer_config.json", **TOKENIZER), "custom code"),
    (edited("config.json", num_hidden_layers=10**8), "num_hidden_layers: 100000000"),
    (edited("config.json", num_hidden_layers=-1), "num_hidden_layers: -1"),
    (edited("config.json", num_hidden_layers=0), "no layers"),
    (edited("config.json", vocab_size=10**13), "another model"),
    (edited("config.json", hidden_size=10**9), "another model"),
    (leading_out, "lies outside of the model's folder"),
    (deep, "recursion"),
]


@pytest.mark.parametrize(("edit", "said"), FOLDERS)
def test_a_folder_runs_nothing(edit: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bundled.folder("target"), folder)
    edit(folder)
    with pytest.raises(ValueError) as caught:
        dp.LLM(str(folder), speculate=None)
    assert said in str(caught.value) and "weights_only" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (folder / RAN).exists()


def test_the_bomb_goes_off_where_pickles_are_trusted(tmp_path: Path) -> None:
    torch.save({"a": Bomb(tmp_path)}, tmp_path / "weights.bin")
    torch.load(tmp_path / "weights.bin", weights_only=False)
    assert (tmp_path / RAN).exists()


def test_heads_run_nothing(tmp_path: Path) -> None:
    torch.save({"0.0.linear.weight": Bomb(tmp_path)}, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 1}')
    with pytest.raises(ValueError, match="cannot be read"):
        files.load(tmp_path)
    assert not (tmp_path / RAN).exists()


def test_an_index_may_name_files_beside_it(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "sub/x"}}')
    claims.check_index(index)
    for file in ("/etc/passwd", "sub/../../x"):
        index.write_text(json.dumps({"weight_map": {"a": file}}))
        with pytest.raises(ValueError, match="outside"):
            claims.check_index(index)
    for broken in ("[", "[]", "{}", '{"weight_map": []}'):
        index.write_text(broken)
        with pytest.raises(ValueError, match="fetch it again"):
            claims.check_index(index)


HI = [{"role": "user", "content": "hi"}]
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
LOOPS += "{% endfor %}" * 3


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(bundled.folder("target"))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append.__self__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "unsafe"),
        ("{{ '{0.__class__.__mro__}'.format(messages) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
    ],
)
def test_a_template_reaches_nothing(tokenizer: Any, template: str, said: str) -> None:
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=said):
        templates.chat_ids(tokenizer, HI)


def test_a_template_that_loops_is_ended(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 0.2)
    tokenizer.chat_template = LOOPS
    with pytest.raises(ValueError, match=r"takes more than 0.2 s"):
        templates.chat_ids(tokenizer, HI)
    names = [thread.name for thread in threading.enumerate()]
    assert "draftproof template" not in names  # it is gone, and takes no core any more
