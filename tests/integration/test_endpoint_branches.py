"""Branch contexts: chains, branches created by their first write, tombstones, write access."""

from __future__ import annotations

import pytest

from headgate.catalog.branches import protect_branch
from headgate.errors import ViewConflict
from headgate.iceberg.table_catalog import TableChange, Write
from headgate.model.changes import Caller
from headgate.model.contexts import parse_context
from headgate.model.ids import mint_content
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import TransactionType
from tests.support.iceberg import (
    TABLES,
    RestClient,
    Served,
    at,
    create,
    creation,
    error,
    load,
    refusal,
    rename,
    send,
    snapshot_of,
)
from tests.support.metadata import commit, two_columns


@pytest.fixture
def master(client: RestClient) -> RestClient:
    """A client of master with the table `db.t` at its first snapshot."""
    create(client)
    send(client, *commit(1))
    return client


def test_first_write_makes_the_branch_off_the_first_fallback_that_has_the_table(
    master: RestClient, served: Served
) -> None:
    before = served.publications
    with served.client("feature>missing>master") as feature:
        assert send(feature, *commit(2, parent=1), requirements=[at(1)]).status_code == 200
    made = served.store.dataset("db.t").branch("feature").load()
    assert (made.parent, made.is_open) == ("master", False)
    assert [t.branch for t in served.history(branch="feature")] == ["master", "master", "feature"]
    assert served.publications == before + 1
    assert snapshot_of(master) == 1


def test_first_write_forks_at_the_view_while_the_fallback_is_open(
    master: RestClient, served: Served
) -> None:
    held = served.store.dataset("db.t").branch("master").transaction()
    with served.client("feature>master") as feature:
        assert send(feature, *commit(2, parent=1)).status_code == 200
        assert send(feature, *commit(3, parent=2)).status_code == 200
    assert held.id not in [t.id for t in served.history(branch="feature")]
    held.commit()
    assert snapshot_of(master) == 1


def test_first_write_without_any_fallback_makes_a_root(client: RestClient, served: Served) -> None:
    with served.client("feature>master") as feature:
        create(feature)
    assert served.store.dataset("db.t").branch("feature").load().parent is None
    assert client.call("HEAD", f"{TABLES}/t").status_code == 404


def test_empty_branch_is_passed_over_and_takes_its_first_write_whole(
    master: RestClient, served: Served
) -> None:
    served.store.dataset("db.t").branch("feature").create()
    with served.client("feature>master") as feature, served.client("feature") as alone:
        assert snapshot_of(feature) == 1
        assert error(alone.call("GET", f"{TABLES}/t")) == (404, "NoSuchTableException")
        assert send(feature, *commit(2, parent=1), requirements=[at(1)]).status_code == 200
        assert (snapshot_of(feature), snapshot_of(alone)) == (2, 2)
    [only] = served.history(branch="feature")
    assert (only.type, only.parent) == (TransactionType.SNAPSHOT, None)


@pytest.mark.parametrize("context", ["master", "feature>master", "empty>master"])
def test_change_prepared_on_what_the_chain_no_longer_shows_is_a_conflict(
    master: RestClient, served: Served, context: str
) -> None:
    served.store.dataset("db.t").branch("empty").create()
    chain = parse_context(context)
    base = served.catalog.resolve(chain, parse_dataset_name("db.t"))
    assert base is not None
    send(master, *commit(2, parent=1))
    change = TableChange(
        name=base.name,
        dataset_id=base.dataset_id,
        base=base,
        location=base.location,
        content_id=mint_content(),
        type=TransactionType.APPEND,
    )
    before = served.publications
    with pytest.raises(ViewConflict):
        served.catalog.commit(Write(caller=Caller(actor="ana"), context=chain), [change])
    assert served.publications == before


def test_drop_then_create_on_one_branch_is_a_new_table_of_the_same_dataset(
    master: RestClient, served: Served
) -> None:
    dropped = load(master)["metadata"]
    assert master.call("DELETE", f"{TABLES}/t").status_code == 204
    assert master.call("GET", TABLES).json()["identifiers"] == []
    made = create(master)["metadata"]
    above, _, own = made["location"].rpartition("/")
    assert dropped["location"].startswith(f"{above}/")
    assert not dropped["location"].endswith(own)
    assert made["table-uuid"] != dropped["table-uuid"]
    types = [(t.type, t.version is None) for t in served.history()]
    assert types[2:] == [(TransactionType.DELETE, True), (TransactionType.SNAPSHOT, False)]


def test_tombstone_does_not_fall_through_the_chain(master: RestClient, served: Served) -> None:
    with served.client("feature>master") as feature:
        assert feature.call("DELETE", f"{TABLES}/t").status_code == 204
        assert error(feature.call("DELETE", f"{TABLES}/t")) == (404, "NoSuchTableException")
        assert feature.call("GET", TABLES).json()["identifiers"] == []
        assert error(send(feature, *commit(2))) == (404, "NoSuchTableException")
        create(feature)
        assert snapshot_of(feature) is None
    assert snapshot_of(master) == 1


def test_rename_on_a_feature_branch_leaves_master_as_it_is(
    master: RestClient, served: Served
) -> None:
    before = served.publications
    with served.client("feature>master") as feature:
        assert feature.call("POST", "tables/rename", rename("t", "moved")).status_code == 204
        assert feature.call("HEAD", f"{TABLES}/t").status_code == 404
        assert send(feature, *commit(2, parent=1), name="moved").status_code == 200
        assert snapshot_of(feature, "moved") == 2
    assert served.publications == before + 2
    assert snapshot_of(master) == 1
    assert master.call("HEAD", f"{TABLES}/moved").status_code == 404


def test_rename_keeps_the_content_id(master: RestClient, served: Served) -> None:
    before = served.history()[-1].version
    master.call("POST", "tables/rename", rename("t", "u")).raise_for_status()
    after = served.history("db.u")[-1].version
    assert before is not None
    assert after is not None
    assert (after.content_id, after.location) == (before.content_id, before.location)


def test_protected_branch_refuses_every_write_and_is_read_by_all(
    master: RestClient, served: Served
) -> None:
    served.store.dataset("raw.scans").create(kind="files", branch="release", create=True)
    for name in ("master", "release"):
        protect_branch(served.store.database, name, actor="admin")
    before = served.publications
    with served.client("release>master") as release:
        for client in (master, release):
            assert refusal(send(client, *commit(2, parent=1))) == (403, "branch_protected")
            assert client.call("DELETE", f"{TABLES}/t").status_code == 403
            body = {"name": "n", "schema": two_columns()}
            assert client.call("POST", TABLES, body).status_code == 403
            assert snapshot_of(client) == 1
    assert served.publications == before


def test_admin_writes_on_a_protected_branch(master: RestClient, served: Served) -> None:
    context, name = parse_context("master"), parse_dataset_name("db.t")
    protect_branch(served.store.database, "master", actor="admin")
    table = served.catalog.resolve(context, name)
    assert table is not None
    admin = Caller(actor="admin", may_write_protected=True)
    served.catalog.drop(Write(caller=admin, context=context), table)
    assert served.catalog.resolve(context, name) is None


def test_name_of_a_tree_of_files_is_no_table_and_cannot_become_one(
    master: RestClient, served: Served
) -> None:
    served.store.dataset("db.scans").create(kind="files", branch="master")
    assert error(master.call("GET", f"{TABLES}/scans")) == (404, "NoSuchTableException")
    body = {"name": "scans", "schema": two_columns()}
    assert error(master.call("POST", TABLES, body)) == (400, "BadRequestException")
    taken = master.call("POST", "tables/rename", rename("t", "scans"))
    assert error(taken) == (400, "BadRequestException")
    listed = master.call("GET", TABLES).json()["identifiers"]
    assert [one["name"] for one in listed] == ["t"]


def test_staged_table_cannot_take_the_place_of_another_dataset(master: RestClient) -> None:
    staged = create(master, "n", **{"stage-create": True})
    place = load(master)["metadata"]["location"]
    updates = [*creation(staged), {"action": "set-location", "location": place}]
    response = send(master, *updates, name="n", requirements=[{"type": "assert-create"}])
    assert refusal(response) == (400, "impossible_table_change")
    assert snapshot_of(master) == 1
