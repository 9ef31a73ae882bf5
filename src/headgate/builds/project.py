"""Publishing what a commit declares: its code first, then its JobSpecs on a branch's name."""

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

from headgate.builds.bundle import Bundle, make_bundle, module_name
from headgate.builds.logic_hash import Project, Suspicion
from headgate.catalog.database import Database
from headgate.catalog.garbage_collection import sweeping_alone
from headgate.catalog.jobspecs import PublishedJobSpec, publish_jobspecs
from headgate.errors import (
    GitUnusable,
    InvalidDefinition,
    OutputContested,
    UserCodeFailed,
    UserCodeTimedOut,
)
from headgate.model.jobspecs import Declaration, JobSpec, Source, declaration_from_json
from headgate.model.names import DatasetName, check_branch_name
from headgate.model.ports import ObjectStore
from headgate.transforms.discovery import import_roots

# What a build needs to know of a Git repository, asked of the `git` command.

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


# From a Git commit to JobSpecs: exports the tree, imports it in a child, hashes, bundles.

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
    """Everything of one commit that is to be published, and what a person should look at."""

    source: Source
    jobspecs: tuple[JobSpec, ...]
    bundle: Bundle
    suspicions: tuple[Suspicion, ...]
    # Files that name the transforms but that no import can reach.
    unreachable: tuple[str, ...]


def discover(
    repository: Repository,
    *,
    branch: str | None = None,
    allow_dirty: bool = False,
    timeout_seconds: float = DISCOVERY_SECONDS,
) -> Discovery:
    """All transforms of the checked-out commit, or with `allow_dirty` of the files as they are."""
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
    """Imports the modules in a child process and reads what they declare."""
    if not modules:
        return ()
    # -P: nothing of the working directory may come before the project's roots; -B: no litter.
    command = [sys.executable, "-P", "-B", "-c", _CHILD, _PACKAGE_HOME, str(tree), *modules]
    # A file, not a pipe: what a module starts may keep it open for longer than the child lives.
    with tempfile.TemporaryFile() as stderr:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        ) as child:
            try:
                answer, _ = child.communicate(timeout=timeout_seconds)
            except subprocess.TimeoutExpired as error:
                os.killpg(child.pid, signal.SIGKILL)
                raise UserCodeTimedOut(
                    doing="importing the project's modules",
                    seconds=timeout_seconds,
                    stderr=_kept(stderr),
                ) from error
        return _declarations(answer, child.returncode, modules, _kept(stderr))


def _discover_in(
    tree: Path, files: Sequence[str], source: Source, timeout_seconds: float
) -> Discovery:
    source_layout = len(import_roots(tree)) > 1
    named = {file: module_name(file, source_layout=source_layout) for file in files}
    modules = sorted({name for name in named.values() if name is not None})
    declarations = extract_declarations(tree, modules, timeout_seconds=timeout_seconds)
    require_one_maker(declarations)
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


def require_one_maker(declarations: Sequence[Declaration]) -> None:
    """Refuses two transforms that write the same dataset."""
    makers: dict[DatasetName, Declaration] = {}
    for declared in declarations:
        for output in declared.outputs:
            other = makers.setdefault(output.dataset, declared)
            if other is not declared:
                raise OutputContested(
                    dataset=str(output.dataset),
                    first=f"{other.function} ({other.file}:{other.line})",
                    second=f"{declared.function} ({declared.file}:{declared.line})",
                )


def _declarations(
    answer: bytes, exit_code: int, modules: Sequence[str], stderr: str
) -> tuple[Declaration, ...]:
    try:
        document: dict[str, Any] = json.loads(answer)
    except ValueError as error:
        raise UserCodeFailed(
            doing=f"importing {', '.join(modules[:5])}",
            file=modules[0],
            line=1,
            reason=f"the process ended with code {exit_code} and without an answer; it said: "
            f"{(stderr.strip().splitlines() or ['nothing'])[-1]}",
            traceback=stderr,
        ) from error
    failed = document.get("error")
    if failed is None:
        return tuple(declaration_from_json(item) for item in document["transforms"])
    if failed["kind"] == "definition":
        raise InvalidDefinition(file=failed["file"], line=failed["line"], reason=failed["reason"])
    raise UserCodeFailed(
        doing=f"importing module {failed['module']}",
        file=failed["file"],
        line=failed["line"],
        reason=failed["reason"],
        traceback=failed["traceback"],
    )


def _dirty(repository: Repository, changes: Sequence[str]) -> GitUnusable:
    shown = ", ".join(changes[:5]) + (f" and {len(changes) - 5} more" if len(changes) > 5 else "")
    return GitUnusable(
        directory=str(repository.root),
        reason=f"the working tree has changes that are not committed: {shown}",
        remedy="Commit or stash them, or publish them as they are with --allow-dirty "
        "(what is built from that is never adopted).",
    )


def _kept(stderr: IO[bytes]) -> str:
    """The end of what the child said."""
    size = stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, size - _STDERR_KEPT))
    return stderr.read().decode("utf-8", "replace")


@dataclass(frozen=True, kw_only=True)
class Publishing:
    """What was published, what is gone, and what a person should look at."""

    source: Source
    published: tuple[PublishedJobSpec, ...]
    removed: tuple[str, ...]
    suspicions: tuple[Suspicion, ...]
    unreachable: tuple[str, ...]


def bundle_key(digest: str) -> str:
    """Where a bundle is stored below the warehouse."""
    return f"bundles/{digest}.zip"


def publish_discovery(
    database: Database, objects: ObjectStore, found: Discovery, *, actor: str
) -> Publishing:
    """Publishes what a project declares; what it no longer declares gets a removed mark."""
    check_branch_name(found.source.branch)
    # A sweep must not take the bundle between its storing and its first mention.
    with sweeping_alone(database):
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
    return Publishing(
        source=found.source,
        published=tuple(published),
        removed=tuple(removed),
        suspicions=found.suspicions,
        unreachable=found.unreachable,
    )
