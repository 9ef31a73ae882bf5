"""Writers at a protected branch: staging, abort, tags, creation, takeovers and namespaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.builds import record_build_in
from headgate.catalog.schema import transactions
from headgate.errors import BranchProtected, RoleDenied
from headgate.model.access import Grant, Role
from headgate.model.ids import BuildId
from headgate.store.embedded import Store
from tests.support.api import Api
from tests.support.stores import files_branch, new_store, put

ADMIN = Grant(actor="ada", role=Role.ADMIN)
WRITER = Grant(actor="walt", role=Role.WRITER)
LIMITED = Grant(actor="lin", role=Role.WRITER, branches=("lin/*",))


@pytest.fixture
def store(catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(catalog_url, tmp_path) as opened:
        branch = files_branch(opened)
        put(branch, a="1")
        yield opened


def test_writer_stages_nothing_into_the_open_transaction_of_an_admin(store: Store) -> None:
    store.protect("master")
    opened = store.acting_for(ADMIN).dataset("raw.scans").branch("master").transaction("UPDATE")
    with pytest.raises(BranchProtected):
        store.acting_for(WRITER).opened(opened.id).write("evil", b"x")  # type: ignore[union-attr]
    with pytest.raises(BranchProtected):
        store.acting_for(WRITER).opened(opened.id).abort()
    opened.write("good", b"y")
    opened.commit()
    files = [entry.path for entry in store.dataset("raw.scans").branch("master").files()]
    assert files == ["a", "good"]


def test_writer_aborts_no_unit_of_an_admin(store: Store) -> None:
    store.protect("master")
    unit = store.acting_for(ADMIN).transaction("master")
    unit.dataset("raw.scans").write("good", b"y")
    with pytest.raises(BranchProtected):
        store.acting_for(WRITER).opened(unit.id).abort()
    with pytest.raises(BranchProtected):
        store.acting_for(WRITER).opened(unit.id).dataset("raw.scans").write("evil", b"x")  # type: ignore[union-attr]
    unit.commit()
    assert len(store.dataset("raw.scans").branch("master").files()) == 2


def test_owner_of_a_transaction_continues_on_a_branch_that_was_protected_since(
    store: Store,
) -> None:
    opened = store.acting_for(WRITER).dataset("raw.scans").branch("master").transaction("UPDATE")
    store.protect("master")
    opened.write("mine", b"z")
    with pytest.raises(BranchProtected):
        opened.commit()
    opened.abort()


def test_tags_of_a_protected_branch_and_its_parent_are_for_admins(store: Store) -> None:
    dataset = store.dataset("raw.scans")
    view = dataset.branch("master").load().view
    assert view is not None
    dataset.branch("side").create("master")
    dataset.tag("v1", at=view)
    store.protect("master")
    named = store.acting_for(WRITER).dataset("raw.scans")
    for change in (
        lambda: named.tag("v2", at=view),
        lambda: named.untag("v1"),
        lambda: named.branch("master").reparent("side"),
    ):
        with pytest.raises(BranchProtected):
            change()
    assert [tag.name for tag in store.tags()] == ["v1"]
    store.acting_for(ADMIN).dataset("raw.scans").untag("v1")


def test_dataset_on_a_protected_branch_is_created_by_admins_only(store: Store) -> None:
    store.protect("master")
    with pytest.raises(BranchProtected):
        store.acting_for(WRITER).dataset("raw.more").create(kind="files", branch="master")
    assert [str(dataset.name) for dataset in store.datasets()] == ["raw.scans"]
    store.acting_for(ADMIN).dataset("raw.more").create(kind="files", branch="master")


@pytest.mark.parametrize("how", ["transaction", "edit"])
def test_expired_transaction_is_not_taken_over_through_a_child_branch(
    store: Store, how: str
) -> None:
    """The child shares the OPEN head of its parent, which its writer may not write."""
    admin = store.acting_for(ADMIN).dataset("raw.scans")
    opened = admin.branch("master").transaction("UPDATE")
    child = admin.branch("lin/child").create("master")
    assert child.load().head == opened.id
    store.database.write(
        lambda c: c.execute(
            update(transactions).where(transactions.c.id == opened.id).values(lease_until=1)
        )
    )
    mine = store.acting_for(LIMITED).dataset("raw.scans").branch("lin/child")
    with pytest.raises(RoleDenied):
        if how == "transaction":
            mine.transaction("UPDATE")
        else:
            mine.remove("a")
    assert store.opened(opened.id).transaction.state == "OPEN"  # type: ignore[union-attr]
    opened.write("b", b"2")
    opened.commit()
    # The parent's writer may, as before.
    assert [entry.path for entry in child.files()] == ["a", "b"]


def test_build_on_a_protected_branch_is_canceled_by_its_actor_or_an_admin(small_api: Api) -> None:
    api, store = small_api, small_api.store
    id = BuildId("build-1")
    attempt = dispatch_attempt(
        store.database, id, actor="ana", lease_seconds=900, scope={"branch": "walt/x"}
    ).ref
    body: dict[str, list[str]] = {"targets": [], "fallback": []}
    store.database.write(
        lambda c: record_build_in(
            c, id=id, branch="walt/x", actor="ana", attempt=attempt, body=body, planned=[]
        )
    )
    files_branch(store, branch="walt/x")
    store.protect("walt/x")
    assert api.writer.error(403, "POST", f"/builds/{id}/cancel") == "branch_protected"
    assert api.admin.post(f"/builds/{id}/cancel")["state"] == "canceled"


def test_namespace_shared_with_a_protected_branch_is_changed_by_admins_only(small_api: Api) -> None:
    api, store = small_api, small_api.store
    writer = api.client("wim", Role.WRITER)

    def send(client: object, method: str, path: str, body: object = None) -> int:
        http = client.http  # type: ignore[attr-defined]
        found = http.get(f"{api.url}/iceberg/v1/config", params={"warehouse": "side>master"})
        prefix = found.json()["overrides"]["prefix"]
        reply = http.request(method, f"{api.url}/iceberg/v1/{prefix}/{path}", json=body)
        return int(reply.status_code)

    change = ("POST", "namespaces/db/properties", {"updates": {"owner": "wim"}})
    assert send(writer, "POST", "namespaces", {"namespace": ["db"]}) == 200
    assert send(writer, *change) == 200
    store.protect("master")
    assert send(writer, *change) == 403
    assert send(writer, "DELETE", "namespaces/db") == 403
    assert send(api.admin, *change) == 200
    # One that patterns of branches limit changes nothing that others share.
    store.protect("master", protected=False)
    assert send(api.client("lin", Role.WRITER, "side"), *change) == 403


def test_client_chooses_no_dataset_id(made_sqlite_url: str, tmp_path: Path) -> None:
    with new_store(made_sqlite_url, tmp_path) as store:
        tables = store.tables
        minted = store.dataset("raw.scans").create(kind="files", branch="master").load().id
        place = tables.table_location(minted)
        assert tables.find_dataset(place) == minted
        for chosen in ("mine", "..", "d-1", "d-" + "x" * 22 + "y", "D-" + minted[2:]):
            assert tables.find_dataset(place.replace(minted, chosen)) is None


def test_protection_of_some_datasets_leaves_the_others_to_writers(store: Store) -> None:
    gold = put(files_branch(store, "gold.daily"), a="1")
    store.protect("master", datasets=["gold.*"])
    assert store.protected() == {"master": ("gold.*",)}
    writer = store.acting_for(WRITER)
    put(writer.dataset("raw.scans").branch("master"), b="2")
    writer.dataset("raw.more").create(kind="files", branch="master")
    daily = writer.dataset("gold.daily")
    changes: list[Callable[[], object]] = [
        lambda: put(daily.branch("master"), b="2"),
        lambda: daily.branch("master").transaction(),
        lambda: daily.branch("master").delete(force=True),
        lambda: daily.tag("v1", at=gold),
        lambda: writer.dataset("gold.more").create(kind="files", branch="master"),
    ]
    for number, change in enumerate(changes):
        with pytest.raises(BranchProtected) as refused:
            change()
        assert "on gold." in refused.value.message, number
    with pytest.raises(BranchProtected), writer.transaction("master") as unit:
        unit.dataset("raw.scans").write("c", b"3")
        unit.dataset("gold.daily")
    put(store.acting_for(ADMIN).dataset("gold.daily").branch("master"), b="2")
    hidden = store.acting_for(
        Grant(actor="lin", role=Role.READER, reads=("master",), datasets=("raw.*",))
    )
    assert hidden.protected() == {}
    # The second protection replaces the first.
    store.protect("master")
    with pytest.raises(BranchProtected):
        put(writer.dataset("raw.scans").branch("master"), c="3")
    store.protect("master", protected=False)
    put(daily.branch("master"), c="3")


def test_rows_are_written_beside_protected_datasets(made_catalog_url: str, tmp_path: Path) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        for name in ("raw.t", "gold.t"):
            text = f'[dataset."{name}"]\ncolumns = {{id = "long"}}\nkey = ["id"]\n'
            store.rows.apply_schema_text(text, file="s.toml", branch="master")
        store.protect("master", datasets=["gold.*"])
        store.mutate("master", "insert into raw.t (id) values (1)")
        store.load("master", {"raw.t": [{"id": 2}]})
        writes: list[Callable[[], object]] = [
            lambda: store.mutate("master", "insert into gold.t (id) values (1)"),
            lambda: store.load("master", {"raw.t": [{"id": 3}], "gold.t": [{"id": 3}]}),
        ]
        for write in writes:
            with pytest.raises(BranchProtected, match="on gold"):
                write()
        assert store.dataset("raw.t").show(rows=9)["row_count"] == 2


def test_protection_beyond_the_patterns_of_an_admin_is_not_changed(small_api: Api) -> None:
    for dataset in ("gold.orders", "silver.orders"):
        small_api.admin.make_files(dataset, "ana/x")
    made = small_api.admin.post(
        "/tokens", actor="bo", role="admin", branches=["ana/*"], datasets=["gold.*"]
    )
    bo, path = small_api.bearing(made["token"]), "/protected/ana/x"
    for patterns in ([], ["*"], ["silver.*"], ["gold.*", "*.orders"]):
        assert bo.error(403, "PUT", path, params={"datasets": patterns}) == "role_denied"
    for before in ("*", "silver.orders"):
        small_api.admin.ok("PUT", path, params={"datasets": [before]})
        for method, patterns in (("DELETE", []), ("PUT", ["gold.*"])):
            reply = bo.call(method, path, params={"datasets": patterns})
            assert (reply.status_code, reply.json()["code"]) == (403, "role_denied")
            assert "silver" not in reply.text
        assert small_api.admin.get("/protected")[0]["datasets"] == [before]
    small_api.admin.ok("DELETE", path)
    bo.ok("PUT", path, params={"datasets": ["gold.o*"]})
    bo.ok("DELETE", path)
