"""What a build needs to know of a Git repository, asked of the `git` command."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headgate.errors import GitUnusable

# A hook runs with these set for its own repository; they would redirect every question.
_BOUND_TO_A_REPOSITORY = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)
_COMMAND_NOT_FOUND = 127
# What makes a directory of a larger repository a project of its own.
_PROJECT_MARKS = ("headgate.toml", "pyproject.toml")
_NAMES_TRANSFORMS = r"headgate\.transforms|from[[:space:]]+headgate[[:space:]]+import"


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A Git repository by the root of its working tree, or one project in it."""

    root: Path
    # The project's directory, relative to the root; empty where it is the whole repository.
    project: str = ""

    def head(self) -> str:
        """The checked-out commit."""
        found = self._try("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        if found is None:
            raise self._unusable("it has no commit yet", "Commit something first.")
        return found

    def branch(self) -> str:
        """The checked-out branch."""
        found = self._try("symbolic-ref", "--quiet", "--short", "HEAD")
        if found is None:
            raise self._unusable(
                f"no branch is checked out (HEAD is detached at {self.head()[:12]})",
                "Name the branch with --branch, or check one out.",
            )
        return found

    def default_branch(self) -> str | None:
        """origin/HEAD, else `main` or `master` if there is one."""
        remote = self._try("symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD")
        if remote is not None:
            return remote.removeprefix("origin/")
        for name in ("main", "master"):
            if self._try("rev-parse", "--verify", "--quiet", f"refs/heads/{name}") is not None:
                return name
        # In a repository without commits the checked-out branch exists in name only.
        unborn = self._try("symbolic-ref", "--quiet", "--short", "HEAD")
        return unborn if unborn in {"main", "master"} else None

    def changes(self) -> tuple[str, ...]:
        """Of the project: tracked files that differ from HEAD, untracked Python files; sorted."""
        words = ("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
        listed = self._ask(*words, "--", self.project or ".")
        changed = []
        for entry in filter(None, listed.split("\0")):
            state, path = entry[:2], entry[3:]
            if state != "??" or path.endswith(".py"):
                changed.append(path)
        return tuple(sorted(changed))

    def identity(self) -> str:
        """A name that clones share: where origin is, else the first commit; then the project."""
        url = self._try("config", "--get", "remote.origin.url")
        if url:
            name = without_credentials(url)
        else:
            name = self._ask("rev-list", "--max-parents=0", "HEAD").split()[-1]
        return f"{name}//{self.project}" if self.project else name

    def project_tree(self, treeish: str) -> str:
        """The tree of the project in a commit or tree."""
        found = self._try("rev-parse", "--verify", "--quiet", f"{treeish}:{self.project}")
        if found is None:
            raise self._unusable(
                f"the directory {self.project!r} is not in the commit", "Commit the project first."
            )
        return found

    def tree_of_changes(self) -> str:
        """A tree of the working copy: tracked files as they are now, and new Python files."""
        with tempfile.TemporaryDirectory() as directory:
            index = {"GIT_INDEX_FILE": str(Path(directory) / "index")}
            self._ask("read-tree", "HEAD", env=index)
            self._ask("add", "--update", "--", ":/", env=index)
            new = self._ask("ls-files", "--others", "--exclude-standard", "-z", "--", ":/*.py")
            if new:
                self._ask(
                    "add", "--pathspec-from-file=-", "--pathspec-file-nul", env=index, stdin=new
                )
            return self._ask("write-tree", env=index)

    def export(self, treeish: str, directory: Path) -> None:
        """Writes the files of a commit or tree below a directory."""
        # The tree, not the commit: else `export-subst` would put the commit id into the code.
        archive = _run(self.root, "archive", "--format=tar", f"{treeish}^{{tree}}")
        if archive.returncode != 0:
            raise self._failed("archive", archive.stderr)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(directory, filter=_safe)

    def files_naming_transforms(self, treeish: str) -> tuple[str, ...]:
        """Tracked Python files that name `headgate.transforms`; sorted."""
        pattern = ("grep", "--extended-regexp", "--files-with-matches", "-z", "-I")
        found = _run(self.root, *pattern, "-e", _NAMES_TRANSFORMS, treeish, "--", ":/*.py")
        if found.returncode > 1:
            raise self._failed("grep", found.stderr)
        names = found.stdout.decode("utf-8", "surrogateescape").split("\0")
        return tuple(sorted(name.removeprefix(f"{treeish}:") for name in names if name))

    def _ask(self, *words: str, env: Mapping[str, str] | None = None, stdin: str = "") -> str:
        answer = _run(self.root, *words, env=env, stdin=stdin)
        if answer.returncode != 0:
            raise self._failed(words[0], answer.stderr)
        return answer.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    def _try(self, *words: str) -> str | None:
        answer = _run(self.root, *words)
        return answer.stdout.decode().strip() if answer.returncode == 0 else None

    def _failed(self, command: str, stderr: bytes) -> GitUnusable:
        return self._unusable(
            f"`git {command}` failed: {_last_line(stderr)}", "Mend the repository and try again."
        )

    def _unusable(self, reason: str, remedy: str) -> GitUnusable:
        return GitUnusable(directory=str(self.root), reason=reason, remedy=remedy)


def find_repository(directory: Path) -> Repository:
    """The repository that a directory is in."""
    if not _is_directory(directory):
        raise GitUnusable(
            directory=str(directory),
            reason="there is no such directory",
            remedy="Name the repository with --repo.",
        )
    answer = _run(directory, "rev-parse", "--show-toplevel")
    if answer.returncode != 0:
        raise GitUnusable(
            directory=str(directory),
            reason=f"it is not in a Git working tree ({_last_line(answer.stderr)})",
            remedy="Run `git init` and commit the pipeline, or name its repository with --repo.",
        )
    return Repository(root=Path(os.fsdecode(answer.stdout.rstrip(b"\n"))))


def _is_directory(path: Path) -> bool:
    """Also of a name that is too long to be one."""
    try:
        return path.is_dir()
    except OSError:
        return False


def find_project(directory: Path) -> Repository:
    """The project that a directory is in: the nearest one with a mark, else the repository."""
    repository = find_repository(directory)
    here = directory.resolve()
    while here != repository.root and here.is_relative_to(repository.root):
        if any((here / mark).is_file() for mark in _PROJECT_MARKS):
            project = here.relative_to(repository.root).as_posix()
            return Repository(root=repository.root, project=project)
        here = here.parent
    return repository


def _safe(member: tarfile.TarInfo, directory: str) -> tarfile.TarInfo | None:
    """Leaves out what would lead outside the directory, such as a link to this machine's data."""
    try:
        return tarfile.data_filter(member, directory)
    except tarfile.FilterError:
        return None


def without_credentials(url: str) -> str:
    """`host/path` of a remote, the same for its https and ssh spellings and without secrets."""
    if "://" not in url:
        host, colon, path = url.partition(":")
        if not colon or "/" in host:
            return url
        return f"{host.rpartition('@')[2].lower()}/{_bare(path)}"
    parts = urlsplit(url)
    return f"{parts.hostname}/{_bare(parts.path)}" if parts.hostname else _bare(parts.path)


def _bare(path: str) -> str:
    return path.strip("/").removesuffix(".git")


def _run(
    directory: Path, *words: str, env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[bytes]:
    variables = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", **(env or {})}
    # `env` takes out what must not be inherited, so that nothing here reads the environment.
    answer = subprocess.run(
        [
            "env",
            *(word for name in _BOUND_TO_A_REPOSITORY for word in ("-u", name)),
            *(f"{name}={value}" for name, value in variables.items()),
            *("git", "-C", str(directory), *words),
        ],
        input=stdin.encode("utf-8", "surrogateescape"),
        capture_output=True,
        check=False,
    )
    if answer.returncode == _COMMAND_NOT_FOUND:
        raise GitUnusable(
            directory=str(directory),
            reason="the command `git` was not found",
            remedy="Install Git, then try again.",
        )
    return answer


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("fatal: ").rstrip(".") if lines else "no reason given"
