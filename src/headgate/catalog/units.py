"""Units: transactions of several datasets that commit or abort together."""

from contextlib import suppress
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection, insert, select, update

from headgate.catalog import records
from headgate.catalog.branches import drop_unused_branches
from headgate.catalog.database import Database, as_unit_of_work, now
from headgate.catalog.publish import publish_in
from headgate.catalog.resolve import check_may_create
from headgate.catalog.schema import branches, transactions, units
from headgate.catalog.transactions import Opener, Opening, abort_in, check_owner, open_in
from headgate.errors import TransactionNotOpen
from headgate.model import nouns
from headgate.model.changes import Caller, CreateBranch, PublishRequest
from headgate.model.ids import BranchId, TransactionId, UnitId, mint_operation, mint_unit
from headgate.model.names import check_branch_name


def open_unit(
    database: Database, branch: str, *, actor: str, lease_seconds: int, create: bool = False
) -> records.Unit:
    """Open a unit on a branch name; each dataset's transaction opens at its first write.

    The branch must exist on some dataset, unless the unit may `create` it.
    """
    check_branch_name(branch)
    database.read(lambda connection: check_may_create(connection, branch, create=create))
    id = mint_unit()

    def work(connection: Connection) -> None:
        moment = now(connection)
        connection.execute(
            insert(units).values(
                id=id,
                branch_name=branch,
                actor=actor,
                state=nouns.TransactionState.OPEN,
                opened_at=moment,
                lease_seconds=lease_seconds,
                lease_until=moment + lease_seconds * 1_000_000,
            )
        )

    database.write(work)
    return database.read(lambda connection: records.load_unit(connection, id))


def open_in_unit(
    connection: Connection, unit: records.Unit, dataset: nouns.Dataset, *, caller: Caller
) -> nouns.Transaction:
    """Return the unit's transaction on a dataset.

    Its first use opens it, and creates the branch if it is missing.
    """
    records.lock_open_unit(connection, unit.id)
    # Read under the lock: another writer of the unit may have opened it before.
    mine = records.open_transactions_of(connection, unit=unit.id)
    known = next((t for t in mine if t.dataset_id == dataset.id), None)
    if known is not None:
        return known
    acting = replace(caller, actor=unit.actor)
    branch = records.find_branch(connection, dataset.id, unit.branch)
    if branch is None:
        root = CreateBranch(dataset=dataset.id, name=unit.branch, parent=None, made_for=unit.id)
        request = PublishRequest(caller=acting, kind=nouns.PublicationKind.CREATE, changes=(root,))
        publish_in(connection, request, mint_operation())
    id = branch.id if branch else root.id
    opener = Opener(caller=acting, lease_seconds=unit.lease_seconds, unit=unit.id)
    [opened] = open_in(connection, [Opening(branch=id, type=nouns.TransactionType.UPDATE)], opener)
    return opened


def renew_unit_in(connection: Connection, id: UnitId) -> None:
    """Renew the lease of a unit and of its transactions, as any use of the unit does."""
    moment = now(connection)
    for table, mine in ((units, units.c.id == id), (transactions, transactions.c.unit_id == id)):
        connection.execute(
            update(table)
            .where(mine, table.c.state == nouns.TransactionState.OPEN)
            .values(lease_until=moment + table.c.lease_seconds * 1_000_000)
        )


renew_unit = as_unit_of_work(renew_unit_in)


def close_empty_unit(database: Database, id: UnitId) -> None:
    """Mark a unit without transactions COMMITTED; the door closes a unit that has some."""
    database.write(lambda connection: _close(connection, id, nouns.TransactionState.COMMITTED))


def abort_unit(database: Database, id: UnitId, *, caller: Caller) -> list[TransactionId]:
    """Abort all transactions of a unit, and delete branches that it made and that are unused."""

    def work(connection: Connection) -> list[TransactionId]:
        records.lock_open_unit(connection, id)
        opened = records.open_transactions_of(connection, unit=id)
        for transaction in opened:
            check_owner(connection, caller, transaction)
        ids = [transaction.id for transaction in opened]
        abort_in(connection, ids, caller=Caller(actor=caller.actor))
        _close(connection, id, nouns.TransactionState.ABORTED)
        return ids

    ended = database.write(work)
    unused = database.read(partial(_unused_roots, unit=id))
    drop_unused_branches(database, unused, actor=caller.actor)
    return ended


def abort_unit_if_open(database: Database, id: UnitId, *, caller: Caller) -> None:
    """Abort a unit unless it has ended already."""
    unit = database.read(lambda connection: records.load_unit(connection, id))
    if unit.state is nouns.TransactionState.OPEN:
        # Another writer may take it over between the read and the abort.
        with suppress(TransactionNotOpen):
            abort_unit(database, id, caller=caller)


def _close(connection: Connection, id: UnitId, state: nouns.TransactionState) -> None:
    connection.execute(update(units).where(units.c.id == id).values(state=state))


def _unused_roots(connection: Connection, unit: UnitId) -> list[BranchId]:
    # An unused root has no head: the partial index `branches_unused` has only these few rows.
    query = select(branches.c.id).where(branches.c.head_id.is_(None), branches.c.made_for == unit)
    return [BranchId(id) for id in connection.execute(query).scalars()]
