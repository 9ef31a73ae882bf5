"""Files of a dataset as a transform sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import Invalid, UnsafePath
from headgate.spark.job_io import DirectoryFiles


def test_ls_of_a_tree_is_sorted_and_leaves_hidden_files_out(tmp_path: Path) -> None:
    for name in ("b/two.csv", "a.csv", "_marker", "b/note.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    files = DirectoryFiles(tmp_path)
    assert [(file.path, file.size) for file in files.ls(glob="*.csv")] == [
        ("a.csv", 1),
        ("b/two.csv", 1),
    ]
    assert [file.path for file in files.ls(regex="_.*", show_hidden=True)] == ["_marker"]


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("**/*.csv", ["a.csv", "b/c/three.csv", "b/two.csv"]),
        ("b/**/*.csv", ["b/c/three.csv", "b/two.csv"]),
        ("b/*.csv", ["b/c/three.csv", "b/two.csv"]),
        ("a.csv", ["a.csv"]),
    ],
)
def test_ls_with_a_glob_over_folders_includes_the_top_one(
    tmp_path: Path, glob: str, found: list[str]
) -> None:
    for name in ("a.csv", "b/two.csv", "b/c/three.csv", "b/c/note.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [file.path for file in DirectoryFiles(tmp_path).ls(glob=glob)] == found


def test_open_for_writing_makes_folders_and_tells_of_it(tmp_path: Path) -> None:
    told: list[bool] = []
    files = DirectoryFiles(tmp_path, lambda: told.append(True))
    with files.open("deep/er/file.txt", "w") as file:
        file.write("x")
    assert (tmp_path / "deep/er/file.txt").read_text() == "x"
    assert told == [True]


def test_open_of_an_inputs_file_for_writing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="read, not written"):
        DirectoryFiles(tmp_path).open("file.txt", "a")
    assert list(tmp_path.iterdir()) == []


def test_open_of_a_path_that_leaves_the_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsafePath):
        DirectoryFiles(tmp_path).open("../outside")
