"""F08 on tables changed by PyIceberg, loads, mutations and compaction; without a JVM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from headgate.builds.attempt import JobResult, JobWork, Progress
from headgate.files.edits import FileEdit, stage_edit
from headgate.model.incrementality import Span
from headgate.model.jobspecs import IncrementalSpec
from headgate.model.nouns import BuildState
from headgate.store.embedded import Store
from headgate.store.transactions import store_bytes
from headgate.tables.snapshots import current_snapshot_id
from tests.support.oracle import assert_rows_sound
from tests.support.pipelines import build, files_spec, publish
from tests.support.stores import load, new_store
from tests.support.tables import create_tables, iceberg_client


@dataclass(kw_only=True)
class NoteJobs:
    """Jobs that read no rows, and write the span that they should read to their output."""

    store: Store
    spans: list[Span | None] = field(default_factory=list)

    def expect(self, count: int) -> None:
        assert count >= 0

    def start(self, work: JobWork) -> _Note:
        return _Note(self, work)


class _Note:
    def __init__(self, jobs: NoteJobs, work: JobWork) -> None:
        self._jobs = jobs
        self._work = work

    def run(self, progress: Progress) -> JobResult:
        progress({"event": "started", "tags": []})
        [name] = self._work.inputs
        self._jobs.spans.append(self._work.added.get(name))
        store, [id] = self._jobs.store, self._work.outputs.values()
        note = store_bytes(store, self._work.inputs[name].transaction, b"read")
        stage_edit(
            store.database,
            store.trees,
            load(store, id),
            FileEdit(put=[note]),
            attempt=self._work.attempt,
        )
        return JobResult(succeeded=True)

    def stop(self, reason: str) -> None:
        raise AssertionError(f"nobody stops a note: {reason}")


def _orders(store: Store) -> Any:
    return store.dataset("shop.orders").branch("master")


def _tip(store: Store) -> int | None:
    version = _orders(store).history()[0].version
    return current_snapshot_id(store.tables.read(version.location).metadata)


def _note(store: Store) -> tuple[list[Span | None], dict[str, Any]]:
    jobs = NoteJobs(store=store)
    outcome = build(store, "s.notes", jobs=jobs)
    assert outcome.state is BuildState.SUCCEEDED
    return jobs.spans, outcome.jobs[0].to_json()


def _noted(url: str, root: Path) -> Store:
    """Create a table with two rows in two files, and build notes from it."""
    store = new_store(url, root)
    publish(store, "master", files_spec("s.notes", "shop.orders", incremental=IncrementalSpec()))
    create_tables(store, "master", orders=[{"id": 1}])
    _append(store)
    _note(store)
    return store


def _append(store: Store) -> None:
    with iceberg_client(store, "master") as client:
        client.load_table("shop.orders").append(pa.table({"id": [2]}))


def _set_property(store: Store) -> None:
    with iceberg_client(store, "master") as client:
        table = client.load_table("shop.orders")
        table.transaction().set_properties(owner="ana").commit_transaction()


def _add_column(store: Store) -> None:
    with (
        iceberg_client(store, "master") as client,
        client.load_table("shop.orders").update_schema() as change,
    ):
        change.add_column("note", StringType())


def _delete(store: Store) -> None:
    with iceberg_client(store, "master") as client:
        client.load_table("shop.orders").delete("id = 1")


def _overwrite(store: Store) -> None:
    with iceberg_client(store, "master") as client:
        client.load_table("shop.orders").overwrite(pa.table({"id": [9]}))


def _load(store: Store) -> None:
    store.load("master", {"shop.orders": pa.table({"id": [3]})})


def _insert(store: Store) -> None:
    store.mutate("master", "insert into shop.orders values (4)")


def _update(store: Store) -> None:
    store.mutate("master", "update shop.orders set id = 7 where id = 1")


def _compact(store: Store) -> None:
    assert store.rows.optimize("shop.orders", branch="master").publication is not None


@pytest.mark.parametrize(
    "changes",
    [
        [_append],
        [_load],
        [_insert],
        [_compact, _append],
        [_append, _compact],
        [_set_property, _load],
    ],
)
def test_f08_what_adds_rows_is_read_from_the_snapshot_after_the_last(
    made_catalog_url: str, tmp_path: Path, changes: list[Callable[[Store], None]]
) -> None:
    with _noted(made_catalog_url, tmp_path) as store:
        before = _tip(store)
        for change in changes:
            change(store)
        [span], report = _note(store)
        assert report["incremental"]["extent"] == "incremental", report
        assert span is not None
        assert (span.since_snapshot, span.has_new) == (before, True)
        assert_rows_sound(store)


@pytest.mark.parametrize("change", [_delete, _overwrite, _update])
def test_f08_what_takes_rows_away_is_read_in_full_and_named(
    made_catalog_url: str, tmp_path: Path, change: Callable[[Store], None]
) -> None:
    with _noted(made_catalog_url, tmp_path) as store:
        _load(store)
        change(store)
        by = _orders(store).history()[0].id
        _append(store)
        spans, report = _note(store)
        assert (report["incremental"]["extent"], spans) == ("full", [None])
        assert report["incremental"]["broken_by"] == by


@pytest.mark.parametrize("changes", [[_compact], [_set_property], [_compact, _set_property]])
def test_f08_what_leaves_the_rows_makes_nothing_stale(
    made_catalog_url: str, tmp_path: Path, changes: list[Callable[[Store], None]]
) -> None:
    with _noted(made_catalog_url, tmp_path) as store:
        for change in changes:
            change(store)
        assert _note(store)[0] == []


def test_f08_new_column_is_read_without_the_rows_that_are_known(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with _noted(made_catalog_url, tmp_path) as store:
        before = _tip(store)
        _add_column(store)
        [span], report = _note(store)
        assert report["incremental"]["extent"] == "incremental"
        assert span is not None
        assert span.since_snapshot == before


def test_f08_snapshots_that_compaction_dropped_make_it_read_everything(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with _noted(made_catalog_url, tmp_path) as store:
        _append(store)
        store.rows.optimize("shop.orders", branch="master", keep_snapshots=1)
        _, report = _note(store)
        assert report["incremental"]["extent"] == "full"
        assert "does not contain the snapshot read last" in report["incremental"]["reason"]
