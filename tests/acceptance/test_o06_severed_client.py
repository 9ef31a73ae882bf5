"""O06: a disconnected client retries with its idempotency key: one publication, one receipt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from headgate.catalog.log import list_publications
from headgate.catalog.operations import begin_operation, find_operations
from headgate.catalog.schema import operations
from headgate.errors import IdempotencyKeyReused, NotFound
from headgate.files.edits import FileEdit
from headgate.model.changes import OperationKey, Receipt, operation_key
from headgate.model.failpoints import Failpoint
from headgate.model.ids import mint_operation
from headgate.model.names import parse_dataset_name
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

KEY = "k-1"
OTHER = parse_dataset_name("raw.other")

Act = Callable[[BranchHandle], Receipt | BranchHandle]


def _removal() -> OperationKey:
    """Return the operation of `_ACTS["remove"]`."""
    request = {"dataset": DATASET, **FileEdit(remove=["a"]).to_json()}
    found = operation_key(KEY, actor="ana", kind="files-rm", branch="master", request=request)
    assert found is not None
    return found


def _count(store: Store) -> int:
    return len(store.database.read(lambda c: list_publications(c, limit=1000)))


def _age_operations(store: Store) -> None:
    """Age all operations, as if their workers had sent no heartbeat for two minutes."""
    aged = update(operations).values(at=operations.c.at - 120 * 1_000_000)
    store.database.write(lambda c: c.execute(aged))


def _send(settings: Settings, root: Path, point: Failpoint) -> None:
    """Run a client that dies at a failpoint of its publication."""
    with Store(settings, recover_first=False) as store:
        die_at(point)
        store.dataset(DATASET).branch("master").put(root / "local", "b", idempotency_key=KEY)


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
        known = store.database.read(lambda c: find_operations(c, KEY))
        assert [one["state"] for one in known] == (["committed"] if landed else [])
        before = _count(store)
        put(master, later="3")
        receipt = master.put(tmp_path / "local", "b", idempotency_key=KEY)
        assert receipt.replayed is landed
        assert _count(store) == before + 1 + (0 if landed else 1)
        assert content(master) == {"a": "1", "b": "2", "later": "3"}
        assert_store_sound(store)


_ACTS: dict[str, Act] = {
    "put": lambda master: _put(master, "b"),
    "remove": lambda master: master.remove("a", idempotency_key=KEY),
    "create": lambda master: master.dataset.branch("new").create("master", idempotency_key=KEY),
    "delete": lambda master: master.dataset.branch("old").delete(idempotency_key=KEY),
    "reset": lambda master: master.reset(to=master.history()[-1].id, idempotency_key=KEY),
}
# Same operation on the same branch name, with a different request.
_OTHERS: dict[str, Act] = {
    "put": lambda master: _put(master, "another"),
    "remove": lambda master: master.remove("z", idempotency_key=KEY),
    "create": lambda master: master.dataset.branch("new").create("old", idempotency_key=KEY),
    "delete": lambda master: (
        replace(master.dataset, name=OTHER).branch("old").delete(idempotency_key=KEY)
    ),
    "reset": lambda master: master.reset(to=master.history()[-2].id, idempotency_key=KEY),
}


def _put(master: BranchHandle, path: str) -> Receipt:
    source = Path(master.store.settings.root) / "local"
    source.write_text("2")
    return master.put(source, path, idempotency_key=KEY)


@pytest.mark.parametrize("verb", sorted(_ACTS))
def test_o06_every_verb_repeated_gives_its_first_receipt_wherever_heads_are(
    catalog_url: str, tmp_path: Path, verb: str
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        put(master, z="0")
        put(master, a="1")
        master.dataset.branch("old").create(parent="master")
        first = _ACTS[verb](master)
        put(master, later="3")
        before, known = _count(store), branches_by_name(store)
        again = _ACTS[verb](master)
        assert (_count(store), branches_by_name(store)) == (before, known)
        if isinstance(first, Receipt) and isinstance(again, Receipt):
            assert (again.publication, again.replayed) == (first.publication, True)
        with pytest.raises(IdempotencyKeyReused):
            _OTHERS[verb](master)
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
            first = unit.commit(idempotency_key=KEY)
            again = unit.commit(idempotency_key=KEY)
        else:
            opened = master.transaction()
            opened.write("a", b"1")
            first = opened.commit(idempotency_key=KEY)
            put(master, later="3")
            again = TransactionHandle.load(store, opened.id).commit(idempotency_key=KEY)
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
            store.status(KEY)
        assert unknown.value.facts["state"] == "not_committed"
        store.database.write(lambda c: begin_operation(c, mint_operation(), _removal()))
        assert store.status(KEY)["state"] == "in_progress"
        _age_operations(store)
        assert store.status(KEY)["state"] == "not_committed"
        store.database.write(lambda c: begin_operation(c, mint_operation(), _removal()))
        assert store.status(KEY)["state"] == "in_progress"
        receipt = master.remove("a", idempotency_key=KEY)
        status = store.status(KEY, branch="master")
        assert (status["state"], status["publication"]) == ("committed", receipt.publication)
