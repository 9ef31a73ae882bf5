"""A Git repository's refs as the outside of an operation: effects that nobody can roll back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headgate.catalog.outside import Effect

_WHO = {
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.com",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.com",
    "GIT_CONFIG_NOSYSTEM": "1",
}
KIND = "git"


@dataclass(frozen=True)
class GitRefs:
    """Implements `Outside` for the refs of one bare repository."""

    repository: Path

    def find_head(self, target: Mapping[str, str]) -> str | None:
        found = self._git("rev-parse", "--verify", "--quiet", target["ref"], check=False)
        return found.stdout.strip() or None

    def steps_past(self, target: Mapping[str, str], expected: str) -> int | None:
        head = self.find_head(target)
        if head is None:
            return None
        if self._git("merge-base", "--is-ancestor", expected, head, check=False).returncode:
            return None
        counted = self._git("rev-list", "--count", "--first-parent", f"{expected}..{head}")
        return int(counted.stdout)

    def undo(self, target: Mapping[str, str], *, effect: str, back_to: str) -> bool:
        return self.move(target["ref"], back_to, old=effect)

    def find_mark(self, target: Mapping[str, str]) -> str | None:
        """Commits here bear none."""
        return None

    def move(self, ref: str, new: str, *, old: str) -> bool:
        """The ref's own compare-and-swap."""
        return self._git("update-ref", ref, new, old, check=False).returncode == 0

    def commit(self, message: str, *, parent: str | None = None) -> str:
        """A commit object that no ref shows yet."""
        tree = self._git("hash-object", "-t", "tree", "-w", "--stdin").stdout.strip()
        parents = ["-p", parent] if parent else []
        return self._git("commit-tree", tree, *parents, "-m", message).stdout.strip()

    def advance(self, ref: str, message: str) -> str:
        """Somebody commits on the ref, whatever is there."""
        head = self.find_head({"ref": ref})
        made = self.commit(message, parent=head)
        self._git("update-ref", ref, made)
        return made

    def log(self, ref: str) -> list[str]:
        """The messages on a ref, newest first."""
        return self._git("log", "--format=%s", ref).stdout.split("\n")[:-1]

    def rewrite(self, ref: str, commit: str) -> None:
        self._git("update-ref", ref, commit)

    def delete(self, ref: str) -> None:
        self._git("update-ref", "-d", ref)

    def planned_effect(self, ref: str, message: str) -> Effect:
        """Moves the ref to a commit that is prepared now, so its id is known before."""
        expected = self._load_head(ref)
        planned = self.commit(message, parent=expected)

        def make() -> str:
            self._must_move(ref, planned, expected)
            return planned

        return Effect(target={"ref": ref}, expected=expected, make=make, planned=planned)

    def unplanned_effect(self, ref: str, message: str) -> Effect:
        """The same effect, whose id only the outside knows, once it has happened."""
        expected = self._load_head(ref)

        def make() -> str:
            made = self.commit(message, parent=expected)
            self._must_move(ref, made, expected)
            return made

        return Effect(target={"ref": ref}, expected=expected, make=make)

    def _must_move(self, ref: str, new: str, expected: str) -> None:
        if not self.move(ref, new, old=expected):
            raise AssertionError(f"{ref} was moved by somebody else")

    def _load_head(self, ref: str) -> str:
        head = self.find_head({"ref": ref})
        assert head is not None
        return head

    def _git(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", "-C", str(self.repository), *words],
            check=check,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "HOME": str(self.repository), **_WHO},
        )


def new_git(root: Path, *refs: str) -> GitRefs:
    """A bare repository with one commit on each of these refs."""
    repository = root / "outside.git"
    subprocess.run(
        ["git", "init", "--quiet", "--bare", str(repository)], check=True, capture_output=True
    )
    git = GitRefs(repository)
    for ref in refs:
        git.advance(ref, f"first on {ref}")
    return git
