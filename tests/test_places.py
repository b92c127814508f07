"""A file, a folder or a name that is no model: what is said of it, in the shell and in Python."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants, errors
from transformers import AutoTokenizer, PreTrainedConfig

import draftproof as dp
import tiny
from draftproof import hub, places, vocabularies


@pytest.fixture
def things(tmp_path: Path) -> Path:
    tiny.model("llama").save_pretrained(tmp_path / "whole")
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03\x00")
    (tmp_path / "blob").write_bytes(b"GGUF\x03\x00")
    (tmp_path / "README.md").write_text("# read me")
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "alone.safetensors").write_bytes(b"\x00" * 8)
    for name in ("gguf", "two", "adapter", "nothing", "cache/snapshots", "heads", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "heads" / "config.json").write_text('{"medusa_num_heads": 2}')
    (tmp_path / "other" / "config.json").write_text('{"heads": 2, "model_type": "llama"}')
    (tmp_path / "gguf" / "x.gguf").write_bytes(b"GGUF\x03\x00")
    for name in ("x", "y"):
        (tmp_path / "two" / f"{name}.gguf").write_bytes(b"GGUF\x03\x00")
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    tiny.model("llama").save_pretrained(tmp_path / "cache" / "snapshots" / "abc")
    return tmp_path


WRONG = [
    ("heads", "heads holds heads, and no model: they are --heads"),
    ("model.gguf", "model.gguf: it ends too early"),
    ("blob", "blob: it ends too early"),
    ("gguf", "x.gguf: it ends too early"),
    ("two", "has several GGUF files: give one, "),
    ("README.md", "is a file and no model: a model is a hub id, a GGUF file, or a folder"),
    ("alone.safetensors", "holds weights without a config.json"),
    ("whole/model.safetensors", "is one file of a model: give its folder, "),
    ("whole/config.json", "is one file of a model: give its folder, "),
    ("adapter", "holds an adapter: merge it"),
    ("cache", "abc in it has one: give that folder"),
    ("no/such/folder", "there is no file or folder"),
    ("empty.gguf", "is empty: fetch it again"),
]


@pytest.mark.parametrize(("name", "says"), WRONG)
def test_what_is_no_model(run: Any, things: Path, name: str, says: str) -> None:
    for words in (("generate", str(things / name), "x"), ("generate", "T", "x", "--draft")):
        more = () if words[-1] == "x" else (str(things / name),)
        code, out, err = run(*words, *more)
        assert (code, out) == (2, "") and err.count("\n") == 1
        assert says in err
    with pytest.raises(ValueError) as error:
        dp.LLM(things / name, speculate=None)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("https://huggingface.co/Qwen/Qwen3-8B/tree/main", "write Qwen/Qwen3-8B"),
        ("hf.co/Qwen/Qwen3-8B", "write Qwen/Qwen3-8B"),
        ("bundlde", "did you mean bundled?"),
        ("llama3.2:1b", "looks like a name of Ollama's"),
        ("qwen2.5", "looks like a name of Ollama's"),
        ("Qwen/Qwen3-8B-GGUF", "has GGUF files: say which, as in Qwen/Qwen3-8B-GGUF:Q4_K_M"),
        ("~/models/x", "there is no file or folder"),
        ("", "the name of the model is empty: a model is a hub id"),
        (" ", "the name of the model is empty: a model is a hub id"),
        ("Qwen3-8B-Q4_K_M.gguf", "there is no file or folder"),
    ],
)
def test_names_of_other_programs(name: str, says: str) -> None:
    with pytest.raises(ValueError) as error:
        places.check(name)
    assert says in str(error.value)


@pytest.mark.parametrize("name", ["no/such/../folder.gguf", "README.md", "/nowhere", "a:b"])
def test_what_is_no_tokenizer(name: str, things: Path) -> None:
    given = things / name if name == "README.md" else name
    with pytest.raises(ValueError, match="tokenizer"):
        dp.LLM("bundled", tokenizer=given, speculate=None)


@pytest.mark.parametrize("given", [5, ["a"], {"a": 1}])
def test_what_is_no_tokenizer_at_all(given: Any) -> None:
    with pytest.raises(ValueError, match=f"tokenizer .* no {type(given).__name__}$"):
        dp.LLM("bundled", tokenizer=given, speculate=None)


@pytest.mark.parametrize("draft", ["nothing.gguf", "llama3.2"])
def test_a_draft_is_refused_by_its_name(draft: str) -> None:
    with pytest.raises(ValueError, match="a model is a hub id"):
        dp.LLM("bundled", speculate=dp.DraftModel(draft))


@pytest.mark.parametrize(
    ("address", "offline", "proxies", "asked"),
    [
        (True, False, {}, True),
        (False, False, {}, False),
        (False, False, {"https": "http://proxy"}, True),
        (False, True, {}, True),  # who is told to be offline asks nobody, and says so
    ],
)
def test_who_cannot_be_reached_is_not_asked(
    address: bool, offline: bool, proxies: Any, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(*words: Any) -> list[Any]:
        if not address:
            raise OSError("no address")
        return ["an address"]

    monkeypatch.setattr(hub.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(hub, "getproxies", lambda: proxies)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    assert hub.options("someone/something") == ({} if asked else {"local_files_only": True})
    assert hub.options("/tmp") == {}


def test_what_may_be_a_model_passes(things: Path) -> None:
    for model in ("Qwen/Qwen3-8B", "gpt2", str(things / "whole"), things / "nothing", object()):
        places.check(model)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (errors.GatedRepoError, "ask on its page"),
        (errors.RepositoryNotFoundError, "the hub has no such model"),
        (errors.RevisionNotFoundError, "check --revision"),
        (errors.RemoteEntryNotFoundError, "no transformers model"),
        (None, "the hub cannot be reached"),
    ],
)
def test_what_the_hub_has_against_a_name(
    kind: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: Any, **options: Any) -> None:
        if kind is None:
            raise OSError("we couldn't connect") from ConnectionError()
        raise OSError("is not a local folder") from kind(
            "no", response=SimpleNamespace(headers={}, request=None)
        )

    monkeypatch.setattr(PreTrainedConfig, "get_config_dict", refuse)  # which AutoConfig calls
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)
    for load in (dp.LLM, lambda name: vocabularies.load_tokenizer(None, name, {})):
        with pytest.raises(ValueError) as error:
            load("someone/something")
        assert says in str(error.value) and "\n" not in str(error.value)


def test_a_hub_that_may_not_be_asked(run: Any) -> None:
    """The tests run so."""
    assert "unset that variable" in run("generate", "someone/something", "x").err


def test_a_revision_is_of_the_hub(things: Path) -> None:
    for model in ("bundled", things / "whole"):
        with pytest.raises(ValueError, match="revision 'main' is for models of the hub"):
            dp.LLM(model, revision="main", speculate=None)


@pytest.mark.parametrize("name", ["x" * 5000, "def f(x):\n" * 40])
def test_a_name_that_no_file_can_have(name: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be looked at|is no model|names no") as refused:
        dp.LLM(name)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def test_a_revision_is_of_the_model_and_not_of_another_tokenizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(vocabularies, "_read", lambda name, there, options: asked.append(options))
    options = {"revision": "abc", "trust_remote_code": False}
    for tokenizer in (None, "a/model", "another/one"):
        vocabularies.load_tokenizer("a/model", tokenizer, options)
    assert [each["revision"] for each in asked] == ["abc", "abc", None]


def test_a_loaded_model_has_no_revision() -> None:
    with pytest.raises(ValueError, match="this one is loaded: drop revision"):
        dp.LLM(tiny.model("llama"), revision="main")
