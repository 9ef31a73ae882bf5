"""Changes of a files dataset that each transaction type allows."""

from __future__ import annotations

import pytest

from headgate.files.objects import digest_of
from headgate.files.tree import Entry, Mode, compare, empty_directory, find_violation
from headgate.model.nouns import TransactionType

_SNAPSHOT, _APPEND = TransactionType.SNAPSHOT, TransactionType.APPEND
_UPDATE, _DELETE = TransactionType.UPDATE, TransactionType.DELETE


def _tree(*paths: str) -> list[Entry]:
    """Entries for `path`, `path=content` and `directory/`."""
    entries = []
    for text in paths:
        path, _, content = text.partition("=")
        if path.endswith("/"):
            entries.append(empty_directory(path.rstrip("/")))
        else:
            digest = digest_of(content.encode())
            entries.append(Entry(path=path, mode=Mode.FILE, size=len(content), digest=digest))
    return sorted(entries, key=lambda entry: entry.path)


def _allowed(before: list[Entry], after: list[Entry]) -> set[TransactionType]:
    return {
        type for type in TransactionType if find_violation(type, compare(before, after)) is None
    }


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        (_tree("a"), _tree("a"), {_SNAPSHOT, _APPEND, _UPDATE, _DELETE}),
        (_tree("a"), _tree("a", "b"), {_SNAPSHOT, _APPEND, _UPDATE}),
        (_tree("a=1"), _tree("a=2"), {_SNAPSHOT, _UPDATE}),
        (_tree("a=1"), _tree("a=2", "b"), {_SNAPSHOT, _UPDATE}),
        (_tree("a", "b"), _tree("a"), {_SNAPSHOT, _DELETE}),
        (_tree("a", "b=1"), _tree("b=2"), {_SNAPSHOT}),
        (_tree("a"), _tree("b"), {_SNAPSHOT}),
        (_tree(), _tree("d/"), {_SNAPSHOT, _APPEND, _UPDATE}),
        (_tree("d/"), _tree(), {_SNAPSHOT, _DELETE}),
    ],
    ids=["same", "add", "replace", "add+replace", "remove", "mixed", "rename", "mkdir", "rmdir"],
)
def test_find_violation_change_is_allowed_to_the_right_types(
    before: list[Entry], after: list[Entry], allowed: set[TransactionType]
) -> None:
    assert _allowed(before, after) == allowed


def test_find_violation_filling_an_empty_directory_removes_nothing() -> None:
    assert _allowed(_tree("d/"), _tree("d/e/f")) == {_SNAPSHOT, _APPEND, _UPDATE}
    assert _allowed(_tree("d/", "e/"), _tree("d/f")) == {_SNAPSHOT}


def test_find_violation_emptying_a_directory_that_stays_adds_nothing() -> None:
    assert _allowed(_tree("d/e/f", "g"), _tree("d/", "g")) == {_SNAPSHOT, _DELETE}
    assert _allowed(_tree("d/f", "g"), _tree("d/", "g", "h/")) == {_SNAPSHOT}


def test_find_violation_empty_directory_turned_into_a_file_is_an_overwrite() -> None:
    assert _allowed(_tree("d/"), _tree("d=1")) == {_SNAPSHOT, _UPDATE}


def test_find_violation_executable_bit_counts_as_an_overwrite() -> None:
    plain = _tree("tool=1")[0]
    executable = Entry(path="tool", mode=Mode.EXECUTABLE, size=1, digest=plain.digest)
    assert _allowed([plain], [executable]) == {_SNAPSHOT, _UPDATE}


def test_find_violation_reason_names_the_path_and_counts_the_rest() -> None:
    changes = list(compare(_tree("a=1", "b=1", "c"), _tree("a=2", "b=2", "d")))
    assert find_violation(_APPEND, changes) == (
        "it overwrites 'a' (and 2 more paths), which APPEND does not allow"
    )
    assert find_violation(_UPDATE, changes) == "it removes 'c', which UPDATE does not allow"
    assert find_violation(_DELETE, changes) == (
        "it overwrites 'a' (and 2 more paths), which DELETE does not allow"
    )
