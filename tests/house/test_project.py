"""First contact with the project: the make targets, the lock files, the first error."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.peers import BEGIN, DOCS, END
from tests.support.source import ROOT, modules

_LOCKS = [
    "requirements.lock",
    *(f"tools/{name}.lock" for name in ("bootstrap", "duckdb", "ducklake", "frames", "postgres")),
]
_PICTURE_BYTES = 150_000
_TARGETS = {"help", "setup", "demo", "test", "serve", "bench", "fmt", "check"}


def test_make_without_a_target_lists_what_there_is() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = set(re.findall(r"^  make (\w+) +\S", shown.stdout, re.MULTILINE))
    assert listed >= _TARGETS


@pytest.mark.parametrize("lock", _LOCKS)
def test_lock_file_names_no_host_and_hashes_every_package(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert entries
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_lock_file_satisfies_every_declared_dependency() -> None:
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(
        r"^([a-z0-9._-]+)==([^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    ):
        locked.setdefault(name, []).append(version)
    unmet = [
        str(wanted)
        for wanted in _declared()
        if not any(map(wanted.specifier.contains, locked.get(canonicalize_name(wanted.name), [])))
    ]
    assert unmet == [], "run `make lock`"


@pytest.mark.parametrize(("answer", "said"), [(1, "needs Python 3.11"), (None, "needs Python")])
def test_setup_without_a_new_enough_python_says_what_is_missing(
    tmp_path: Path, answer: int | None, said: str
) -> None:
    result = _setup_with_only(tmp_path, {} if answer is None else {"python3": f"exit {answer}"})
    assert result.returncode != 0
    assert said in result.stderr


def test_setup_with_a_python_that_lacks_venv_says_so(tmp_path: Path) -> None:
    result = _setup_with_only(tmp_path, {"python3": 'case "$2" in *venv*) exit 1;; esac'})
    assert result.returncode != 0
    assert "has no venv module" in result.stderr


def _declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    texts = [
        *project["project"]["dependencies"],
        *(text for name in extras for text in extras[name]),
        *project["dependency-groups"]["dev"],
    ]
    requirements = [Requirement(text) for text in texts]
    return [wanted for wanted in requirements if wanted.name != "headgate"]


def _setup_with_only(folder: Path, programs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `make setup` in a copy where the only Pythons on the PATH are these shell scripts."""
    (folder / "tools").mkdir()
    for name in ("requirements.lock", "pyproject.toml", "tools/bootstrap.lock", "tools/setup.sh"):
        shutil.copy(ROOT / name, folder / name)
    path = folder / "bin"
    path.mkdir()
    for name in ("cat", "cksum", "dirname", "head"):
        (path / name).symlink_to(shutil.which(name) or name)
    for name, script in programs.items():
        (path / name).write_text(f"#!/bin/sh\n{script}\n")
        (path / name).chmod(0o755)
    command = ["/bin/sh", str(folder / "tools" / "setup.sh")]
    return subprocess.run(command, env={"PATH": str(path)}, capture_output=True, text=True)


def test_docs_show_only_pictures_that_exist_and_are_small() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {
        (page.parent / path).resolve()
        for page in pages
        for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())
    }
    assert shown
    assert [path for path in shown if not path.is_file()] == []
    pictures = list((ROOT / "docs" / "images").glob("*.png"))
    assert [path.name for path in pictures if path.stat().st_size > _PICTURE_BYTES] == []


def test_docs_have_the_place_of_the_newest_run_of_the_bench() -> None:
    page = DOCS.read_text()
    assert (page.count(BEGIN), page.count(END)) == (1, 1)
    assert page.index(BEGIN) < page.index(END)


def test_decision_records_in_force_are_named_in_the_source() -> None:
    in_force, _, _ = (ROOT / "docs" / "adr" / "README.md").read_text().partition("## Folded")
    rows = re.findall(r"^\| \[(\d{4})\]\((\S+)\) \| (.*)", in_force, re.MULTILINE)
    assert len(rows) > 20
    source = "".join(module.text for module in modules())
    named = {first or second for first, second in re.findall(r"ADR (\d{4})|adr/(\d{4})-", source)}
    assert named <= {number for number, _, _ in rows}
    assert {number for number, _, title in rows if "superseded" not in title} <= named
