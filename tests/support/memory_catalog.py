"""The endpoint's truth in memory: branches, chains, moments, tombstones, one lock."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from headgate.endpoint.ports import (
    Idempotency,
    Namespace,
    Principal,
    ServedTable,
    TableChange,
)
from headgate.errors import (
    Denied,
    IdempotencyKeyReused,
    Mismatch,
    NamespaceExists,
    NamespaceNotEmpty,
    ViewConflict,
)
from headgate.model.contexts import BranchContext, Context, MomentContext
from headgate.model.ids import DatasetId, mint_dataset, mint_transaction
from headgate.model.names import DatasetName


class MemoryCatalog:
    """Remembers each branch's versions with the number of the publication that showed them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.publication = 0
        self.changes: list[TableChange] = []
        self.datasets: dict[DatasetName, DatasetId] = {}
        self.namespaces: dict[Namespace, dict[str, str]] = {}
        self._views: dict[tuple[DatasetName, str], list[tuple[int, ServedTable | None]]] = {}
        self._keys: dict[str, tuple[str, Sequence[ServedTable]]] = {}

    def resolve(self, context: Context, name: DatasetName) -> ServedTable | None:
        assert isinstance(context, BranchContext | MomentContext)
        until = context.at if isinstance(context, MomentContext) else None
        with self.lock:
            for branch in context.chain:
                views = self._views.get((name, branch), [])
                seen = [table for at, table in views if until is None or at <= until]
                if seen:
                    return seen[-1]
        return None

    def find_dataset_id(self, name: DatasetName) -> DatasetId | None:
        return self.datasets.get(name)

    def list_tables(self, context: Context, namespace: Namespace) -> Sequence[str]:
        with self.lock:
            names = {name for name, _ in self._views if name.namespace == namespace}
        return [name.name for name in names if self.resolve(context, name)]

    def commit(
        self,
        principal: Principal,
        context: Context,
        changes: Sequence[TableChange],
        idempotency: Idempotency | None,
    ) -> Sequence[ServedTable]:
        with self.lock:
            if idempotency and self.recall(principal, context, idempotency):
                return self._keys[idempotency.key][1]
            for change in changes:
                self._expect(context, change.name, change.base)
            self.publication += 1
            self.changes.extend(changes)
            served = [self._show(context, change) for change in changes]
            self._remember(idempotency, served)
            return served

    def drop(
        self,
        principal: Principal,
        context: Context,
        table: ServedTable,
        idempotency: Idempotency | None,
    ) -> None:
        with self.lock:
            self._expect(context, table.name, table)
            self.publication += 1
            self._append(context, table.name, None)
            self._remember(idempotency, [])

    def rename(
        self,
        principal: Principal,
        context: Context,
        table: ServedTable,
        to: DatasetName,
        idempotency: Idempotency | None,
    ) -> None:
        with self.lock:
            self._expect(context, table.name, table)
            self.publication += 1
            self._append(context, table.name, None)
            moved = ServedTable(
                name=to,
                dataset_id=self.datasets.setdefault(to, mint_dataset()),
                branch=self._branch(context),
                transaction=mint_transaction(),
                location=table.location,
                content_id=table.content_id,
            )
            self._append(context, to, moved)
            self._remember(idempotency, [])

    def recall(self, principal: Principal, context: Context, idempotency: Idempotency) -> bool:
        with self.lock:
            known = self._keys.get(idempotency.key)
        if known and known[0] != idempotency.request_hash:
            raise IdempotencyKeyReused(key=idempotency.key)
        return known is not None

    def list_namespaces(self) -> Sequence[Namespace]:
        return list(self.namespaces)

    def find_namespace(self, namespace: Namespace) -> Mapping[str, str] | None:
        return self.namespaces.get(namespace)

    def create_namespace(
        self,
        principal: Principal,
        namespace: Namespace,
        properties: Mapping[str, str],
        idempotency: Idempotency | None,
    ) -> None:
        if namespace in self.namespaces:
            raise NamespaceExists(namespace=".".join(namespace))
        self.namespaces[namespace] = dict(properties)
        self._remember(idempotency, [])

    def update_namespace(
        self,
        principal: Principal,
        namespace: Namespace,
        removals: Sequence[str],
        updates: Mapping[str, str],
        idempotency: Idempotency | None,
    ) -> None:
        held = self.namespaces.setdefault(namespace, {})
        for key in removals:
            held.pop(key, None)
        held.update(updates)
        self._remember(idempotency, [])

    def drop_namespace(
        self, principal: Principal, namespace: Namespace, idempotency: Idempotency | None
    ) -> None:
        if any(name.namespace == namespace for name, _ in self._views):
            raise NamespaceNotEmpty(namespace=".".join(namespace))
        self.namespaces.pop(namespace, None)
        self._remember(idempotency, [])

    def _remember(self, idempotency: Idempotency | None, served: Sequence[ServedTable]) -> None:
        if idempotency:
            self._keys[idempotency.key] = (idempotency.request_hash, served)

    def _show(self, context: Context, change: TableChange) -> ServedTable:
        table = ServedTable(
            name=change.name,
            dataset_id=self.datasets.setdefault(change.name, change.dataset_id),
            branch=self._branch(context),
            transaction=mint_transaction(),
            location=change.location,
            content_id=change.content_id,
        )
        self._append(context, change.name, table)
        return table

    def _append(self, context: Context, name: DatasetName, table: ServedTable | None) -> None:
        views = self._views.setdefault((name, self._branch(context)), [])
        views.append((self.publication, table))

    def _expect(self, context: Context, name: DatasetName, base: ServedTable | None) -> None:
        held = self.resolve(context, name)
        expected, actual = base and base.transaction, held and held.transaction
        if expected != actual:
            mismatch = Mismatch(
                dataset=str(name),
                branch=self._branch(context),
                field="view",
                expected=expected,
                actual=actual,
            )
            raise ViewConflict([mismatch])

    def _branch(self, context: Context) -> str:
        if not isinstance(context, BranchContext):
            raise Denied("only branches can be written here")
        return context.branch
