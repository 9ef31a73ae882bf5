"""Projects in Git: discover the transforms of a commit, and publish them as JobSpecs.

Discovery exports the commit's tree, imports its modules in a child process, and makes a logic
hash and a code bundle. Git is used through the `git` command.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
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
        found = self.find_commit("HEAD")
        if found is None:
            raise self.unusable("it has no commit yet", "Commit something first.")
        return found

    def find_branch(self) -> str | None:
        """Return the checked-out branch; None where HEAD is detached."""
        return self._try("symbolic-ref", "--quiet", "--short", "HEAD")

    def find_commit(self, ref: str) -> str | None:
        """Return the commit of a ref or id, if this clone has it."""
        return self._try("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")

    def has_branch(self, name: str) -> bool:
        """Return whether Git has a branch of this name, here or on a remote."""
        return self._try("show-ref", "--quiet", "--", name) is not None

    def branch(self) -> str:
        """Return the checked-out branch."""
        found = self.find_branch()
        if found is None:
            raise self.unusable(
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
        unborn = self.find_branch()
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

    def find_project_tree(self, treeish: str) -> str | None:
        """Return the project's tree in a commit or tree, if it has one."""
        return self._try("rev-parse", "--verify", "--quiet", f"{treeish}:{self.project}")

    def same_tree(self, commit: str, other: str) -> bool:
        """Return whether the project has the same tree in two commits."""
        tree = self.find_project_tree(commit)
        return tree is not None and tree == self.find_project_tree(other)

    def has_file(self, commit: str, path: str) -> bool:
        return self._try("cat-file", "-e", f"{commit}:{path}") is not None

    def find_merge_base(self, commit: str, ref: str) -> str | None:
        """Return the merge base of two commits, if this clone has both and their histories."""
        return self._try("merge-base", commit, ref)

    def path_of(self, *words: str) -> Path:
        """Return a path that `git rev-parse` finds."""
        return (self.root / self._git("rev-parse", *words)).resolve()

    def is_shallow(self) -> bool:
        return self._try("rev-parse", "--is-shallow-repository") == "true"

    def project_tree(self, treeish: str) -> str:
        """Return the project's tree in a commit or tree."""
        found = self.find_project_tree(treeish)
        if found is None:
            raise self.unusable(
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
        return self.unusable(
            f"`git {command}` failed: {_last_line(stderr)}", "Repair the repository and try again."
        )

    def unusable(self, reason: str, remedy: str) -> errors.GitUnusable:
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


# After a commit, a merge or a pull, and a rebase. Git ignores the results of these hooks.
_HOOKS = ("post-commit", "post-merge", "post-rewrite")
_SHELL = re.compile(r"#!.*\b(ba|da|k|z)?sh\b")


def install_hooks(
    project: Repository, *, program: Path, force: bool = False, remove: bool = False
) -> tuple[Path, ...]:
    """Add a line to the Git hooks of a repository that publishes a project; return the files.

    :param program: directory of the command `headgate`, for a PATH that does not have it.
    :param force: add the line also to scripts of others, and to hooks that repositories share.
    :param remove: remove the line instead.
    """
    directory = project.path_of("--git-path", "hooks")
    # Hooks in the working tree are committed, for machines with other paths.
    is_private = directory.is_relative_to(project.path_of("--git-common-dir"))
    is_own = is_private or directory.is_relative_to(project.root)
    path = f'PATH="$PATH":{quote(str(program))} ' if is_private else ""
    mark = f"# headgate jobspecs install-hook: {project.project or '.'}"
    # An amended commit runs post-commit too. A detached HEAD, as in a rebase, publishes nothing.
    line = (
        '[ "${1-}" = amend ] || ! git symbolic-ref --quiet HEAD >/dev/null || '
        f"(cd {quote(project.project or '.')} 2>/dev/null && "
        f"{path}headgate jobspecs publish --committed) || true  {mark}"
    )
    texts = {directory / name: _hook_lines(directory / name) for name in _HOOKS}
    for file, lines in texts.items():
        is_ours = is_own and all(mark.partition(":")[0] in text for text in lines[1:])
        is_shell = _SHELL.match(lines[0]) is not None
        if not remove and line not in lines and not (is_shell and (force or is_ours)):
            why = "has lines of others" if is_own else "is shared with other repositories"
            what = f"hook {file} {why if is_shell else 'is not a shell script'}"
            how = ", or repeat the command with --force" if is_shell else ""
            raise errors.Invalid(f"{what}. Add this line to it{how}:\n{line}", hook=str(file))
    for file, lines in texts.items():
        kept = [text for text in lines if not text.endswith(mark)]
        new = kept if remove else [kept[0], line, *kept[1:]]
        if new == lines:
            continue
        if len(new) == 1:
            file.unlink()
            continue
        mode = file.stat().st_mode if file.exists() else 0o755
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.fsencode("\n".join(new) + "\n"))
        file.chmod(mode)
    return tuple(texts)


def _hook_lines(file: Path) -> list[str]:
    lines = os.fsdecode(file.read_bytes()).splitlines() if file.is_file() else []
    return lines or ["#!/bin/sh"]


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
    # Outputs declared where the branch left its fallback; None if that does not apply.
    declared_before: tuple[str, ...] | None = None
    # Earlier names of a project that was moved within its repository.
    former: tuple[str, ...] = ()

    @property
    def outputs(self) -> frozenset[str]:
        return frozenset(str(o.dataset) for spec in self.jobspecs for o in spec.outputs)


def discover(
    repository: Repository,
    *,
    branch: str | None = None,
    allow_dirty: bool = False,
    committed: bool = False,
    timeout_seconds: float = DISCOVERY_SECONDS,
) -> Discovery:
    """Return all transforms of the checked-out commit or, `allow_dirty`, of the working copy.

    :param committed: ignore uncommitted changes instead of rejecting them.
    """
    commit = repository.head()
    changes = () if committed else repository.changes()
    if changes and not allow_dirty:
        raise repository.unusable(
            reason=f"the working tree has uncommitted changes: {_first(changes)}",
            remedy="Commit or stash them, or publish them as they are with --allow-dirty "
            "(results of such code are never adopted).",
        )
    source = Source(
        repository=repository.identity(),
        commit=commit,
        branch=branch or repository.branch(),
        clean=not changes,
    )
    treeish = repository.project_tree(repository.tree_of_changes() if changes else commit)
    return _discover_tree(repository, treeish, source, timeout_seconds)


def _discover_tree(
    repository: Repository, treeish: str, source: Source, timeout_seconds: float
) -> Discovery:
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
    hashed = ((declared, *project.hashes(declared)) for declared in declarations)
    jobspecs = tuple(
        JobSpec(
            declaration=declared,
            logic_hash=logic,
            code_hash=code,
            bundle=bundle.digest,
            source=source,
        )
        for declared, logic, code in hashed
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


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _kept(stderr: IO[bytes]) -> str:
    """Return the end of the child's output."""
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_KEPT))
    return stderr.read().decode("utf-8", "replace")


# --- removed transforms ---------------------------------------------------------------------


# The verb `jobspecs` of a store.
FindJobSpecs = Callable[..., Sequence[Mapping[str, Any]]]


def compare_with_fallback(
    project: Repository, found: Discovery, fallback: Sequence[str], jobspecs: FindJobSpecs
) -> Discovery:
    """Return a discovery with what its project declared where the branch left its fallback.

    That commit is the merge base with the fallback's published commit. A transform that is declared
    there and not any more is removed on the branch. One that only the fallback has is newer, or it
    belongs to another project.
    """
    own = found.source.repository
    branch = found.source.branch
    known = {name: _known(jobspecs, branch=name) for name in dict.fromkeys((branch, *fallback))}
    every = [spec for specs in known.values() for spec in specs]
    former = _former_projects(project, found, every)
    found = replace(found, former=tuple(former))
    names = {own, *former}
    for name in fallback:
        published = [spec for spec in known[name] if spec["repository"] in names]
        if name == branch or not published:
            continue
        newest = max(published, key=lambda spec: str(spec["published_at"]))
        base = _merge_base(project, found.source.commit, name, newest["commit"])
        declared: set[str] = set()
        if base is not None:
            for other, part in {own: project, **former}.items():
                declared |= _declared_at(part, other, base, found, jobspecs)
        theirs = [s for s in every if not s["removed"] and s["repository"] not in names]
        declared -= {output for spec in theirs for output in spec["outputs"]}
        return replace(found, declared_before=tuple(sorted(declared)))
    return found


def _known(jobspecs: FindJobSpecs, **asked: str) -> Sequence[Mapping[str, Any]]:
    """Return the JobSpecs of a branch name; none if the name is new."""
    try:
        return jobspecs(**asked)
    except errors.BranchNowhere:
        return ()


def check_new_branch(project: Repository, branch: str, jobspecs: FindJobSpecs) -> None:
    """Raise for a name that neither the store nor Git has as a branch: it may be misspelled."""
    if project.has_branch(branch):
        return
    try:
        jobspecs(branch=branch)
    except errors.BranchNowhere as error:
        remedy = (
            f"Publish from the Git branch {branch!r}, or name what it falls back to: --fallback."
        )
        raise errors.BranchNowhere(
            branch=branch, near=error.facts.get("near", ()), remedy=remedy
        ) from None


def _former_projects(
    project: Repository, found: Discovery, known: Sequence[Mapping[str, Any]]
) -> dict[str, Repository]:
    """Return the projects of which this one makes outputs, and that its commit does not have."""
    root = found.source.repository.removesuffix(f"//{project.project}")
    makers = {spec["repository"] for spec in known if not found.outputs.isdisjoint(spec["outputs"])}
    former = {}
    for name in makers - {found.source.repository}:
        directory = name.removeprefix(f"{root}//")
        marks = [f"{directory}/{mark}" for mark in _PROJECT_FILES]
        # A sparse checkout lacks files of the commit; a headgate.toml may be on disk only.
        is_there = any(
            project.has_file(found.source.commit, mark) or (project.root / mark).is_file()
            for mark in marks
        )
        if directory != name and not is_there:
            former[name] = Repository(root=project.root, project=directory)
    return former


def _merge_base(project: Repository, head: str, branch: str, published: str) -> str | None:
    """Return the merge base with a branch's published commit; None if the histories are unrelated.

    If the clone lacks that commit, its branch of the same name stands in for it.
    """
    for ref in (published, f"refs/remotes/origin/{branch}", f"refs/heads/{branch}"):
        base = project.find_merge_base(head, ref)
        if base is not None:
            return base
    if project.is_shallow() or project.find_commit(published) is None:
        deepen = "git fetch --unshallow" if project.is_shallow() else f"git fetch origin {branch}"
        raise project.unusable(
            reason=f"the transforms that were removed since {branch!r} cannot be determined: this "
            f"clone lacks the commit {published[:10]}, which is published on it, or its history",
            remedy=f"Run `{deepen}`, then publish again. If the commit was never pushed, publish "
            f"{branch!r} again first.",
        )
    return None


def _declared_at(
    project: Repository, name: str, commit: str, found: Discovery, jobspecs: FindJobSpecs
) -> frozenset[str]:
    """Return a project's outputs at a commit: as published, else by importing its modules."""
    tree = project.find_project_tree(commit)
    if tree is None:
        return frozenset()
    if project.same_tree(commit, found.source.commit) and found.source.clean:
        return found.outputs
    published = [spec for spec in jobspecs(repository=name, commit=commit) if spec["clean"]]
    if published:
        live = [spec for spec in published if not spec["removed"]]
        return frozenset(output for spec in live for output in spec["outputs"])
    try:
        return _discover_tree(project, tree, found.source, DISCOVERY_SECONDS).outputs
    except errors.HeadgateError as error:
        raise project.unusable(
            reason=f"the transforms of the merge base {commit[:10]}, which was never published, "
            f"cannot be read: {error.message.rstrip('.')}",
            remedy="Rebase on, or merge, a commit that is published on the fallback.",
        ) from error


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
            declared_before=found.declared_before,
            former=found.former,
        )
    return PublishReport(
        source=found.source,
        published=tuple(published),
        removed=tuple(removed),
        suspicions=found.suspicions,
        unreachable=found.unreachable,
    )


@dataclass(frozen=True, kw_only=True)
class Unpublished:
    """A commit or working tree that differs from what its project published on a branch name."""

    branch: str
    commit: str
    # True for HEAD; False for the tip of a Git branch that is not checked out.
    checked_out: bool
    changes: tuple[str, ...]
    # The newest JobSpec that the project published there.
    published: Mapping[str, Any] | None

    @property
    def text(self) -> str:
        """Return what differs and the next step, for people."""
        found, changes = self.published, _first(self.changes)
        there = "nothing is published there"
        if found is not None:
            marked = "" if found["clean"] else " with uncommitted changes"
            there = f"published: {found['commit'][:10]}{marked} by {found['actor']}"
        if found is not None and found["commit"] == self.commit and changes:
            is_known = "are not published on" if found["clean"] else "may differ from those on"
            return f"uncommitted changes ({changes}) {is_known} {self.branch}; {there}. {_COMMIT}"
        if not self.checked_out:
            what = f"Git branch {self.branch} is at {self.commit[:10]}, which is not published"
            return f"{what}; {there}. Check it out and run `headgate jobspecs publish`."
        more = f" Uncommitted changes are not published, either: {changes}." if changes else ""
        what = f"HEAD {self.commit[:10]} is not published on {self.branch}; {there}."
        return f"{what}{more} {_COMMIT if changes else _PUBLISH}"

    def to_json(self) -> dict[str, Any]:
        return {
            "branch": self.branch,
            "commit": self.commit,
            "published": self.published and self.published["commit"],
            "changes": list(self.changes),
            "message": self.text,
        }


_PUBLISH = "Run `headgate jobspecs publish`, or build with --publish."
_COMMIT = f"Commit the changes, or add --allow-dirty. {_PUBLISH}"


def find_unpublished(directory: Path, branch: str, jobspecs: FindJobSpecs) -> Unpublished | None:
    """Return the difference between a directory's project and its JobSpecs on a branch name.

    None if there is no difference, outside of Git, and if Git has another branch checked out and
    no branch of this name.
    """
    try:
        project = find_project(directory)
        checked_out = project.find_branch() in {None, branch}
        commit = project.find_commit("HEAD" if checked_out else f"refs/heads/{branch}")
        if commit is None:
            return None
        changes = project.changes() if checked_out else ()
        known = _known(jobspecs, branch=branch, repository=project.identity())
        # The marks of JobSpecs that were removed earlier keep the commits of that time.
        newest = max(known, key=lambda spec: str(spec["published_at"]), default=None)
        if newest is None:
            tree = project.find_project_tree(commit)
            is_same = tree is None or not project.files_naming_transforms(tree)
        else:
            # Commits that change only other projects of the repository need no publication.
            is_equal = newest["commit"] == commit
            is_equal |= bool(project.project) and project.same_tree(newest["commit"], commit)
            is_same = newest["clean"] and is_equal
    except errors.GitUnusable:
        return None
    if is_same and not changes:
        return None
    return Unpublished(
        branch=branch, commit=commit, checked_out=checked_out, changes=changes, published=newest
    )
