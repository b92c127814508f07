"""GGUF files that lie on the hub: names of them, parts, types, and what is said of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from draftproof import hub, places

FILES = [
    "README.md",
    "Small-Q4_K_M.gguf",
    "Small-Q4_K_S.gguf",
    "small.q8_0.gguf",
    "big/Small-BF16-00001-of-00002.gguf",
    "big/Small-BF16-00002-of-00002.gguf",
    "Small-IQ4_NL.gguf",
    "UD/Small-IQ4_NL.gguf",
]


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copy of a repository that was fetched before, as the hub's library keeps it."""
    whole = tmp_path / "models--someone--Small-GGUF"
    commit = "0123456789012345678901234567890123456789"
    for name in FILES:
        path = whole / "snapshots" / commit / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
    (whole / "refs").mkdir()
    (whole / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return whole / "snapshots" / commit


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Small-Q4_K_M.gguf", "Small-Q4_K_M.gguf"),
        ("big/Small-BF16-00001-of-00002.gguf", "big/Small-BF16-00001-of-00002.gguf"),
        (":Q4_K_M", "Small-Q4_K_M.gguf"),
        (":q4_k_s", "Small-Q4_K_S.gguf"),
        (":Q8_0", "small.q8_0.gguf"),
        (":bf16", "big/Small-BF16-00001-of-00002.gguf"),
    ],
)
def test_a_file_of_a_repository(fetched: Path, name: str, file: str) -> None:
    model = "someone/Small-GGUF" + (name if name[0] == ":" else f"/{name}")
    places.check(model)
    assert hub.fetched(model) == str(fetched / file)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("Q4_K", "has no files of type Q4_K: give someone/Small-GGUF/FILE, of Small-IQ4_NL.gguf"),
        (
            "IQ4_NL",
            "has 2 files of type IQ4_NL: give someone/Small-GGUF/FILE, of Small-IQ4_NL.gguf",
        ),
        ("README", "has no files of type README"),
    ],
)
def test_a_type_that_names_no_file_or_several(fetched: Path, kind: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        hub.fetched(f"someone/Small-GGUF:{kind}")


def test_all_parts_are_fetched(fetched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(repository: str, file: str, **known: Any) -> str:
        asked.append(file)
        return file

    monkeypatch.setattr(hub, "hf_hub_download", fetch)
    assert hub.fetched("someone/Small-GGUF:BF16") == FILES[4]
    assert asked == FILES[4:6]


def test_what_was_never_fetched(fetched: Path) -> None:
    for name in ("someone/Other:Q8_0", "someone/Other/x.gguf", "someone/Small-GGUF/none.gguf"):
        with pytest.raises(ValueError, match=f"cannot fetch '{name}': .*it was never fetched"):
            hub.fetched(name)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "bundled", "llama3:8b", 5, None])
def test_other_names_stay(model: Any) -> None:
    assert hub.fetched(model) is model


def test_what_lies_here_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.gguf").write_bytes(b"GGUF")
    assert hub.fetched("a/b/c.gguf") == "a/b/c.gguf"
