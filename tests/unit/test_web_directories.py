"""One level of a tree of files, from the entries below it."""

from __future__ import annotations

from headgate.files.objects import Digest
from headgate.files.tree import Entry, Mode, empty_directory
from headgate.server.web.dataset_page import list_directory


def _file(path: str, size: int = 1) -> Entry:
    return Entry(path=path, mode=Mode.FILE, size=size, digest=Digest("d"))


def test_list_directory_tells_files_from_what_is_below() -> None:
    entries = [_file("a/x", 2), _file("a/y/z", 3), empty_directory("b"), _file("c", 5)]
    here = list_directory(entries, "", 100)
    assert here.below == {"a": (2, 5), "b": (0, 0)}
    assert [entry.path for entry in here.files] == ["c"]
    assert not here.cut


def test_list_directory_of_a_prefix_is_relative_to_it_and_says_when_it_was_cut() -> None:
    here = list_directory([_file("a/x"), _file("a/y/z"), _file("a/z")], "a/", 2)
    assert [entry.path for entry in here.files] == ["a/x"]
    assert here.below == {"y": (1, 1)}
    assert here.cut
