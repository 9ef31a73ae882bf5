"""Trees of files that a server shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headgate.errors import FileNotInView
from headgate.files.download import download, relative_to
from headgate.files.entries import Entry
from headgate.files.progress import Progress
from headgate.handles import ShownFiles
from headgate.handles.wire import to_entry
from headgate.model.names import check_file_path
from headgate.remote.line import Line, segment
from headgate.remote.objects import remote_contents


@dataclass(frozen=True, kw_only=True)
class RemoteShownFiles(ShownFiles):
    """The tree of files that a server shows on a branch, at a transaction, or in one."""

    line: Line
    branch: str | None
    txn: str | None
    at: str | None

    def entries(self, path: str = "") -> list[Entry]:
        found = self.line.pages(
            f"/files/{segment(str(self.dataset))}",
            path=path or None,
            branch=self.branch,
            txn=self.txn,
            at=self.at,
        )
        return [to_entry(sent) for sent in found]

    def find(self, path: str) -> Entry:
        check_file_path(path)
        for entry in self.entries(path):
            if entry.path == path and not entry.is_directory:
                return entry
        raise FileNotInView(dataset=str(self.dataset), path=path, where=self.where)

    def download(self, target: Path, path: str = "", *, progress: Progress | None = None) -> None:
        chosen = list(relative_to(self.entries(path), path.rstrip("/")))
        download(remote_contents(self.line), chosen, target, progress)
