"""`load --engine spark`: the same outcome as Arrow's, by Spark, in a unit of transactions.

The unit holds the tables that are written, so nobody takes them away meanwhile. Lost is only what
validation looked at: then the rows that are staged are validated again, and not loaded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.attempts import CommitOptions, Contents, Pulse, commit_transactions
from headgate.catalog.database import Connection
from headgate.catalog.operations import do_once
from headgate.catalog.records import load_transactions
from headgate.catalog.tickets import Ticket, release_ticket, take_ticket, wait_for_turn
from headgate.catalog.units import Unit, abort_unit_if_open, open_in_unit, open_unit, renew_unit
from headgate.errors import (
    HeadgateError,
    Invalid,
    InvalidSource,
    OpenTransactionAlreadyExists,
    ViewConflict,
)
from headgate.model.changes import Provenance, ReadView, Receipt
from headgate.model.constraints import Constraints, Violation
from headgate.model.failpoints import Failpoint, reach
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import Transaction
from headgate.rows.branch_tables import Ground, Standing, branch_context
from headgate.rows.load import LoadMode, check_merge_key
from headgate.rows.load_spark_files import Given, Places, SparkFile, as_files, refuse_misfits
from headgate.rows.outcome import Counts, Outcome, Parts, Request
from headgate.rows.sources import Place
from headgate.rows.validate import refuse
from headgate.rows.write import (
    LOSSES_BEFORE_TICKET,
    TRIES_AT_LEAST,
    check_heads,
    check_may_write,
    fact,
    keys_hold,
    noted,
    reads_of_heads,
    recall,
)
from headgate.tables.arrow import plain
from headgate.tables.constraints import constraints_of, referring_datasets
from headgate.tables.inspect import columns_of, current_snapshot, recorded_size_bytes
from headgate.tables.scan import TableScan
from headgate.tables.shape import Metadata
from headgate.tables.versions import StoredVersion

if TYPE_CHECKING:
    from headgate.spark.load import Found, Judged, LoadCheck
    from headgate.spark.load_files import SparkLoad


# One table's part in a load by Spark: its files staged, its rows counted.

# What MERGE INTO writes of itself into the snapshot that it makes.
_MERGED = "spark.merge-into.num-target-rows-"


@dataclass(frozen=True, kw_only=True)
class TableLoad:
    """What is to be loaded into one table, and what holds for it."""

    name: DatasetName
    load: SparkLoad
    files: Sequence[SparkFile]
    mode: LoadMode
    demands: Constraints
    required: Sequence[str]
    schema: pa.Schema
    # The Iceberg snapshot that it shows; None for a table that never had a row.
    snapshot: int | None
    # Whether no key of it is there twice, as far as is known.
    keys_hold: bool


@dataclass(frozen=True, kw_only=True)
class StagedRows:
    """The rows that a load brought to a table, as Spark reads them."""

    table: TableLoad
    # Frames, one for each set of columns.
    rows: Sequence[Any]
    # How many an overwrite took away.
    deleted: int = 0


def table_load(
    parts: Parts, ground: Ground, name: DatasetName, files: Sequence[SparkFile], mode: LoadMode
) -> TableLoad:
    """What there is to know of a table before anything is staged."""
    from headgate.spark.load_files import SparkLoad  # noqa: PLC0415  (slow: Spark)

    standing = ground.load(name)
    version = version_of(parts, standing)
    demands = constraints_of(version.metadata)
    snapshot = current_snapshot(version.metadata)
    return TableLoad(
        name=name,
        load=SparkLoad(
            table=sql_name(name),
            dataset=str(name),
            files=[(str(file.path), file.format) for file in files],
            key=demands.key,
            defaults=demands.defaults,
            share=_share(files, version.metadata),
        ),
        files=files,
        mode=mode,
        demands=demands,
        required=[column.name for column in columns_of(version.metadata) if column.required],
        schema=TableScan(version, parts.options).schema,
        snapshot=int(snapshot["snapshot-id"]) if snapshot else None,
        keys_hold=snapshot is None or mode is LoadMode.OVERWRITE or keys_hold(standing),
    )


def stage_by_spark(session: Any, table: TableLoad) -> StagedRows:
    """Writes the rows into the table's working version; Spark fails on those that do not fit."""
    from headgate.spark import load as spark  # noqa: PLC0415  (slow: Spark)
    from headgate.spark.load_files import read_rows  # noqa: PLC0415  (slow: Spark)

    load, deleted = table.load, 0
    rows = read_rows(session, load)
    match table.mode:
        case LoadMode.APPEND:
            spark.append_rows(session, load, rows)
        case LoadMode.OVERWRITE:
            deleted = session.table(load.table).count()
            spark.overwrite_rows(session, load, rows)
        case LoadMode.MERGE:
            for frame in rows:
                check_merge_key(table.name, load.key, frame.columns)
            for at, frame in enumerate(rows):
                spark.merge_rows(session, load, at, frame)
    return StagedRows(table=table, rows=rows, deleted=deleted)


def counts_of(
    parts: Parts, session: Any, standing: Standing, working: Transaction, staged: StagedRows
) -> Counts:
    """How many rows came and went, as the snapshots say that Spark made: nothing is read again."""
    if working.version is None or working.version == standing.version:
        return Counts()
    before = version_of(parts, standing).metadata
    after = parts.versions.read(working.version.location).metadata
    known = {snapshot["snapshot-id"] for snapshot in before.get("snapshots") or []}
    made = [
        snapshot.get("summary") or {}
        for snapshot in after.get("snapshots") or []
        if snapshot["snapshot-id"] not in known
    ]
    if staged.table.mode is LoadMode.MERGE:
        inserted = sum(_inserted_by_merge(one) for one in made)
        updated = sum(int(one.get(f"{_MERGED}updated", 0)) for one in made)
        if len(made) > 1 and updated:
            updated = _changed(session, staged.table)
        return Counts(inserted=inserted, updated=updated)
    inserted = sum(int(one.get("added-records", 0)) for one in made)
    return Counts(inserted=inserted, deleted=staged.deleted)


def _inserted_by_merge(summary: Mapping[str, Any]) -> int:
    """A merge that can only add, since it brings nothing but keys, is an append to Spark."""
    if summary.get("operation") == "append":
        return int(summary.get("added-records", 0))
    return int(summary.get(f"{_MERGED}inserted", 0))


def _changed(session: Any, table: TableLoad) -> int:
    """Rows that are not what they were: one that several merges changed counts once."""
    from headgate.spark.load import changed_rows  # noqa: PLC0415  (slow: Spark)

    return 0 if table.snapshot is None else changed_rows(session, table.load, table.snapshot)


def version_of(parts: Parts, standing: Standing) -> StoredVersion:
    assert standing.version is not None
    return parts.versions.read(standing.version.location)


def sql_name(name: DatasetName) -> str:
    parts = ("headgate", *name.namespace, name.name)
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def _share(files: Sequence[SparkFile], metadata: Metadata) -> float:
    """How much comes, in times of what is there."""
    held = recorded_size_bytes(metadata)
    came = sum(file.path.stat().st_size for file in files)
    return came / held if held else 1.0


# Validation of what a load by Spark staged, over the tables as they are then.

# From so much of a table on, it is no more work to look at all of its keys than at those that came.
_ALL_KEYS_FROM_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A column of another table that refers to a table's key."""

    dataset: DatasetName
    column: str


@dataclass(frozen=True, kw_only=True)
class Validated:
    """What validation looked at without writing it, and what it learned."""

    reads: tuple[ReadView, ...]
    # Tables of which no key is there twice.
    keys_hold: frozenset[DatasetName]


class Neighbours:
    """The tables around those that are loaded, each as the branch shows it when it is asked for."""

    def __init__(self, parts: Parts, ground: Ground) -> None:
        self._parts = parts
        self._ground = ground
        self.looked: dict[DatasetName, Standing] = {}

    def keys(self, table: TableLoad) -> dict[str, tuple[DatasetName, str]]:
        """The datasets that a table refers to, each with its key; those gone are left out."""
        found: dict[str, tuple[DatasetName, str]] = {}
        for reference in table.demands.references:
            other = parse_dataset_name(reference.dataset)
            standing = self._find(other)
            if standing is not None:
                [key] = constraints_of(version_of(self._parts, standing).metadata).key
                found[reference.dataset] = (other, key)
        return found

    def referring(self, table: TableLoad) -> list[Neighbour]:
        """Columns of other tables that refer to this one; asked only where rows went."""
        if table.mode is not LoadMode.OVERWRITE:
            return []
        found: list[Neighbour] = []
        metadata = version_of(self._parts, self._ground.load(table.name)).metadata
        for text in referring_datasets(metadata):
            other = parse_dataset_name(text)
            standing = self._find(other)
            if standing is None:
                continue
            held = constraints_of(version_of(self._parts, standing).metadata).references
            found += [
                Neighbour(dataset=other, column=r.column)
                for r in held
                if r.dataset == str(table.name)
            ]
        return found

    def _find(self, name: DatasetName) -> Standing | None:
        standing = self._ground.find(name)
        if standing is None or standing.version is None:
            return None
        self.looked[name] = standing
        return standing


def validate(
    parts: Parts,
    session: Any,
    ground: Ground,
    staged: Mapping[DatasetName, StagedRows],
    judge: Callable[[], None],
) -> Validated:
    """Has the rows judged where a quick look makes them doubtful; tells what it looked at."""
    from headgate.spark.load import is_doubtful, keys_are_doubtful  # noqa: PLC0415  (slow: Spark)

    around = Neighbours(parts, ground)
    checks = {name: _check(around, rows) for name, rows in staged.items()}
    doubled = {
        name
        for name, check in checks.items()
        if check.constraints.key and not check.keys_hold and keys_are_doubtful(session, check)
    }
    if doubled or any(is_doubtful(session, check) for check in checks.values()):
        judge()
    holding = {
        name
        for name, check in checks.items()
        if name not in doubled and (check.looks_at_all_keys or staged[name].table.keys_hold)
    }
    looked = [s.read for name, s in around.looked.items() if name not in staged]
    return Validated(
        reads=tuple(read for read in looked if read is not None), keys_hold=frozenset(holding)
    )


def _check(around: Neighbours, staged: StagedRows) -> LoadCheck:
    from headgate.spark.load import LoadCheck  # noqa: PLC0415  (slow: Spark)

    table = staged.table
    merged = table.mode is LoadMode.MERGE
    return LoadCheck(
        table=table.load.table,
        rows=staged.rows,
        constraints=table.demands,
        merged=merged,
        keys_hold=merged and table.keys_hold,
        looks_at_all_keys=merged and table.load.share >= _ALL_KEYS_FROM_SHARE,
        referred={
            text: (sql_name(other), key) for text, (other, key) in around.keys(table).items()
        },
        referring=tuple((sql_name(n.dataset), n.column) for n in around.referring(table)),
    )


# What a load by Spark says of bad rows: the same as one without Spark, with file and line.
#
# Spark says of a bad row that there is one. Which it is, and which others there are, is found by
# looking again: at the files, by the reader that names misfits, then at pictures of the tables.


def refuse_files(tables: Sequence[TableLoad]) -> None:
    """Raises on files that cannot be read, and on rows that do not fit their table."""
    by_name = {table.name: table for table in tables}
    refuse_misfits({table.name: table.files for table in tables}, lambda name: by_name[name].schema)


def refuse_violations(
    parts: Parts, session: Any, ground: Ground, tables: Sequence[TableLoad]
) -> None:
    """Raises on rows that break what their tables demand; the session shows the branch itself."""
    from headgate.spark.load import find_violations  # noqa: PLC0415  (slow: Spark)

    places = {str(table.name): Places(table.files) for table in tables}
    schemas = _Schemas(parts, ground)

    def told() -> Iterator[Violation]:
        for judged in _judged(parts, session, ground, tables):
            for found in find_violations(judged):
                yield _violation(found, schemas, places)

    refuse(told())


class _Schemas:
    """The Arrow types of columns, by which values are shown."""

    def __init__(self, parts: Parts, ground: Ground) -> None:
        self._parts = parts
        self._ground = ground

    def kind(self, dataset: str, column: str) -> Any:
        standing = self._ground.load(parse_dataset_name(dataset))
        scan = TableScan(version_of(self._parts, standing), self._parts.options)
        return scan.schema.field(column).type


def _violation(found: Found, schemas: _Schemas, places: dict[str, Places]) -> Violation:
    where = places[found.dataset].of(*found.place) if found.place is not None else {}
    return Violation(
        dataset=found.dataset,
        kind=found.kind,
        columns=found.columns,
        values=tuple(
            plain(value, schemas.kind(found.dataset, column))
            for column, value in zip(found.columns, found.values, strict=True)
        ),
        detail={**found.detail, **where},
    )


def _judged(
    parts: Parts, session: Any, ground: Ground, tables: Sequence[TableLoad]
) -> Iterator[Judged]:
    from headgate.spark.load import (  # noqa: PLC0415  (slow: Spark)
        Judged,
        Way,
        picture,
    )

    ways = {
        LoadMode.APPEND: Way.ADD,
        LoadMode.OVERWRITE: Way.REPLACE,
        LoadMode.MERGE: Way.MERGE,
    }
    pictures = {table.name: picture(session, table.load, ways[table.mode]) for table in tables}
    around = Neighbours(parts, ground)

    def rows_of(name: DatasetName) -> Any:
        return pictures[name].rows if name in pictures else session.table(sql_name(name))

    for table in sorted(tables, key=lambda table: table.name):
        yield Judged(
            dataset=str(table.name),
            table=pictures[table.name],
            constraints=table.demands,
            required=table.required,
            referred={
                text: (rows_of(other), key) for text, (other, key) in around.keys(table).items()
            },
            referring=[
                (str(one.dataset), rows_of(one.dataset), one.column)
                for one in around.referring(table)
            ],
        )


Session = Callable[[str], Any]

_LEASE_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class _Loading:
    """One load on its way: what is asked for, with what, and what is open for it."""

    parts: Parts
    request: Request
    given: Given
    mode: LoadMode
    session: Session
    contents: Contents
    unit: Unit
    opened: Mapping[DatasetName, Transaction]
    deadline: float

    def ground(self) -> Ground:
        """The tables as the branch shows them now; those written cannot have moved."""
        ground = Ground(self.parts.database, branch_context(self.request.branch))
        ground.look([*self.given, *self.request.if_heads])
        return ground


def load_by_spark(
    parts: Parts,
    request: Request,
    given: Mapping[DatasetName, Sequence[Place]],
    mode: LoadMode,
    *,
    session: Session,
    contents: Contents,
) -> Outcome:
    """Stages every table in one unit, validates all of it, and publishes it at once."""
    if branch_context(request.branch).fallbacks:
        raise Invalid("Spark loads into a branch; make it first, with `headgate branch create`.")
    check_may_write(parts, request)
    done: dict[str, Outcome] = {}

    def act() -> Receipt:
        with (
            noted(parts, request),
            as_files(given) as files,
            _opened(parts, request, files, mode, session, contents) as loading,
        ):
            receipt, done["outcome"] = _carry_out(loading)
        return receipt

    receipt = do_once(parts.database, request.operation, act)
    if "outcome" in done and not receipt.replayed:
        return done["outcome"]
    return recall(parts, receipt)


@contextmanager
def _opened(
    parts: Parts,
    request: Request,
    given: Given,
    mode: LoadMode,
    session: Session,
    contents: Contents,
) -> Iterator[_Loading]:
    """The tables held open; what was not committed in the end is aborted."""
    deadline = time.monotonic() + request.timeout_seconds
    context = branch_context(request.branch)
    ground = Ground(parts.database, context)
    ground.look([*given, *request.if_heads])
    standings = [ground.load(name) for name in given]
    check_heads(ground, request)
    unit = open_unit(
        parts.database, context.branch, actor=request.actor, lease_seconds=_LEASE_SECONDS
    )
    opened: dict[DatasetName, Transaction] = {}
    try:
        opened = _open(parts, request, unit, standings, deadline)
        with Pulse(partial(renew_unit, parts.database, unit.id)):
            yield _Loading(
                parts=parts,
                request=request,
                given=given,
                mode=mode,
                session=session,
                contents=contents,
                unit=unit,
                opened=opened,
                deadline=deadline,
            )
    finally:
        abort_unit_if_open(parts.database, unit.id, actor=request.actor)


def _open(
    parts: Parts, request: Request, unit: Unit, standings: Sequence[Standing], deadline: float
) -> dict[DatasetName, Transaction]:
    """All transactions, or none: whoever holds one of them open is waited for."""

    def work(connection: Connection) -> dict[DatasetName, Transaction]:
        return {
            s.dataset.name: open_in_unit(
                connection, unit, s.dataset, may_write_protected=request.may_write_protected
            )
            for s in standings
        }

    while True:
        try:
            return parts.database.write(work)
        except OpenTransactionAlreadyExists:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


def _carry_out(loading: _Loading) -> tuple[Receipt, Outcome]:
    ground = loading.ground()
    check_heads(ground, loading.request)
    session = loading.session(f"txn:{loading.unit.id}")
    tables = [
        table_load(loading.parts, ground, name, files, loading.mode)
        for name, files in loading.given.items()
    ]
    with _naming_bad_rows(loading, ground, tables):
        staged = {table.name: stage_by_spark(session, table) for table in tables}
    _refuse_other_encodings(tables, staged)
    counts = _counts(loading, session, ground, staged)
    receipt, losses = _until_passed(loading, session, staged, counts)
    told = {str(name): count for name, count in counts.items() if count}
    return receipt, Outcome(
        operation=receipt.operation,
        publication=receipt.publication,
        counts=told,
        losses=losses,
    )


@contextmanager
def _naming_bad_rows(
    loading: _Loading, ground: Ground, tables: Sequence[TableLoad]
) -> Iterator[None]:
    """Spark fails at the first row that it cannot write; all of them are looked for and named."""
    from headgate.spark.sql import told_once  # noqa: PLC0415  (slow: Spark)

    try:
        with told_once():
            yield
    except HeadgateError:
        # That a file lacks the key is worth saying only of one that can be read.
        refuse_files(tables)
        raise
    except Exception as error:
        refuse_files(tables)
        try:
            _judge(loading, ground, tables)
        except HeadgateError:
            raise
        except Exception as again:
            # What cannot be read for writing cannot be read for judging either.
            error.add_note(f"and while its rows were judged: {again}")
        reason = str(error).split("\n", 1)[0]
        file = tables[0].files[0].file
        raise InvalidSource(file=file, reason=f"Spark: {reason}") from error


def _judge(loading: _Loading, ground: Ground, tables: Sequence[TableLoad]) -> None:
    session = loading.session(loading.request.branch)
    refuse_violations(loading.parts, session, ground, tables)


def _refuse_other_encodings(
    tables: Sequence[TableLoad], staged: Mapping[DatasetName, StagedRows]
) -> None:
    """Spark puts a character in place of bytes that are not UTF-8, and says nothing."""
    from headgate.spark.load_files import holds_replacements  # noqa: PLC0415  (slow: Spark)

    text = [t for t in tables if any(file.format != "parquet" for file in t.files)]
    if any(holds_replacements(staged[table.name].rows) for table in text):
        refuse_files(tables)


def _counts(
    loading: _Loading, session: Any, ground: Ground, staged: Mapping[DatasetName, StagedRows]
) -> dict[DatasetName, Counts]:
    ids = [transaction.id for transaction in loading.opened.values()]
    found = loading.parts.database.read(lambda c: load_transactions(c, ids))
    return {
        name: counts_of(
            loading.parts, session, ground.load(name), found[loading.opened[name].id], rows
        )
        for name, rows in staged.items()
    }


def _until_passed(
    loading: _Loading,
    session: Any,
    staged: Mapping[DatasetName, StagedRows],
    counts: Mapping[DatasetName, Counts],
) -> tuple[Receipt, int]:
    """Validates and commits; validates again where others changed what was looked at."""
    losses, ticket = 0, None
    try:
        while True:
            ground = loading.ground()
            check_heads(ground, loading.request)
            judge = partial(_judge, loading, ground, [rows.table for rows in staged.values()])
            found = validate(loading.parts, session, ground, staged, judge)
            reach(Failpoint.MUTATION_STAGED)
            try:
                return _commit(loading, ground, counts, found), losses
            except ViewConflict:
                losses += 1
                over = time.monotonic() >= loading.deadline and losses >= TRIES_AT_LEAST
                if over or loading.request.timeout_seconds <= 0:
                    raise
            if losses >= LOSSES_BEFORE_TICKET and ticket is None:
                ticket = _queue(loading, found.reads)
    finally:
        if ticket is not None:
            release_ticket(loading.parts.database, ticket)


def _queue(loading: _Loading, looked: Sequence[ReadView]) -> Ticket:
    """A place among those who write the tables that validation looks at."""
    ticket = take_ticket(loading.parts.database, [read.branch for read in looked])
    left = max(0.0, loading.deadline - time.monotonic())
    wait_for_turn(loading.parts.database, ticket, seconds=left)
    return ticket


def _commit(
    loading: _Loading,
    ground: Ground,
    counts: Mapping[DatasetName, Counts],
    found: Validated,
) -> Receipt:
    opened = loading.opened
    ids = [transaction.id for transaction in opened.values()] if any(counts.values()) else []
    facts = {
        opened[name].id: Provenance(
            facts=fact(f"load-{loading.mode}", count, keys_hold=name in found.keys_hold)
        )
        for name, count in counts.items()
    }
    written = [ground.load(name).branch for name in opened]
    looked = {one.branch for one in found.reads} | {branch.id for branch in written if branch}
    return commit_transactions(
        loading.parts.database,
        loading.contents,
        # Without any effect nothing is committed, and the unit ends by being aborted.
        ids,
        CommitOptions(
            actor=loading.request.actor,
            operation=loading.request.operation,
            may_write_protected=loading.request.may_write_protected,
            provenance=facts,
            reads=(*found.reads, *reads_of_heads(ground, loading.request, looked)),
        ),
    )
