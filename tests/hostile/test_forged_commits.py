"""Commits of engines to tables with constraints: forged files, and tables of others.

The server reads the files of a commit in an evaluator, which has no access to the catalog.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError
from pyiceberg.table import Transaction

from headgate.model.access import Role
from headgate.model.rules import RULES_FACT
from headgate.rows import working_set
from headgate.rows.evaluator_pool import EvaluatorPool
from headgate.settings import ServerSettings
from tests.support.api import Api
from tests.support.iceberg import Front
from tests.support.rows import (
    GRAPH,
    KNOWS,
    PERSON,
    apply_text,
    graph_store,
    ids_of,
    insert_people,
    publications,
)

_SECRET = "password-of-the-catalog"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvaluatorPool]:
    """One evaluator for all tests of this file."""
    limits = ServerSettings(statements=1, statement_memory_bytes=400_000_000)
    environ = {**os.environ, "HEADGATE_CATALOG": f"postgresql://ana:{_SECRET}@db/catalog"}
    made = EvaluatorPool(limits, tmp_path_factory.mktemp("pool"), environ)
    with closing(made):
        yield made


@pytest.fixture
def served(
    made_sqlite_url: str, tmp_path: Path, pool: EvaluatorPool, front: Front
) -> Iterator[Api]:
    """A store with two people behind a server that validates rows in an evaluator."""
    with graph_store(made_sqlite_url, tmp_path, "ana", "bo") as store:
        store.evaluators = pool
        api = Api(store, front)
        yield api
        api.close()


def _connect(api: Api, *datasets: str) -> RestCatalog:
    """Return the catalog of a writer, who may read and write only these datasets."""
    made = api.store.create_token(
        actor="walt", role=Role.WRITER, branches=("*",), datasets=datasets or ("*",)
    )
    uri, token = f"{api.url}/iceberg", str(made["token"])
    return RestCatalog("headgate", uri=uri, warehouse="master", token=token)


def _people(*ids: str) -> pa.Table:
    schema = pa.schema(
        [pa.field("id", pa.string(), nullable=False), ("name", pa.string()), ("age", pa.int32())]
    )
    return pa.table([list(ids), [id.upper() for id in ids], [7] * len(ids)], schema=schema)


def _edge(src: str, dst: str) -> pa.Table:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("src", pa.string()), ("dst", pa.string())]
    )
    return pa.table([[1], [src], [dst]], schema=schema)


# Forged files.


def _append_forged(catalog: RestCatalog, rows: pa.Table, forge: Callable[[Path], None]) -> None:
    """Append as an engine whose files are not what its manifests say."""
    change = catalog.load_table(PERSON).transaction()
    change.append(rows)
    for file in _added_files(change):
        forge(file)
    change.commit_transaction()


def _added_files(change: Transaction) -> list[Path]:
    snapshot, io = change.table_metadata.snapshots[-1], change._table.io
    return [
        Path(entry.data_file.file_path.removeprefix("file://"))
        for manifest in snapshot.manifests(io)
        for entry in manifest.fetch_manifest_entry(io)
        if entry.snapshot_id == snapshot.snapshot_id
    ]


def _zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def _cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def _damage_footer(file: Path) -> None:
    content = bytearray(file.read_bytes())
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[start : start + 40] = b"\xff" * 40
    file.write_bytes(content)


def _damage_pages(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4:60] = b"\xff" * 56
    file.write_bytes(content)


def _replace_key(
    file: Path, values: Callable[[int], pa.Array], field_id: bytes | None = None
) -> None:
    rows = parquet.read_table(file)
    made = values(rows.num_rows)
    known = rows.schema.field("id").metadata
    metadata = {b"PARQUET:field_id": field_id} if field_id else known
    field = pa.field("id", made.type, nullable=False, metadata=metadata)
    parquet.write_table(rows.set_column(0, field, made), file)


def _write_numbers(file: Path) -> None:
    _replace_key(file, lambda count: pa.array(range(count), pa.int64()))


def _write_lists(file: Path) -> None:
    _replace_key(file, lambda count: pa.array([["ana"]] * count))


def _write_no_text(file: Path) -> None:
    bad = b"\xff\xfe"
    _replace_key(file, lambda count: pa.array([bad] * count, pa.binary()).view(pa.string()))


def _write_other_columns(file: Path) -> None:
    parquet.write_table(pa.table({"x": [[1]], "y": [{"a": 1}]}), file)


@pytest.mark.parametrize(
    "forge",
    [
        _zero,
        _cut_off,
        _damage_footer,
        _damage_pages,
        _write_numbers,
        _write_lists,
        _write_no_text,
        _write_other_columns,
    ],
)
def test_commit_of_a_forged_file_is_refused_and_the_next_one_is_accepted(
    served: Api, forge: Callable[[Path], None]
) -> None:
    before = len(publications(served.store))
    with pytest.raises(BadRequestError, match="rows of this commit could not be validated") as told:
        _append_forged(_connect(served), _people("cy"), forge)
    assert str(served.store.settings.root) not in str(told.value)
    assert len(publications(served.store)) == before
    _connect(served).load_table(PERSON).append(_people("cy"))
    assert ids_of(served.store, PERSON) == ["ana", "bo", "cy"]


def test_commit_of_a_file_whose_key_is_another_column_has_rows_without_a_key(served: Api) -> None:
    def forge(file: Path) -> None:
        _replace_key(file, lambda count: pa.array(["cy"] * count), b"77")

    with pytest.raises(BadRequestError, match="no value for the required column"):
        _append_forged(_connect(served), _people("cy"), forge)
    assert ids_of(served.store, PERSON) == ["ana", "bo"]


def test_commit_of_more_rows_than_its_manifest_counts_is_validated_whole(served: Api) -> None:
    def forge(file: Path) -> None:
        rows = parquet.read_table(file)
        parquet.write_table(pa.concat_tables([rows, rows]), file)

    with pytest.raises(BadRequestError, match="key id = 'cy' occurs 2 times"):
        _append_forged(_connect(served), _people("cy"), forge)


def test_table_that_flags_accepts_a_forged_file_and_says_that_it_was_not_read(served: Api) -> None:
    apply_text(served.store, GRAPH.replace("buckets = 2", 'buckets = 2\nenforce = "flag"', 1))
    _append_forged(_connect(served), _people("cy"), _zero)
    newest = served.store.dataset(PERSON).branch("master").history()[0]
    assert newest.provenance[RULES_FACT] == {"state": "unknown"}


def test_rows_of_a_commit_are_read_in_a_process_that_does_not_know_the_catalog(
    served: Api, pool: EvaluatorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_set, "WorkingSet", None)
    with pytest.raises(BadRequestError, match="'ana' occurs 2 times"):
        _connect(served).load_table(PERSON).append(_people("ana"))
    [evaluator] = pool._idle
    process = Path(f"/proc/{evaluator._pid}")
    known = (process / "environ").read_bytes()
    assert b"PATH=" in known and _SECRET.encode() not in known
    opened = [str(one.readlink()) for one in (process / "fd").iterdir()]
    assert opened and served.store.database.url.database not in opened


# Tables that the committer may not read.


def test_removed_row_to_which_a_hidden_table_refers_is_kept_without_a_word_of_that_table(
    served: Api,
) -> None:
    served.store.mutate("master", "insert into graph.knows values (4711, 'ana', 'bo')")
    with pytest.raises(BadRequestError, match="may not read refers to a removed row") as told:
        _connect(served, PERSON).load_table(PERSON).delete("id = 'bo'")
    assert not {KNOWS, "dst", "src", "4711", "'bo'"} & set(_words(told.value))
    assert ids_of(served.store, PERSON) == ["ana", "bo"]


def test_reference_to_a_row_that_a_hidden_table_lacks_does_not_name_the_table(served: Api) -> None:
    catalog = _connect(served, KNOWS)
    with pytest.raises(BadRequestError, match="dst = 'eve' refers to no row of a table") as told:
        catalog.load_table(KNOWS).append(_edge("ana", "eve"))
    assert PERSON not in str(told.value)
    catalog.load_table(KNOWS).append(_edge("ana", "bo"))
    assert ids_of(served.store, KNOWS) == [1]


def test_hidden_table_that_cannot_be_read_is_not_described(served: Api) -> None:
    store = served.store
    shown = store.dataset(PERSON).branch("master").view()
    assert shown is not None and shown.version is not None
    for file in Path(shown.version.location.removeprefix("file://")).parents[1].rglob("*.parquet"):
        file.write_bytes(b"hush")
    with pytest.raises(BadRequestError, match=f"{KNOWS} rejects rows that violate") as told:
        _connect(served, KNOWS).load_table(KNOWS).append(_edge("ana", "bo"))
    directory = store.tables.table_location(store.dataset(PERSON).load().id)
    assert not [word for word in (PERSON, directory, "Parquet", "hush") if word in str(told.value)]


def test_flagged_rows_of_a_hidden_table_are_not_shown_in_the_history(served: Api) -> None:
    flags = GRAPH.replace(
        'dataset = "graph.person"},\n]', 'dataset = "graph.person"},\n]\nenforce = "flag"'
    )
    apply_text(served.store, flags)
    served.store.mutate("master", insert_people("dag"))
    served.store.mutate("master", "insert into graph.knows values (4711, 'ana', 'bo')")
    _connect(served).load_table(PERSON).delete("id = 'bo'")
    limited = served.store.create_token(actor="rea", role=Role.READER, datasets=(PERSON,))
    for token, hidden in ((served.token("ana", Role.ADMIN), False), (limited["token"], True)):
        path = f"/history/{PERSON}"
        reply = served.bearing(str(token)).call("GET", path, params={"branch": "master"})
        assert reply.is_success and '"flagged"' in reply.text.replace(" ", "")
        assert (KNOWS not in reply.text) is hidden


def _words(error: Exception) -> list[str]:
    return str(error).split()
