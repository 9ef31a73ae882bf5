"""An independent Headgate in memory: the design's rules on plain objects, without its code.

Each operation either takes effect or raises `Refused` with the name of the expected error. Ids are
the real ones, supplied by the caller after the real operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

Files = dict[str, str]


class Refused(Exception):
    """The operation must fail with the error of this name, and change nothing."""


@dataclass(eq=False, repr=False)
class Txn:
    dataset: str
    parent: Txn | None
    type: str
    files: Files
    id: str = "?"
    state: str = "OPEN"
    owner: tuple[str, int] | None = None
    unit: Unit | None = None
    expired: bool = False
    # A SNAPSHOT starts without a tree: only then does a commit stage one first.
    staged: bool = False

    def __repr__(self) -> str:
        return f"{self.type} {self.state} {self.dataset} {self.id}"

    def history(self) -> Iterator[Txn]:
        here: Txn | None = self
        while here is not None:
            yield here
            here = here.parent


@dataclass(eq=False, repr=False)
class Branch:
    dataset: str
    name: str
    # As the user named it; it may be deleted since.
    declared: Branch | None
    head: Txn | None
    view: Txn | None
    # Unit that created the branch, as a root, to write on it.
    made_for: Unit | None = None
    is_gone: bool = False

    def __repr__(self) -> str:
        return f"{self.dataset}@{self.name}"

    @property
    def parent(self) -> Branch | None:
        above = self.declared
        while above is not None and above.is_gone:
            above = above.declared
        return above

    @property
    def files(self) -> Files:
        return self.view.files if self.view else {}

    @property
    def is_open(self) -> bool:
        return self.head is not self.view


@dataclass(eq=False, repr=False)
class Unit:
    branch: str
    id: str = "?"
    state: str = "OPEN"
    members: dict[str, Txn] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.state} {self.branch} {self.id}"


@dataclass(eq=False, repr=False)
class Seen:
    """A member of a read set: a branch and its view."""

    branch: Branch
    view: Txn | None
    real_branch: str
    real_view: str | None

    def __repr__(self) -> str:
        return f"{self.branch!r} at {self.view!r}"


class Reference:
    """All datasets of one imaginary store."""

    def __init__(self) -> None:
        self.branches: dict[str, dict[str, Branch]] = {}
        self.txns: list[Txn] = []
        self.units: list[Unit] = []
        self.tags: dict[tuple[str, str], Txn] = {}
        self.epochs: dict[str, int] = {}
        self.deleted: dict[tuple[str, str], list[Branch]] = {}
        # Kind and moves of every publication, in order.
        self.log: list[tuple[str, set[tuple[Branch, Txn | None, Txn | None]]]] = []

    # --- datasets and branches ----------------------------------------------------------------

    def create_dataset(self, dataset: str) -> None:
        _refuse_if(dataset in self.branches, "DatasetExists")
        self.branches[dataset] = {}
        self.create_root(dataset, "master")

    def create_root(self, dataset: str, name: str) -> None:
        _refuse_if(name in self.branches[dataset], "BranchExists")
        self._new_branch(Branch(dataset, name, None, None, None))

    def create_child(self, dataset: str, name: str, parent: str, at: Txn | None) -> None:
        _refuse_if(name in self.branches[dataset], "BranchExists")
        source = self.find(dataset, parent)
        if at is None:
            is_shared = source.head is None or source.head.owner is None
            head = source.head if is_shared else source.view
            return self._new_branch(Branch(dataset, name, source, head, source.view))
        _refuse_if(at.state != "COMMITTED", "TransactionNotCommitted")
        return self._new_branch(Branch(dataset, name, source, at, at))

    def delete(self, dataset: str, name: str) -> None:
        gone = self.find(dataset, name)
        self._take_out(gone)
        if gone.is_open and gone.head and not self._with_head(gone.head):
            self._end(gone.head)
        self.deleted.setdefault((dataset, name), []).append(gone)
        self._publish("delete", [(gone, gone.view, None)])

    def restore(self, dataset: str, name: str) -> None:
        _refuse_if(name in self.branches[dataset], "RestoreRefused")
        _refuse_if(not self.deleted.get((dataset, name)), "DeletedBranchNotFound")
        back = self.deleted[dataset, name].pop()
        back.head, back.made_for, back.is_gone = back.view, None, False
        self.branches[dataset][name] = back
        self._publish("restore", [(back, None, back.view)])

    def reset(self, dataset: str, name: str, to: Txn) -> None:
        branch = self.find(dataset, name)
        _refuse_if(to.state != "COMMITTED", "TransactionNotCommitted")
        _refuse_if(branch.is_open, "OpenTransactionAlreadyExists")
        if to is branch.view:
            return
        before, branch.head, branch.view = branch.view, to, to
        self._publish("reset", [(branch, before, to)])

    def reparent(self, dataset: str, name: str, under: str | None) -> None:
        branch = self.find(dataset, name)
        parent = self.find(dataset, under) if under is not None else None
        above = parent
        while above is not None:
            _refuse_if(above is branch, "Invalid")
            above = above.parent
        branch.declared = parent

    def tag(self, dataset: str, name: str, at: Txn) -> None:
        _refuse_if(at.dataset != dataset, "NotInHistory")
        _refuse_if(at.state != "COMMITTED", "TransactionNotCommitted")
        _refuse_if((dataset, name) in self.tags, "Exists")
        self.tags[dataset, name] = at

    # --- transactions ---------------------------------------------------------------------------

    def open(
        self, dataset: str, name: str, type: str, *, owner: tuple[str, int] | None = None
    ) -> Txn:
        self._fence(owner)
        branch = self.find(dataset, name)
        self._make_free(branch)
        base = {} if type == "SNAPSHOT" else dict(branch.files)
        txn = Txn(dataset, branch.view, type, base, owner=owner)
        txn.staged = type != "SNAPSHOT" and branch.view is not None
        branch.head = txn
        self.txns.append(txn)
        return txn

    def stage(
        self, txn: Txn, path: str, text: str | None, *, by: tuple[str, int] | None = None
    ) -> None:
        """Write a file into the working tree; None removes it."""
        _refuse_if(txn.state != "OPEN", "TransactionNotOpen")
        _refuse_if(text is None and path not in txn.files, "FileNotInView")
        self._fence(by)
        _refuse_if(txn.owner != by, "AttemptSuperseded")
        txn.files = {p: t for p, t in txn.files.items() if p != path}
        if text is not None:
            txn.files[path] = text
        txn.expired, txn.staged = False, True

    def commit(self, txn: Txn, *, by: tuple[str, int] | None = None) -> None:
        _refuse_if(txn.unit is not None, "Invalid")
        self._fence(by)
        _refuse_if(txn.state != "OPEN", "TransactionNotOpen")
        if not txn.staged:
            self._fence(by)
            _refuse_if(txn.owner != by, "AttemptSuperseded")
            txn.staged, txn.expired = True, False
        _refuse_if(_violates(txn), "TransactionTypeViolated")
        # Any actor may commit what belongs to no attempt.
        _refuse_if(txn.owner not in (None, by), "AttemptSuperseded")
        self._publish("commit", self._close([txn]))

    def abort(self, txn: Txn) -> None:
        _refuse_if(txn.unit is not None, "Invalid")
        _refuse_if(txn.state != "OPEN", "TransactionNotOpen")
        self._end(txn)

    def recover(self) -> list[Txn]:
        """Abort OPEN transactions with an expired lease; in tests it expired long ago."""
        gone = [t for t in self.txns if t.state == "OPEN" and t.expired]
        for txn in gone:
            if txn.state == "OPEN":
                self._end(txn)
        self._drop_roots_of([unit for unit in self.units if unit.state == "ABORTED"])
        return gone

    # --- single writes --------------------------------------------------------------------------

    def add(
        self, seen: Seen, type: str, files: Files, *, kind: str = "commit", reads: list[Seen]
    ) -> Txn:
        """Open and commit in one step, if every view is still as it was read."""
        branch = seen.branch
        if self._exists(branch):
            self._make_free(branch)
        _refuse_if(not all(self._still(look) for look in [seen, *reads]), "ViewConflict")
        txn = Txn(branch.dataset, branch.view, type, dict(files), state="COMMITTED")
        before, branch.head, branch.view = branch.view, txn, txn
        self.txns.append(txn)
        self._publish(kind, [(branch, before, txn)])
        return txn

    # --- units and attempts -----------------------------------------------------------------------

    def open_unit(self, branch: str) -> Unit:
        self.units.append(Unit(branch))
        return self.units[-1]

    def open_in_unit(self, unit: Unit, dataset: str) -> Txn:
        _refuse_if(unit.state != "OPEN", "TransactionNotOpen")
        for member in unit.members.values():
            member.expired = False
        if dataset in unit.members:
            return unit.members[dataset]
        if unit.branch not in self.branches[dataset]:
            self.create_root(dataset, unit.branch)
            self.find(dataset, unit.branch).made_for = unit
        txn = self.open(dataset, unit.branch, "UPDATE")
        txn.unit = unit
        unit.members[dataset] = txn
        return txn

    def commit_unit(self, unit: Unit) -> None:
        _refuse_if(unit.state != "OPEN", "TransactionNotOpen")
        for txn in unit.members.values():
            txn.type = natural_type(txn.parent.files if txn.parent else {}, txn.files)
        moves = self._close(list(unit.members.values()))
        if moves:
            self._publish("commit", moves)
        unit.state = "COMMITTED"

    def abort_unit(self, unit: Unit) -> None:
        _refuse_if(unit.state != "OPEN", "TransactionNotOpen")
        self._lose(unit)
        self._drop_roots_of([unit])

    def dispatch(self, key: str, *, carry: bool) -> tuple[str, int]:
        self.epochs[key] = self.epochs.get(key, 0) + 1
        newest = (key, self.epochs[key])
        for txn in self.txns:
            if txn.state == "OPEN" and txn.owner is not None and txn.owner[0] == key:
                if carry:
                    base = txn.parent.files if txn.parent and txn.type != "SNAPSHOT" else {}
                    txn.owner, txn.files, txn.expired = newest, dict(base), False
                    txn.staged = txn.type != "SNAPSHOT" and txn.parent is not None
                else:
                    self._end(txn)
        return newest

    # --- reads ------------------------------------------------------------------------------------

    def find(self, dataset: str, name: str) -> Branch:
        _refuse_if(name not in self.branches[dataset], "BranchNotFound")
        return self.branches[dataset][name]

    def all_branches(self) -> list[Branch]:
        return [b for named in self.branches.values() for b in named.values()]

    def _exists(self, branch: Branch) -> bool:
        return self.branches[branch.dataset].get(branch.name) is branch

    def _still(self, seen: Seen) -> bool:
        return self._exists(seen.branch) and seen.branch.view is seen.view

    # --- effects ----------------------------------------------------------------------------------

    def _fence(self, owner: tuple[str, int] | None) -> None:
        if owner is not None and self.epochs[owner[0]] != owner[1]:
            raise Refused("AttemptSuperseded")

    def _make_free(self, branch: Branch) -> None:
        if branch.is_open and branch.head is not None:
            _refuse_if(not branch.head.expired, "OpenTransactionAlreadyExists")
            self._end(branch.head)

    def _end(self, txn: Txn) -> None:
        """Abort a transaction, and with it all others of its unit."""
        txn.state = "ABORTED"
        for branch in self._with_head(txn):
            branch.head = txn.parent
        if txn.unit is not None and txn.unit.state == "OPEN":
            self._lose(txn.unit)

    def _lose(self, unit: Unit) -> None:
        unit.state = "ABORTED"
        for txn in unit.members.values():
            if txn.state == "OPEN":
                self._end(txn)

    def _close(self, txns: list[Txn]) -> list[tuple[Branch, Txn | None, Txn | None]]:
        moves: list[tuple[Branch, Txn | None, Txn | None]] = []
        for txn in txns:
            txn.state = "COMMITTED"
            for branch in self._with_head(txn):
                moves.append((branch, branch.view, txn))
                branch.view = txn
        return moves

    def _take_out(self, gone: Branch) -> None:
        del self.branches[gone.dataset][gone.name]
        gone.is_gone = True

    def _drop_roots_of(self, units: list[Unit]) -> None:
        """Delete the branches that an aborted unit created and no writer used."""
        empty = [b for b in self.all_branches() if b.made_for in units and b.head is None]
        for branch in empty:
            self._take_out(branch)
        if empty:
            self._publish("delete", [(branch, None, None) for branch in empty])

    def _with_head(self, txn: Txn) -> list[Branch]:
        return [b for b in self.all_branches() if b.head is txn]

    def _new_branch(self, branch: Branch) -> None:
        self.branches[branch.dataset][branch.name] = branch
        self._publish("create", [(branch, None, branch.view)])

    def _publish(self, kind: str, moves: list[tuple[Branch, Txn | None, Txn | None]]) -> None:
        self.log.append((kind, set(moves)))


def natural_type(before: Files, after: Files) -> str:
    """Return the default type of a change."""
    added = after.keys() - before.keys()
    removed = before.keys() - after.keys()
    changed = {p for p in before.keys() & after.keys() if before[p] != after[p]}
    if added and not removed and not changed:
        return "APPEND"
    if removed and not added and not changed:
        return "DELETE"
    return "UPDATE"


def _violates(txn: Txn) -> bool:
    before = txn.parent.files if txn.parent else {}
    added = bool(txn.files.keys() - before.keys())
    removed = bool(before.keys() - txn.files.keys())
    changed = any(txn.files[p] != before[p] for p in before.keys() & txn.files.keys())
    return {
        "SNAPSHOT": False,
        "APPEND": removed or changed,
        "UPDATE": removed,
        "DELETE": added or changed,
    }[txn.type]


def _refuse_if(condition: bool, error: str) -> None:
    if condition:
        raise Refused(error)
