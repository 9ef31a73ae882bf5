"""From a Git commit to JobSpecs: exports the tree, imports it in a child, hashes, bundles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headgate.builds.bundle import Bundle, make_bundle, module_name
from headgate.builds.git import Repository
from headgate.builds.logic import Project, Suspicion
from headgate.errors import (
    GitUnusable,
    InvalidDefinition,
    OutputContested,
    UserCodeFailed,
    UserCodeTimedOut,
)
from headgate.model.jobspecs import Declaration, JobSpec, Source, declaration_from_json
from headgate.model.names import DatasetName
from headgate.transforms.finding import import_roots

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
