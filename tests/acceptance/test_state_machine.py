"""Every operation in any order, against an independent model, on both databases."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import update

from headgate.attempts import CommitOptions, commit_transactions
from headgate.catalog import schema
from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.datasets import create_tag
from headgate.catalog.transactions import Opener, Opening, open_transactions
from headgate.files.edits import FileEdit, root_of, stage_edit, tree_version
from headgate.files.tree import EMPTY
from headgate.model.changes import AddTransaction, Caller, ReadView
from headgate.model.ids import BranchId, Epoch, TransactionId
from headgate.model.nouns import AttemptRef, PublicationKind, TransactionType
from headgate.store.transactions import TransactionHandle, UnitHandle, store_bytes
from tests.support.door import knock
from tests.support.machine import DoubledMachine
from tests.support.oracle import assert_rows_sound
from tests.support.reference import Seen, Txn, Unit
from tests.support.stores import load, new_store

NAMES = st.sampled_from(["master", "a", "b", "c"])
PATHS = st.sampled_from(["p", "q", "r"])
TEXTS = st.sampled_from(["0", "1", "2"])
TYPES = st.sampled_from(["SNAPSHOT", "APPEND", "UPDATE", "DELETE"])
KEYS = st.sampled_from(["k1", "k2"])


def _has_branches(machine: CatalogMachine) -> bool:
    return bool(machine.model.all_branches())


class CatalogMachine(DoubledMachine):
    """All operations of the catalog, in any order."""

    # --- datasets and branches ------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.create_dataset("x")
        self.create_dataset("y")

    @rule(name=st.sampled_from(["x", "y", "z"]))
    def create_dataset(self, name: str) -> None:
        dataset = self.store.dataset(f"{self.space}.{name}")
        self.both(
            lambda: self.model.create_dataset(name),
            lambda: dataset.create(kind="files", branch="master"),
        )

    @rule(data=st.data(), name=NAMES)
    def create_root(self, data: st.DataObject, name: str) -> None:
        dataset = self.dataset(data)
        self.both(lambda: self.model.create_root(dataset, name), self.handle(dataset, name).create)

    @rule(data=st.data(), name=NAMES, parent=NAMES)
    def create_child(self, data: st.DataObject, name: str, parent: str) -> None:
        dataset = self.dataset(data)
        self.both(
            lambda: self.model.create_child(dataset, name, parent, None),
            lambda: self.handle(dataset, name).create(parent=parent),
        )

    @rule(data=st.data(), name=NAMES, parent=NAMES)
    def create_child_at(self, data: st.DataObject, name: str, parent: str) -> None:
        dataset = self.dataset(data)
        at = self.txn(data, dataset)
        if at is not None:
            self.both(
                lambda: self.model.create_child(dataset, name, parent, at),
                lambda: self.handle(dataset, name).create(parent=parent, at=at.id),
            )

    @rule(data=st.data(), name=NAMES)
    def delete(self, data: st.DataObject, name: str) -> None:
        dataset = self.dataset(data)
        self.both(
            lambda: self.model.delete(dataset, name),
            lambda: self.handle(dataset, name).delete(force=True),
        )

    @rule(data=st.data(), name=NAMES)
    def restore(self, data: st.DataObject, name: str) -> None:
        dataset = self.dataset(data)
        self.both(
            lambda: self.model.restore(dataset, name), lambda: self.handle(dataset, name).restore()
        )

    @precondition(_has_branches)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        branch = self.branch(data)
        to = self.txn(data, branch.dataset)
        if to is not None:
            self.both(
                lambda: self.model.reset(branch.dataset, branch.name, to),
                lambda: self.handle(branch.dataset, branch.name).reset(to=to.id),
            )

    @rule(data=st.data(), name=NAMES, under=st.none() | NAMES)
    def reparent(self, data: st.DataObject, name: str, under: str | None) -> None:
        dataset = self.dataset(data)
        self.both(
            lambda: self.model.reparent(dataset, name, under),
            lambda: self.handle(dataset, name).reparent(under=under),
        )

    @rule(data=st.data(), name=st.sampled_from(["v1", "v2"]))
    def tag(self, data: st.DataObject, name: str) -> None:
        dataset, at = self.dataset(data), self.txn(data)
        if at is not None:
            self.both(
                lambda: self.model.tag(dataset, name, at),
                lambda: create_tag(
                    self.store.database,
                    self.store.dataset(f"{self.space}.{dataset}").load(),
                    name,
                    at=at.id,
                    caller=Caller(actor="ana"),
                ),
            )

    # --- transactions ---------------------------------------------------------------------------

    @precondition(_has_branches)
    @rule(data=st.data(), type=TYPES)
    def open(self, data: st.DataObject, type: str) -> None:
        branch = self.branch(data)
        done = self.both(
            lambda: self.model.open(branch.dataset, branch.name, type),
            lambda: self.handle(branch.dataset, branch.name).transaction(type),
        )
        if done is not None:
            done[0].id = done[1].id

    @rule(data=st.data(), path=PATHS, text=st.none() | TEXTS)
    def stage(self, data: st.DataObject, path: str, text: str | None) -> None:
        txn = self.open_txn(data)
        if txn is None:
            return
        by = self._actor(data, txn)
        put = [store_bytes(self.store, path, text.encode())] if text is not None else []
        edit = FileEdit(put=put, remove=[] if put else [path])
        self.both(
            lambda: self.model.stage(txn, path, text, by=by),
            lambda: stage_edit(
                self.store.database,
                self.store.trees,
                load(self.store, txn.id),
                edit,
                attempt=_ref(by),
            ),
        )

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        txn = self.open_txn(data)
        if txn is None:
            return
        by = self._actor(data, txn)

        def real() -> None:
            if txn.unit is not None:
                TransactionHandle.load(self.store, txn.id).commit()
            commit_transactions(
                self.store.database,
                self.store.contents,
                [TransactionId(txn.id)],
                CommitOptions(caller=Caller(actor="ana", attempt=_ref(by))),
            )

        self.both(lambda: self.model.commit(txn, by=by), real)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        txn = self.open_txn(data)
        if txn is not None:
            self.both(
                lambda: self.model.abort(txn),
                lambda: TransactionHandle.load(self.store, txn.id).abort(),
            )

    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        txn = self.open_txn(data)
        if txn is None or txn.state != "OPEN":
            return
        txn.expired = True
        table = schema.transactions
        self.store.database.write(
            lambda c: c.execute(update(table).where(table.c.id == txn.id).values(lease_until=1))
        )

    @rule()
    def recover(self) -> None:
        self.model.recover()
        self.store.recover()

    # --- single writes --------------------------------------------------------------------------

    @precondition(_has_branches)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        branch = self.branch(data)
        real = self.handle(branch.dataset, branch.name).load()
        self.seen = [*self.seen[-4:], Seen(branch, branch.view, real.id, real.view)]

    @precondition(_has_branches)
    @rule(data=st.data(), path=PATHS, text=TEXTS)
    def put(self, data: st.DataObject, path: str, text: str) -> None:
        self.look(data)
        self._add(self.seen[-1], path, text, [])

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), path=PATHS, text=TEXTS)
    def put_with_reads(self, data: st.DataObject, path: str, text: str) -> None:
        looks = st.sampled_from(self.seen)
        reads = data.draw(st.lists(looks, max_size=3, unique=True), label="reads")
        self._add(data.draw(looks, label="seen"), path, text, reads)

    @precondition(_has_branches)
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        self.look(data)
        seen = self.seen[-1]
        sources = [
            t
            for t in self.model.txns
            if t.dataset == seen.branch.dataset and t.state == "COMMITTED"
        ]
        if sources:
            source = data.draw(st.sampled_from(sources), label="source")
            version = load(self.store, source.id).version
            self._publish(seen, source.type, source.files, version, [], PublicationKind.ADOPT)

    def _add(self, seen: Seen, path: str, text: str, reads: list[Seen]) -> None:
        base = seen.view.files if seen.view else {}
        root = root_of(load(self.store, seen.view.id).version) if seen.view else EMPTY
        edited = self.store.trees.edit(root, put=[store_bytes(self.store, path, text.encode())])
        files, version = {**base, path: text}, tree_version(edited.root)
        self._publish(seen, "UPDATE", files, version, reads, PublicationKind.COMMIT)

    def _publish(
        self,
        seen: Seen,
        type: str,
        files: dict[str, str],
        version: Any,
        reads: list[Seen],
        kind: PublicationKind,
    ) -> None:
        view = TransactionId(seen.real_view) if seen.real_view else None
        change = AddTransaction(
            branch=BranchId(seen.real_branch),
            expected_head=view,
            expected_view=view,
            parent=view,
            type=TransactionType(type),
            version=version,
        )
        done = self.both(
            lambda: self.model.add(seen, type, files, kind=kind, reads=reads),
            lambda: knock(
                self.store,
                change,
                kind=kind,
                reads=tuple(
                    ReadView(
                        branch=BranchId(r.real_branch),
                        view=TransactionId(r.real_view) if r.real_view else None,
                    )
                    for r in reads
                ),
            ),
        )
        if done is not None:
            done[0].id = done[1].transactions[seen.real_branch]

    # --- units and attempts ---------------------------------------------------------------------

    @rule(name=NAMES)
    def open_unit(self, name: str) -> None:
        self.model.open_unit(name).id = self.store.transaction(branch=name, create=True).id

    @precondition(lambda self: self.model.units)
    @rule(data=st.data())
    def open_in_unit(self, data: st.DataObject) -> None:
        unit, dataset = self._unit(data), self.dataset(data)
        done = self.both(
            lambda: self.model.open_in_unit(unit, dataset),
            lambda: self._unit_handle(unit).dataset(f"{self.space}.{dataset}"),
        )
        if done is not None:
            done[0].id = done[1].id

    @precondition(lambda self: self.model.units)
    @rule(data=st.data(), end=st.sampled_from(["commit", "commit", "abort"]))
    def end_unit(self, data: st.DataObject, end: str) -> None:
        unit = self._unit(data)
        imagined = {"commit": self.model.commit_unit, "abort": self.model.abort_unit}[end]
        self.both(lambda: imagined(unit), getattr(self._unit_handle(unit), end))

    def _unit(self, data: st.DataObject) -> Unit:
        return data.draw(st.sampled_from(self.model.units[-3:]), label="unit")

    def _unit_handle(self, unit: Unit) -> UnitHandle:
        return UnitHandle.load(self.store, unit.id)

    @rule(key=KEYS, carry=st.booleans())
    def dispatch(self, key: str, carry: bool) -> None:
        real = dispatch_attempt(
            self.store.database,
            f"{self.space}/{key}",
            actor="worker",
            lease_seconds=900,
            carry_transactions=carry,
        )
        made = self.model.dispatch(f"{self.space}/{key}", carry=carry)
        assert (real.ref.key, real.ref.epoch) == made
        self.refs = [*self.refs[-3:], made]

    @precondition(lambda self: self.refs)
    @precondition(_has_branches)
    @rule(data=st.data(), type=TYPES)
    def open_as_attempt(self, data: st.DataObject, type: str) -> None:
        branch, owner = self.branch(data), data.draw(st.sampled_from(self.refs), label="owner")
        opener = Opener(caller=Caller(actor="worker", attempt=_ref(owner)), lease_seconds=900)
        real_branch = self.handle(branch.dataset, branch.name).load().id
        opening = Opening(branch=real_branch, type=TransactionType(type))
        done = self.both(
            lambda: self.model.open(branch.dataset, branch.name, type, owner=owner),
            lambda: open_transactions(self.store.database, [opening], opener),
        )
        if done is not None:
            done[0].id = done[1][0].id

    def _actor(self, data: st.DataObject, txn: Txn) -> tuple[str, int] | None:
        """Return the owner, or in one of ten cases another actor."""
        if not self.refs or data.draw(st.integers(0, 9), label="stranger") != 0:
            return txn.owner
        return data.draw(st.sampled_from([None, *self.refs]), label="by")


def _ref(owner: tuple[str, int] | None) -> AttemptRef | None:
    return AttemptRef(key=owner[0], epoch=Epoch(owner[1])) if owner else None


@pytest.fixture
def quick_directory() -> Iterator[Path]:
    """A directory in memory where available: the test flushes thousands of steps to disk."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="headgate-", dir=where))
    yield directory
    shutil.rmtree(directory)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_state_machine_agrees_with_the_model(
    database: str, quick_directory: Path, request: pytest.FixtureRequest, rounds: int
) -> None:
    if database == "sqlite":
        url = f"sqlite:///{quick_directory / 'catalog.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    with new_store(url, quick_directory) as store:
        run_state_machine_as_test(
            type("Machine", (CatalogMachine,), {"store": store}),
            settings=settings(
                max_examples=min(rounds, 50),
                stateful_step_count=50,
                deadline=None,
                # Without Phase.explain, which traces every line and takes longer than the failure.
                phases=[Phase.explicit, Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert_rows_sound(store)
