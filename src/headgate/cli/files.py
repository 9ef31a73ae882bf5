"""`headgate files`: put, get, list and remove files of a files dataset."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from headgate import connection
from headgate.cli.exit_codes import told_of
from headgate.cli.format import count_text, show_receipt, size_text
from headgate.cli.output import (
    ActorOption,
    BranchOption,
    JsonOption,
    KeyOption,
    bare_id,
    copying,
    note,
    show_json,
    show_table,
)
from headgate.errors import Invalid
from headgate.files.publication import FileEdit
from headgate.files.transfer import scan
from headgate.files.tree import Entry
from headgate.model.names import check_file_path
from headgate.model.nouns import PublicationKind
from headgate.store.datasets import BranchHandle, DatasetHandle
from headgate.store.documents import file_json
from headgate.store.embedded import Store, operation_key
from headgate.store.transactions import ShownFiles, TransactionHandle

app = typer.Typer(no_args_is_help=True, help="Put, get, list and remove files of a dataset.")

DatasetArgument = Annotated[str, typer.Argument(metavar="DATASET", help="As in raw.scans.")]
TxnOption = Annotated[
    str | None,
    typer.Option("--txn", metavar="TXN", callback=bare_id, help="In an OPEN transaction or unit."),
]
AtOption = Annotated[
    str | None, typer.Option("--at", metavar="TXN", help="As a COMMITTED transaction showed it.")
]
# The whole tree.
_ALL = "."


@app.command()
def put(
    dataset: DatasetArgument,
    local: Annotated[Path, typer.Argument(metavar="LOCAL", help="A file or a directory.")],
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="Its path there; a file's own name unless given, `.` is the top."
        ),
    ] = "",
    branch: BranchOption = None,
    txn: TxnOption = None,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Put a file, or all that is in a directory: one publication, unless a transaction is open.

    Example: headgate files put raw.scans --branch master ./scans 2026/november
    """
    with connection.open(actor=actor) as hg:
        # Where to is settled before anything is uploaded.
        target = hg.dataset(dataset).writing(branch=branch, txn=txn)
        below = path.rstrip("/")
        entries = _upload(hg.dataset(dataset), local, "" if below == _ALL else below)
        _write(hg, target, "files-put", FileEdit(put=entries), key, json=json)


@app.command()
def rm(
    dataset: DatasetArgument,
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Files, or directories with all in them.")
    ],
    branch: BranchOption = None,
    txn: TxnOption = None,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Remove files: one publication, unless a transaction is open.

    Example: headgate files rm raw.scans --branch master 2026/november/draft.tif
    """
    with connection.open(actor=actor) as hg:
        target = hg.dataset(dataset).writing(branch=branch, txn=txn)
        wanted = [check_file_path(path.rstrip("/") or path) for path in paths]
        _write(hg, target, "files-rm", FileEdit(remove=wanted), key, json=json)


@app.command()
def ls(
    dataset: DatasetArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A file or directory.")] = _ALL,
    branch: BranchOption = None,
    txn: TxnOption = None,
    at: AtOption = None,
    json: JsonOption = False,
) -> None:
    """List files below a path, on the primary branch unless told otherwise.

    Example: headgate files ls raw.scans --branch feature 2026
    """
    with connection.open() as hg:
        chosen = _find(hg, dataset, path, branch=branch, txn=txn, at=at)
    if json:
        show_json([file_json(entry) for entry in chosen.entries])
        return
    nouns = [file_json(entry) for entry in chosen.entries]
    show_table(
        ("SIZE", "DIGEST", "PATH"),
        ((size_text(n["size"]), (n["digest"] or "")[:12], n["path"]) for n in nouns),
        empty="no files.",
    )


@app.command()
def get(
    dataset: DatasetArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A file or directory; `.` is all.")],
    local: Annotated[
        Path, typer.Argument(metavar="LOCAL", help="Where to write it; /dev/stdout to pipe a file.")
    ],
    branch: BranchOption = None,
    txn: TxnOption = None,
    at: AtOption = None,
    json: JsonOption = False,
) -> None:
    """Copy a file, or all below a directory, to this machine; each file is verified.

    Example: headgate files get raw.scans --branch master 2026/november ./scans
    """
    with connection.open() as hg:
        chosen = _find(hg, dataset, path, branch=branch, txn=txn, at=at)
        _download(chosen, local)
    total = sum(entry.size for entry in chosen.entries)
    if json:
        show_json([file_json(entry) for entry in chosen.entries])
    else:
        note(f"{count_text(len(chosen.entries), 'file')}, {size_text(total)}, in {local}")


# --- writing --------------------------------------------------------------------------------


def _upload(dataset: DatasetHandle, local: Path, path: str) -> list[Entry]:
    with told_of(local):
        files = scan(local, path)
    total = sum(file.size for file in files)
    with copying("put", files=len(files), total_bytes=total) as report:
        return dataset.upload(files, progress=report)


def _write(
    hg: Store,
    target: BranchHandle | TransactionHandle,
    kind: str,
    edit: FileEdit,
    key: str | None,
    *,
    json: bool,
) -> None:
    if isinstance(target, BranchHandle):
        operation = operation_key(
            key,
            actor=hg.settings.actor,
            kind=kind,
            branch=target.name,
            request={"dataset": str(target.dataset.name), **edit.to_json()},
        )
        receipt = target.edit(edit, operation=operation)
        show_receipt(hg, receipt, kind=PublicationKind.COMMIT, json=json)
        return
    if key is not None:
        raise Invalid("nothing is published inside a transaction: give the key to `txn commit`.")
    target.edit(edit)
    if json:
        show_json(target.noun())
    else:
        note(f"{target.id} holds it; `headgate txn commit` makes it visible.")


# --- reading --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """What was asked for: the entries at or below a path of what a transaction shows."""

    shown: ShownFiles
    path: str
    entries: Sequence[Entry]

    @property
    def is_one_file(self) -> bool:
        return [entry.path for entry in self.entries if not entry.is_directory] == [self.path]


def _find(
    hg: Store, dataset: str, path: str, *, branch: str | None, txn: str | None, at: str | None
) -> _Chosen:
    below = "" if path == _ALL else check_file_path(path.rstrip("/") or path)
    shown = hg.dataset(dataset).shown(branch=branch, txn=txn, at=at)
    return _Chosen(shown=shown, path=below, entries=shown.entries(below))


def _download(chosen: _Chosen, local: Path) -> None:
    """A directory's content into LOCAL; a file as LOCAL, or into it where that is a directory."""
    total = sum(entry.size for entry in chosen.entries)
    with (
        told_of(local),
        copying("get", files=len(chosen.entries), total_bytes=total) as report,
    ):
        if not chosen.is_one_file or local.is_dir():
            chosen.shown.download(local, chosen.path, progress=report)
            return
        is_stream = _is_stream(local)
        local.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that it appears whole or not at all.
        beside = None if is_stream else local.parent
        with tempfile.TemporaryDirectory(dir=beside, prefix=".headgate-") as aside:
            chosen.shown.download(Path(aside), chosen.path, progress=report)
            verified = Path(aside, chosen.path.rpartition("/")[2])
            if is_stream:
                _pour(verified, local)
            else:
                verified.replace(local)


def _is_stream(local: Path) -> bool:
    """Whether it is written to, a device or a pipe, rather than replaced: also /dev/stdout as a
    shell redirects it, which is a link to a file then."""
    return local.absolute().is_relative_to("/dev") or (local.exists() and not local.is_file())


def _pour(file: Path, target: Path) -> None:
    with file.open("rb") as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink)
