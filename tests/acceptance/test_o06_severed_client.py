"""O06: a client with an idempotency key is cut off and asks again: one publication, one receipt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import update

from headgate.catalog.log import list_publications
from headgate.catalog.operations import begin_operation, find_operations
from headgate.catalog.schema import operations
from headgate.errors import IdempotencyKeyReused, NotFound
from headgate.model.changes import OperationKey, Receipt
from headgate.model.failpoints import Failpoint
from headgate.model.ids import mint_operation
from headgate.settings import Settings
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.store.transactions import TransactionHandle
from headgate.testing.failpoints import die_at
from tests.support.oracle import assert_store_sound
from tests.support.processes import assert_killed
from tests.support.stores import (
    DATASET,
    branches_by_name,
    content,
    files_branch,
    new_settings,
    new_store,
    put,
)

Act = Callable[[BranchHandle, OperationKey], Receipt | BranchHandle]


def _key(kind: str = "put", request: str = "first") -> OperationKey:
    return OperationKey(
        principal="ana", kind=kind, branch="master", key="k-1", request_hash=request
    )


def _count(store: Store) -> int:
    return len(store.database.read(lambda c: list_publications(c, limit=1000)))


def _age_operations(store: Store) -> None:
    """As if whoever works on an operation had given no sign of life for two minutes."""
    aged = update(operations).values(at=operations.c.at - 120 * 1_000_000)
    store.database.write(lambda c: c.execute(aged))


def _send(settings: Settings, root: Path, point: Failpoint) -> None:
    """A client that dies on the way; its last word is the publication."""
    with Store(settings, recover_first=False) as store:
        die_at(point)
        store.dataset(DATASET).branch("master").put(root / "local", "b", operation=_key())


@pytest.mark.parametrize(
    ("point", "landed"),
    [
        (Failpoint.PUBLISH_LOCKED, False),
        (Failpoint.PUBLISH_APPLIED, False),
        (Failpoint.PUBLISH_COMMITTED, True),
    ],
)
def test_o06_client_killed_at_the_door_asks_again_and_lands_once(
    catalog_url: str, tmp_path: Path, point: Failpoint, landed: bool
) -> None:
    settings = new_settings(catalog_url, tmp_path)
    (tmp_path / "local").write_text("2")
    with Store(settings) as store:
        master = files_branch(store)
        put(master, a="1")
        assert_killed(_send, settings, tmp_path, point)
        known = store.database.read(lambda c: find_operations(c, "k-1"))
        assert [one["state"] for one in known] == (["committed"] if landed else [])
        before = _count(store)
        put(master, later="3")
        receipt = master.put(tmp_path / "local", "b", operation=_key())
        assert receipt.replayed is landed
        assert _count(store) == before + 1 + (0 if landed else 1)
        assert content(master) == {"a": "1", "b": "2", "later": "3"}
        assert_store_sound(store)


_ACTS: dict[str, Act] = {
    "put": lambda master, key: _edit(master, key),
    "remove": lambda master, key: master.remove("a", operation=key),
    "create": lambda master, key: master.dataset.branch("new").create(
        parent="master", operation=key
    ),
    "delete": lambda master, key: master.dataset.branch("old").delete(operation=key),
    "reset": lambda master, key: master.reset(to=master.history()[-1].id, operation=key),
}


def _edit(master: BranchHandle, key: OperationKey) -> Receipt:
    source = Path(master.store.settings.root) / "local"
    source.write_text("2")
    return master.put(source, "b", operation=key)


@pytest.mark.parametrize("verb", sorted(_ACTS))
def test_o06_every_verb_repeated_gives_its_first_receipt_wherever_heads_are(
    catalog_url: str, tmp_path: Path, verb: str
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        put(master, z="0")
        put(master, a="1")
        master.dataset.branch("old").create(parent="master")
        first = _ACTS[verb](master, _key(verb))
        put(master, later="3")
        before, known = _count(store), branches_by_name(store)
        again = _ACTS[verb](master, _key(verb))
        assert (_count(store), branches_by_name(store)) == (before, known)
        if isinstance(first, Receipt) and isinstance(again, Receipt):
            assert (again.publication, again.replayed) == (first.publication, True)
        with pytest.raises(IdempotencyKeyReused):
            _ACTS[verb](master, _key(verb, request="another"))
        assert_store_sound(store)


@pytest.mark.parametrize("kind", ["transaction", "unit"])
def test_o06_commit_repeated_gives_its_first_receipt(
    catalog_url: str, tmp_path: Path, kind: str
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        if kind == "unit":
            unit = store.transaction(branch="master")
            unit.dataset(DATASET).write("a", b"1")
            first = unit.commit(operation=_key("commit"))
            again = unit.commit(operation=_key("commit"))
        else:
            opened = master.transaction()
            opened.write("a", b"1")
            first = opened.commit(operation=_key("commit"))
            put(master, later="3")
            again = TransactionHandle.load(store, opened.id).commit(operation=_key("commit"))
        assert (again.publication, again.replayed) == (first.publication, True)
        assert content(master)["a"] == "1"
        assert_store_sound(store)


def test_o06_status_by_key_says_not_committed_in_progress_or_committed(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        put(master, a="1")
        with pytest.raises(NotFound) as unknown:
            store.status("k-1")
        assert unknown.value.facts["state"] == "not_committed"
        store.database.write(lambda c: begin_operation(c, mint_operation(), _key("remove")))
        assert store.status("k-1")["state"] == "in_progress"
        _age_operations(store)
        assert store.status("k-1")["state"] == "not_committed"
        store.database.write(lambda c: begin_operation(c, mint_operation(), _key("remove")))
        assert store.status("k-1")["state"] == "in_progress"
        receipt = master.remove("a", operation=_key("remove"))
        status = store.status("k-1", branch="master")
        assert (status["state"], status["publication"]) == ("committed", receipt.publication)
