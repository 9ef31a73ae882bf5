"""Stores with a history: millions of valid rows, as publications through the door leave them.

Histories of many datasets grow in parallel, each on a root and three children that fork from it
at different depths; one history is far longer than the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import isqrt
from typing import Protocol

from headgate.model.ancestry import Step, next_step_pointers
from headgate.model.ids import BranchId, DatasetId, Instant, TransactionId
from headgate.model.nouns import DatasetKind, PublicationKind, TransactionState, TransactionType

NAMESPACE = "bench"
ROOT = "master"
ACTOR = "bench"
DEEP = "deep"

# Number of branches that one publication moves; most move one.
_GROUPS = (1, 1, 2, 1, 5, 1, 20)
_CHILDREN = 3
_LEAST_DATASETS = 100
_BATCH_ROWS = 20_000
_TICK_US = 1_000
# Plain text: drivers are slow for every type that is not exactly `str`.
_FILES = DatasetKind.FILES.value
_COMMITTED = TransactionState.COMMITTED.value
_FIRST = TransactionType.SNAPSHOT.value
_LATER = TransactionType.UPDATE.value

Row = tuple[object, ...]

COLUMNS = {
    "namespaces": ("name", "properties"),
    "datasets": ("id", "namespace", "name", "kind", "owned", "created_at"),
    "branches": ("id", "dataset_id", "name", "parent_id", "head_id", "view_id", "created_at"),
    "versions": ("id", "dataset_id", "location", "content_id", "created_at"),
    "transactions": (
        *("id", "dataset_id", "branch_id", "branch_name", "parent_id", "depth", "jump_id"),
        *("type", "state", "version_id", "actor", "opened_at", "closed_at", "publication"),
        *("adoptable", "provenance"),
    ),
    "publications": ("number", "at", "actor", "kind", "operation_id"),
    "moves": (
        *("publication", "ordinal", "dataset_id", "branch_id", "branch_name"),
        *("from_id", "to_id", "change"),
    ),
}


class Sink(Protocol):
    """Destination of rows, in batches; tables come in the order of their references."""

    def add(self, table: str, rows: Sequence[Row]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Filled:
    """Facts about a filled store that the benchmarks need."""

    transactions: int
    publications: int
    branches: int
    last_at: Instant
    # Names of all datasets, the deep one first.
    datasets: tuple[str, ...]
    # An old transaction of the deep dataset that no skip pointer reaches directly.
    old: TransactionId


@dataclass(kw_only=True, slots=True)
class _Line:
    """A growing branch: `path` has the transactions of its history, by depth."""

    dataset: DatasetId
    branch: BranchId
    name: str
    parent: BranchId | None
    created_at: Instant
    left: int
    pace: int
    forks: list[int]
    child_length: int
    path: list[TransactionId]

    @property
    def view(self) -> TransactionId | None:
        return self.path[-1] if self.path else None


def fill(sink: Sink, transactions: int, *, trees: Sequence[str], until: Instant) -> Filled:
    """Send the rows of a store with this many transactions, at least 10, all before `until`."""
    return _Filling(sink, transactions, trees, until).run()


class _Filling:
    def __init__(self, sink: Sink, transactions: int, trees: Sequence[str], until: Instant) -> None:
        self._sink = sink
        self._rows: dict[str, list[Row]] = defaultdict(list)
        self._lengths = _lengths(transactions)
        self._jumps = _jump_depths(max(self._lengths))
        self._trees = cycle(trees)
        self._until = until
        # Upper bound: one for each transaction, one for each branch.
        self._most_publications = transactions + len(self._lengths) * (1 + _CHILDREN)
        self._publications = 0
        self._now = Instant(0)
        self._transactions = 0
        self._lines: list[_Line] = []

    def run(self) -> Filled:
        self._rows["namespaces"].append((NAMESPACE, "{}"))
        names = [DEEP, *(f"d{number:05d}" for number in range(1, len(self._lengths)))]
        for name, length in zip(names, self._lengths, strict=True):
            self._create_dataset(name, length)
        while active := [line for line in self._lines if line.left]:
            self._grow_all(active)
        self._rows["branches"] = [
            (b.branch, b.dataset, b.name, b.parent, b.view, b.view, b.created_at)
            for b in self._lines
        ]
        self._flush()
        deep = self._lines[0].path
        return Filled(
            transactions=self._transactions,
            publications=self._publications,
            branches=len(self._lines),
            last_at=self._now,
            datasets=tuple(names),
            old=deep[len(deep) // 3],
        )

    def _grow_all(self, lines: Sequence[_Line]) -> None:
        """Grow every line by its pace, in one round; lines with a higher pace commit alone."""
        for group in _grouped([line for line in lines if line.pace == 1]):
            self._commit(group)
        for line in lines:
            for _ in range(min(line.pace, line.left) if line.pace > 1 else 0):
                self._commit([line])

    def _create_dataset(self, name: str, length: int) -> None:
        id = DatasetId(_id("d", len(self._lines)))
        number = self._publish(PublicationKind.CREATE)
        self._rows["datasets"].append((id, NAMESPACE, name, _FILES, 1, self._now))
        child = length // 10
        own = length - _CHILDREN * child
        line = _Line(
            dataset=id,
            branch=BranchId(_id("b", len(self._lines))),
            name=ROOT,
            parent=None,
            created_at=self._now,
            left=own,
            pace=max(1, own // max(1, self._lengths[-1])),
            forks=[own * part // (_CHILDREN + 1) for part in range(1, _CHILDREN + 1)],
            child_length=child,
            path=[],
        )
        self._lines.append(line)
        self._move(number, 0, line, None, "created")

    def _fork(self, line: _Line) -> None:
        """Create the children that fork at the current depth of the line."""
        for part, depth in enumerate(line.forks):
            if depth != len(line.path) - 1:
                continue
            number = self._publish(PublicationKind.CREATE)
            child = _Line(
                dataset=line.dataset,
                branch=BranchId(_id("b", len(self._lines))),
                name=f"feature-{part + 1}",
                parent=line.branch,
                created_at=self._now,
                left=line.child_length,
                pace=line.pace,
                forks=[],
                child_length=0,
                path=line.path.copy(),
            )
            self._lines.append(child)
            self._move(number, 0, child, None, "created")

    def _commit(self, lines: Sequence[_Line]) -> None:
        number = self._publish(PublicationKind.COMMIT)
        for ordinal, line in enumerate(lines):
            before = line.view
            self._append(line, number)
            self._move(number, ordinal, line, before, "moved")
        for line in lines:
            self._fork(line)

    def _append(self, line: _Line, publication: int) -> None:
        id = TransactionId(_id("t", self._transactions))
        version = _id("v", self._transactions)
        tree = next(self._trees)
        depth = len(line.path)
        jump = self._jumps[depth]
        self._rows["versions"].append((version, line.dataset, tree, tree, self._now))
        self._rows["transactions"].append(
            (
                *(id, line.dataset, line.branch, line.name, line.view, depth),
                line.path[jump] if jump is not None else None,
                _LATER if depth else _FIRST,
                *(_COMMITTED, version, ACTOR, self._now, self._now),
                *(publication, 0, "{}"),
            )
        )
        line.path.append(id)
        line.left -= 1
        self._transactions += 1

    def _publish(self, kind: PublicationKind) -> int:
        if len(self._rows["moves"]) >= _BATCH_ROWS:
            self._flush()
        self._publications += 1
        ahead = self._most_publications - self._publications
        self._now = Instant(self._until - ahead * _TICK_US)
        operation = _id("o", self._publications)
        row = (self._publications, self._now, ACTOR, kind.value, operation)
        self._rows["publications"].append(row)
        return self._publications

    def _move(
        self, number: int, ordinal: int, line: _Line, before: TransactionId | None, change: str
    ) -> None:
        self._rows["moves"].append(
            (number, ordinal, line.dataset, line.branch, line.name, before, line.view, change)
        )

    def _flush(self) -> None:
        for table in COLUMNS:
            if rows := self._rows.pop(table, None):
                self._sink.add(table, rows)


def _lengths(transactions: int) -> list[int]:
    """Return the number of transactions of each dataset: a tenth for the deep one."""
    count = max(_LEAST_DATASETS, isqrt(transactions))
    deep = transactions // 10
    share, more = divmod(transactions - deep, count - 1)
    return [deep, *(share + 1 for _ in range(more)), *(share for _ in range(count - 1 - more))]


def _jump_depths(longest: int) -> list[int | None]:
    """Return the target of the skip pointer at each depth, which is the same in every history."""
    steps: list[Step] = []
    for depth in range(longest):
        parent = steps[-1] if steps else None
        _, jump = next_step_pointers(parent, lambda id: steps[int(id)])
        above = parent.id if parent else None
        steps.append(Step(id=TransactionId(str(depth)), parent=above, depth=depth, jump=jump))
    return [int(step.jump) if step.jump is not None else None for step in steps]


def _grouped(lines: Sequence[_Line]) -> Iterator[list[_Line]]:
    rest, sizes = iter(lines), cycle(_GROUPS)
    while group := list(islice(rest, next(sizes))):
        yield group


def _id(prefix: str, number: int) -> str:
    """Return an id with the length of a minted one that sorts before all minted ones."""
    return f"{prefix}-{number:022d}"
