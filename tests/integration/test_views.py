"""Views beside tables and files: merge, diff, show, rights, cleanup, kills and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.cli.format import show_content, show_difference
from headgate.errors import Invalid, MergeConflict, TransactionTypeViolated, ViewHasNoRows
from headgate.model.access import Role
from headgate.model.failpoints import Failpoint
from headgate.model.nouns import DatasetKind, PublicationKind, TransactionType
from headgate.server.web.dataset_page import dataset_page
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.testing.failpoints import die_at
from headgate.upkeep.backup import back_up, check_backup
from headgate.upkeep.doctor import examine
from tests.support.api import Api
from tests.support.attempts import dispatch_job
from tests.support.iceberg import Front, RestClient, Served, create, error, refusal, rename
from tests.support.oracle import assert_rows_sound
from tests.support.pages import visit
from tests.support.processes import assert_killed
from tests.support.stores import new_settings
from tests.support.upkeep import let_days_pass, stored_keys, tidy_twice
from tests.support.views import (
    SPARK,
    VIEWS,
    make_view,
    post_view,
    query_of,
    replace_view,
    send_view,
    to_replace,
    view_schema,
    view_version,
)

OTHER = "SELECT id FROM db.t WHERE id > 1"
THIRD = "SELECT id FROM db.t WHERE id > 2"


def test_view_of_a_branch_is_merged_reviewed_and_compared(
    client: RestClient, served: Served
) -> None:
    make_view(client)
    with served.client("feature>master") as feature:
        replace_view(feature, OTHER)
        make_view(feature, "w")
    by_name = {found["dataset"]: found for found in served.store.review("feature", into="master")}
    assert by_name["db.w"]["samples"]["added"] == [
        {"dialect": "spark", "query": SPARK, "defaults": "headgate.db"}
    ]
    changed = by_name["db.v"]
    assert changed["kind"] == "view"
    assert changed["samples"]["changed"] == [
        {"key": {"dialect": "spark"}, "from": {"query": SPARK}, "to": {"query": OTHER}}
    ]
    compared = _compared(served)
    assert compared["samples"] == changed["samples"]
    assert (compared["basis"], compared["identical"]) == ("queries", False)
    served.store.merge("feature", into="master")
    assert (query_of(client), query_of(client, "w")) == (OTHER, SPARK)
    *_, merged = served.history("db.v")
    assert merged.type is TransactionType.SNAPSHOT
    assert served.store.publications(limit=1)[0].kind is PublicationKind.MERGE
    assert served.store.merge("feature", into="master").publication is None
    assert _compared(served)["identical"]


def _compared(served: Served) -> Any:
    return served.store.differences("master", "feature", dataset="db.v")


def test_merge_of_two_changed_views_is_a_conflict_that_names_both_queries(
    client: RestClient, served: Served
) -> None:
    make_view(client)
    with served.client("feature>master") as feature:
        replace_view(feature, OTHER)
        replace_view(client, THIRD)
        with pytest.raises(MergeConflict, match="both sides changed it") as refused:
            served.store.merge("feature", into="master")
        (conflict,) = refused.value.facts["conflicts"]
        assert (conflict["dataset"], conflict["kind"]) == ("db.v", "update_update")
        assert [conflict[side] for side in ("base", "source", "target")] == [
            {"spark": SPARK},
            {"spark": OTHER},
            {"spark": THIRD},
        ]
        (side,) = served.store.review("feature", into="master")
        assert side["conflicts"] == [conflict]
        assert query_of(client) == THIRD
        # The same change on both sides is not a conflict.
        replace_view(client, OTHER)
        served.store.merge("feature", into="master")
        assert query_of(client) == OTHER


def test_view_dropped_or_renamed_on_a_branch_is_so_after_the_merge(
    client: RestClient, served: Served
) -> None:
    make_view(client)
    make_view(client, "w")
    with served.client("feature>master") as feature:
        assert feature.call("DELETE", f"{VIEWS}/v").status_code == 204
        assert feature.call("POST", "views/rename", rename("w", "x")).status_code == 204
    replace_view(client, OTHER, "w")
    served.store.merge("feature", into="master")
    assert [query_of(client, name) for name in ("v", "w", "x")] == [None, None, OTHER]


def test_view_is_shown_with_its_queries_and_refuses_rows(hg: headgate.Store) -> None:
    hg.dataset("db.v").create(kind="view")
    with pytest.raises(ViewHasNoRows, match="is a view, not a table"):
        hg.dataset("db.v").show(rows=1)
    shown = hg.dataset("db.v").show()
    assert (shown["kind"], shown["schema"], shown["queries"]) == ("view", [], {})


def test_view_cannot_be_read_or_written_as_a_table_or_a_tree(
    client: RestClient, served: Served, tmp_path: Path
) -> None:
    make_view(client)
    store = served.store
    assert store.dataset("db.v").show()["queries"] == {"spark": SPARK}
    with pytest.raises(ViewHasNoRows, match="headgate sql"):
        store.table("db.v").to_arrow()
    with pytest.raises(ViewHasNoRows):
        store.mutate("master", "delete from db.v where id = 1")
    with pytest.raises(Invalid, match="is a view, not a tree of files"):
        store.dataset("db.v").branch("master").put(tmp_path)
    store.dataset("db.files").create(kind="files")
    refused = post_view(client, "files")
    assert refused.status_code == 400
    assert "is a tree of files, not a view" in refused.json()["error"]["message"]


def test_view_has_a_page_with_its_query_and_its_comparison(
    client: RestClient, served: Served
) -> None:
    make_view(client)
    with served.client("feature>master") as feature:
        send_view(
            feature,
            {"action": "add-schema", "schema": view_schema("number", "id")},
            {
                "action": "add-view-version",
                "view-version": view_version({"spark": "SELECT id & 1 AS number, id FROM db.t"}),
            },
            {"action": "set-current-view-version", "view-version-id": -1},
        ).raise_for_status()
    page = dataset_page(visit(served.store, "db.v", branch="feature"))
    drawn = str(page.sections["Content"])
    assert "Query, spark" in drawn
    assert "SELECT id &amp; 1 AS number" in drawn
    asked = {"branch": "feature", "tab": "compare", "from_": "master", "to": "feature"}
    compared = dataset_page(visit(served.store, "db.v", role=Role.ADMIN, **asked))
    text = str(compared.sections["Compare"])
    assert "1 → 1 queries" in text
    # By name, although both columns have the number 0.
    assert "added, long" in text
    assert "is now called" not in text


def test_view_is_printed_with_its_queries_and_their_differences(
    client: RestClient, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    make_view(client, properties={"comment": "ids"})
    with served.client("feature>master") as feature:
        replace_view(feature, OTHER)
    show_content(served.store.dataset("db.v").show(), rows=0)
    show_difference(_compared(served))
    printed = capsys.readouterr()
    told = " ".join((printed.out + printed.err).split())
    assert f"spark {SPARK}" in told
    assert "comment = ids" in told
    assert "1 → 1 queries: 0 added, 0 removed, 1 changed by dialect" in told


def test_query_of_a_view_is_left_to_spark(client: RestClient, served: Served) -> None:
    make_view(client)
    with pytest.raises(Invalid, match=r"db\.v is not a table here\. Use --engine spark"):
        served.store.sql("select id from db.v", engine="duckdb")


def test_view_that_a_token_may_not_read_appears_nowhere(api: Api) -> None:
    ana = api.token("ana", Role.ADMIN)
    with RestClient(f"{api.url}/iceberg", "master", token=ana) as client:
        client.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()
        make_view(client, "open")
        make_view(client, "secret")
    limited = api.store.create_token(actor="bo", role=Role.WRITER, datasets=["db.open"])
    with RestClient(f"{api.url}/iceberg", "master", token=str(limited["token"])) as bo:
        assert bo.call("GET", VIEWS).json()["identifiers"] == [
            {"namespace": ["db"], "name": "open"}
        ]
        assert query_of(bo, "open") == SPARK
        for response in (
            bo.call("GET", f"{VIEWS}/secret"),
            bo.call("HEAD", f"{VIEWS}/secret"),
            send_view(bo, name="secret"),
            bo.call("DELETE", f"{VIEWS}/secret"),
            bo.call("POST", "views/rename", rename("secret", "open")),
        ):
            assert response.status_code == 404
        for response in (
            post_view(bo, "secret"),
            bo.call("POST", "namespaces/db/tables", {"name": "secret", "schema": view_schema()}),
        ):
            # As for a name that is free and not the token's.
            assert error(response) == (403, "ForbiddenException")
    assert [found["dataset"] for found in api.bearing(str(limited["token"])).get("/datasets")] == [
        "db.open"
    ]


def test_snapshot_transaction_of_a_view_starts_with_the_view(
    client: RestClient, served: Served
) -> None:
    make_view(client)
    branch = served.store.dataset("db.v").branch("master")
    with branch.transaction("SNAPSHOT") as opened, served.client(f"txn:{opened.id}") as inside:
        assert query_of(inside) == SPARK
    assert query_of(client) == SPARK
    with branch.transaction("SNAPSHOT") as opened, served.client(f"txn:{opened.id}") as inside:
        replace_view(inside, OTHER)
    assert query_of(client) == OTHER
    with (
        pytest.raises(TransactionTypeViolated),
        branch.transaction("APPEND") as opened,
        served.client(f"txn:{opened.id}") as inside,
    ):
        replace_view(inside, THIRD)
    assert query_of(client) == OTHER


def test_job_reads_a_declared_view_and_writes_none(client: RestClient, served: Served) -> None:
    create(client)
    create(client, "out")
    make_view(client)
    make_view(client, "w")
    job = dispatch_job(served.store, "build-1/0", inputs=("db.t", "db.v"), outputs=("db.out",))
    replace_view(client, OTHER)
    with served.client(job.context, token=job.token) as inside:
        # As of the start of the job.
        assert query_of(inside) == SPARK
        assert inside.call("GET", VIEWS).json()["identifiers"] == [
            {"namespace": ["db"], "name": "v"}
        ]
        for refused, code in (
            (inside.call("GET", f"{VIEWS}/w"), "job_read_denied"),
            (send_view(inside, *to_replace({"spark": OTHER})), "job_write_denied"),
            (post_view(inside, "x"), "job_read_denied"),
            (post_view(inside, "out"), "name_taken"),
        ):
            assert refusal(refused)[1] == code
        assert inside.call("DELETE", f"{VIEWS}/v").status_code == 403


def test_cleanup_deletes_what_no_branch_shows_of_views_and_keeps_the_rest(
    client: RestClient, served: Served
) -> None:
    make_view(client)
    make_view(client, "w")
    replace_view(client, OTHER, "w")
    assert client.call("DELETE", f"{VIEWS}/v").status_code == 204
    assert len(stored_keys(served.store)) == 3
    let_days_pass(served.store, 10)
    tidy_twice(served.store)
    assert len(stored_keys(served.store)) == 3
    let_days_pass(served.store, 40)
    tidy_twice(served.store)
    (kept,) = stored_keys(served.store)
    dataset = served.store.dataset("db.w").load().id
    assert kept.startswith(f"tables/{dataset}/metadata/")
    with served.client("master") as again:
        assert query_of(again, "w") == OTHER
        make_view(again)
    assert_rows_sound(served.store)


def test_doctor_finds_a_view_without_its_file_and_backups_have_it(
    client: RestClient, served: Served, tmp_path: Path
) -> None:
    make_view(client)
    create(client)
    place = tmp_path / "backup"
    back_up(served.store.database, served.store.objects, place)
    assert [one for check in check_backup(place).checks for one in check.findings] == []
    assert len(list(place.rglob("*.metadata.json"))) == 2
    *_, shown = served.history("db.v")
    assert shown.version is not None
    Path(shown.version.location.removeprefix("file://")).unlink()
    findings = [one for check in examine(served.store.settings).checks for one in check.findings]
    assert [one.where for one in findings] == ["db.v@master"]


@pytest.mark.parametrize(
    "point", [Failpoint.PUBLISH_LOCKED, Failpoint.PUBLISH_APPLIED, Failpoint.PUBLISH_COMMITTED]
)
def test_killed_while_replacing_a_view_leaves_the_state_before_or_after(
    catalog_url: str, tmp_path: Path, point: Failpoint, front: Front
) -> None:
    settings = new_settings(catalog_url, tmp_path)
    with Store(settings) as store, Served(store, front).client() as client:
        client.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()
        make_view(client)
    assert_killed(_replace_until, settings, point)
    with Store(settings) as store, Served(store, front).client() as client:
        store.recover()
        assert query_of(client) == (OTHER if point is Failpoint.PUBLISH_COMMITTED else SPARK)
        replace_view(client, THIRD)
        assert query_of(client) == THIRD
        assert_rows_sound(store)


def _replace_until(settings: Settings, point: Failpoint) -> None:
    with Store(settings) as store, Served(store, Front()).client() as client:
        die_at(point)
        replace_view(client, OTHER)


def test_kind_of_a_dataset_is_listed(client: RestClient, served: Served) -> None:
    make_view(client)
    create(client)
    assert {str(one.name): one.kind for one in served.store.datasets()} == {
        "db.t": DatasetKind.TABLE,
        "db.v": DatasetKind.VIEW,
    }
