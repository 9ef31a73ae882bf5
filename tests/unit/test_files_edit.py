"""Edits of a tree equal those of a dictionary, at a cost that follows the change."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import Invalid, UnsafePath
from headgate.files.objects import Digest, digest_of, key_of
from headgate.files.tree import EMPTY, Change, Entry, Mode, empty_directory, ends_leaf
from headgate.files.tree_store import FileTrees
from headgate.storage.local import LocalStore


def _file(path: str, content: str = "", mode: Mode = Mode.FILE) -> Entry:
    data = content.encode()
    return Entry(path=path, mode=mode, size=len(data), digest=digest_of(data))


def _some_paths() -> list[str]:
    """Few paths, with many leaf boundaries among them."""
    names = (f"{'abc'[n % 3]}/{'xyz'[n % 2]}/{n}" for n in itertools.count())
    ending = [path for path in itertools.islice(names, 6000) if ends_leaf(path)]
    plain = [
        f"{directory}/{n}" for n in range(5) for directory in ("a/x", "a/z", "b-1", "b", "b/z")
    ]
    return [*ending[:12], *plain]


_NESTED = ["a", "a/x", "a/x/0/deep", "b", "b/0/below/that", "top", "top/file", "top-2"]
_paths = st.one_of(st.sampled_from(_some_paths()), st.sampled_from([*_some_paths(), *_NESTED]))
_entries = st.one_of(
    st.builds(empty_directory, _paths),
    st.builds(_file, _paths, st.sampled_from(["", "one", "two"]), st.just(Mode.FILE)),
    st.builds(_file, _paths, st.just("one"), st.just(Mode.EXECUTABLE)),
)
_many_entries = st.lists(_entries, min_size=12, max_size=40)
_edits = st.tuples(st.lists(_entries, max_size=12), st.lists(_paths, max_size=8))


def _expected(
    entries: Mapping[str, Entry], put: Iterable[Entry], remove: Iterable[str]
) -> dict[str, Entry] | None:
    """The same edit on a dictionary, or None where a file would have something below it."""
    result = {path: entry for path, entry in entries.items() if path not in set(remove)}
    result.update((entry.path, entry) for entry in put)
    above = {path for path in result if any(other.startswith(f"{path}/") for other in result)}
    if any(not result[path].is_directory for path in above):
        return None
    return {path: entry for path, entry in result.items() if path not in above}


def _consistent(put: Iterable[Entry]) -> dict[str, Entry]:
    """Return the entries that fit into one tree; earlier ones take precedence."""
    model = dict[str, Entry]()
    for entry in put:
        expected = _expected(model, [entry], [])
        model = model if expected is None else expected
    return model


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> FileTrees:
    """One store for all examples: contents are named by digest, so they do not collide."""
    return FileTrees(LocalStore(tmp_path_factory.mktemp("store")))


@given(first=_many_entries, edits=st.lists(_edits, min_size=1, max_size=5))
def test_edit_any_sequence_equals_a_dictionary(
    trees: FileTrees, first: list[Entry], edits: list[tuple[list[Entry], list[str]]]
) -> None:
    model = _consistent(first)
    root = trees.edit(EMPTY, put=model.values()).root
    for put, remove in edits:
        expected = _expected(model, put, remove)
        if expected is None:
            with pytest.raises(UnsafePath):
                trees.edit(root, put=put, remove=remove)
            continue
        root, model = trees.edit(root, put=put, remove=remove).root, expected
        assert list(trees.walk(root)) == [model[path] for path in sorted(model)]
    assert trees.edit(EMPTY, put=model.values()).root == root
    assert trees.measure(root).entries == len(model)
    assert trees.measure(root).bytes == sum(entry.size for entry in model.values())


@given(
    put=_many_entries,
    wanted=st.one_of(st.sampled_from(["a", "a/x", "b", "b/z", "c"]), _paths),
)
def test_walk_and_find_any_path_equal_a_dictionary(
    trees: FileTrees, put: list[Entry], wanted: str
) -> None:
    model = _consistent(put)
    root = trees.edit(EMPTY, put=model.values()).root
    below = [path for path in sorted(model) if path == wanted or path.startswith(f"{wanted}/")]
    assert [entry.path for entry in trees.walk(root, wanted)] == below
    assert [entry.path for entry in trees.walk(root, f"{wanted}/")] == below
    assert trees.find(root, wanted) == model.get(wanted)


@given(old=_many_entries, new=_many_entries)
def test_difference_any_two_trees_equals_that_of_dictionaries(
    trees: FileTrees, old: list[Entry], new: list[Entry]
) -> None:
    before, after = _consistent(old), _consistent(new)
    found = trees.difference(
        trees.edit(EMPTY, put=before.values()).root, trees.edit(EMPTY, put=after.values()).root
    )
    assert list(found) == [
        Change(path=path, before=before.get(path), after=after.get(path))
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    ]


@given(put=st.lists(_entries, max_size=15), order=st.randoms(use_true_random=False))
def test_edit_one_by_one_in_any_order_has_the_same_root(
    trees: FileTrees, put: list[Entry], order: Random
) -> None:
    model = _consistent(put)
    root = EMPTY
    shuffled = list(model.values())
    order.shuffle(shuffled)
    for entry in shuffled:
        root = trees.edit(root, put=[entry]).root
    assert root == trees.edit(EMPTY, put=model.values()).root


def test_edit_everything_removed_is_the_empty_tree(trees: FileTrees) -> None:
    root = trees.edit(EMPTY, put=[_file("a/b"), empty_directory("c")]).root
    assert trees.edit(root, remove=["a/b", "c"]).root == EMPTY
    assert trees.measure(EMPTY).entries == 0


def test_edit_nothing_new_needs_no_new_object(trees: FileTrees) -> None:
    root = trees.edit(EMPTY, put=[_file("a/b", "one")]).root
    again = trees.edit(root, put=[_file("a/b", "one")], remove=["not/there"])
    assert (again.root, again.locations) == (root, frozenset())


def test_edit_new_file_lists_every_object_the_new_tree_needs(trees: FileTrees) -> None:
    old = trees.edit(EMPTY, put=[_file("a", "one"), _file("b", "two")])
    new = trees.edit(old.root, put=[_file("c", "three")])
    needed = set(trees.references([new.root])) - set(trees.references([old.root]))
    assert new.locations == set(map(trees.objects.location, needed))
    assert digest_of(b"three") in needed


def test_edit_file_below_a_file_names_both(trees: FileTrees) -> None:
    root = trees.edit(EMPTY, put=[_file("data/part")]).root
    with pytest.raises(UnsafePath, match=r"'data/part/0'.*'data/part' is a file"):
        trees.edit(root, put=[_file("data/part/0")])
    with pytest.raises(UnsafePath, match=r"'data'.*'data/part' is below it"):
        trees.edit(root, put=[_file("data")])
    with pytest.raises(UnsafePath, match=r"'x/y'.*'x' is a file"):
        trees.edit(root, put=[_file("x"), _file("x/y")])


def test_edit_directory_turned_into_a_file_is_allowed(trees: FileTrees) -> None:
    root = trees.edit(EMPTY, put=[_file("data/1"), _file("data/2")]).root
    new = trees.edit(root, put=[_file("data", "one")], remove=["data/1", "data/2"]).root
    assert [entry.path for entry in trees.walk(new)] == ["data"]


def test_edit_empty_directory_lives_until_it_has_content(trees: FileTrees) -> None:
    root = trees.edit(EMPTY, put=[empty_directory("a/b")]).root
    assert [entry.path for entry in trees.walk(root)] == ["a/b"]
    filled = trees.edit(root, put=[_file("a/b/c")]).root
    assert [entry.path for entry in trees.walk(filled)] == ["a/b/c"]
    assert trees.edit(filled, remove=["a/b/c"]).root == EMPTY
    kept = trees.edit(filled, put=[empty_directory("a/b")], remove=["a/b/c"]).root
    assert kept == root


@pytest.mark.parametrize(
    "path",
    [
        "",
        "..",
        "a/../b",
        "/etc/passwd",
        "a//b",
        "a/",
        "./a",
        "a\0b",
        "a\\b",
        "a" * 10_000,
        "zero\u200bwidth",
        "cafe\u0301",
        "lone\ud800",
        "line\nbreak",
    ],
    ids=lambda path: repr(path)[:20],
)
def test_edit_path_that_deceives_is_refused(trees: FileTrees, path: str) -> None:
    with pytest.raises(UnsafePath):
        trees.edit(EMPTY, put=[_file(path)])


class _CountingStore(LocalStore):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls: Counter[str] = Counter()

    def put(self, key: str, data: bytes) -> bool:
        self.calls["put"] += 1
        return super().put(key, data)

    def get(self, key: str) -> bytes:
        self.calls["get"] += 1
        return super().get(key)

    def stream(self, key: str) -> Iterator[bytes]:
        self.calls["get"] += 1
        return super().stream(key)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> _CountingStore:
    return _CountingStore(tmp_path_factory.mktemp("counted"))


_MANY_PATHS = [f"part{n % 40}/day={n % 365}/{n:05}.parquet" for n in range(20_000)]


@pytest.fixture(scope="module")
def many(counted: _CountingStore) -> Digest:
    """A tree of twenty thousand files."""
    return FileTrees(counted).edit(EMPTY, put=[_file(path) for path in _MANY_PATHS]).root


def test_edit_many_new_files_makes_leaves_of_some_hundred(
    counted: _CountingStore, many: Digest
) -> None:
    trees = FileTrees(counted)
    leaves = len(set(trees.references([many]))) - 2  # without the one content and the index
    assert 20_000 / 512 <= leaves <= 20_000 / 128


def test_edit_ten_of_twenty_thousand_touches_about_ten_leaves(
    counted: _CountingStore, many: Digest
) -> None:
    trees = FileTrees(counted)
    changed = [_file(path, "new") for path in _MANY_PATHS[500:16_000:4000]]
    added = [_file(f"{path}.crc", "new") for path in _MANY_PATHS[700:12_000:4000]]
    removed = _MANY_PATHS[900:10_000:4000]
    counted.calls.clear()
    new = trees.edit(many, put=[*changed, *added], remove=removed).root
    assert counted.calls.total() <= 25
    counted.calls.clear()
    assert len(list(trees.difference(many, new))) == 10
    assert counted.calls.total() <= 25


def test_edit_files_added_to_known_directories_reads_their_leaves_alone(
    counted: _CountingStore, many: Digest
) -> None:
    added = [_file(f"{path}.crc", "new") for path in _MANY_PATHS[137:20_000:1993]]
    counted.calls.clear()
    FileTrees(counted).edit(many, put=added)
    assert counted.calls["get"] <= len(added) + 1


def test_references_shared_leaves_are_read_once(tmp_path: Path) -> None:
    store = _CountingStore(tmp_path)
    trees = FileTrees(store)
    paths = [f"{n:05}" for n in range(3000)]
    first = trees.edit(EMPTY, put=[_file(path, path) for path in paths]).root
    second = trees.edit(first, put=[_file("01000", "new")]).root
    store.calls.clear()
    needed = set(trees.references([first, second]))
    leaves = len(needed) - len(paths) - 1 - 2
    assert store.calls.total() == leaves + 2


def test_key_of_anything_but_a_digest_is_refused() -> None:
    assert key_of("ab" * 32) == f"objects/sha256/ab/{'ab' * 31}"
    for wrong in ("", "ab", "../" * 22, "AB" * 32, f"{'ab' * 32}\n"):
        with pytest.raises(Invalid, match="is not a SHA-256 digest"):
            key_of(wrong)
