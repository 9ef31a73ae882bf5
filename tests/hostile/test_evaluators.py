"""Evaluators: used again, replaced, limited in number, and not trusted."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from headgate.catalog.database import PLACE, Place, Suspended
from headgate.errors import (
    ConstraintsViolated,
    HeadgateError,
    Invalid,
    InvalidScript,
    StatementStopped,
    StorageUnavailable,
    Unavailable,
    UnknownTable,
)
from headgate.model.access import Grant, Role
from headgate.rows import evaluator_pool, rules, write
from headgate.rows.branch_tables import BranchTables, branch_context
from headgate.rows.evaluator_pool import EvaluatorPool
from headgate.rows.outcome import Interrupt
from headgate.server.web.dataset_page import dataset_page
from headgate.server.web.page import Visit
from headgate.settings import ServerSettings
from headgate.store.embedded import Store
from tests.support.api import Api
from tests.support.iceberg import Front
from tests.support.rows import PERSON, graph_store, ids_of, insert_people, publications, rows_of

_WITHOUT_END = (
    "insert into graph.person (id) with recursive r(n) as "
    "(select 1 union all select n + 1 from r where n > 0) select max(n)::varchar from r"
)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvaluatorPool]:
    """One evaluator for all tests of this file."""
    limits = ServerSettings(statements=1, statement_memory_bytes=400_000_000)
    made = EvaluatorPool(limits, tmp_path_factory.mktemp("pool"), dict(os.environ))
    with closing(made):
        yield made


@pytest.fixture
def served(made_sqlite_url: str, tmp_path: Path, pool: EvaluatorPool) -> Iterator[Store]:
    """A store whose scripts and loads run in evaluators."""
    with graph_store(made_sqlite_url, tmp_path, "x", "y") as store:
        found = copy.copy(store)
        found.evaluators = pool
        yield found


def _evaluator(pool: EvaluatorPool) -> object:
    [idle] = pool._idle
    return idle


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("insert into graph.person vlues", InvalidScript),
        ("insert into graph.persn values ('a')", UnknownTable),
        ("insert into graph.person (nme) values ('a')", InvalidScript),
        ("insert into graph.person (id) values ('x')", ConstraintsViolated),
        ("insert into graph.knows values (1, 'x', 'nobody')", ConstraintsViolated),
        ("delete from graph.person where id = 5 / 'x'", InvalidScript),
    ],
)
def test_evaluator_refuses_what_the_store_refuses_in_the_same_words(
    served: Store, sql: str, error: type[HeadgateError]
) -> None:
    before = len(publications(served))
    with pytest.raises(error) as refused:
        served.mutate("master", sql)
    embedded = copy.copy(served)
    embedded.evaluators = None
    with pytest.raises(error) as expected:
        embedded.mutate("master", sql)
    assert refused.value.to_json() == expected.value.to_json()
    assert len(publications(served)) == before


def test_evaluator_prepares_scripts_and_loads(served: Store) -> None:
    script = "update graph.person set age = 9 where id = 'x'; delete from graph.person where id='y'"
    outcome = served.mutate("master", script)
    assert outcome.counts[PERSON].to_json() == {"inserted": 0, "updated": 1, "deleted": 1}
    served.load("master", {PERSON: [{"id": "z", "age": 3}, {"id": "x", "age": 4}]}, mode="merge")
    assert [(row["id"], row["age"]) for row in rows_of(served, PERSON)] == [("x", 4), ("z", 3)]


def test_evaluator_is_used_again_after_an_error_of_the_client_only(
    served: Store, pool: EvaluatorPool
) -> None:
    served.mutate("master", insert_people("a"))
    first = _evaluator(pool)
    with pytest.raises(InvalidScript):
        served.mutate("master", "insert into graph.person (nme) values ('a')")
    served.mutate("master", insert_people("b"))
    assert _evaluator(pool) is first
    with pytest.raises(StatementStopped, match="statement_memory_bytes = 400000000"):
        served.mutate("master", "insert into graph.person (id) select repeat('x', 4000000000)")
    served.mutate("master", insert_people("c"))
    assert _evaluator(pool) is not first
    assert ids_of(served, PERSON) == ["a", "b", "c", "x", "y"]


def test_rows_that_a_server_shows_are_read_in_an_evaluator(served: Store) -> None:
    master = served.dataset(PERSON)
    embedded = copy.copy(served)
    embedded.evaluators = None
    shown = master.show("master", rows=5)
    assert shown == embedded.dataset(PERSON).show("master", rows=5)
    assert shown["row_count"] == len(shown["rows"]) == 2
    file = next((served.settings.root / "warehouse").rglob("data/**/*.parquet"))
    rows = parquet.read_table(file)
    # A small file whose rows need more memory than an evaluator has.
    at = rows.schema.get_field_index("name")
    field = rows.schema.field(at)
    bomb = pa.array(["x" * 600_000_000] * rows.num_rows, field.type)
    parquet.write_table(rows.set_column(at, field, bomb), file, compression="zstd")
    assert file.stat().st_size < 2_000_000
    with pytest.raises(StatementStopped, match="statement_memory_bytes = 400000000"):
        master.show("master", rows=5)
    visit = Visit(
        store=served,
        grant=Grant(actor="ada", role=Role.ADMIN),
        subject=PERSON,
        query={"branch": "master"},
    )
    page = "".join(dataset_page(visit).sections.values())
    assert "They cannot be shown here." in page and "2 rows" in page


def _in_thread(act: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_script_that_finds_no_room_is_refused_and_its_client_may_leave(
    served: Store, pool: EvaluatorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = copy.copy(served)
    waiting.interrupt = Interrupt()
    with pool._evaluator(Interrupt()):
        monkeypatch.setattr(evaluator_pool, "_WAIT_SECONDS", 0.1)
        with pytest.raises(Unavailable, match=r"\[server\] statements"):
            served.mutate("master", insert_people("a"))
        monkeypatch.setattr(evaluator_pool, "_WAIT_SECONDS", 600)
        thread, raised = _in_thread(lambda: waiting.mutate("master", insert_people("b")))
        waiting.interrupt.set(Invalid("the client left"))
        thread.join(60)
        assert [str(error) for error in raised] == ["the client left"]
    served.mutate("master", insert_people("c"))
    assert ids_of(served, PERSON) == ["c", "x", "y"]


def test_script_without_end_ends_with_its_client(served: Store, pool: EvaluatorPool) -> None:
    served.mutate("master", insert_people("a"))
    running = copy.copy(served)
    running.interrupt = Interrupt()
    thread, raised = _in_thread(lambda: running.mutate("master", _WITHOUT_END))
    while not pool._busy:
        time.sleep(0.01)
    running.interrupt.set(Invalid("the client left"))
    thread.join(60)
    assert [str(error) for error in raised] == ["the client left"]
    served.mutate("master", insert_people("c"))
    assert ids_of(served, PERSON) == ["a", "c", "x", "y"]


def test_scripts_that_wait_for_an_evaluator_hold_no_thread_of_the_server(
    served: Store, pool: EvaluatorPool, front: Front
) -> None:
    api = Api(served, front)
    crowd = 45
    try:
        with ThreadPoolExecutor(crowd) as clients, pool._evaluator(Interrupt()):

            def insert(number: int) -> int:
                body = {"branch": "master", "sql": insert_people(f"p{number}")}
                return api.admin.call("POST", "/mutate", json=body, timeout=300).status_code

            replies = [clients.submit(insert, number) for number in range(crowd)]
            while len(pool._waiting) < crowd:
                time.sleep(0.01)
            # More wait than the server has threads.
            assert api.admin.call("GET", "/datasets", timeout=30).status_code == 200
        assert [reply.result() for reply in replies] == [200] * crowd
        assert not pool._waiting
    finally:
        api.close()
    assert len(ids_of(served, PERSON)) == crowd + 2


def test_task_that_waits_for_an_evaluator_keeps_its_turn_when_it_is_repeated(
    served: Store, pool: EvaluatorPool
) -> None:
    parts = served.rows._parts()
    tables = BranchTables(parts.database, branch_context("master"))
    task = partial(rules.validate, commits=())
    before = PLACE.set(Place())
    try:
        with pool._evaluator(Interrupt()):
            for _ in range(2):
                with pytest.raises(Suspended):
                    pool.perform(parts, tables, task)
            assert len(pool._waiting) == 1
        assert pool.perform(parts, tables, task) == {"found": [], "read": []}
    finally:
        PLACE.reset(before)
    assert not pool._waiting


@pytest.mark.parametrize(
    "location", ["", "file:///etc/passwd", "{table}/../other/v1.metadata.json"]
)
def test_version_that_an_evaluator_names_elsewhere_is_refused(served: Store, location: str) -> None:
    parts = served.rows._parts()
    tables = BranchTables(parts.database, branch_context("master"))
    found = tables.load(served.dataset(PERSON).name)
    table = parts.versions.table_location(found.dataset.id)
    with pytest.raises(StorageUnavailable, match="not below"):
        write.version_of(parts, found, location.format(table=table))
    inside = f"{table}/metadata/v1.metadata.json"
    assert write.version_of(parts, found, inside) is not None
