"""The cost of a small change, in counts: files read, SQL statements, statements of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import ManifestFile, clear_manifest_cache
from sqlalchemy import Engine, event

from headgate.catalog.records import find_transaction
from headgate.rows import engine
from headgate.store.embedded import Store
from headgate.tables.scan import TableScan
from tests.support.rows import (
    PERSON,
    apply_text,
    graph_store,
    insert_people,
    made_settings,
    rows_of,
)

# Reads of the catalog, also for a table that refers to this one, and one transaction.
_STATEMENTS = 26
_OF_THE_ENGINE = 12


@contextmanager
def _statements() -> Iterator[list[str]]:
    seen: list[str] = []

    def note(_c: object, _k: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@contextmanager
def _calls(owner: Any, name: str) -> Iterator[list[Any]]:
    """Record the first argument of each call of a method, which is executed."""
    seen: list[Any] = []
    original = getattr(owner, name)

    def note(self: Any, *arguments: Any) -> Any:
        seen.append(arguments[0] if arguments else self)
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, note)
        yield seen


def _scan(store: Store, name: str) -> TableScan:
    view = store.dataset(name).branch("master").load().view
    assert view is not None
    shown = store.database.read(lambda c: find_transaction(c, view))
    assert shown is not None and shown.version is not None
    return TableScan(store.tables.read(shown.version.location), {})


def test_insert_of_one_row_reads_no_manifest_that_the_process_wrote(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a", "b", "c") as store:
        for id in "defgh":
            store.mutate("master", insert_people(id))
        with (
            _calls(AvroFile, "__enter__") as opened,
            _calls(engine.Engine, "execute") as executed,
            _calls(engine.Engine, "rows") as queried,
            _statements() as sent,
        ):
            store.mutate("master", insert_people("i"))
        assert opened == []
        assert len(executed) + len(queried) <= _OF_THE_ENGINE, [*executed, *queried]
        assert len(sent) <= _STATEMENTS, sent


def test_manifests_in_memory_equal_their_files(made_sqlite_url: str, tmp_path: Path) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a", "b", "c") as store:
        store.mutate("master", insert_people("d"))
        store.mutate("master", f"update {PERSON} set age = 8 where id in ('a', 'd')")
        store.mutate("master", f"delete from {PERSON} where id = 'b'")
        store.mutate("master", insert_people("e"))
        scan = _scan(store, PERSON)
        snapshot = scan.metadata.current_snapshot()
        assert snapshot is not None
        with _calls(AvroFile, "__enter__") as opened:
            kept = scan.manifests()
            entries = [one.fetch_manifest_entry(scan.io) for one in kept]
        assert opened == [] and len(kept) > 1 and all(entries)
        clear_manifest_cache()
        read = snapshot.manifests(scan.io)
        assert [one._data for one in kept] == [one._data for one in read]
        found = [ManifestFile.fetch_manifest_entry(one, scan.io) for one in read]
        assert entries == found
        assert [[e.data_file.spec_id for e in part] for part in entries] == [
            [e.data_file.spec_id for e in part] for part in found
        ]


@pytest.mark.parametrize(
    ("kind", "values"),
    [("string", ("'x'", "'y'")), ("date", ("date '2024-02-29'", "date '1969-12-31'"))],
)
def test_rows_of_every_partition_are_found_after_writes_of_the_process(
    made_sqlite_url: str, tmp_path: Path, kind: str, values: tuple[str, str]
) -> None:
    with Store(made_settings(made_sqlite_url, tmp_path)) as store:
        text = (
            f'[dataset."g.t"]\ncolumns = {{id = "{kind}", n = "long"}}\nkey = ["id"]\nbuckets = 4'
        )
        apply_text(store, text)
        for value in values:
            store.mutate("master", f"insert into g.t values ({value}, 1)")
        for value in values:
            store.mutate("master", f"update g.t set n = n + 1 where id = {value}")
        assert [row["n"] for row in rows_of(store, "g.t")] == [2, 2]
