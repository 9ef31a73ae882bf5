"""A state machine that executes each step twice: on a store, and in an independent model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant
from sqlalchemy import Connection, select

from headgate.catalog import schema
from headgate.errors import HeadgateError
from headgate.files.edits import root_of
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from tests.support.reference import Branch, Reference, Refused, Seen, Txn
from tests.support.stores import content, load

T = TypeVar("T")

_numbers = itertools.count(1)


class DoubledMachine(RuleBasedStateMachine):
    """Compares results and errors of both sides; each example has a namespace of its own."""

    store: ClassVar[Store]

    def __init__(self) -> None:
        super().__init__()
        self.space = f"e{next(_numbers)}"
        self.model = Reference()
        self.seen: list[Seen] = []
        self.refs: list[tuple[str, int]] = []
        self.compared = 0
        self.first = self.store.database.read(_counter)

    def both(self, imagined: Callable[[], T], real: Callable[[], object]) -> tuple[T, Any] | None:
        """Return the result of both; None where both raised the same error."""
        try:
            expected = imagined()
        except Refused as refusal:
            with pytest.raises(HeadgateError) as refused:
                real()
            assert type(refused.value).__name__ == str(refusal)
            return None
        return expected, real()

    def handle(self, dataset: str, name: str) -> BranchHandle:
        return self.store.dataset(f"{self.space}.{dataset}").branch(name)

    def dataset(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.model.branches)), label="dataset")

    def branch(self, data: st.DataObject) -> Branch:
        return data.draw(st.sampled_from(self.model.all_branches()), label="branch")

    def txn(self, data: st.DataObject, dataset: str | None = None) -> Txn | None:
        mine = [t for t in self.model.txns if dataset is None or t.dataset == dataset]
        # Mostly recent ones: older ones are rarely affected by further steps.
        return data.draw(st.sampled_from(mine[-8:]), label="txn") if mine else None

    def open_txn(self, data: st.DataObject) -> Txn | None:
        mine = [t for t in self.model.txns if t.state == "OPEN"]
        return data.draw(st.sampled_from(mine), label="open txn") if mine else self.txn(data)

    @invariant()
    def branches_and_transactions_are_the_same(self) -> None:
        real_branches, real_txns, log = self.store.database.read(self._read)
        assert real_branches == {
            (b.dataset, b.name): (
                b.parent.name if b.parent else None,
                b.head.id if b.head else None,
                b.view.id if b.view else None,
            )
            for b in self.model.all_branches()
        }
        assert real_txns == {
            t.id: (t.state, t.type, t.parent.id if t.parent else None) for t in self.model.txns
        }
        imagined = [
            (kind, sorted((b.dataset, b.name, _id(old), _id(new)) for b, old, new in moves))
            for kind, moves in self.model.log[self.compared :]
        ]
        assert log == imagined
        for kind, moves in self.model.log[self.compared :]:
            if kind != "delete":
                for branch, _, view in moves:
                    shown = content(self.handle(branch.dataset, branch.name))
                    assert shown == (view.files if view else {})
        self.compared = len(self.model.log)
        self.first = self.store.database.read(_counter)

    def teardown(self) -> None:
        for txn in self.model.txns:
            if txn.state == "COMMITTED":
                assert _files_of(self.store, txn.id) == txn.files

    def _read(self, connection: Connection) -> tuple[Any, Any, Any]:
        b, d, t = schema.branches, schema.datasets, schema.transactions
        mine = d.c.namespace == self.space
        above = b.alias()
        rows = connection.execute(
            select(d.c.name, b.c.name, above.c.name, b.c.head_id, b.c.view_id)
            .join(d, d.c.id == b.c.dataset_id)
            .outerjoin(above, above.c.id == b.c.parent_id)
            .where(mine)
        )
        found = {(row[0], row[1]): (row[2], row[3], row[4]) for row in rows}
        txns = connection.execute(
            select(t.c.id, t.c.state, t.c.type, t.c.parent_id)
            .join(d, d.c.id == t.c.dataset_id)
            .where(mine)
        )
        return found, {r[0]: (r[1], r[2], r[3]) for r in txns}, self._read_log(connection)

    def _read_log(self, connection: Connection) -> list[tuple[str, list[tuple[Any, ...]]]]:
        p, m, d = schema.publications, schema.moves, schema.datasets
        rows = connection.execute(
            select(p.c.number, p.c.kind, d.c.name, m.c.branch_name, m.c.from_id, m.c.to_id)
            .join(m, m.c.publication == p.c.number)
            .join(d, d.c.id == m.c.dataset_id)
            # Recovery also settles what earlier examples left in the store.
            .where(p.c.number > self.first, d.c.namespace == self.space)
            .order_by(p.c.number)
        ).all()
        return [
            (kind, sorted((r[2], r[3], r[4] or "", r[5] or "") for r in group))
            for (_, kind), group in itertools.groupby(rows, key=lambda r: (r[0], r[1]))
        ]


def _counter(connection: Connection) -> int:
    return int(connection.execute(select(schema.log_counter.c.number)).scalar_one())


def _id(txn: Txn | None) -> str:
    return txn.id if txn else ""


def _files_of(store: Store, id: str) -> dict[str, str]:
    root = root_of(load(store, id).version)
    return {e.path: store.trees.read(e).decode() for e in store.trees.walk(root)}
