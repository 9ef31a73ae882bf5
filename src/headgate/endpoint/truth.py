"""The SQL catalog as the endpoint sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from headgate.catalog import datasets as catalog
from headgate.catalog.database import Connection, Database
from headgate.catalog.find import load_dataset
from headgate.endpoint import resolving, writing
from headgate.endpoint.datasets import find_or_make, find_table_dataset
from headgate.endpoint.ports import (
    Idempotency,
    Namespace,
    Principal,
    ServedTable,
    TableChange,
)
from headgate.endpoint.staging import renew_if_due, write_once
from headgate.errors import ContextReadOnly, Denied
from headgate.model.changes import Change
from headgate.model.contexts import BranchContext, Context, MomentContext, UnitContext
from headgate.model.ids import DatasetId, mint_version
from headgate.model.names import DatasetName
from headgate.model.nouns import TransactionType, Version


class SqlTableCatalog:
    """Resolves and writes tables through the one door; see `endpoint.ports.TableCatalog`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def resolve(self, context: Context, name: DatasetName) -> ServedTable | None:
        found = self._database.read(lambda c: resolving.resolve(c, context, name))
        if isinstance(context, UnitContext):
            renew_if_due(self._database, context)
        return found

    def find_dataset_id(self, name: DatasetName) -> DatasetId | None:
        dataset = self._database.read(lambda c: find_table_dataset(c, name))
        return dataset.id if dataset else None

    def list_tables(self, context: Context, namespace: Namespace) -> Sequence[str]:
        return self._database.read(lambda c: resolving.list_tables(c, context, namespace))

    def commit(
        self,
        principal: Principal,
        context: Context,
        changes: Sequence[TableChange],
        idempotency: Idempotency | None,
    ) -> Sequence[ServedTable]:
        return writing.commit(self._database, principal, context, changes, idempotency)

    def drop(
        self,
        principal: Principal,
        context: Context,
        table: ServedTable,
        idempotency: Idempotency | None,
    ) -> None:
        branch = _branch_only(context, "DROP TABLE")
        key = writing.operation_key(principal, context, idempotency)
        writing.publish_once(self._database, principal, key, lambda c: _tombstone(c, branch, table))

    def rename(
        self,
        principal: Principal,
        context: Context,
        table: ServedTable,
        to: DatasetName,
        idempotency: Idempotency | None,
    ) -> None:
        branch = _branch_only(context, "RENAME TABLE")

        def steps(connection: Connection) -> list[Change]:
            target = find_or_make(connection, principal, to)
            version = Version(
                id=mint_version(), location=table.location, content_id=table.content_id
            )
            return _tombstone(connection, branch, table) + writing.add_to_table(
                connection,
                branch,
                target,
                type=TransactionType.SNAPSHOT,
                version=version,
                base=None,
            )

        key = writing.operation_key(principal, context, idempotency)
        writing.publish_once(self._database, principal, key, steps)

    def recall(
        self, principal: Principal, context: Context, idempotency: Idempotency
    ) -> Sequence[ServedTable] | None:
        return self._database.read(lambda c: writing.find_made(c, principal, context, idempotency))

    def list_namespaces(self) -> Sequence[Namespace]:
        return self._database.read(catalog.list_namespaces)

    def find_namespace(self, namespace: Namespace) -> Mapping[str, str] | None:
        return self._database.read(lambda c: catalog.find_namespace(c, namespace))

    def create_namespace(
        self,
        principal: Principal,
        namespace: Namespace,
        properties: Mapping[str, str],
        idempotency: Idempotency | None,
    ) -> None:
        self._change_namespaces(
            principal,
            idempotency,
            lambda c: catalog.create_namespace_in(c, namespace, properties),
        )

    def update_namespace(
        self,
        principal: Principal,
        namespace: Namespace,
        removals: Sequence[str],
        updates: Mapping[str, str],
        idempotency: Idempotency | None,
    ) -> frozenset[str]:
        return self._change_namespaces(
            principal,
            idempotency,
            lambda c: catalog.update_namespace_in(c, namespace, removals=removals, updates=updates),
        )

    def drop_namespace(
        self, principal: Principal, namespace: Namespace, idempotency: Idempotency | None
    ) -> None:
        self._change_namespaces(
            principal, idempotency, lambda c: catalog.drop_namespace_in(c, namespace)
        )

    def _change_namespaces(
        self,
        principal: Principal,
        idempotency: Idempotency | None,
        change: Callable[[Connection], Iterable[str] | None],
    ) -> frozenset[str]:
        """Which properties the change took away; kept with its key, to be answered again."""
        key = writing.operation_key(principal, None, idempotency)
        receipt = write_once(self._database, key, lambda c: dict.fromkeys(change(c) or ()))
        return frozenset(receipt.transactions)


def _tombstone(connection: Connection, context: BranchContext, table: ServedTable) -> list[Change]:
    return writing.add_to_table(
        connection,
        context,
        load_dataset(connection, table.name),
        type=TransactionType.DELETE,
        version=None,
        base=table,
    )


def _branch_only(context: Context, what: str) -> BranchContext:
    if isinstance(context, BranchContext):
        return context
    if isinstance(context, MomentContext):
        raise ContextReadOnly(context=str(context))
    raise Denied(
        f"{what} is not possible inside {context}: it is a publication of its own. "
        "Do it on a branch context.",
        context=str(context),
    )
