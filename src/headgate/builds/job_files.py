"""The files of one attempt: trees on disk as the job asks for them, and what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from headgate.builds.orders import InputOrder, OutputOrder
from headgate.errors import Invalid
from headgate.files.difference import ChangeKind
from headgate.files.entries import Entry
from headgate.files.objects import Digest
from headgate.files.trees import FileTrees
from headgate.transforms.job import ReadMode

Fill = Callable[[Path], object]


class JobFiles:
    """Directories by input or output and read mode; one is filled when it is first asked for."""

    def __init__(self, trees: FileTrees, directory: Path) -> None:
        self._trees = trees
        self._directory = directory
        self._empty_until_asked: dict[str, Fill] = {}

    def of_input(self, name: str, given: InputOrder) -> dict[str, str] | None:
        """Where the job finds an input's files, by read mode; what it reads first is there."""
        if given.root is None:
            return None
        now = Digest(given.root)
        current = self._promise(f"inputs/{name}/current", partial(self._trees.download, now))
        if given.since_root is None:
            self.fill(current)
            return _by_mode(current, current, self._nothing(f"inputs/{name}/previous"))
        before = Digest(given.since_root)
        added = self._promise(f"inputs/{name}/added", partial(self._download_added, before, now))
        self.fill(added)
        previous = self._promise(f"inputs/{name}/previous", partial(self._trees.download, before))
        return _by_mode(current, added, previous)

    def of_output(self, name: str, target: OutputOrder) -> dict[str, str] | None:
        """Where the job puts an output's files, and where it finds those that were there."""
        if not target.is_files:
            return None
        own = self._nothing(f"outputs/{name}/written")
        if target.base_root is None:
            return _by_mode(own, own, self._nothing(f"outputs/{name}/previous"))
        fill = partial(self._trees.download, Digest(target.base_root))
        return _by_mode(own, own, self._promise(f"outputs/{name}/previous", fill))

    def fill(self, directory: str) -> None:
        """Downloads what a directory stands for; it appears when it is whole."""
        if directory not in self._empty_until_asked:
            raise Invalid(f"{directory} is no directory of this job.")
        target = Path(directory)
        if target.is_dir():
            return
        unfinished = target.with_name(f".{target.name}")
        unfinished.mkdir(parents=True)
        self._empty_until_asked[directory](unfinished)
        unfinished.rename(target)

    def store(self, name: str) -> list[Entry]:
        """Stores what the job wrote, for entries to name."""
        return self._trees.upload(self._directory / "outputs" / name / "written")

    def _promise(self, place: str, fill: Fill) -> str:
        directory = str(self._directory / place)
        self._empty_until_asked[directory] = fill
        return directory

    def _nothing(self, place: str) -> str:
        directory = self._directory / place
        directory.mkdir(parents=True, exist_ok=True)
        return str(directory)

    def _download_added(self, before: Digest, now: Digest, target: Path) -> None:
        changes = self._trees.difference(before, now)
        self._trees.download_entries(
            (c.after for c in changes if c.kind is ChangeKind.ADDED and c.after), target
        )


def _by_mode(current: str, added: str, previous: str) -> dict[str, str]:
    return {
        ReadMode.CURRENT.value: current,
        ReadMode.ADDED.value: added,
        ReadMode.PREVIOUS.value: previous,
    }
