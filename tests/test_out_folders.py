"""What can be no folder of results is told before the work, and the trial leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.cli.files import place
from draftproof.out_folders import check_folder


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
