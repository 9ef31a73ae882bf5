"""The doctor on stores that are damaged on purpose: it finds each damage and its location."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, insert, text, update

from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.datasets import create_tag
from headgate.catalog.jobspecs import publish_jobspecs
from headgate.catalog.schema import (
    branches,
    condemned_objects,
    holds,
    intents,
    log_counter,
    moves,
    publications,
    tags,
    transactions,
    versions,
)
from headgate.model.changes import AddTransaction, Caller
from headgate.model.ids import ContentId, mint_version
from headgate.model.nouns import TransactionType, Version
from headgate.store.embedded import Store
from headgate.upkeep.doctor import Check, check_rows, examine
from tests.support.door import knock
from tests.support.stores import files_branch, load, load_dataset, new_store, put
from tests.support.upkeep import stored_keys

_CHECKS = [
    *("settings", "access", "catalog", "log", "branches", "tags", "histories", "versions"),
    *(
        "rules",
        "holds",
        "leases",
        "intents",
        "clock",
        "storage",
        "objects",
        "condemned",
        "tables",
        "bundles",
        "spark",
    ),
]

Break = Callable[[Connection], object]


@pytest.fixture
def store(catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    """Two datasets, one with a history, a tag, a child, and a grandchild whose head is OPEN."""
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        for content in "12345":
            put(master, a=content)
        put(files_branch(store, "raw.other"), b="other")
        create_tag(
            store.database, load_dataset(store), "v1", at=_view(store), caller=Caller(actor="ana")
        )
        child = master.dataset.branch("child").create(parent="master")
        put(child, a="6")
        grandchild = master.dataset.branch("grandchild").create(parent="child")
        grandchild.transaction().write("c", b"open")
        yield store


def _view(store: Store, branch: str = "master") -> str:
    return str(store.dataset("raw.scans").branch(branch).load().view)


class _Undo(Exception):
    """Rolls back a unit of work."""


def _findings(store: Store, breaking: Break, *, deep: bool = False) -> dict[str, str]:
    """Return the doctor's finding for each part while the rows are damaged, then roll back."""
    seen: list[Check] = []

    def work(connection: Connection) -> None:
        breaking(connection)
        seen.extend(check_rows(connection, deep=deep))
        raise _Undo

    with contextlib.suppress(_Undo):
        store.database.write(work)
    return {
        check.name: "\n".join(f"{f.where}: {f.what}" for f in check.findings)
        for check in seen
        if check.findings
    }


def _on(branch: str, **values: object) -> Break:
    return lambda c: c.execute(update(branches).where(branches.c.name == branch).values(values))


def _at(transaction: str, **values: object) -> Break:
    return lambda c: c.execute(
        update(transactions).where(transactions.c.id == transaction).values(values)
    )


@pytest.mark.parametrize("deep", [False, True])
def test_sound_store_has_no_findings(store: Store, deep: bool) -> None:
    dispatch_attempt(store.database, "key", actor="ana", lease_seconds=0)
    examined = examine(store.settings, deep=deep)
    assert examined.ok, examined.to_json()
    [leases] = [check for check in examined.checks if check.name == "leases"]
    assert leases.notes == ["1 attempts have no recorded end; newer attempts take over"]
    assert [check.name for check in examined.checks] == _CHECKS


def test_log_broken_in_each_way_is_found(store: Store) -> None:
    older = load(store, _view(store)).parent
    third = publications.c.number == 3
    for said, breaking in {
        "the counter is at 99": lambda c: c.execute(update(log_counter).values(number=99)),
        "the counter's time": lambda c: c.execute(update(log_counter).values(last_at=1)),
        "the log has no counter": lambda c: c.execute(delete(log_counter)),
        "numbered from 1 to": lambda c: c.execute(delete(publications).where(third)),
        f"raw.scans@master: the branch shows {older}, but": _on(
            "master", view_id=older, head_id=older
        ),
        "raw.scans@child: the branch exists, but the log has not created it": lambda c: c.execute(
            delete(moves).where(moves.c.branch_name == "child")
        ),
        "raw.scans@child: the branch exists, but the log has deleted it": lambda c: c.execute(
            update(moves).where(moves.c.branch_name == "child").values(change="deleted")
        ),
    }.items():
        assert said in _findings(store, breaking)["log"]


def test_log_that_does_not_replay_is_found_by_a_deep_look(store: Store) -> None:
    third = publications.c.number == 3
    for said, breaking in {
        "publication 3 moves 'master' from nothing": lambda c: c.execute(
            update(moves).where(moves.c.publication == 3).values(from_id=None)
        ),
        "publication 3 is not later": lambda c: c.execute(
            update(publications).where(third).values(at=1)
        ),
        "publication 3 has no moves": lambda c: c.execute(
            delete(moves).where(moves.c.publication == 3)
        ),
        "moves of publication 3, which": lambda c: c.execute(delete(publications).where(third)),
        "the branch 'grandchild' is gone": lambda c: c.execute(
            delete(branches).where(branches.c.name == "grandchild")
        ),
    }.items():
        assert said in _findings(store, breaking, deep=True)["log"]
        assert said not in _findings(store, breaking).get("log", "")


def test_branch_broken_in_each_way_is_found(store: Store) -> None:
    view, older = _view(store), load(store, _view(store)).parent
    other = str(store.dataset("raw.other").branch("master").load().view)
    ids = {b.name: b.id for b in store.dataset("raw.scans").branches()}
    for said, breaking in {
        "master: its head is t-gone, which does not exist": _on("master", head_id="t-gone"),
        "child: its view is t-gone, which does not exist": _on("child", view_id="t-gone"),
        "child: its view is " + other + ", which is of another": _on("child", view_id=other),
        f"master: its view {view} is ABORTED": _at(view, state="ABORTED"),
        f"child: its head {older} is COMMITTED, but it is not": _on("child", head_id=older),
        "but no head": _on("child", head_id=None),
        "not on its view": _on("grandchild", view_id=older),
        "child: its parent branch b-gone does not exist": _on("child", parent_id="b-gone"),
        "its own ancestor: raw.scans@": _on("child", parent_id=ids["grandchild"]),
    }.items():
        assert said in _findings(store, breaking)["branches"]


def test_open_transactions_that_break_the_rule_are_found(store: Store) -> None:
    opened = str(store.dataset("raw.scans").branch("grandchild").load().head)
    view = _view(store)
    lost = _findings(store, _on("grandchild", head_id=None))["branches"]
    assert f"transaction {opened} is OPEN, but no branch" in lost
    home = load(store, opened).branch_id
    twice = _findings(store, _at(view, state="OPEN", branch_id=home, branch_name="grandchild"))
    assert "branch grandchild: 2 transactions are OPEN" in twice["branches"]


@pytest.mark.parametrize("deep", [False, True])
def test_history_broken_in_each_way_is_found(store: Store, deep: bool) -> None:
    view = _view(store)
    parent = load(store, view).parent
    for said, breaking in {
        "its depth is 9, and should be 4": _at(view, depth=9),
        "its skip pointer is none, and should be": _at(view, jump_id=None),
        "its parent t-gone does not exist": _at(view, parent_id="t-gone"),
        f"its parent {parent} is ABORTED": _at(str(parent), state="ABORTED"),
        f"it was opened before its parent {parent} was closed": _at(view, opened_at=1),
        "it was closed before it was opened": _at(view, closed_at=1),
        "it is COMMITTED, but has no time of closing": _at(view, closed_at=None),
        "it is COMMITTED, but its publication is none": _at(view, publication=None),
    }.items():
        assert f"transaction {view}: {said}" in _findings(store, breaking, deep=deep)["histories"]


def test_history_off_all_branches_is_looked_at_by_a_deep_look(store: Store) -> None:
    master = store.dataset("raw.scans").branch("master")
    first = str(load(store, str(load(store, _view(store)).parent)).parent)
    lost = put(master, a="lost")
    master.reset(to=first)
    assert "histories" not in _findings(store, _at(lost, depth=9))
    assert "should be 5" in _findings(store, _at(lost, depth=9), deep=True)["histories"]


def test_tag_version_lease_hold_and_intent_are_looked_at(store: Store) -> None:
    view = load(store, _view(store))
    opened = str(store.dataset("raw.scans").branch("grandchild").load().head)
    assert view.version is not None
    mine = versions.c.id == view.version.id
    for name, said, breaking in [
        (
            "tags",
            "tag v1 of raw.scans: it pins t-gone, which is no transaction",
            lambda c: c.execute(update(tags).values(transaction_id="t-gone")),
        ),
        ("tags", "which is ABORTED", _at(view.id, state="ABORTED")),
        ("versions", "is not on record", lambda c: c.execute(delete(versions).where(mine))),
        (
            "versions",
            "is condemned, though a branch or tag needs it",
            lambda c: c.execute(update(versions).where(mine).values(condemned_at=1)),
        ),
        ("leases", f"transaction {opened} of ana is OPEN, and its", _at(opened, lease_until=1)),
        ("holds", "its reset 99 of the branch is not in the log", _hold(store, "master", 99)),
        ("holds", "branch b-gone: it does not exist", _hold(store, "b-gone", 1)),
        ("intents", "operation o of olga: its move of branch 'main' of 'songs'", _intent(_BODY)),
        ("intents", "its intent cannot be read", _intent("{")),
        ("intents", "its intent cannot be read", _intent("{}")),
    ]:
        assert said in _findings(store, breaking)[name]


_BODY = json.dumps(
    {
        "repository": "songs",
        "branch": "main",
        "expected": "A",
        "action": "merge",
        "planned": None,
        "key": "k",
        "epoch": 1,
        "execution": "e",
    }
)


def _hold(store: Store, branch: str, publication: int) -> Break:
    """Return a hold of a branch by its name, or by an id that no branch has."""
    known = {b.name: str(b.id) for b in store.branches() if str(b.dataset) == "raw.scans"}
    row = {"branch_id": known.get(branch, branch), "inputs_key": "k", "publication": publication}
    return lambda c: c.execute(insert(holds), [row])


def _intent(body: str) -> Break:
    row: dict[str, object] = {"id": "i", "operation_id": "o", "kind": "workspace", "actor": "olga"}
    row |= {"phase": "A", "body": body}
    row |= dict.fromkeys(("epoch", "lease_seconds", "lease_until", "created_at"), 1)
    return lambda c: c.execute(insert(intents), [row])


def test_version_of_any_transaction_is_looked_for_by_a_deep_look(store: Store) -> None:
    first = load(store, str(load(store, _view(store)).parent)).version
    assert first is not None

    def lose(connection: Connection) -> object:
        return connection.execute(delete(versions).where(versions.c.id == first.id))

    assert "versions" not in _findings(store, lose)
    assert "is not on record" in _findings(store, lose, deep=True)["versions"]


def _said(store: Store, name: str, *, deep: bool = False) -> str:
    examined = examine(store.settings, deep=deep)
    [check] = [check for check in examined.checks if check.name == name]
    assert examined.ok is check.ok
    return "\n".join(f"{f.where}: {f.what}" for f in check.findings)


def _key_of(store: Store, content: bytes) -> str:
    return f"{store.trees.objects.location(store.trees.store(content))}".removeprefix(
        f"{store.objects.url}/"
    )


def test_missing_object_is_named_with_the_file_that_needs_it(store: Store) -> None:
    store.objects.delete([_key_of(store, b"5")])
    said = _said(store, "objects")
    assert said.startswith("raw.scans@master: a: object file://") and "does not exist" in said


def test_missing_leaf_and_index_are_named(store: Store) -> None:
    for key in stored_keys(store):
        store.objects.delete([key])
    assert _said(store, "objects").count("does not exist: it was never written") == 4


def test_truncated_object_is_found_by_its_size(store: Store) -> None:
    store.objects.replace(_key_of(store, b"5"), b"")
    assert "it has 0 bytes instead of 1" in _said(store, "objects")


def test_damaged_object_is_found_by_a_deep_look(store: Store) -> None:
    store.objects.replace(_key_of(store, b"5"), b"x")
    assert _said(store, "objects") == ""
    said = _said(store, "objects", deep=True)
    assert said.startswith("raw.scans@master: a: object file://") and "is damaged" in said


def test_condemned_object_that_is_needed_is_named(store: Store) -> None:
    location = f"{store.objects.url}/{_key_of(store, b'5')}"
    row = {"location": location, "condemned_at": 1, "bytes": 1}
    store.database.write(lambda c: c.execute(insert(condemned_objects), [row]))
    assert f"raw.scans@master: a: object {location} is condemned" in _said(store, "condemned")


def test_table_whose_metadata_is_gone_is_named(store: Store) -> None:
    dataset = store.dataset("raw.table").create(kind="table").load()
    branch = store.dataset("raw.table").branch("master").load()
    metadata = {"format-version": 2, "table-uuid": "u"}
    kept = store.tables.write(dataset.id, metadata, base=None)
    version = Version(id=mint_version(), location=kept.location, content_id=ContentId("c-1"))
    change = AddTransaction(
        branch=branch.id,
        expected_head=None,
        expected_view=None,
        parent=None,
        type=TransactionType.SNAPSHOT,
        version=version,
    )
    knock(store, change)
    assert _said(store, "tables") == ""
    store.objects.delete([kept.location.removeprefix(f"{store.objects.url}/")])
    said = _said(store, "tables")
    assert said.startswith("raw.table@master: object /") and "does not exist" in said


def test_bundle_that_is_gone_or_damaged_is_named(store: Store) -> None:
    code = b"code"
    digest = hashlib.sha256(code).hexdigest()
    publish_jobspecs(
        store.database,
        branch="master",
        repository="here",
        commit="c",
        clean=True,
        actor="ana",
        specs=[{"outputs": ["raw.made"], "jobspec": {"bundle": digest}}],
    )
    assert "the JobSpec of raw.made on master: bundle" in _said(store, "bundles")
    store.objects.put(f"bundles/{digest}.zip", b"other")
    assert _said(store, "bundles") == ""
    assert "is damaged" in _said(store, "bundles", deep=True)


def test_schema_that_is_too_new_is_told_and_nothing_else_is_tried(store: Store) -> None:
    store.database.write(lambda c: c.execute(text("UPDATE store SET value = '999'")))
    examined = examine(store.settings)
    said = {check.name: check.findings for check in examined.checks}
    assert "its schema version is 999" in said["catalog"][0].what
    assert "log" not in said and said["storage"] == []
