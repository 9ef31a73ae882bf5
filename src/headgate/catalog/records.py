"""Reads and row locks of datasets, branches, transactions, units and attempts.

`find_` returns None for a missing row, `load_` raises. See ADR 0016.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Executable,
    Row,
    RowMapping,
    Select,
    Table,
    and_,
    bindparam,
    case,
    not_,
    select,
    tuple_,
)
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData

from headgate import errors
from headgate.catalog.schema import (
    attempts,
    branches,
    builds,
    datasets,
    log_counter,
    moves,
    task_keys,
    tickets,
    transactions,
    units,
    versions,
)
from headgate.model import nouns
from headgate.model.ancestry import Step, is_in_history
from headgate.model.ids import (
    BranchId,
    ContentId,
    DatasetId,
    Epoch,
    Instant,
    TransactionId,
    UnitId,
    VersionId,
)
from headgate.model.names import DatasetName, nearest

if TYPE_CHECKING:
    from headgate.model.access import ReadPolicy

# Long lists of ids, in chunks that both databases accept as parameters of one statement.

T = TypeVar("T", bound=str)
N = TypeVar("N", bound=Any)

_SIZE = 500
_ABANDONED_LEASES = 5
# Clocks differ by seconds, and are set back by seconds. More than this is a clock that was wrong.
SKEW_US = 3600 * 1_000_000


def in_chunks(ids: Iterable[T]) -> Iterator[list[T]]:
    """Yield the distinct ids in ascending order, in chunks; nothing if there are none."""
    wanted = sorted(set(ids))
    for start in range(0, len(wanted), _SIZE):
        yield wanted[start : start + _SIZE]


def rows_of(
    connection: Connection,
    query: Select[Any],
    ids: Iterable[str],
    *,
    column: ColumnElement[Any] | None = None,
    **named: object,
) -> Iterator[Any]:
    """Yield the rows of a query for these ids, which it binds as `ids`, or which a column has."""
    if column is not None:
        query = query.where(column.in_(bindparam("ids", expanding=True)))
    for part in in_chunks(ids):
        yield from connection.execute(query, {"ids": part, **named}).all()


def pipelined(connection: Connection) -> AbstractContextManager[None]:
    """Return a block whose statements take one round trip; `rows_after` returns their rows."""
    if connection.dialect.name == "sqlite":
        return nullcontext()
    from headgate.catalog.postgres import pipeline  # noqa: PLC0415 - an optional extra

    return pipeline(connection)


def rows_after(result: Any) -> Iterable[Any]:
    """Return the rows of a query; those of one in a pipelined block can be read after its end."""
    return result.all() if result.returns_rows else _arrived(result.context)


def _arrived(context: Any) -> Iterator[Any]:
    names = SimpleResultMetaData([column.name for column in context.cursor.description])
    yield from IteratorResult(names, context.cursor)


def ask(
    connection: Connection, query: Executable, ids: Iterable[str] | None = None, **named: object
) -> Iterator[Any]:
    """Execute a query, for these ids, at once; in a pipelined block, read the rows after it."""
    parts = [named] if ids is None else [{"ids": part, **named} for part in in_chunks(ids)]
    return chain.from_iterable([rows_after(connection.execute(query, part)) for part in parts])


def mappings_of(
    connection: Connection, query: Select[Any], ids: Iterable[str], **how: Any
) -> Iterator[RowMapping]:
    return (row._mapping for row in rows_of(connection, query, ids, **how))


def abandonment(lease_seconds: ColumnElement[int]) -> ColumnElement[int]:
    """Return the time after its end at which a lease counts as abandoned, in microseconds.

    Five leases: an owner that is only slow renews before that, so recovery and cleanup may act.
    """
    return lease_seconds * (_ABANDONED_LEASES * 1_000_000)


def check_kept(transaction: nouns.Transaction) -> None:
    """Raise if cleanup has condemned the transaction's content."""
    if transaction.condemned:
        raise errors.VersionExpired(what=f"transaction {transaction.id}")


def check_committed(transaction: nouns.Transaction) -> None:
    """Raise unless the transaction is COMMITTED, and its content is kept."""
    if transaction.state is not nouns.TransactionState.COMMITTED:
        raise errors.TransactionNotCommitted(transaction=transaction.id, state=transaction.state)
    check_kept(transaction)


def is_over(until: int | None, seconds: int | None, moment: Instant) -> bool:
    """Return True if a lease has ended, or if a clock that was ahead has granted it.

    A lease that ends much later than one granted now would last until the clock is there again.
    """
    return until is not None and not moment <= until <= _latest(moment, seconds or 0)


def _latest(moment: Instant, seconds: int) -> int:
    return moment + seconds * 1_000_000 + SKEW_US


def is_too_long(table: Table, moment: Instant) -> ColumnElement[bool]:
    """Select rows of a table whose lease a clock that was ahead has granted."""
    return table.c.lease_until > table.c.lease_seconds * 1_000_000 + (moment + SKEW_US)


def is_live(moment: Instant) -> ColumnElement[bool]:
    """Select running attempts that recovery would not abort as abandoned."""
    end = attempts.c.lease_until + abandonment(attempts.c.lease_seconds)
    is_running = attempts.c.state == nouns.AttemptState.RUNNING
    return and_(is_running, end >= moment, not_(is_too_long(attempts, moment)))


# Joins a build with its attempt.
BUILD_ATTEMPT = and_(
    attempts.c.key == builds.c.attempt_key, attempts.c.epoch == builds.c.attempt_epoch
)


def held_by(ref: nouns.AttemptRef) -> ColumnElement[bool]:
    """Select the OPEN transactions of an attempt."""
    return and_(
        transactions.c.state == nouns.TransactionState.OPEN,
        transactions.c.attempt_key == ref.key,
        transactions.c.attempt_epoch == ref.epoch,
    )


def filtered(query: Select[Any], values: Mapping[Column[Any], object]) -> Select[Any]:
    """Return the query for rows with these values of columns; None does not filter."""
    return query.where(*(column == value for column, value in values.items() if value is not None))


def policy_of(connection: Connection) -> ReadPolicy | None:
    """Return the policy that limits what a unit of work reads; None if it reads everything."""
    found: ReadPolicy | None = connection.get_execution_options().get("read_policy")
    return found


def primary_of(connection: Connection) -> str:
    """Return the name of the primary branch, which exists also where no dataset has it yet."""
    return str(connection.get_execution_options()["primary"])


# Conversion of rows to nouns, which the catalog does only here.

_SEPARATOR = "\x1f"
_parents = branches.alias("parents")
# The columns that `dataset_name` reads.
DATASET_NAME = (datasets.c.namespace, datasets.c.name.label("dataset_name"))


def dump(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def load(text: str) -> Any:
    return orjson.loads(text)


def namespace_key(parts: tuple[str, ...]) -> str:
    """Return a namespace as stored: parts joined by the separator of Iceberg's REST API."""
    return _SEPARATOR.join(parts)


def namespace_parts(key: str) -> tuple[str, ...]:
    return tuple(key.split(_SEPARATOR))


def dataset_name(row: RowMapping | Mapping[str, Any]) -> DatasetName:
    return _dataset_name(row["namespace"], row["dataset_name"])


# Cached: every branch and transaction of a plan has one of the same few thousand names.
@lru_cache(maxsize=32_768)
def _dataset_name(namespace: str, name: str) -> DatasetName:
    return DatasetName(namespace=namespace_parts(namespace), name=name)


DATASETS = select(datasets, datasets.c.name.label("dataset_name"))


def noun_of(kind: type[N], row: RowMapping, /, **others: Any) -> N:
    """Return a noun from the columns of a row that have the names of its fields, and `others`."""
    same = {name: row[name] for name in kind.__dataclass_fields__ if name not in others}
    noun: N = kind(**same, **others)
    return noun


def to_dataset(row: RowMapping) -> nouns.Dataset:
    kind, is_owned = nouns.DatasetKind(row["kind"]), bool(row["owned"])
    return noun_of(nouns.Dataset, row, name=dataset_name(row), kind=kind, owned=is_owned)


# With the parent's name, by a left join: a branch is read far more often than written.
BRANCHES: Select[Any] = (
    select(branches, *DATASET_NAME, _parents.c.name.label("parent_name"))
    .join(datasets, datasets.c.id == branches.c.dataset_id)
    .outerjoin(_parents, _parents.c.id == branches.c.parent_id)
)


def to_branch(row: RowMapping) -> nouns.Branch:
    return noun_of(
        nouns.Branch,
        row,
        dataset=dataset_name(row),
        parent=row["parent_name"],
        head=row["head_id"],
        view=row["view_id"],
        remembered_chain=tuple(load(row["remembered_chain"])) if row["remembered_chain"] else (),
    )


TRANSACTIONS: Select[Any] = (
    select(
        transactions,
        *DATASET_NAME,
        versions.c.location,
        versions.c.content_id,
        versions.c.condemned_at,
    )
    .join(datasets, datasets.c.id == transactions.c.dataset_id)
    .outerjoin(versions, versions.c.id == transactions.c.version_id)
)


def to_transaction(row: RowMapping, policy: ReadPolicy | None = None) -> nouns.Transaction:
    facts = load(row["provenance"])
    return noun_of(
        nouns.Transaction,
        row,
        dataset=dataset_name(row),
        branch=row["branch_name"],
        parent=row["parent_id"],
        jump=row["jump_id"],
        type=nouns.TransactionType(row["type"]),
        state=nouns.TransactionState(row["state"]),
        version=_version(row),
        attempt=attempt_ref(row),
        unit=row["unit_id"],
        adoptable=bool(row["adoptable"]),
        condemned=row["condemned_at"] is not None,
        provenance=facts if policy is None else policy.shown_part(facts),
    )


def to_step(id: str, parent_id: str | None, depth: int, jump_id: str | None) -> Step:
    return Step(
        id=TransactionId(id),
        parent=TransactionId(parent_id) if parent_id else None,
        depth=depth,
        jump=TransactionId(jump_id) if jump_id else None,
    )


def attempt_ref(row: RowMapping) -> nouns.AttemptRef | None:
    if row["attempt_key"] is None:
        return None
    return nouns.AttemptRef(key=row["attempt_key"], epoch=Epoch(row["attempt_epoch"]))


def _version(row: RowMapping) -> nouns.Version | None:
    if row["version_id"] is None:
        return None
    return nouns.Version(
        id=VersionId(row["version_id"]),
        location=row["location"],
        content_id=ContentId(row["content_id"]),
    )


# Built once: constructing a statement costs more than executing it.
_DATASET = DATASETS.where(
    datasets.c.namespace == bindparam("the_namespace"), datasets.c.name == bindparam("the_name")
)
_DATASET_BY_ID = DATASETS.where(datasets.c.id == bindparam("the_id"))
_BRANCH = BRANCHES.where(
    branches.c.dataset_id == bindparam("the_dataset"), branches.c.name == bindparam("the_name")
)
_BRANCHES_NAMED = BRANCHES.where(branches.c.name.in_(bindparam("names", expanding=True)))
_BRANCHES_NAMED_OF = _BRANCHES_NAMED.where(
    branches.c.dataset_id.in_(bindparam("ids", expanding=True))
)
_TRANSACTIONS = TRANSACTIONS.where(transactions.c.id.in_(bindparam("ids", expanding=True)))


def find_dataset(connection: Connection, name: DatasetName) -> nouns.Dataset | None:
    policy = policy_of(connection)
    if policy is not None and not policy.shows_dataset(name):
        return None
    wanted = {"the_namespace": namespace_key(name.namespace), "the_name": name.name}
    row = connection.execute(_DATASET, wanted).mappings().one_or_none()
    return to_dataset(row) if row else None


def find_dataset_by_id(connection: Connection, id: DatasetId) -> nouns.Dataset | None:
    row = connection.execute(_DATASET_BY_ID, {"the_id": id}).mappings().one_or_none()
    return to_dataset(row) if row else None


def load_dataset(connection: Connection, name: DatasetName) -> nouns.Dataset:
    dataset = find_dataset(connection, name)
    if dataset is None:
        # A unit of work that writes reads also the rows that a policy hides: it suggests nothing.
        is_limited = connection.get_execution_options().get("limits_rows", True)
        known = [str(one.name) for one in list_datasets(connection)] if is_limited else []
        raise errors.DatasetNotFound(dataset=str(name), near=nearest(str(name), known))
    return dataset


_NAME_COLUMNS = (datasets.c.namespace, datasets.c.name)


def is_behind(after: DatasetName) -> ColumnElement[bool]:
    """Return the condition that a dataset comes after this one in the order of names."""
    # A comparison of rows reads the index from there.
    return tuple_(*_NAME_COLUMNS) > tuple_(namespace_key(after.namespace), after.name)


def list_datasets(
    connection: Connection,
    namespace: tuple[str, ...] | None = None,
    *,
    kind: nouns.DatasetKind | None = None,
    after: DatasetName | None = None,
    limit: int | None = None,
) -> list[nouns.Dataset]:
    """Return datasets in order of name; after a name, if one is given."""
    space = None if namespace is None else namespace_key(namespace)
    wanted = {datasets.c.namespace: space, datasets.c.kind: kind}
    query = filtered(DATASETS.order_by(*_NAME_COLUMNS).limit(limit), wanted)
    if after is not None:
        query = query.where(is_behind(after))
    return [to_dataset(row) for row in connection.execute(query).mappings()]


def find_datasets(
    connection: Connection, names: Iterable[DatasetName]
) -> dict[DatasetName, nouns.Dataset]:
    """Return the datasets that exist under these names, in few queries."""
    wanted = set(names)
    spaces = (namespace_key(name.namespace) for name in wanted)
    rows = mappings_of(connection, DATASETS, spaces, column=datasets.c.namespace)
    return {name: to_dataset(row) for row in rows if (name := dataset_name(row)) in wanted}


def branches_of(connection: Connection, dataset_ids: Sequence[DatasetId]) -> list[nouns.Branch]:
    """Return every branch of these datasets."""
    rows = mappings_of(connection, BRANCHES, dataset_ids, column=branches.c.dataset_id)
    return [to_branch(row) for row in rows]


def find_branch(connection: Connection, dataset: DatasetId, name: str) -> nouns.Branch | None:
    policy = policy_of(connection)
    if policy is not None and not policy.shows_branch(name):
        return None
    wanted = {"the_dataset": dataset, "the_name": name}
    row = connection.execute(_BRANCH, wanted).mappings().one_or_none()
    return to_branch(row) if row else None


def load_branch(connection: Connection, dataset: nouns.Dataset, name: str) -> nouns.Branch:
    branch = find_branch(connection, dataset.id, name)
    if branch is None:
        near = nearest_branch(connection, name, branches_of(connection, [dataset.id]))
        raise errors.BranchNotFound(dataset=str(dataset.name), branch=name, near=near)
    return branch


def nearest_branch(
    connection: Connection, name: str, known: Iterable[nouns.Branch | str]
) -> list[str]:
    """Return the most similar of the names that the caller may read, or nothing."""
    policy = policy_of(connection)
    names = (one if isinstance(one, str) else one.name for one in known)
    return nearest(name, (n for n in names if policy is None or policy.shows_branch(n)))


_TICKET = (
    select(tickets.c.id).where(tickets.c.branch_id.in_(bindparam("ids", expanding=True))).limit(1)
)


def is_waited_for(connection: Connection, branches: Iterable[BranchId]) -> bool:
    """Return True if a writer has a ticket for one of these branches.

    The ticket of a dead writer counts too, until the next writer takes a ticket and deletes it.
    """
    return any(rows_of(connection, _TICKET, branches))


def list_branches(
    connection: Connection,
    dataset: DatasetId | None = None,
    *,
    after: tuple[DatasetName, str] | None = None,
    limit: int | None = None,
) -> list[nouns.Branch]:
    """Return branches in order of dataset and name; after a dataset and name, if given."""
    query = BRANCHES.order_by(*_NAME_COLUMNS, branches.c.name).limit(limit)
    query = filtered(query, {branches.c.dataset_id: dataset})
    if after is not None:
        last = (namespace_key(after[0].namespace), after[0].name)
        # The first condition reads the index from there.
        query = query.where(
            tuple_(*_NAME_COLUMNS) >= tuple_(*last),
            tuple_(*_NAME_COLUMNS, branches.c.name) > tuple_(*last, after[1]),
        )
    return [to_branch(row) for row in connection.execute(query).mappings()]


def branches_named(
    connection: Connection, names: Iterable[str], dataset_ids: Sequence[DatasetId] | None = None
) -> list[nouns.Branch]:
    """Return the branches with these names, of many datasets at once, by default of all."""
    policy = policy_of(connection)
    wanted = [name for name in names if policy is None or policy.shows_branch(name)]
    rows: Iterable[RowMapping] = (
        connection.execute(_BRANCHES_NAMED, {"names": wanted}).mappings()
        if dataset_ids is None
        else mappings_of(connection, _BRANCHES_NAMED_OF, dataset_ids, names=wanted)
    )
    return [to_branch(row) for row in rows]


def shown_branches(connection: Connection, ids: Iterable[str]) -> set[str]:
    """Return those of the branches that exist, and that the caller may read."""
    return {id for (id,) in rows_of(connection, select(branches.c.id), ids, column=branches.c.id)}


def find_transaction(connection: Connection, id: str) -> nouns.Transaction | None:
    found = load_transactions(connection, [TransactionId(id)]).get(TransactionId(id))
    return found if found is not None and _is_shown(connection, found) else None


def _is_shown(connection: Connection, transaction: nouns.Transaction) -> bool:
    """Return whether a caller may read a transaction: on its branch, or in another's history."""
    policy = policy_of(connection)
    if policy is None:
        return True
    if not policy.shows_dataset(transaction.dataset):
        return False
    return policy.shows_branch(transaction.branch) or any(
        policy.shows_branch(branch.name) and is_below(connection, transaction, branch.head)
        for branch in branches_of(connection, [transaction.dataset_id])
    )


def load_transaction(connection: Connection, id: str) -> nouns.Transaction:
    transaction = find_transaction(connection, id)
    if transaction is None:
        raise errors.TransactionNotFound(transaction=id)
    return transaction


def load_transactions(
    connection: Connection, ids: Iterable[TransactionId]
) -> dict[TransactionId, nouns.Transaction]:
    return to_transactions(connection, rows_of(connection, _TRANSACTIONS, ids))


def to_transactions(
    connection: Connection, rows: Iterable[Row[Any]]
) -> dict[TransactionId, nouns.Transaction]:
    policy = policy_of(connection)
    return {TransactionId(row.id): to_transaction(row._mapping, policy) for row in rows}


def is_location_shown(connection: Connection, location: str) -> bool:
    """Return whether a caller may read a transaction whose version has this location."""
    query = (
        select(transactions.c.id)
        .join(versions, versions.c.id == transactions.c.version_id)
        .where(versions.c.location == location)
    )
    found = connection.execute(query).scalars().all()
    return any(find_transaction(connection, id) is not None for id in found)


def is_below(
    connection: Connection, candidate: nouns.Transaction, newest: TransactionId | None
) -> bool:
    """Return whether the candidate is `newest` or one of its ancestors.

    A history belongs to one dataset, so this also checks the dataset.
    """
    if newest is None:
        return False
    steps = Steps(connection)
    steps.prepare_walk(newest, candidate.depth)
    return is_in_history(steps(candidate.id), steps(newest), steps)


_jumps = transactions.alias("jumps")
_far = transactions.alias("far")
_STEP = select(
    transactions.c.id, transactions.c.parent_id, transactions.c.depth, transactions.c.jump_id
)
_STEPS = _STEP.where(transactions.c.id.in_(bindparam("ids", expanding=True)))
# A step with the two steps that determine the skip pointer of its child.
_PARENTS = (
    _STEPS.add_columns(_jumps.c.id, _jumps.c.parent_id, _jumps.c.depth, _jumps.c.jump_id)
    .add_columns(_far.c.id, _far.c.parent_id, _far.c.depth, _far.c.jump_id)
    .outerjoin(_jumps, _jumps.c.id == transactions.c.jump_id)
    .outerjoin(_far, _far.c.id == _jumps.c.jump_id)
)
# The path down to a depth by the rule of skip pointers, with the jumps that the rule compares.
_start = _STEP.where(transactions.c.id == bindparam("the_newest")).cte("walk", recursive=True)
_next = transactions.alias("next")
_deep_enough = _jumps.c.depth >= bindparam("the_depth")
_walk = _start.union_all(
    select(_next.c.id, _next.c.parent_id, _next.c.depth, _next.c.jump_id)
    .join_from(_start, _jumps, _jumps.c.id == _start.c.jump_id)
    .join(_next, _next.c.id == case((_deep_enough, _start.c.jump_id), else_=_start.c.parent_id))
    .where(_start.c.depth > bindparam("the_depth"))
)
_WALK = select(_walk, _jumps.c.id, _jumps.c.parent_id, _jumps.c.depth, _jumps.c.jump_id).outerjoin(
    _jumps, _jumps.c.id == _walk.c.jump_id
)


class Steps:
    """A cached lookup of history steps, which can fetch many at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[TransactionId, Step] = {}
        self._asked: Iterator[Row[Any]] = iter(())

    def __call__(self, id: TransactionId) -> Step:
        self._remember(self._asked)
        if id not in self._known:
            self.fetch([id])
        if id not in self._known:
            raise errors.TransactionNotFound(transaction=id)
        return self._known[id]

    def prepare_parents(self, parents: Iterable[TransactionId | None]) -> None:
        """Fetch the steps that placing children under these parents needs, in one query."""
        self._asked = ask(self._connection, _PARENTS, filter(None, parents))

    def prepare_walk(self, newest: TransactionId, depth: int) -> None:
        """Fetch the steps that a walk from a transaction down to a depth needs, in one query."""
        walk = {"the_newest": newest, "the_depth": depth}
        self._remember(self._connection.execute(_WALK, walk))

    def fetch(self, ids: Iterable[TransactionId]) -> None:
        self._remember(rows_of(self._connection, _STEPS, set(ids) - self._known.keys()))

    def _remember(self, rows: Iterable[Row[Any]]) -> None:
        """Cache the steps of these rows.

        A row has one or more steps of four columns each; an outer join leaves gaps.
        """
        for row in rows:
            for at in range(0, len(row), 4):
                id, parent, depth, jump = row[at : at + 4]
                if id is not None:
                    self._known[id] = to_step(id, parent, depth, jump)


def views_on(
    connection: Connection, names: Iterable[DatasetName], branch: str
) -> dict[DatasetName, nouns.Transaction]:
    """Return the views of these datasets on a branch; datasets without a view are left out."""
    found = find_datasets(connection, names)
    on = branches_named(connection, [branch], [d.id for d in found.values()])
    views = load_transactions(connection, [b.view for b in on if b.view])
    return {b.dataset: views[b.view] for b in on if b.view}


# Row locks, always in this order: attempt, units, branches, transactions, counter; each by id.
# On SQLite the unit of work already holds the write lock, so locking is only reading.

# Built once: constructing a statement costs more than executing it.
_ATTEMPT = select(attempts.c.state, attempts.c.parent_key, attempts.c.parent_epoch).where(
    attempts.c.key == bindparam("the_key"), attempts.c.epoch == bindparam("the_epoch")
)
_TASK_KEY = (
    select(task_keys.c.epoch).where(task_keys.c.key == bindparam("the_key")).with_for_update()
)
BRANCH_LOCKS = (
    select(branches, *DATASET_NAME)
    .join(datasets, datasets.c.id == branches.c.dataset_id)
    .where(branches.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(branches.c.id)
    .with_for_update(of=branches)
)
BRANCHES_WITH_HEAD = select(branches.c.id, branches.c.head_id).where(
    branches.c.head_id.in_(bindparam("ids", expanding=True))
)
TRANSACTION_LOCKS = _TRANSACTIONS.order_by(transactions.c.id).with_for_update(of=transactions)
COUNTER_LOCK = (
    select(log_counter.c.number, log_counter.c.last_at)
    .where(log_counter.c.id == 1)
    .with_for_update()
)


@dataclass(kw_only=True)
class BranchState:
    """A locked branch row, which a unit of work changes in memory."""

    id: BranchId
    dataset_id: DatasetId
    dataset: DatasetName
    name: str
    parent_id: BranchId | None
    head: TransactionId | None
    view: TransactionId | None


@dataclass(frozen=True, kw_only=True)
class Counter:
    number: int
    last_at: Instant


def lock_attempt(connection: Connection, ref: nouns.AttemptRef) -> None:
    """Lock the task key, and raise if the attempt is not its newest or has ended.

    An attempt of a job depends on the attempt of its build, which is locked and checked first.
    """
    attempt = {"the_key": ref.key, "the_epoch": ref.epoch}
    row = connection.execute(_ATTEMPT, attempt).one_or_none()
    if row is not None and row.parent_key is not None:
        lock_attempt(
            connection, nouns.AttemptRef(key=row.parent_key, epoch=Epoch(row.parent_epoch))
        )
    with pipelined(connection):
        newest = ask(connection, _TASK_KEY, the_key=ref.key)
        # Read again under the lock: another process may have ended or superseded the attempt.
        states = ask(connection, _ATTEMPT, the_key=ref.key, the_epoch=ref.epoch)
    is_running = [row.state for row in states] == [nouns.AttemptState.RUNNING]
    if next(newest, None) != (ref.epoch,) or not is_running:
        raise superseded(connection, ref)


def check_newest(connection: Connection, ref: nouns.AttemptRef) -> None:
    """Raise if an attempt, or its build, was superseded or has ended. Takes no lock."""
    row = connection.execute(_ATTEMPT, {"the_key": ref.key, "the_epoch": ref.epoch}).one_or_none()
    if row is None or row.state != nouns.AttemptState.RUNNING:
        raise superseded(connection, ref)
    if row.parent_key is not None:
        check_newest(
            connection, nouns.AttemptRef(key=row.parent_key, epoch=Epoch(row.parent_epoch))
        )


def superseded(connection: Connection, ref: nouns.AttemptRef) -> errors.AttemptSuperseded:
    newest = connection.execute(
        select(task_keys.c.epoch).where(task_keys.c.key == ref.key)
    ).scalar_one_or_none()
    attempt = {"the_key": ref.key, "the_epoch": ref.epoch}
    state = connection.execute(_ATTEMPT, attempt).scalar_one_or_none()
    return errors.AttemptSuperseded(
        key=ref.key, epoch=ref.epoch, newest=newest or 0, state=state or "unknown"
    )


def lock_units(connection: Connection, closing: Iterable[TransactionId]) -> list[UnitId]:
    """Lock the units of these transactions; raise unless each is OPEN and closed as a whole."""
    wanted = set(closing)
    found = connection.execute(
        select(transactions.c.unit_id)
        .where(transactions.c.id.in_(sorted(wanted)), transactions.c.unit_id.is_not(None))
        .distinct()
    ).scalars()
    locked = [UnitId(id) for id in sorted(found)]
    for id in locked:
        lock_open_unit(connection, id)
        members = connection.execute(
            select(transactions.c.id).where(
                transactions.c.unit_id == id, transactions.c.state == nouns.TransactionState.OPEN
            )
        ).scalars()
        left_out = sorted(set(members) - wanted)
        if left_out:
            raise errors.UnitIncomplete(unit=id, left_out=left_out)
    return locked


def lock_open_unit(connection: Connection, id: UnitId) -> None:
    state = connection.execute(
        select(units.c.state).where(units.c.id == id).with_for_update()
    ).scalar_one_or_none()
    if state != nouns.TransactionState.OPEN:
        raise errors.TransactionNotOpen(transaction=id, state=state or "unknown")


def lock_branches(connection: Connection, ids: Iterable[BranchId]) -> dict[BranchId, BranchState]:
    """Lock these branches in the order of their ids; deleted branches are left out."""
    return to_branch_states(rows_of(connection, BRANCH_LOCKS, ids))


def to_branch_states(rows: Iterable[Row[Any]]) -> dict[BranchId, BranchState]:
    return {
        BranchId(row["id"]): noun_of(
            BranchState, row, dataset=dataset_name(row), head=row["head_id"], view=row["view_id"]
        )
        for row in (row._mapping for row in rows)
    }


def branches_with_head(
    connection: Connection, heads: Iterable[TransactionId]
) -> dict[BranchId, TransactionId]:
    """Return the branches that have one of these transactions as their head."""
    rows = rows_of(connection, BRANCHES_WITH_HEAD, heads)
    return {BranchId(id): TransactionId(head) for id, head in rows}


def lock_transactions(
    connection: Connection, ids: Iterable[TransactionId]
) -> dict[TransactionId, nouns.Transaction]:
    return to_transactions(connection, rows_of(connection, TRANSACTION_LOCKS, ids))


def lock_counter(connection: Connection) -> Counter:
    return to_counter(ask(connection, COUNTER_LOCK))


def to_counter(rows: Iterable[Row[Any]]) -> Counter:
    return noun_of(Counter, next(iter(rows))._mapping)


def open_transactions_of(
    connection: Connection, *, unit: UnitId | None = None, attempt: nouns.AttemptRef | None = None
) -> list[nouns.Transaction]:
    """Return the OPEN transactions of a unit or of an attempt."""
    is_open = transactions.c.state == nouns.TransactionState.OPEN
    query = select(transactions.c.id).where(is_open if attempt is None else held_by(attempt))
    return _load_in_order(connection, filtered(query, {transactions.c.unit_id: unit}))


def transactions_published_with(
    connection: Connection, one: nouns.Transaction
) -> list[nouns.Transaction]:
    """Return the other transactions of the same attempt in the same publication."""
    query = select(moves.c.to_id).where(moves.c.publication == one.publication)
    found = _load_in_order(connection, query.where(moves.c.to_id != one.id))
    return [other for other in found if other.attempt == one.attempt]


def _load_in_order(connection: Connection, query: Select[Any]) -> list[nouns.Transaction]:
    ids = [TransactionId(id) for id in connection.execute(query).scalars()]
    return sorted(load_transactions(connection, ids).values(), key=lambda t: t.id)


@dataclass(frozen=True, kw_only=True)
class Unit:
    id: UnitId
    branch: str
    actor: str
    state: nouns.TransactionState
    lease_seconds: int
    lease_until: Instant
    transactions: tuple[nouns.Transaction, ...]


def find_unit(connection: Connection, id: str) -> Unit | None:
    row = connection.execute(select(units).where(units.c.id == id)).mappings().one_or_none()
    if row is None:
        return None
    return noun_of(
        Unit,
        row,
        branch=row["branch_name"],
        state=nouns.TransactionState(row["state"]),
        transactions=tuple(open_transactions_of(connection, unit=row["id"])),
    )


def load_unit(connection: Connection, id: str) -> Unit:
    unit = find_unit(connection, id)
    if unit is None:
        raise errors.NotFound(f"unit {id!r} does not exist.", unit=id)
    return unit


def load_open_unit(connection: Connection, id: str) -> Unit:
    unit = load_unit(connection, id)
    if unit.state is not nouns.TransactionState.OPEN:
        raise errors.TransactionNotOpen(transaction=id, state=unit.state)
    return unit


def list_unit_transactions(connection: Connection, id: UnitId) -> list[nouns.Transaction]:
    """Return all transactions that a unit opened, in any state."""
    query = select(transactions.c.id).where(transactions.c.unit_id == id)
    return _load_in_order(connection, query)
