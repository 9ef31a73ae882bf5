"""Real Git repositories, created by tests."""

from __future__ import annotations

import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path

from headgate.builds.project import Repository, find_repository

_SETTINGS = ("user.name=Test", "user.email=test@example.com", "commit.gpgsign=false")


@dataclass(frozen=True, kw_only=True)
class Work:
    """A working copy that a test writes into and commits."""

    root: Path

    def git(self, *words: str, stderr: bool = False) -> str:
        """Run Git, and return its output, or what it and its hooks write to stderr."""
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        command = ["git", *settings, "-C", str(self.root), *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return (done.stderr if stderr else done.stdout).strip()

    def write(self, **files: str) -> None:
        """Write files; in a keyword `__` stands for `/` and every file is Python."""
        for name, text in files.items():
            self.write_file(name.replace("__", "/") + ".py", text)

    def write_file(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(text))

    def commit(self, message: str = "change") -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    @property
    def repository(self) -> Repository:
        return find_repository(self.root)


def new_repository(root: Path, *, branch: str = "master") -> Work:
    root.mkdir(parents=True, exist_ok=True)
    work = Work(root=root.resolve())
    work.git("init", "--quiet", "--initial-branch", branch)
    return work
