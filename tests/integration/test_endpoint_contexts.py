"""Jobs and points in time as contexts; `test_endpoint_units.py` covers units."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import update

from headgate.catalog.log import list_publications
from headgate.catalog.schema import versions
from headgate.errors import Conflict
from tests.support.attempts import dispatch_job
from tests.support.iceberg import (
    TABLES,
    RestClient,
    Served,
    create,
    error,
    refusal,
    rename,
    send,
    snapshot_of,
)
from tests.support.metadata import commit, two_columns


def test_job_reads_its_pins_and_writes_its_outputs_unseen_until_it_commits(
    two_tables: RestClient, served: Served
) -> None:
    job = dispatch_job(served.store, "build-1/0", inputs=("db.t",), outputs=("db.u",))
    send(two_tables, *commit(2, parent=1))
    with served.client(job.context, token=job.token) as inside:
        assert snapshot_of(inside, "t") == 1
        assert inside.call("HEAD", f"{TABLES}/u").status_code == 404
        create(inside, "u")
        assert send(inside, *commit(9), name="u").status_code == 200
        assert snapshot_of(inside, "u") == 9
    assert snapshot_of(two_tables, "u") == 1
    job.commit()
    assert snapshot_of(two_tables, "u") == 9


def test_job_sees_nothing_that_it_did_not_declare(two_tables: RestClient, served: Served) -> None:
    create(two_tables, "secret")
    job = dispatch_job(served.store, "build-1/0", inputs=("db.t",), outputs=("db.u",))
    with served.client(job.context, token=job.token) as inside:
        for name in ("secret", "never_made"):
            refused = inside.call("GET", f"{TABLES}/{name}")
            assert refusal(refused) == (403, "job_read_denied")
        listed = inside.call("GET", TABLES).json()["identifiers"]
        assert [one["name"] for one in listed] == ["t"]
        metadata_table = inside.call("GET", "namespaces/db%1Ft/tables/files")
        assert error(metadata_table) == (404, "NoSuchTableException")


def test_job_writes_nothing_but_its_outputs(two_tables: RestClient, served: Served) -> None:
    job = dispatch_job(served.store, "build-1/0", inputs=("db.t",), outputs=("db.u",))
    before = served.publications
    with served.client(job.context, token=job.token) as inside:
        assert refusal(send(inside, *commit(2, parent=1))) == (403, "job_write_denied")
        for method, path, body in (
            ("DELETE", f"{TABLES}/t", None),
            ("POST", "tables/rename", rename("t", "v")),
            ("POST", "namespaces", {"namespace": ["mine"]}),
            ("POST", "namespaces/db/properties", {"updates": {"a": "b"}}),
            ("DELETE", "namespaces/db", None),
        ):
            refused = inside.call(method, path, body)
            assert refused.status_code == 403, (path, refused.text)
    assert served.publications == before


def test_token_of_a_job_opens_its_own_context_only(two_tables: RestClient, served: Served) -> None:
    one = dispatch_job(served.store, "build-1/0", outputs=("db.t",))
    two = dispatch_job(served.store, "build-1/1", outputs=("db.u",))
    for context, token in (
        ("master", one.token),
        (two.context, one.token),
        (one.context, served.token),
        ("job:build-1/0:2", one.token),
    ):
        with served.client(context, token=token) as refused:
            assert refused.config["error"]["headgate"]["code"] == "token_refused"


def test_superseded_job_is_refused_whatever_it_asks(two_tables: RestClient, served: Served) -> None:
    old = dispatch_job(served.store, "build-1/0", inputs=("db.t",), outputs=("db.u",))
    with served.client(old.context, token=old.token) as zombie:
        create(zombie, "u")
        new = dispatch_job(served.store, "build-1/0", inputs=("db.t",), outputs=("db.u",))
        for response in (
            zombie.call("GET", f"{TABLES}/t"),
            send(zombie, *commit(9), name="u"),
            zombie.http.get("/v1/config", params={"warehouse": old.context}),
        ):
            assert refusal(response) == (403, "attempt_superseded")
    with pytest.raises(Conflict):
        old.commit()
    with served.client(new.context, token=new.token) as inside:
        assert inside.call("HEAD", f"{TABLES}/u").status_code == 404


def test_job_superseded_after_it_was_let_in_is_fenced_at_the_write(
    two_tables: RestClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = dispatch_job(served.store, "build-1/0", outputs=("db.u",))
    commit_now = served.catalog.commit

    def commit_too_late(*request: Any) -> Any:
        dispatch_job(served.store, "build-1/0", outputs=("db.u",))
        return commit_now(*request)

    with served.client(old.context, token=old.token) as zombie:
        create(zombie, "u")
        monkeypatch.setattr(served.catalog, "commit", commit_too_late)
        refused = send(zombie, *commit(9), name="u")
    assert refusal(refused) == (403, "attempt_superseded")
    assert snapshot_of(two_tables, "u") == 1


def test_moment_shows_every_table_as_it_was(two_tables: RestClient, served: Served) -> None:
    then = served.publications
    send(two_tables, *commit(2, parent=1))
    create(two_tables, "later")
    two_tables.call("DELETE", f"{TABLES}/u").raise_for_status()
    with served.client(f"master@{then}") as past:
        assert (snapshot_of(past, "t"), snapshot_of(past, "u")) == (1, 1)
        assert past.call("HEAD", f"{TABLES}/later").status_code == 404
        listed = past.call("GET", TABLES).json()["identifiers"]
        assert [one["name"] for one in listed] == ["t", "u"]


def test_moment_by_time_is_the_newest_publication_until_then(
    two_tables: RestClient, served: Served
) -> None:
    newest = served.store.database.read(lambda c: list_publications(c, limit=1))[0]
    send(two_tables, *commit(2, parent=1))
    when = datetime.fromtimestamp(newest.at // 1_000_000, UTC)
    exact = when.replace(microsecond=newest.at % 1_000_000).isoformat()
    with served.client(f"master@{exact}") as then, served.client("master@1999-01-01") as before:
        assert snapshot_of(then) == 1
        assert before.call("HEAD", f"{TABLES}/t").status_code == 404
        assert before.call("GET", TABLES).json()["identifiers"] == []


def test_moment_of_a_chain_knows_branches_and_tombstones_that_are_gone(
    two_tables: RestClient, served: Served
) -> None:
    with served.client("feature>master") as feature:
        send(feature, *commit(2, parent=1))
        changed = served.publications
        feature.call("DELETE", f"{TABLES}/t").raise_for_status()
        dropped = served.publications
    served.store.dataset("db.t").branch("feature").delete(force=True)
    shown = {}
    for number in (changed - 1, changed, dropped, dropped + 1):
        with served.client(f"feature>master@{number}") as past:
            found = past.call("GET", f"{TABLES}/t")
            shown[number - changed] = found.status_code == 200 and snapshot_of(past)
    assert shown == {-1: 1, 0: 2, 1: False, 2: 1}


def test_moment_cannot_be_written(two_tables: RestClient, served: Served) -> None:
    with served.client(f"master@{served.publications}") as past:
        for refused in (
            send(past, *commit(2, parent=1)),
            past.call("POST", TABLES, {"name": "n", "schema": two_columns()}),
            past.call("DELETE", f"{TABLES}/t"),
            past.call("POST", "namespaces", {"namespace": ["x"]}),
        ):
            assert refusal(refused) == (403, "context_read_only")


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_moment_outside_the_calendar_is_400(served: Served, moment: str) -> None:
    with served.client(f"master@{moment}") as client:
        assert client.config["error"]["headgate"]["code"] == "invalid_context"


def test_version_that_cleanup_condemned_is_expired(two_tables: RestClient, served: Served) -> None:
    then = served.publications
    old = served.history()[-1].version
    send(two_tables, *commit(2, parent=1))
    assert old is not None
    served.store.database.write(
        lambda c: c.execute(update(versions).where(versions.c.id == old.id).values(condemned_at=1))
    )
    with served.client(f"master@{then}") as past:
        assert refusal(past.call("GET", f"{TABLES}/t")) == (404, "expired")
        assert len(past.call("GET", TABLES).json()["identifiers"]) == 2
    assert snapshot_of(two_tables) == 2
