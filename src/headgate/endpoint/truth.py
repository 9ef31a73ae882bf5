"""The SQL catalog as the endpoint sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headgate.catalog import datasets as catalog
from headgate.catalog.database import Connection, Database
from headgate.catalog.find import find_dataset
from headgate.catalog.operations import find_by_key
from headgate.catalog.publish import publish_prepared
from headgate.endpoint import resolving, writing
from headgate.endpoint.ports import (
    Idempotency,
    Namespace,
    Principal,
    ServedTable,
    TableChange,
)
from headgate.errors import ContextReadOnly, Denied, NamespaceNotFound
from headgate.model.changes import Change, PublishRequest
from headgate.model.contexts import BranchContext, Context
from headgate.model.ids import DatasetId, mint_version
from headgate.model.names import DatasetName
from headgate.model.nouns import DatasetKind, PublicationKind, TransactionType, Version

_Steps = Callable[[Connection], list[Change]]


class SqlTableCatalog:
    """Resolves and writes tables through the one door; see `endpoint.ports.TableCatalog`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def resolve(self, context: Context, name: DatasetName) -> ServedTable | None:
        return self._database.read(lambda c: resolving.resolve(c, context, name))

    def find_dataset_id(self, name: DatasetName) -> DatasetId | None:
        dataset = self._database.read(lambda c: find_dataset(c, name))
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
        self._publish(
            principal,
            branch,
            idempotency,
            lambda c: _tombstone(c, branch, table),
        )

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
            target = find_dataset(connection, to) or catalog.create_dataset_in(
                connection, to, kind=DatasetKind.TABLE, branch=None, actor=principal.actor
            )
            version = Version(
                id=mint_version(), location=table.location, content_id=table.content_id
            )
            return _tombstone(connection, branch, table) + writing.add_on_branch(
                connection,
                branch,
                target,
                type=TransactionType.SNAPSHOT,
                version=version,
                base=None,
            )

        self._publish(principal, branch, idempotency, steps)

    def recall(self, principal: Principal, context: Context, idempotency: Idempotency) -> bool:
        key = writing.operation_key(principal, context, idempotency)
        return key is not None and self._database.read(lambda c: find_by_key(c, key)) is not None

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
        catalog.create_namespace(self._database, namespace, properties)

    def update_namespace(
        self,
        principal: Principal,
        namespace: Namespace,
        removals: Sequence[str],
        updates: Mapping[str, str],
        idempotency: Idempotency | None,
    ) -> None:
        def work(connection: Connection) -> None:
            known = catalog.find_namespace(connection, namespace)
            if known is None:
                raise NamespaceNotFound(namespace=".".join(namespace))
            kept = {k: v for k, v in known.items() if k not in removals}
            catalog.set_namespace_properties(connection, namespace, {**kept, **updates})

        self._database.write(work)

    def drop_namespace(
        self, principal: Principal, namespace: Namespace, idempotency: Idempotency | None
    ) -> None:
        catalog.drop_namespace(self._database, namespace)

    def _publish(
        self,
        principal: Principal,
        context: BranchContext,
        idempotency: Idempotency | None,
        steps: _Steps,
    ) -> None:
        publish_prepared(
            self._database,
            lambda c: PublishRequest(
                actor=principal.actor,
                kind=PublicationKind.COMMIT,
                changes=tuple(steps(c)),
                operation=writing.operation_key(principal, context, idempotency),
            ),
        )


def _tombstone(connection: Connection, context: BranchContext, table: ServedTable) -> list[Change]:
    dataset = find_dataset(connection, table.name)
    assert dataset is not None, f"{table.name} was just resolved"
    return writing.add_on_branch(
        connection, context, dataset, type=TransactionType.DELETE, version=None, base=table
    )


def _branch_only(context: Context, what: str) -> BranchContext:
    if isinstance(context, BranchContext):
        return context
    if str(context).startswith(("txn:", "job:")):
        raise Denied(
            f"{what} is not possible inside {context}: it is a publication of its own. "
            "Do it on a branch context.",
            context=str(context),
        )
    raise ContextReadOnly(context=str(context))
