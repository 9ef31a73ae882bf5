"""Projects in Git: discover the transforms of a commit, and publish them as JobSpecs.

Discovery exports the commit's tree, imports its modules in a child process, and makes a logic
hash and a code bundle. Git is used through the `git` command.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from headgate import errors
from headgate.builds.bundle import Bundle, make_bundle, module_name
from headgate.builds.logic_hash import Project, Suspicion
from headgate.catalog.database import Database
from headgate.catalog.garbage_collection import sweep_lock
from headgate.catalog.jobspecs import publish_jobspecs
from headgate.model.jobspecs import (
    Declaration,
    JobSpec,
    PublishedJobSpec,
    Source,
    declaration_from_json,
)
from headgate.model.names import DatasetName, check_branch_name
from headgate.model.object_store import ObjectStore
from headgate.transforms.discovery import import_roots

# --- Git ------------------------------------------------------------------------------------

# A Git hook runs with these set for its own repository; they would redirect every command.
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
# Files that make a directory of a larger repository a project of its own.
_PROJECT_FILES = ("headgate.toml", "pyproject.toml")
_NAMES_TRANSFORMS = r"headgate\.transforms|from[[:space:]]+headgate[[:space:]]+import"


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A Git repository by the root of its working tree, or one project in it."""

    root: Path
    # The project's directory, relative to the root; empty where it is the whole repository.
    project: str = ""

    def head(self) -> str:
        """Return the checked-out commit."""
        found = self._try("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        if found is None:
            raise self._unusable("it has no commit yet", "Commit something first.")
        return found

    def branch(self) -> str:
        """Return the checked-out branch."""
        found = self._try("symbolic-ref", "--quiet", "--short", "HEAD")
        if found is None:
            raise self._unusable(
                f"no branch is checked out (HEAD is detached at {self.head()[:12]})",
                "Name the branch with --branch, or check one out.",
            )
        return found

    def default_branch(self) -> str | None:
        """Return the branch of origin/HEAD, else `main` or `master` if there is one."""
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
        """Return the project's files that differ from HEAD, untracked Python files too; sorted."""
        words = ("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
        listed = self._git(*words, "--", self.project or ".")
        changed = []
        for entry in filter(None, listed.split("\0")):
            state, path = entry[:2], entry[3:]
            if state != "??" or path.endswith(".py"):
                changed.append(path)
        return tuple(sorted(changed))

    def identity(self) -> str:
        """Return a name that clones share: the origin, else the first commit; then the project."""
        url = self._try("config", "--get", "remote.origin.url")
        if url:
            name = without_credentials(url)
        else:
            name = self._git("rev-list", "--max-parents=0", "HEAD").split()[-1]
        return f"{name}//{self.project}" if self.project else name

    def project_tree(self, treeish: str) -> str:
        """Return the project's tree in a commit or tree."""
        found = self._try("rev-parse", "--verify", "--quiet", f"{treeish}:{self.project}")
        if found is None:
            raise self._unusable(
                f"the directory {self.project!r} is not in the commit", "Commit the project first."
            )
        return found

    def tree_of_changes(self) -> str:
        """Write a tree of the working copy: tracked files, and untracked Python files."""
        with tempfile.TemporaryDirectory() as directory:
            index = {"GIT_INDEX_FILE": str(Path(directory) / "index")}
            self._git("read-tree", "HEAD", env=index)
            self._git("add", "--update", "--", ":/", env=index)
            new = self._git("ls-files", "--others", "--exclude-standard", "-z", "--", ":/*.py")
            if new:
                self._git(
                    "add", "--pathspec-from-file=-", "--pathspec-file-nul", env=index, stdin=new
                )
            return self._git("write-tree", env=index)

    def export(self, treeish: str, directory: Path) -> None:
        """Write the files of a commit or tree below a directory."""
        # The tree, not the commit: otherwise `export-subst` would put the commit id into the code.
        archive = _run(self.root, "archive", "--format=tar", f"{treeish}^{{tree}}")
        if archive.returncode != 0:
            raise self._failed("archive", archive.stderr)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(directory, filter=_safe)

    def files_naming_transforms(self, treeish: str) -> tuple[str, ...]:
        """Return the tracked Python files that name `headgate.transforms`; sorted."""
        pattern = ("grep", "--extended-regexp", "--files-with-matches", "-z", "-I")
        found = _run(self.root, *pattern, "-e", _NAMES_TRANSFORMS, treeish, "--", ":/*.py")
        if found.returncode > 1:
            raise self._failed("grep", found.stderr)
        names = found.stdout.decode("utf-8", "surrogateescape").split("\0")
        return tuple(sorted(name.removeprefix(f"{treeish}:") for name in names if name))

    def _git(self, *words: str, env: Mapping[str, str] | None = None, stdin: str = "") -> str:
        done = _run(self.root, *words, env=env, stdin=stdin)
        if done.returncode != 0:
            raise self._failed(words[0], done.stderr)
        return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    def _try(self, *words: str) -> str | None:
        done = _run(self.root, *words)
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def _failed(self, command: str, stderr: bytes) -> errors.GitUnusable:
        return self._unusable(
            f"`git {command}` failed: {_last_line(stderr)}", "Repair the repository and try again."
        )

    def _unusable(self, reason: str, remedy: str) -> errors.GitUnusable:
        return errors.GitUnusable(directory=str(self.root), reason=reason, remedy=remedy)


def find_repository(directory: Path) -> Repository:
    """Return the repository that contains a directory."""
    if not _is_directory(directory):
        raise errors.GitUnusable(
            directory=str(directory),
            reason="the directory does not exist",
            remedy="Name the repository with --repo.",
        )
    done = _run(directory, "rev-parse", "--show-toplevel")
    if done.returncode != 0:
        raise errors.GitUnusable(
            directory=str(directory),
            reason=f"it is not in a Git working tree ({_last_line(done.stderr)})",
            remedy="Run `git init` and commit the pipeline, or name its repository with --repo.",
        )
    return Repository(root=Path(os.fsdecode(done.stdout.rstrip(b"\n"))))


def _is_directory(path: Path) -> bool:
    """Return False also for a name that is too long."""
    try:
        return path.is_dir()
    except OSError:
        return False


def find_project(directory: Path) -> Repository:
    """Return the nearest project that contains a directory, else its repository."""
    repository = find_repository(directory)
    here = directory.resolve()
    while here != repository.root and here.is_relative_to(repository.root):
        if any((here / mark).is_file() for mark in _PROJECT_FILES):
            project = here.relative_to(repository.root).as_posix()
            return Repository(root=repository.root, project=project)
        here = here.parent
    return repository


def _safe(member: tarfile.TarInfo, directory: str) -> tarfile.TarInfo | None:
    """Leave out members that lead outside the directory, such as links to other files."""
    try:
        return tarfile.data_filter(member, directory)
    except tarfile.FilterError:
        return None


def without_credentials(url: str) -> str:
    """Return `host/path` of a remote: equal for https and ssh, and without secrets."""
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
    # `env` removes the variables, so that this process does not read its own environment.
    done = subprocess.run(
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
    if done.returncode == _COMMAND_NOT_FOUND:
        raise errors.GitUnusable(
            directory=str(directory),
            reason="the command `git` was not found",
            remedy="Install Git, then try again.",
        )
    return done


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("fatal: ").rstrip(".") if lines else "no reason given"


# --- discovery ------------------------------------------------------------------------------

DISCOVERY_SECONDS = 300.0
_STDERR_KEPT = 20_000
# The same as `python -m headgate.builds.extract`, also where the package is not installed.
_CHILD = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from headgate.builds.extract import main; main(sys.argv[2:])"
)
_PACKAGE_HOME = str(Path(__file__).parents[2])


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """JobSpecs and code of one commit, and warnings for its authors."""

    source: Source
    jobspecs: tuple[JobSpec, ...]
    bundle: Bundle
    suspicions: tuple[Suspicion, ...]
    # Files that name `headgate.transforms` but that no import can reach.
    unreachable: tuple[str, ...]


def discover(
    repository: Repository,
    *,
    branch: str | None = None,
    allow_dirty: bool = False,
    timeout_seconds: float = DISCOVERY_SECONDS,
) -> Discovery:
    """Return all transforms of the checked-out commit or, `allow_dirty`, of the working copy."""
    commit = repository.head()
    changes = repository.changes()
    if changes and not allow_dirty:
        raise _dirty(repository, changes)
    source = Source(
        repository=repository.identity(),
        commit=commit,
        branch=branch or repository.branch(),
        clean=not changes,
    )
    treeish = repository.project_tree(repository.tree_of_changes() if changes else commit)
    with tempfile.TemporaryDirectory(prefix="headgate-publish-") as directory:
        tree = Path(directory).resolve()
        repository.export(treeish, tree)
        files = repository.files_naming_transforms(treeish)
        return _discover_in(tree, files, source, timeout_seconds)


def extract_declarations(
    tree: Path, modules: Sequence[str], *, timeout_seconds: float = DISCOVERY_SECONDS
) -> tuple[Declaration, ...]:
    """Import the modules in a child process, and return what they declare."""
    if not modules:
        return ()
    # -P: the working directory must not precede the project's roots; -B: no bytecode files.
    command = [sys.executable, "-P", "-B", "-c", _CHILD, _PACKAGE_HOME, str(tree), *modules]
    # A file, not a pipe: a process that a module starts may outlive the child and keep it open.
    with tempfile.TemporaryFile() as stderr:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        ) as child:
            try:
                output, _ = child.communicate(timeout=timeout_seconds)
            except subprocess.TimeoutExpired as error:
                os.killpg(child.pid, signal.SIGKILL)
                raise errors.UserCodeTimedOut(
                    doing="importing the project's modules",
                    seconds=timeout_seconds,
                    stderr=_kept(stderr),
                ) from error
        return _declarations(output, child.returncode, modules, _kept(stderr))


def _discover_in(
    tree: Path, files: Sequence[str], source: Source, timeout_seconds: float
) -> Discovery:
    source_layout = len(import_roots(tree)) > 1
    named = {file: module_name(file, source_layout=source_layout) for file in files}
    modules = sorted({name for name in named.values() if name is not None})
    declarations = extract_declarations(tree, modules, timeout_seconds=timeout_seconds)
    require_unique_outputs(declarations)
    project = Project(tree)
    data_files = {f for declared in declarations for f in project.data_files(declared)}
    bundle = make_bundle(tree, data_files)
    jobspecs = tuple(
        JobSpec(
            declaration=declared,
            logic_hash=project.logic_hash(declared),
            bundle=bundle.digest,
            source=source,
        )
        for declared in declarations
    )
    return Discovery(
        source=source,
        jobspecs=jobspecs,
        bundle=bundle,
        suspicions=project.suspicions({declared.module for declared in declarations}),
        unreachable=tuple(file for file, name in named.items() if name is None),
    )


def require_unique_outputs(declarations: Sequence[Declaration]) -> None:
    """Raise if two transforms write the same dataset."""
    makers: dict[DatasetName, Declaration] = {}
    for declared in declarations:
        for output in declared.outputs:
            other = makers.setdefault(output.dataset, declared)
            if other is not declared:
                raise errors.OutputContested(
                    dataset=str(output.dataset),
                    first=f"{other.function} ({other.file}:{other.line})",
                    second=f"{declared.function} ({declared.file}:{declared.line})",
                )


def _declarations(
    output: bytes, exit_code: int, modules: Sequence[str], stderr: str
) -> tuple[Declaration, ...]:
    try:
        document: dict[str, Any] = json.loads(output)
    except ValueError as error:
        raise errors.UserCodeFailed(
            doing=f"importing {', '.join(modules[:5])}",
            file=modules[0],
            line=1,
            reason=f"the process ended with code {exit_code} and without a result; its last line "
            f"of output: {(stderr.strip().splitlines() or ['none'])[-1]}",
            traceback=stderr,
        ) from error
    failed = document.get("error")
    if failed is None:
        return tuple(declaration_from_json(item) for item in document["transforms"])
    if failed["kind"] == "definition":
        raise errors.InvalidDefinition(
            file=failed["file"], line=failed["line"], reason=failed["reason"]
        )
    raise errors.UserCodeFailed(
        doing=f"importing module {failed['module']}",
        file=failed["file"],
        line=failed["line"],
        reason=failed["reason"],
        traceback=failed["traceback"],
    )


def _dirty(repository: Repository, changes: Sequence[str]) -> errors.GitUnusable:
    shown = ", ".join(changes[:5]) + (f" and {len(changes) - 5} more" if len(changes) > 5 else "")
    return errors.GitUnusable(
        directory=str(repository.root),
        reason=f"the working tree has uncommitted changes: {shown}",
        remedy="Commit or stash them, or publish them as they are with --allow-dirty "
        "(results of such code are never adopted).",
    )


def _kept(stderr: IO[bytes]) -> str:
    """Return the end of the child's output."""
    size = stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, size - _STDERR_KEPT))
    return stderr.read().decode("utf-8", "replace")


# --- publication ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PublishReport:
    """JobSpecs that were published, datasets without one now, and warnings for the authors."""

    source: Source
    published: tuple[PublishedJobSpec, ...]
    removed: tuple[str, ...]
    suspicions: tuple[Suspicion, ...]
    unreachable: tuple[str, ...]


def bundle_key(digest: str) -> str:
    """Return the key of a bundle below the warehouse."""
    return f"bundles/{digest}.zip"


def publish_discovery(
    database: Database, objects: ObjectStore, found: Discovery, *, actor: str
) -> PublishReport:
    """Publish a project's JobSpecs; mark those that it no longer declares as removed."""
    check_branch_name(found.source.branch)
    # A sweep must not delete the bundle before the JobSpecs name it.
    with sweep_lock(database):
        # The code first: a JobSpec never names a bundle that is not there.
        objects.put(bundle_key(found.bundle.digest), found.bundle.data)
        published, removed = publish_jobspecs(
            database,
            branch=found.source.branch,
            repository=found.source.repository,
            commit=found.source.commit,
            clean=found.source.clean,
            actor=actor,
            specs=[
                {"outputs": [str(o.dataset) for o in spec.outputs], "jobspec": spec.to_json()}
                for spec in found.jobspecs
            ],
        )
    return PublishReport(
        source=found.source,
        published=tuple(published),
        removed=tuple(removed),
        suspicions=found.suspicions,
        unreachable=found.unreachable,
    )
