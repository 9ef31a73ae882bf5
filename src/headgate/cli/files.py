"""`headgate files`: put, get, list and remove files of a files dataset."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from headgate import connection
from headgate.cli import output
from headgate.cli.format import show_receipt, size_text
from headgate.errors import Invalid
from headgate.files.edits import FileEdit
from headgate.files.transfer import scan
from headgate.files.tree import Entry
from headgate.model.names import check_file_path
from headgate.model.nouns import PublicationKind
from headgate.store.datasets import BranchHandle, DatasetHandle
from headgate.store.documents import file_json
from headgate.store.embedded import Store
from headgate.store.transactions import ShownFiles, TransactionHandle

app = Typer(no_args_is_help=True, help="Put, get, list and remove files of a dataset.")

TxnOption = Annotated[
    str | None,
    Option("--txn", metavar="TXN", callback=output.bare_id, help="OPEN transaction or unit."),
]
AtOption = Annotated[
    str | None, Option("--at", metavar="TXN", help="COMMITTED transaction to read.")
]
# The whole tree.
_ALL = "."


@app.command()
def put(
    dataset: output.DatasetArgument,
    local: Annotated[Path, Argument(metavar="LOCAL", help="Local file or directory.")],
    path: Annotated[
        str,
        Argument(
            metavar="PATH", help="Path in the dataset (default: the file's name); `.` is the root."
        ),
    ] = "",
    branch: output.BranchOption = None,
    txn: TxnOption = None,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Upload a file or the content of a directory, as one publication or in a transaction.

    Example: headgate files put raw.scans --branch master ./scans 2026/november
    """
    with connection.open(actor=actor) as hg:
        # The target is checked before the upload.
        target = hg.dataset(dataset).writing(branch=branch, txn=txn)
        below = path.rstrip("/")
        entries = _upload(hg.dataset(dataset), local, "" if below == _ALL else below)
        _write(hg, target, FileEdit(put=entries), key, json=json)


@app.command()
def rm(
    dataset: output.DatasetArgument,
    paths: Annotated[list[str], Argument(metavar="PATH", help="Files or directories.")],
    branch: output.BranchOption = None,
    txn: TxnOption = None,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Remove files and directories, as one publication or in a transaction.

    Example: headgate files rm raw.scans --branch master 2026/november/draft.tif
    """
    with connection.open(actor=actor) as hg:
        target = hg.dataset(dataset).writing(branch=branch, txn=txn)
        removed = [check_file_path(path.rstrip("/") or path) for path in paths]
        _write(hg, target, FileEdit(remove=removed), key, json=json)


@app.command()
def ls(
    dataset: output.DatasetArgument,
    path: Annotated[str, Argument(metavar="PATH", help="File or directory.")] = _ALL,
    branch: output.BranchOption = None,
    txn: TxnOption = None,
    at: AtOption = None,
    json: output.JsonOption = False,
) -> None:
    """List files below a path (default branch: the primary branch).

    Example: headgate files ls raw.scans --branch feature 2026
    """
    with connection.open() as hg:
        chosen = _find(hg, dataset, path, branch=branch, txn=txn, at=at)
    nouns = [file_json(entry) for entry in chosen.entries]
    columns: output.Columns = {
        "SIZE": lambda noun: size_text(noun["size"]),
        "DIGEST": lambda noun: (noun["digest"] or "")[:12],
        "PATH": "path",
    }
    output.show_list(nouns, columns, empty="no files.", json=json)


@app.command()
def get(
    dataset: output.DatasetArgument,
    path: Annotated[str, Argument(metavar="PATH", help="File or directory; `.` is the root.")],
    local: Annotated[Path, Argument(metavar="LOCAL", help="Local target; /dev/stdout for a pipe.")],
    branch: output.BranchOption = None,
    txn: TxnOption = None,
    at: AtOption = None,
    json: output.JsonOption = False,
) -> None:
    """Download a file or directory; the digest of each file is verified.

    Example: headgate files get raw.scans --branch master 2026/november ./scans
    """
    with connection.open() as hg:
        chosen = _find(hg, dataset, path, branch=branch, txn=txn, at=at)
        _download(chosen, local)
    files = output.count_text(len(chosen.entries), "file")
    output.show_result(
        [file_json(entry) for entry in chosen.entries],
        f"{files}, {size_text(chosen.total_bytes)}, in {local}",
        json=json,
    )


def _upload(dataset: DatasetHandle, local: Path, path: str) -> list[Entry]:
    with output.translate_os_errors(local):
        files = scan(local, path)
    total = sum(file.size for file in files)
    with output.copy_progress("put", files=len(files), total_bytes=total) as report:
        return dataset.upload(files, progress=report)


def _write(
    hg: Store,
    target: BranchHandle | TransactionHandle,
    edit: FileEdit,
    key: str | None,
    *,
    json: bool,
) -> None:
    if isinstance(target, BranchHandle):
        receipt = target.edit(edit, idempotency_key=key)
        show_receipt(hg, receipt, kind=PublicationKind.COMMIT, json=json)
        return
    if key is not None:
        raise Invalid(
            "--idempotency-key cannot be combined with --txn: only the commit publishes. "
            "Give the key to `headgate txn commit`."
        )
    target.edit(edit)
    text = f"staged in {target.id}; publish it with `headgate txn commit {target.id}`."
    output.show_result(target.noun(), text, json=json)


@dataclass(frozen=True, kw_only=True)
class _Selection:
    """The entries at or below a path of a tree."""

    shown: ShownFiles
    path: str
    entries: Sequence[Entry]

    @property
    def total_bytes(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def is_one_file(self) -> bool:
        return [entry.path for entry in self.entries if not entry.is_directory] == [self.path]


def _find(
    hg: Store, dataset: str, path: str, *, branch: str | None, txn: str | None, at: str | None
) -> _Selection:
    below = "" if path == _ALL else check_file_path(path.rstrip("/") or path)
    shown = hg.dataset(dataset).shown(branch=branch, txn=txn, at=at)
    return _Selection(shown=shown, path=below, entries=shown.entries(below))


def _download(chosen: _Selection, local: Path) -> None:
    """Write a directory's content into `local`; a file to `local`, or into it if a directory."""
    with (
        output.translate_os_errors(local),
        output.copy_progress(
            "get", files=len(chosen.entries), total_bytes=chosen.total_bytes
        ) as report,
    ):
        if not chosen.is_one_file or local.is_dir():
            chosen.shown.download(local, chosen.path, progress=report)
            return
        is_stream = _is_stream(local)
        local.parent.mkdir(parents=True, exist_ok=True)
        # In the directory of the target, so that the rename is atomic.
        parent = None if is_stream else local.parent
        with tempfile.TemporaryDirectory(dir=parent, prefix=".headgate-") as temporary:
            chosen.shown.download(Path(temporary), chosen.path, progress=report)
            verified = Path(temporary, chosen.path.rpartition("/")[2])
            if is_stream:
                with verified.open("rb") as source, local.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
            else:
                verified.replace(local)


def _is_stream(local: Path) -> bool:
    """Return True for a device or pipe, which is written to and not replaced.

    Includes /dev/stdout redirected by a shell, which is a link to a file.
    """
    return local.absolute().is_relative_to("/dev") or (local.exists() and not local.is_file())
