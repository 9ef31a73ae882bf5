"""A task with tables beside its workspace: one session, one publication, no duplicates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.catalog.log import list_publications
from headgate.catalog.transactions import abort_transactions
from headgate.model.changes import Caller
from headgate.model.failpoints import Failpoint
from headgate.model.nouns import AttemptState
from headgate.spark import workplace
from headgate.spark.session import LocalSpark
from headgate.spark.workplace import open_endpoint
from headgate.store.embedded import Store
from headgate.tasks import TableSpec, WorkspaceSpec, task
from headgate.tasks.declare import DEFINITION, TaskDefinition
from headgate.tasks.messages import Outcome, Status
from headgate.tasks.ports import Identity, TableWork, TaskInput
from headgate.tasks.table_work import SparkTables
from headgate.testing.failpoints import calling_at
from tests.support.iceberg import Front
from tests.support.serving_tasks import client_of
from tests.support.spark import BorrowedSpark, bind
from tests.support.tasks import (
    Params,
    Result,
    Workshop,
    attempt,
    defined,
    input_of,
    new_workshop,
    put_files,
    shown,
    writes,
)

pytestmark = pytest.mark.xdist_group("spark")


@task(
    name="count",
    owner_email="a@b.c",
    workspace=WorkspaceSpec(),
    tables=TableSpec(inputs=("db.orders",), outputs=("db.totals", "db.untouched")),
)
def count(workspace: Path, params: Params, spark: Any) -> Result:
    rows = spark.table("db.orders").count()
    (workspace / "report.txt").write_text(str(rows))
    spark.sql(f"insert into db.totals values ({rows})")
    return Result(count=rows)


@task(
    name="trespass",
    owner_email="a@b.c",
    workspace=WorkspaceSpec(),
    tables=TableSpec(inputs=("db.orders",), outputs=("db.totals",)),
)
def trespass(workspace: Path, params: Params, spark: Any) -> Result:
    (workspace / "report.txt").write_text("x")
    spark.sql("insert into db.totals values (7)")
    spark.sql("insert into db.orders values (9)")
    return Result()


@task(
    name="tally",
    owner_email="a@b.c",
    workspace=WorkspaceSpec(read_only=True),
    tables=TableSpec(outputs=("db.totals",)),
)
def tally(workspace: Path, params: Params, spark: Any) -> Result:
    (workspace / "dropped").write_text("x")
    spark.sql("insert into db.totals values (5)")
    return Result()


class Shop:
    """A store with three tables, the shared Spark of the test process, and attempts on both."""

    def __init__(self, workshop: Workshop, store: Store, spark: LocalSpark) -> None:
        self.workshop, self.store, self._spark = workshop, store, spark
        self._endpoint = open_endpoint(store.settings, store.database, store.tables, store.rules)
        session = self.session("master")
        session.sql("create namespace db")
        for name in ("orders", "totals", "untouched"):
            session.sql(f"create table db.{name} (n int)")
        session.sql("insert into db.orders values (1), (2), (3)")

    def session(self, context: str, token: str | None = None) -> Any:
        return bind(
            self._spark.session,
            uri=self._endpoint.url,
            context=context,
            token=token or self._endpoint.issue("ana"),
        )

    def totals(self) -> list[int]:
        return [row.n for row in self.session("master").sql("select n from db.totals").collect()]

    def run(self, function: Any, given: str, *, key: str = "k", **more: Any) -> Outcome:
        one = attempt(self.workshop, self.store, key)
        definition: TaskDefinition = getattr(function, DEFINITION)
        done = one.run(definition, input_of(given), open_tables=self._open, **more)
        one.store.task_attempts.end(one.held, AttemptState.SUCCEEDED)
        return done

    def _open(self, definition: TaskDefinition, given: TaskInput, identity: Identity) -> TableWork:
        assert definition.tables is not None and given.workspace is not None
        spec, workspace = definition.tables, given.workspace
        if self.workshop.client is not None:
            return self.workshop.client.task_tables(spec, workspace, identity)
        store = self.store
        return SparkTables(store.database, store.contents, self.session, spec, workspace, identity)

    def stop(self) -> None:
        self._endpoint.stop()


@pytest.fixture(params=["embedded", "served"])
def shop(
    request: pytest.FixtureRequest,
    local_spark: LocalSpark,
    made_sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    front: Front,
) -> Iterator[Shop]:
    """A shop on the store itself, and one whose attempts run at a client of its server."""
    workshop = new_workshop(made_sqlite_url, tmp_path)
    with ExitStack() as opened:
        if request.param == "served":
            monkeypatch.setattr(workplace, "launch_request", lambda *_: None)
            monkeypatch.setattr(workplace, "start", lambda _: BorrowedSpark(local_spark))
            there = opened.enter_context(client_of(workshop, front))
            workshop = replace(workshop, client=there)
        found = Shop(workshop, opened.enter_context(workshop.open()), local_spark)
        yield found
        found.stop()


def test_files_and_tables_of_a_task_are_one_publication_and_a_retry_repeats_neither(
    shop: Shop,
) -> None:
    given = put_files(shop.store, a="1")
    lost = shop.run(count, given)
    assert lost.status is Status.COMPLETED, lost.traceback
    [newest] = shop.store.database.read(lambda c: list_publications(c, limit=1))
    assert {str(move.dataset) for move in newest.moves} == {"work.song", "db.totals"}
    done = shop.run(count, given)
    assert done.status is Status.COMPLETED, done.traceback
    assert shop.totals() == [3]
    assert shown(shop.store) == {"a": "1", "report.txt": "3"}


def test_t09_files_and_tables_of_an_ended_workflow_are_replaced_together(shop: Shop) -> None:
    given = put_files(shop.store, a="1")
    assert shop.run(count, given, key="ended").status is Status.COMPLETED
    refused = shop.run(count, given, key="next", has_ended=lambda key: False)
    assert refused.code == "publish_fence" and shop.totals() == [3]
    done = shop.run(count, given, key="next", has_ended=lambda key: True)
    assert done.status is Status.COMPLETED, done.traceback
    assert shop.totals() == [3]
    assert shown(shop.store) == {"a": "1", "report.txt": "3"}
    files_only = attempt(shop.workshop, shop.store, "files only")
    last = files_only.run(defined(writes(b="2")), input_of(given), has_ended=lambda key: True)
    assert last.status is Status.COMPLETED, last.traceback
    assert (shop.totals(), shown(shop.store)) == ([], {"a": "1", "b": "2"})


def test_task_that_writes_a_table_it_did_not_declare_publishes_nothing(shop: Shop) -> None:
    given = put_files(shop.store, a="1")
    done = shop.run(trespass, given)
    assert done.status is Status.FAILED and "db.orders" in str(done.reason)
    assert (shop.totals(), shown(shop.store)) == ([], {"a": "1"})
    assert not shop.store.dataset("db.totals").branch("master").load().is_open


def test_task_that_only_reads_its_workspace_publishes_its_tables_alone(shop: Shop) -> None:
    given = put_files(shop.store, a="1")
    done = shop.run(tally, given)
    assert done.status is Status.COMPLETED, done.traceback
    assert done.output is not None and done.output["workspace"]["ref"] == given
    assert (shop.totals(), shown(shop.store)) == ([5], {"a": "1"})


def test_output_that_was_taken_away_meanwhile_publishes_nothing(shop: Shop) -> None:
    given = put_files(shop.store, a="1")
    totals = shop.store.dataset("db.totals").branch("master")

    def pop() -> None:
        head = totals.load().head
        assert head is not None
        abort_transactions(shop.store.database, [head], caller=Caller(actor="bo"))

    with calling_at(Failpoint.TASK_BODY_DONE, pop):
        done = shop.run(count, given)
    assert (done.status, done.code) == (Status.FAILED, "transaction_not_open"), done.traceback
    assert (shop.totals(), shown(shop.store)) == ([], {"a": "1"})
