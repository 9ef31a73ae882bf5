"""A project's files as they stand, in a Git repository of their own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_AS_NOBODY = ("user.name=headgate", "user.email=headgate@example.org", "commit.gpgsign=false")
_LEFT_OUT = {".git", ".venv", "venv", ".headgate", "node_modules", "__pycache__"}


def copy_project(source: Path, target: Path, *, branch: str) -> None:
    """Copies all that Git would track, changed or not, and commits it on a branch."""
    target.mkdir(parents=True)
    for name in _files(source):
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, place)
    git(target, "init", "--quiet", "--initial-branch", branch)
    commit(target, "the project as it stands")


def commit(repository: Path, message: str) -> None:
    """Commits everything as it is."""
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", message)


def git(repository: Path, *words: str) -> str:
    settings = [word for setting in _AS_NOBODY for word in ("-c", setting)]
    command = ["git", *settings, "-C", str(repository), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"git {' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout


def _files(source: Path) -> list[Path]:
    """Relative paths: tracked and new files, or, outside of Git, whatever is not hidden."""
    listed = subprocess.run(
        ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        found = [Path(name) for name in listed.stdout.split("\0") if name]
    else:
        found = [path.relative_to(source) for path in source.rglob("*")]
    return [
        path
        for path in found
        if not _LEFT_OUT.intersection(path.parts)
        and (source / path).is_file()
        and not (source / path).is_symlink()
    ]
