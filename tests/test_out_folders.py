"""What can be no folder of results is told before the work, and the trial leaves nothing."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftproof.batch.results import Results
from draftproof.cli import load
from draftproof.cli.files import place
from draftproof.out_folders import check_folder, whole
from draftproof.quality import Quality, report
from draftproof.tuning.records import Text


def test_a_trial_leaves_nothing(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    (tmp_path / "there").mkdir()
    check_folder(tmp_path / "there")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/proc/no/a", "No such file or directory"),  # which rights say can be written
        ("FILE", "is a file"),
        ("FILE/below/a", "is a file"),
        ("n" * 300, "File name too long"),
    ],
)
def test_what_can_be_none_is_told(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / name.replace("FILE", "file")
    with pytest.raises(ValueError, match=f"^cannot write results to {out}: .*{why}") as refused:
        check_folder(out)
    assert str(refused.value).endswith("; give another folder as --out")


def test_a_file_below_what_cannot_be_written_to_is_told_early(tmp_path: Path) -> None:
    """As `tune`, `batch` and `load` write one, after hours."""
    with pytest.raises(ValueError, match="cannot write results to /proc/self: .*; give another"):
        place(Path("/proc/self/profile.json"), "profile.json")
    assert place(tmp_path / "a", "profile.json") == tmp_path / "a" / "profile.json"
    assert (tmp_path / "a").is_dir()


@pytest.mark.parametrize("wrong", [OSError, KeyboardInterrupt])
def test_what_cannot_be_written_whole_is_not_written(
    wrong: type[BaseException], tmp_path: Path
) -> None:
    file = tmp_path / "a" / "found.json"
    for number in range(2):
        with whole(file) as part:  # its folder may have gone since it was tried
            part.write_text(f"{number}")
    with pytest.raises(wrong), whole(file) as part:
        part.write_text("ha")
        raise wrong
    assert file.read_text() == "1" and [*file.parent.iterdir()] == [file]


def write_quality(folder: Path) -> None:
    found = Quality("float32", 1.0, 2, 3.0, 4, 5)
    report.write(found, {"heading": ""}, folder)


def write_load(folder: Path) -> None:
    load._write({"levels": []}, SimpleNamespace(out=folder / "load.json", levels=[]), None)  # type: ignore[arg-type]


def write_text(folder: Path) -> None:
    Text([1], [2], 0.0).save(folder / "text.npz")


@pytest.mark.parametrize("write", [write_quality, write_load, write_text])
def test_a_full_disk_keeps_no_half_of_a_file(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what an earlier run wrote under that name stays as it is."""
    monkeypatch.setattr(report, "time", SimpleNamespace(strftime=lambda form: "quality"))
    write(tmp_path)
    (kept,) = tmp_path.iterdir()
    before, (soft, hard) = kept.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        with pytest.raises((OSError, ValueError), match="File too large"):
            write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [*tmp_path.iterdir()] == [kept] and kept.read_bytes() == before


def test_answers_of_a_batch_do_not_go_to_a_file_that_was_removed(tmp_path: Path) -> None:
    """The process would write on, say that all is well, and nothing would be there."""
    out = tmp_path / "a" / "out.jsonl"
    out.parent.mkdir()
    with Results(out, "input", {"a", "b"}.__contains__) as results:
        results.written_by({})
        results.add({"id": "a", "response": None}, {})
        shutil.rmtree(out.parent)
        with pytest.raises(ValueError, match="was removed while it was written: run the same"):
            results.add({"id": "b", "response": None}, {})
