"""Bundles are reproducible, addressed by content, and unpacked completely or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.builds.bundle import make_bundle, module_name, unpack_bundle
from headgate.errors import ObjectCorrupted, UnsafePath


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / (name.replace("__", "/").replace("_dot_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_same_files_make_the_same_bundle_whenever_and_wherever(tmp_path: Path) -> None:
    one = tree(tmp_path / "one", a_dot_py="x = 1\n", lib__b_dot_py="y = 2\n")
    two = tree(tmp_path / "deeper" / "two", lib__b_dot_py="y = 2\n", a_dot_py="x = 1\n")
    os.utime(two / "a.py", (1, 1))
    (two / "a.py").chmod(0o700)
    assert make_bundle(one) == make_bundle(two)
    assert make_bundle(one).digest == hashlib.sha256(make_bundle(one).data).hexdigest()


def test_bundle_holds_python_and_named_data_only(tmp_path: Path) -> None:
    made = tree(tmp_path, a_dot_py="x", rules__r_dot_csv="1,2", notes_dot_txt="no")
    with zipfile.ZipFile(io.BytesIO(make_bundle(made, ["rules/r.csv"]).data)) as archive:
        assert archive.namelist() == ["a.py", "rules/r.csv"]


def test_unpacked_bundle_is_the_tree_and_is_kept(tmp_path: Path) -> None:
    bundle = make_bundle(tree(tmp_path / "src", lib__b_dot_py="y = 2\n"))
    target = unpack_bundle(bundle.data, bundle.digest, tmp_path / "cache")
    assert target == tmp_path / "cache" / bundle.digest
    assert (target / "lib" / "b.py").read_text() == "y = 2\n"
    assert unpack_bundle(b"", bundle.digest, tmp_path / "cache") == target


def test_damaged_bundle_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    bundle = make_bundle(tree(tmp_path / "src", b_dot_py="y = 2\n"))
    with pytest.raises(ObjectCorrupted):
        unpack_bundle(bundle.data[:-1] + b"x", bundle.digest, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["../out.py", "/etc/out.py", "a\\b.py", "a//b.py"])
def test_entry_that_would_leave_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("good.py", "x")
        archive.writestr(name, "x")
    data = buffer.getvalue()
    with pytest.raises(UnsafePath):
        unpack_bundle(data, hashlib.sha256(data).hexdigest(), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_many_unpackers_at_once_find_one_whole_directory(tmp_path: Path) -> None:
    files = {f"m{n}_dot_py": "x = 1\n" for n in range(50)}
    bundle = make_bundle(tree(tmp_path / "src", **files))
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(
                lambda _: unpack_bundle(bundle.data, bundle.digest, tmp_path / "cache"), range(8)
            )
        )
    assert set(found) == {tmp_path / "cache" / bundle.digest}
    assert len(list(found[0].iterdir())) == 50
    assert list((tmp_path / "cache").iterdir()) == [found[0]]


@pytest.mark.parametrize(
    ("file", "source_layout", "module"),
    [
        ("a/b.py", False, "a.b"),
        ("a/__init__.py", False, "a"),
        ("src/a/b.py", True, "a.b"),
        ("src/a/b.py", False, "src.a.b"),
        ("tools/x.py", True, "tools.x"),
        ("my-dir/x.py", False, None),
        ("class/x.py", False, None),
        ("__init__.py", False, None),
    ],
)
def test_file_is_imported_by_the_name_its_layout_gives(
    file: str, source_layout: bool, module: str | None
) -> None:
    assert module_name(file, source_layout=source_layout) == module
