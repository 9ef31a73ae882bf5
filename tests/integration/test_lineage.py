"""OpenLineage events of builds, as a real receiver gets them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.model.nouns import BuildState
from headgate.settings import LineageSettings, load_settings
from headgate.store.embedded import Store
from tests.support.pipelines import FileJobs, build, files_spec, publish
from tests.support.receiver import Receiver, receiving
from tests.support.stores import new_settings
from tests.support.tables import create_tables


@contextmanager
def _store(catalog_url: str, root: Path, url: str, **more: str) -> Iterator[Store]:
    settings = new_settings(catalog_url, root)
    with Store(replace(settings, lineage=LineageSettings(url=url, **more))) as store:
        publish(store, "master", files_spec("s.a"), files_spec("s.b", "s.a"))
        yield store


def _types(receiver: Receiver, job: str) -> list[str]:
    return [e["eventType"] for e in receiver.received if e["job"]["name"] == f"pipeline.{job}"]


def _last(receiver: Receiver, job: str) -> dict[str, Any]:
    return [e for e in receiver.received if e["job"]["name"] == f"pipeline.{job}"][-1]


def test_lineage_of_a_build_has_start_and_complete_of_each_job(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with receiving() as receiver:
        with _store(made_catalog_url, tmp_path, receiver.url, api_key="secret") as store:
            outcome = build(store, "s.b")
        assert receiver.paths == ["/api/v1/lineage"] * 4
        assert set(receiver.authorizations) == {"Bearer secret"}
        assert _types(receiver, "s_a") == _types(receiver, "s_b") == ["START", "COMPLETE"]
        event = _last(receiver, "s_b")
    facet = event["run"]["facets"]["headgate"]
    made = outcome.jobs[1].transactions["s.b"]
    assert (facet["branch"], facet["attempt"], facet["build"]) == ("master", 1, outcome.id)
    assert facet["transactions"] == {"s.b": made}
    [read], [written] = event["inputs"], event["outputs"]
    assert read["name"] == "s.a"
    assert read["facets"]["version"]["datasetVersion"] == outcome.jobs[0].transactions["s.a"]
    assert written["facets"]["headgate"]["transaction"] == made
    assert written["facets"]["headgate"]["contentId"]
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 1


def test_lineage_of_a_retried_job_has_a_run_for_each_attempt(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with receiving() as receiver, _store(made_sqlite_url, tmp_path, receiver.url) as store:
        jobs = FileJobs(store=store, failing={"s.a": 1})
        build(store, "s.a", jobs=jobs, retries=1)
        store.close()
        assert _types(receiver, "s_a") == ["START", "FAIL", "START", "COMPLETE"]
        runs = [event["run"]["runId"] for event in receiver.received]
        failed = receiver.received[1]["run"]["facets"]["errorMessage"]
    assert runs[0] == runs[1] != runs[2] == runs[3]
    assert failed["message"] == "s.a failed"


def test_lineage_of_an_atomic_build_is_complete_only_when_it_is_published(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with receiving() as receiver, _store(made_sqlite_url, tmp_path, receiver.url) as store:
        build(store, "s.b", jobs=FileJobs(store=store, failing={"s.b": 1}), atomic=True)
        build(store, "s.b", atomic=True)
        store.close()
        types = [(e["job"]["name"][-1], e["eventType"]) for e in receiver.received]
    assert types[:4] == [("a", "START"), ("b", "START"), ("b", "FAIL"), ("a", "ABORT")]
    assert types[4:] == [("a", "START"), ("b", "START"), ("a", "COMPLETE"), ("b", "COMPLETE")]


def test_lineage_of_a_promotion_says_where_it_was_adopted_from(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    changed = files_spec("s.a", logic="2")
    with receiving() as receiver, _store(made_sqlite_url, tmp_path, receiver.url) as store:
        publish(store, "feature", changed)
        build(store, "s.a", branch="feature")
        publish(store, "master", changed, files_spec("s.b", "s.a"))
        build(store, "s.a")
        store.close()
        event = _last(receiver, "s_a")
    facet = event["run"]["facets"]["headgate"]
    assert event["eventType"] == "COMPLETE"
    assert (facet["adoptedFrom"], facet.get("attempt"), facet["sparkJobs"]) == ("feature", None, 0)
    assert event["outputs"][0]["facets"]["headgate"]["branch"] == "master"


@pytest.mark.parametrize("status", [500, None])
def test_lineage_that_cannot_be_sent_warns_once_and_the_build_succeeds(
    status: int | None, made_sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving(status or 500) as receiver:
        url = receiver.url
        # A port on which no server listens any more.
        closed = status is None
    with receiving(status or 500) as receiver, caplog.at_level(logging.WARNING):
        where = url if closed else receiver.url
        with _store(made_sqlite_url, tmp_path, where) as store:
            outcome = build(store, "s.b")
    assert outcome.state is BuildState.SUCCEEDED
    said = [r.getMessage() for r in caplog.records if r.name.startswith("headgate.lineage")]
    assert len(said) == 1 and "are lost" in said[0]


def test_lineage_settings_come_from_the_variables_of_openlineage(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text("")
    given = {"OPENLINEAGE_URL": "http://there", "OPENLINEAGE_NAMESPACE": "shop"}
    found = load_settings(tmp_path, given).lineage
    assert found is not None and (found.url, found.namespace) == ("http://there", "shop")
    assert load_settings(tmp_path, {}).lineage is None
    assert load_settings(tmp_path, {**given, "OPENLINEAGE_DISABLED": "true"}).lineage is None


def test_lineage_of_a_job_that_reads_a_table_has_its_columns(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with receiving() as receiver, _store(made_sqlite_url, tmp_path, receiver.url) as store:
        create_tables(store, "master", orders=[{"id": 1, "region": "north"}])
        publish(store, "master", files_spec("s.c", "shop.orders"))
        # These jobs cannot read a table; the event still reports its input.
        build(store, "s.c", jobs=FileJobs(store=store, failing={"s.c": 1}))
        store.close()
        [read] = _last(receiver, "s_c")["inputs"]
    fields = read["facets"]["schema"]["fields"]
    assert [(f["name"], f["type"]) for f in fields] == [("id", "long"), ("region", "string")]
