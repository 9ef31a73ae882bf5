"""One change of many tables of a branch: prepared in a working set, shown by one publication.

A writer that loses the branch to another one prepares again on the new view, and after the second
conflict takes a ticket; see `docs/adr/0030-re-preparing.md`. A writer that finds an OPEN
transaction on the branch takes a ticket too, and waits for its end. `prepare` needs no catalog: a
server calls it in another process, see `evaluator_pool`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from headgate import errors
from headgate.attempts import Heartbeat
from headgate.catalog.database import (
    Connection,
    Database,
    Suspended,
    backoff_seconds,
    kept_in_place,
)
from headgate.catalog.datasets import create_dataset_in
from headgate.catalog.operations import begin_operation, do_once, forget_operation, renew_operation
from headgate.catalog.publish import publish_prepared
from headgate.catalog.records import find_datasets, is_waited_for, load_transactions
from headgate.catalog.tickets import RENEW_SECONDS, Line
from headgate.catalog.transactions import add_on_branch
from headgate.model import rules
from headgate.model.changes import Caller, Change, Provenance, PublishRequest, ReadView, Receipt
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import BranchId, TransactionId, mint_content, mint_operation, mint_version
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import DatasetKind, PublicationKind, TransactionType, Version
from headgate.rows.branch_tables import (
    BranchTable,
    BranchTables,
    branch_context,
    check_unprotected,
    reads_of,
)
from headgate.rows.outcome import Counts, Outcome, Parts, Request
from headgate.rows.validate import PlaceOf, check_constraints, no_place
from headgate.rows.working_set import TableEffect, VersionMove, WorkingSet, effect_of, stage
from headgate.storage.address import key_below
from headgate.tables.schemas import type_text

MIN_ATTEMPTS = 5
CONFLICTS_BEFORE_TICKET = 2

# The columns of a table that the write created, with their types.
_CREATED = "created"


@dataclass(frozen=True, kw_only=True)
class TableWrite:
    """A verb's change of the working set, and the rules for its conflicts."""

    verb: str
    targets: Sequence[DatasetName]
    change: Callable[[WorkingSet], None]
    # Updates and deletes: they are prepared again only while they remove the same rows.
    guards_rows: bool = False
    # Adds the place of the row to a violation.
    place_of: PlaceOf = no_place
    # Replaces the validator's own error.
    check: Callable[[WorkingSet, Sequence[TableEffect]], None] | None = None
    kind: PublicationKind = PublicationKind.COMMIT
    # Prepare and check only.
    dry_run: bool = False

    def prepare(self, parts: Parts, tables: BranchTables, removed: Removed | None) -> Prepared:
        """Prepare the change in this process."""
        with WorkingSet(tables, parts.versions, parts.options) as working:
            return prepare(self, working, removed)


# Fingerprints of the rows that a write removes, by table.
Removed: TypeAlias = tuple[tuple[str, tuple[int, int]], ...]


class Write(Protocol):
    """A change of tables, prepared in this process or in another."""

    @property
    def verb(self) -> str: ...
    @property
    def targets(self) -> Sequence[DatasetName]: ...
    @property
    def kind(self) -> PublicationKind: ...
    @property
    def dry_run(self) -> bool: ...
    def prepare(self, parts: Parts, tables: BranchTables, removed: Removed | None) -> Prepared:
        """Return the change, ready to be published; raise `OtherRows` if it removes other rows."""
        ...


class OtherRows(Exception):
    """A write, prepared again, would remove other rows than the first time."""


@dataclass(frozen=True, kw_only=True)
class PreparedTable:
    """The next version of a table, which no branch shows yet."""

    dataset: DatasetName
    # None where the write is only tried.
    version: Version | None
    type: TransactionType
    counts: Counts
    # The write left no key of the table twice, whatever was there before.
    keys_hold: bool = False
    # The columns of a table that the write creates, with their types.
    created: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A change that is ready to be published."""

    tables: tuple[PreparedTable, ...]
    # Every table that was read.
    read: tuple[DatasetName, ...]
    removed: Removed | None = None
    moves: tuple[VersionMove, ...] = ()
    # Views of other branches that were read.
    reads: tuple[ReadView, ...] = ()

    @property
    def counts(self) -> dict[str, Counts]:
        counts = {str(table.dataset): table.counts for table in self.tables}
        return counts | {str(move.on_branch.dataset.name): move.counts for move in self.moves}


def prepare(write: TableWrite, working: WorkingSet, removed: Removed | None) -> Prepared:
    """Change the working set, check it, and write the next version of each changed table.

    `removed` are the fingerprints of the first attempt.
    """
    write.change(working)
    found = [effect_of(table) for table in working.written]
    effects = [one for one in found if one.counts or one.table.pointer or one.table.final]
    removes: Removed | None = None
    if write.guards_rows:
        removes = tuple((str(one.table.name), one.fingerprint()) for one in effects)
        if removed not in (None, removes):
            raise OtherRows
    if write.check is not None:
        write.check(working, effects)
    else:
        check_constraints(working, effects, write.place_of)
    if not write.dry_run:
        reach(Failpoint.MUTATION_PREPARED)
    tables = tuple(_prepared(working, effect, dry_run=write.dry_run) for effect in effects)
    if not write.dry_run:
        reach(Failpoint.MUTATION_STAGED)
    return Prepared(
        tables=tables, read=tuple(working.tables), removed=removes, moves=tuple(working.moves)
    )


def _prepared(working: WorkingSet, effect: TableEffect, *, dry_run: bool) -> PreparedTable:
    table = effect.table
    # A merge may bring another key, by which the rows that stay were not checked.
    same_key = table.pointer is None and (table.final is None or table.is_new)
    # Rows of other tables may refer to those that a flagged table does not have any more.
    is_empty = table.is_empty and not rules.is_flagged(provenance_of(table.on_branch))
    return PreparedTable(
        dataset=table.name,
        version=None if dry_run else stage(working.versions, effect),
        type=effect.type,
        counts=effect.counts,
        keys_hold=same_key and (table.is_replaced or is_empty or keys_hold(table.on_branch)),
        created={n: type_text(kind) for n, kind in table.types.items()} if table.is_new else {},
        facts=table.facts,
    )


def write_tables(parts: Parts, request: Request, write: Write) -> Outcome:
    """Write once for each operation key: one publication, or none if nothing changes."""
    check_may_write(parts, request, write.targets)
    if write.dry_run:
        return _Writer(parts, request, write, _progress(parts, request)).preview()
    with kept_in_place(lambda: _progress(parts, request)) as progress:
        return run_once(parts, request, _Writer(parts, request, write, progress).run)


def check_may_write(parts: Parts, request: Request, targets: Iterable[DatasetName] = ()) -> None:
    """Raise for a protected branch before any work is done for it."""
    check_unprotected(
        parts.database,
        branch_context(request.branch).branch,
        targets,
        may_write_protected=request.caller.may_write_protected,
    )


def run_once(parts: Parts, request: Request, act: Callable[[], tuple[Receipt, Outcome]]) -> Outcome:
    """Run the act, or return the recorded outcome of the request's operation key."""
    done: list[Outcome] = []

    def once() -> Receipt:
        with _operation_in_progress(parts, request):
            receipt, outcome = act()
        done.append(outcome)
        return receipt

    receipt = do_once(parts.database, request.operation, once)
    return done[0] if done and not receipt.replayed else _recorded_outcome(parts, receipt)


@contextmanager
def _operation_in_progress(parts: Parts, request: Request) -> Iterator[None]:
    """Report the operation key as in progress to other callers."""
    key = request.operation
    if key is None:
        yield
        return
    parts.database.write(lambda c: begin_operation(c, mint_operation(), key))
    try:
        with Heartbeat(lambda: parts.database.write(lambda c: renew_operation(c, key))):
            yield
    except Suspended:
        # Still in progress: the line of the writer renews the record.
        raise
    except BaseException:
        parts.database.write(lambda c: forget_operation(c, key))
        raise


def _recorded_outcome(parts: Parts, receipt: Receipt) -> Outcome:
    """Return the outcome of a finished operation, from the transactions that it created."""
    ids = [TransactionId(id) for id in receipt.transactions.values() if id is not None]

    def read(connection: Connection) -> dict[str, Mapping[str, Any]]:
        return {
            str(one.dataset): one.provenance[rules.MUTATION_FACT]
            for one in load_transactions(connection, ids).values()
            if rules.MUTATION_FACT in one.provenance
        }

    facts = parts.database.read(read)
    return Outcome(
        operation=receipt.operation,
        publication=receipt.publication,
        counts={name: Counts(**each["counts"]) for name, each in facts.items()},
        created={name: each[_CREATED] for name, each in facts.items() if _CREATED in each},
        replayed=True,
    )


@dataclass(kw_only=True)
class _Progress:
    """State of a write, kept from one attempt to the next."""

    line: Line
    losses: int = 0
    conflict: errors.ViewConflict | None = None
    # The OPEN transaction that the last attempt found on the branch.
    holder: TransactionId | None = None
    # Fingerprints of the rows that the first attempt removes.
    removed: Removed | None = None
    # Other branches that the last attempt read: its successor waits for their writers too.
    read: Sequence[BranchId] = ()

    def leave(self) -> None:
        self.line.leave()


def _progress(parts: Parts, request: Request) -> _Progress:
    line = Line(parts.database, seconds=request.timeout_seconds, operation=request.operation)
    return _Progress(line=line)


@dataclass(frozen=True)
class _Writer:
    """One write, attempted until it is published."""

    parts: Parts
    request: Request
    write: Write
    progress: _Progress

    def preview(self) -> Outcome:
        tables = self._read()
        check_heads(tables, self.request)
        counts = self._prepare(tables).counts
        return Outcome(operation=mint_operation(), publication=None, counts=counts)

    def run(self) -> tuple[Receipt, Outcome]:
        """Attempt until the write is published, or until the request's time is over."""
        while True:
            self.request.interrupt.check()
            tables = self._queue()
            try:
                return self._attempt(tables)
            except HeadMismatch:
                raise
            except (
                errors.ViewConflict,
                errors.BranchExists,
                errors.DatasetExists,
                errors.OpenTransactionAlreadyExists,
            ) as conflict:
                self._check_time_left(conflict)

    def _check_time_left(self, conflict: errors.HeadgateError) -> None:
        """Count the conflict; raise it where no attempt is left."""
        progress = self.progress
        progress.losses += 1
        if isinstance(conflict, errors.DatasetExists):
            name = parse_dataset_name(conflict.facts["dataset"])
            if not self.parts.database.read(lambda c: find_datasets(c, [name])):
                # It is hidden from the caller: another attempt would not find it either.
                raise conflict
        is_over = time.monotonic() >= progress.line.deadline
        is_view = isinstance(conflict, errors.ViewConflict)
        if self.request.timeout_seconds <= 0 or (
            is_over and (progress.losses >= MIN_ATTEMPTS or not is_view)
        ):
            raise conflict
        if isinstance(conflict, errors.ViewConflict):
            progress.conflict = conflict
        elif isinstance(conflict, errors.OpenTransactionAlreadyExists):
            progress.holder = TransactionId(conflict.facts["transaction"])
        else:
            time.sleep(backoff_seconds(progress.losses))

    def _queue(self) -> BranchTables:
        """Wait with a ticket after the second conflict, or at once where other writers wait."""
        line, holder, tables = self.progress.line, self.progress.holder, self._read()
        if line.ticket is None and self.request.timeout_seconds > 0:
            found = [tables.find(name) for name in self.write.targets]
            branches = [one.branch.id for one in found if one is not None and one.branch]
            branches += self.progress.read
            waits = (
                holder is not None
                or self.progress.losses >= CONFLICTS_BEFORE_TICKET
                or self.parts.database.read(lambda c: is_waited_for(c, branches))
            )
            if branches and waits:
                line.join(branches)
        line.wait(holder)
        self.progress.holder = None
        return self._read() if line.ticket or holder else tables

    def _attempt(self, tables: BranchTables) -> tuple[Receipt, Outcome]:
        line = self.progress.line
        check_heads(tables, self.request)
        # Those behind must not overtake an attempt that takes longer than a lease.
        renewal = Heartbeat(line.renew, seconds=RENEW_SECONDS) if line.ticket else nullcontext()
        with renewal:
            prepared = self._prepare(tables)
            receipt = self._publish(tables, prepared)
        return receipt, Outcome(
            operation=receipt.operation,
            publication=receipt.publication,
            counts=prepared.counts,
            created={str(one.dataset): one.created for one in prepared.tables if one.created},
            losses=self.progress.losses,
        )

    def _read(self) -> BranchTables:
        tables = BranchTables(self.parts.database, branch_context(self.request.branch))
        tables.prefetch([*self.write.targets, *self.request.if_heads])
        return tables

    def _prepare(self, tables: BranchTables) -> Prepared:
        try:
            expected = self.progress.removed if self.progress.conflict is not None else None
            prepared = self.write.prepare(self.parts, tables, expected)
        except OtherRows as error:
            assert self.progress.conflict is not None, "checked above"
            raise errors.RowsChanged(
                mismatch=self.progress.conflict.facts["manifest_conflict"],
                conflicts=self.progress.conflict.facts["conflicts"],
            ) from error
        self.progress.removed = prepared.removed
        self.progress.read = [read.branch for read in prepared.reads]
        return prepared

    def _publish(self, tables: BranchTables, prepared: Prepared) -> Receipt:
        changes: list[Change] = []
        written: list[BranchTable] = []
        for one in prepared.tables:
            on_branch = tables.load(one.dataset)
            created = {_CREATED: dict(one.created)} if one.created else {}
            facts = mutation_facts(self.write.verb, one.counts, keys_hold=one.keys_hold, **created)
            facts |= one.facts
            written.append(on_branch)
            changes += add_version(
                tables, on_branch, version=one.version, type=one.type, facts=facts
            )
        for move in prepared.moves:
            written.append(move.on_branch)
            changes += add_version(
                tables,
                move.on_branch,
                version=move.version,
                type=move.type,
                facts={**mutation_facts(self.write.verb, move.counts), **move.facts},
                objects=move.objects,
            )
        moved = {one.branch.id for one in written if one.branch is not None}
        reads = reads_of(map(tables.find, prepared.read), moved)
        reads += tuple(read for read in prepared.reads if read.branch not in moved)
        checked = moved | {read.branch for read in reads}
        request = PublishRequest(
            caller=self.request.caller,
            kind=self.write.kind,
            changes=tuple(changes),
            reads=(*reads, *head_reads(tables, self.request, checked)),
            operation=self.request.operation,
        )
        return self.progress.line.publish(request, partial(_publish_creating, written))


def _publish_creating(
    written: Sequence[BranchTable],
    database: Database,
    prepare: Callable[[Connection], PublishRequest],
) -> Receipt:
    """Publish, and create the datasets of new tables in the same unit of work."""

    def create_and_prepare(connection: Connection) -> PublishRequest:
        request = prepare(connection)
        for table in written:
            create_if_new(connection, table, caller=request.caller)
        return request

    return publish_prepared(database, create_and_prepare)


def create_if_new(connection: Connection, table: BranchTable, *, caller: Caller) -> None:
    """Create the dataset of a new table; raise if another writer has created it since."""
    if table.is_new:
        create_dataset_in(
            connection,
            table.dataset.name,
            kind=DatasetKind.TABLE,
            branch=None,
            caller=caller,
            id=table.dataset.id,
        )


class HeadMismatch(errors.ViewConflict):
    """The caller's own condition does not hold: another attempt would only hide it."""


def check_heads(branch_tables: BranchTables, request: Request) -> None:
    """Raise where the branch does not show the views that the caller has seen."""
    views = {name: _view_of(branch_tables, name) for name in request.if_heads}
    wrong = [
        errors.Mismatch(
            dataset=str(name),
            branch=branch_tables.context.branch,
            field="view",
            expected=expected,
            actual=views[name],
        )
        for name, expected in request.if_heads.items()
        if views[name] != expected
    ]
    if wrong:
        raise HeadMismatch(wrong)


def head_reads(
    branch_tables: BranchTables, request: Request, besides: Collection[BranchId]
) -> tuple[ReadView, ...]:
    """Return the views that the caller has seen of tables that are not written."""
    found = [branch_tables.find(name) for name in request.if_heads]
    branches = [table.branch for table in found if table and table.branch]
    return tuple(ReadView(branch=b.id, view=b.view) for b in branches if b.id not in besides)


def _view_of(branch_tables: BranchTables, name: DatasetName) -> TransactionId | None:
    table = branch_tables.find(name)
    return table.branch.view if table and table.branch else None


# The versions that a branch may come to show, apart from new ones, by dataset and location.
Known: TypeAlias = Mapping[tuple[DatasetName, str], Version | None]


def version_of(
    parts: Parts, table: BranchTable, location: str, known: Known = MappingProxyType({})
) -> Version | None:
    """Return the version at a location that an evaluator names."""
    key = table.dataset.name, location
    if key in known:
        return known[key]
    directory = parts.versions.table_location(table.dataset.id)
    if key_below(directory, location) is None:
        raise errors.StorageUnavailable(where=location, reason=f"it is not below {directory}")
    return Version(id=mint_version(), location=location, content_id=mint_content())


# The changes that a publication makes: a transaction on the branch, which is created if missing.


def mutation_facts(
    verb: str, counts: Counts, *, keys_hold: bool = False, **more: Any
) -> dict[str, Any]:
    """Return the provenance of a transaction: its verb and its counts."""
    hold = {rules.KEYS_HOLD: True} if keys_hold else {}
    return {rules.MUTATION_FACT: {"verb": verb, "counts": counts.to_json(), **more, **hold}}


def keys_hold(on_branch: BranchTable) -> bool:
    """Return whether every writer of the table up to now validated its rows."""
    return rules.rows_hold(provenance_of(on_branch))


def facts_on(on_branch: BranchTable, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of the table's next transaction, with what it inherits about its rows."""
    return rules.inherited_facts(provenance_of(on_branch), facts)


def provenance_of(on_branch: BranchTable) -> Mapping[str, Any]:
    """Return the provenance of the transaction that the branch shows."""
    return on_branch.shown.provenance if on_branch.shown is not None else {}


def add_version(
    branch_tables: BranchTables,
    on_branch: BranchTable,
    *,
    version: Version | None,
    type: TransactionType,
    facts: Mapping[str, Any],
    objects: frozenset[str] = frozenset(),
) -> list[Change]:
    """Return a transaction on the context's own branch, created off the first fallback."""
    return add_on_branch(
        branch_tables.context.branch,
        on_branch.dataset.id,
        branch=on_branch.branch,
        source=on_branch.source,
        type=TransactionType.SNAPSHOT if on_branch.renamed_from else type,
        version=version,
        objects=objects,
        provenance=Provenance(facts=facts_on(on_branch, facts) if version else facts),
        renamed_from=on_branch.renamed_from,
    )
