"""`headgate files`: put, get, list and remove files of a files dataset."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from headgate import store
from headgate.catalog.showing import find_shown
from headgate.cli.formatting import count_text, size_text
from headgate.cli.idempotency import operation_key
from headgate.cli.nouns import Json, file_json, transaction_json
from headgate.cli.output import (
    ActorOption,
    BranchOption,
    JsonOption,
    KeyOption,
    note,
    show_json,
    show_table,
)
from headgate.cli.progress import copying
from headgate.cli.published import show_receipt
from headgate.cli.txn import load_opened
from headgate.errors import FileNotInView, Invalid, NotInHistory, StorageUnavailable
from headgate.files.entries import Entry
from headgate.files.upload import scan
from headgate.files.writing import FileEdit, check_is_files, root_of
from headgate.handles import BranchHandle, DatasetHandle, TransactionHandle, UnitHandle
from headgate.model.contexts import UnitContext
from headgate.model.names import check_file_path
from headgate.model.nouns import Dataset, PublicationKind, Transaction
from headgate.store import Store

app = typer.Typer(no_args_is_help=True, help="Put, get, list and remove files of a dataset.")

DatasetArgument = Annotated[str, typer.Argument(metavar="DATASET", help="As in raw.scans.")]
TxnOption = Annotated[
    str | None, typer.Option("--txn", metavar="TXN", help="In an OPEN transaction or unit.")
]
AtOption = Annotated[
    str | None, typer.Option("--at", metavar="TXN", help="As a COMMITTED transaction showed it.")
]
# The whole tree, for commands that read.
_ALL = "."


@app.command()
def put(
    dataset: DatasetArgument,
    local: Annotated[Path, typer.Argument(metavar="LOCAL", help="A file or a directory.")],
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="Its path there; a file's own name unless given."),
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
    with store.open(actor=actor) as hg:
        target = _target(hg, dataset, branch=branch, txn=txn)
        entries = _upload(hg, local, path.rstrip("/"))
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
    with store.open(actor=actor) as hg:
        target = _target(hg, dataset, branch=branch, txn=txn)
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
    with store.open() as hg:
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
    local: Annotated[Path, typer.Argument(metavar="LOCAL", help="Where to write it.")],
    branch: BranchOption = None,
    txn: TxnOption = None,
    at: AtOption = None,
    json: JsonOption = False,
) -> None:
    """Copy a file, or all below a directory, to this machine; each file is verified.

    Example: headgate files get raw.scans --branch master 2026/november ./scans
    """
    with store.open() as hg:
        chosen = _find(hg, dataset, path, branch=branch, txn=txn, at=at)
        _download(hg, chosen, local)
    total = sum(entry.size for entry in chosen.entries)
    if json:
        show_json([file_json(entry) for entry in chosen.entries])
    else:
        note(f"{count_text(len(chosen.entries), 'file')}, {size_text(total)}, in {local}")


# --- writing --------------------------------------------------------------------------------


def _target(
    hg: Store, dataset: str, *, branch: str | None, txn: str | None
) -> BranchHandle | TransactionHandle:
    """Where files are written: a branch, or a dataset's transaction; checked to hold files."""
    handle = hg.dataset(dataset)
    check_is_files(handle.load())
    if txn is not None and branch is None:
        return _in_transaction(hg, handle, txn)
    if branch is not None and txn is None:
        target = handle.branch(branch)
        # Before anything is uploaded.
        target.load()
        return target
    raise Invalid("say where: give either --branch or --txn.")


def _in_transaction(hg: Store, dataset: DatasetHandle, id: str) -> TransactionHandle:
    opened = load_opened(hg, id)
    if isinstance(opened, UnitHandle):
        return opened.dataset(str(dataset.name))
    if opened.transaction.dataset != dataset.name:
        raise NotInHistory(dataset=str(dataset.name), branch=opened.branch, transaction=id)
    return opened


def _upload(hg: Store, local: Path, path: str) -> list[Entry]:
    with _reported(local):
        files = scan(local, path)
    total = sum(file.size for file in files)
    with copying("put", files=len(files), total_bytes=total) as report:
        return hg.trees.upload_files(files, progress=report)


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
            request={"dataset": str(target.dataset.name), **_edit_json(edit)},
        )
        receipt = target.edit(edit, operation=operation)
        show_receipt(hg, receipt, kind=PublicationKind.COMMIT, json=json)
        return
    if key is not None:
        raise Invalid("nothing is published inside a transaction: give the key to `txn commit`.")
    target.edit(edit)
    if json:
        show_json(transaction_json(target.transaction))
    else:
        note(f"{target.id} holds it; `headgate txn commit` makes it visible.")


def _edit_json(edit: FileEdit) -> Json:
    return {
        "put": [[e.path, e.mode, e.size, e.digest] for e in edit.put],
        "remove": list(edit.remove),
    }


# --- reading --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """What was asked for: the entries at or below a path of what a transaction shows."""

    shown: Transaction | None
    path: str
    entries: Sequence[Entry]

    @property
    def is_one_file(self) -> bool:
        return [entry.path for entry in self.entries if not entry.is_directory] == [self.path]


def _find(
    hg: Store, dataset: str, path: str, *, branch: str | None, txn: str | None, at: str | None
) -> _Chosen:
    below = "" if path == _ALL else check_file_path(path.rstrip("/") or path)
    handle = hg.dataset(dataset)
    found = handle.load()
    check_is_files(found)
    if txn is not None and (branch is not None or at is not None):
        raise Invalid("--txn says it all: leave out --branch and --at.")
    shown = (
        _use(hg, found, txn)
        if txn is not None
        else handle.branch(branch or hg.settings.builds.branch).view(at=at)
    )
    entries = list(hg.trees.walk(root_of(shown.version if shown else None), below))
    if below and not entries:
        where = shown.id if shown else "an empty branch"
        raise FileNotInView(dataset=dataset, path=below, where=where)
    return _Chosen(shown=shown, path=below, entries=entries)


def _use(hg: Store, dataset: Dataset, id: str) -> Transaction | None:
    """What a transaction or unit shows of a dataset; looking at it opens nothing."""
    load_opened(hg, id).renew()
    return hg.database.read(lambda c: find_shown(c, UnitContext(id=id), dataset))


def _download(hg: Store, chosen: _Chosen, local: Path) -> None:
    """A directory's content into LOCAL; a file as LOCAL, or into it where that is a directory."""
    root = root_of(chosen.shown.version if chosen.shown else None)
    total = sum(entry.size for entry in chosen.entries)
    with (
        _reported(local),
        copying("get", files=len(chosen.entries), total_bytes=total) as report,
    ):
        if not chosen.is_one_file or local.is_dir():
            hg.trees.download(root, local, chosen.path, progress=report)
            return
        local.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that it appears whole or not at all.
        with tempfile.TemporaryDirectory(dir=local.parent, prefix=".headgate-") as aside:
            [entry] = hg.trees.download(root, Path(aside), chosen.path, progress=report)
            Path(aside, entry.path).replace(local)


@contextmanager
def _reported(local: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageUnavailable(where=str(local), reason=reason) from error
