"""E02: DuckDB, unmodified and set up as its page says, on a branch of a served store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from headgate.model.access import Role
from tests.support.api import Api
from tests.support.duckdb_engine import DuckDb, Refused, attached
from tests.support.engine_packages import DUCKDB, blocks_of_page
from tests.support.rows import GRAPH, KNOWS, PERSON, apply_text, ids_of, insert_people


class Attach(Protocol):
    def __call__(self, context: str, *, role: Role = ..., branches: str = ...) -> DuckDb: ...


@pytest.fixture
def packages() -> Path:
    return DUCKDB.require()


@pytest.fixture
def attach(api: Api, packages: Path) -> Iterator[Attach]:
    """Start a DuckDB on a context of the served store, with a token of its own."""
    with ExitStack() as opened:

        def start(context: str, *, role: Role = Role.WRITER, branches: str = "*") -> DuckDb:
            token = api.token("ana", role, branches)
            engine = attached(packages, url=api.url, token=token, context=context)
            return opened.enter_context(engine)

        yield start


def test_e02_statements_of_the_page_work_in_their_order(attach: Attach) -> None:
    duck = attach("trial>master")
    for block in blocks_of_page("duckdb", "sql"):
        for statement in block.split(";"):
            if statement.strip():
                duck(statement)
    rows = duck("SELECT id, customer, amount, note FROM lake.shop.orders ORDER BY id")
    assert rows == [[1, "ana", 10, None], [3, "cy", 3.5, None], [4, "di", 4.5, None]]
    with pytest.raises(Refused, match="large does not exist"):
        duck("SELECT * FROM lake.shop.large")


def test_e02_tables_of_a_branch_are_not_on_master_and_the_fallback_is_read(
    attach: Attach,
) -> None:
    master, trial = attach("master"), attach("trial>master")
    master("CREATE SCHEMA lake.shop")
    master("CREATE TABLE lake.shop.orders AS SELECT 1 AS id")
    assert trial("SELECT id FROM lake.shop.orders") == [[1]]
    trial("INSERT INTO lake.shop.orders VALUES (2)")
    trial("CREATE TABLE lake.shop.large AS SELECT * FROM lake.shop.orders")
    assert trial("SELECT count(*) FROM lake.shop.large") == [[2]]
    again = attach("master")
    assert again("SELECT id FROM lake.shop.orders") == [[1]]
    with pytest.raises(Refused, match="large does not exist"):
        again("SELECT * FROM lake.shop.large")


def test_e02_transaction_of_two_tables_is_one_publication(attach: Attach, api: Api) -> None:
    duck = attach("master")
    duck("CREATE SCHEMA lake.shop")
    for table in ("orders", "large"):
        duck(f"CREATE TABLE lake.shop.{table} (id BIGINT)")
    before = _newest(api)
    duck("BEGIN")
    duck("INSERT INTO lake.shop.orders VALUES (1)")
    duck("INSERT INTO lake.shop.large VALUES (1)")
    duck("COMMIT")
    assert _newest(api) == before + 1
    (newest, *_) = api.admin.get("/log")
    assert {move["dataset"] for move in newest["moves"]} == {"shop.orders", "shop.large"}


def test_e02_dropped_schema_is_shown_at_an_earlier_moment(attach: Attach, api: Api) -> None:
    duck = attach("trial>master")
    duck("CREATE SCHEMA lake.shop")
    duck("CREATE TABLE lake.shop.orders AS SELECT 1 AS id")
    made = _newest(api)
    duck("UPDATE lake.shop.orders SET id = 2")
    with pytest.raises(Refused, match=r"Namespace is not empty: shop.*shop.orders on branch"):
        duck("DROP SCHEMA lake.shop")
    duck("DROP TABLE lake.shop.orders")
    duck("DROP SCHEMA lake.shop")
    with pytest.raises(Refused, match='schema "shop" does not exist'):
        duck("SELECT * FROM lake.shop.orders")
    assert attach(f"trial@{made}")("SELECT id FROM lake.shop.orders") == [[1]]
    # A connection that dropped a schema does not find it again: DuckDB remembers the drop.
    again = attach("trial>master")
    again("CREATE SCHEMA lake.shop")
    again("CREATE TABLE lake.shop.orders AS SELECT 'new' AS name")
    assert again("SELECT name FROM lake.shop.orders") == [["new"]]


def test_e02_refused_write_names_the_reason(attach: Attach, api: Api) -> None:
    duck = attach("master")
    duck("CREATE SCHEMA lake.shop")
    duck("CREATE TABLE lake.shop.orders AS SELECT 1 AS id")
    past = attach(f"master@{_newest(api)}")
    with pytest.raises(Refused, match="is a moment in the past and can only be read"):
        past("INSERT INTO lake.shop.orders VALUES (2)")
    limited = attach("master", branches="ana/*")
    with pytest.raises(Refused, match="may not write branch 'master'"):
        limited("INSERT INTO lake.shop.orders VALUES (2)")
    reader = attach("master", role=Role.READER)
    with pytest.raises(Refused, match="role_denied"):
        reader("CREATE TABLE lake.shop.large AS SELECT 1 AS id")
    assert attach("master")("SELECT id FROM lake.shop.orders") == [[1]]


def test_e02_update_of_a_table_that_changed_meanwhile_is_a_conflict(attach: Attach) -> None:
    one, other = attach("master"), attach("master")
    one("CREATE SCHEMA lake.shop")
    one("CREATE TABLE lake.shop.orders AS SELECT 1 AS id")
    one("BEGIN")
    one("UPDATE lake.shop.orders SET id = id + 10")
    other("UPDATE lake.shop.orders SET id = id + 100")
    with pytest.raises(Refused, match="Requirement failed: branch or tag main has changed"):
        one("COMMIT")
    assert other("SELECT id FROM lake.shop.orders") == [[101]]


def test_e02_unit_is_one_publication_of_several_statements_or_none(
    attach: Attach, api: Api
) -> None:
    master = attach("master")
    master("CREATE SCHEMA lake.shop")
    master("CREATE TABLE lake.shop.orders AS SELECT 1 AS id")
    for commits in (False, True):
        unit = api.store.transaction(branch="master")
        inside = attach(unit.context)
        inside("INSERT INTO lake.shop.orders VALUES (2)")
        inside("UPDATE lake.shop.orders SET id = id + 10")
        inside("CREATE TABLE lake.shop.large AS SELECT * FROM lake.shop.orders")
        assert inside("SELECT id FROM lake.shop.large ORDER BY id") == [[11], [12]]
        assert attach("master")("SELECT id FROM lake.shop.orders") == [[1]]
        if commits:
            unit.commit()
        else:
            unit.abort()
    (newest, *_) = api.admin.get("/log")
    assert {move["dataset"] for move in newest["moves"]} == {"shop.orders", "shop.large"}
    assert attach("master")("SELECT id FROM lake.shop.large ORDER BY id") == [[11], [12]]


def test_e05_rules_of_rows_bind_duckdb(attach: Attach, api: Api) -> None:
    apply_text(api.store, GRAPH)
    api.store.mutate("master", insert_people("ana", "bo"))
    for context in ("master", "feature>master"):
        duck = attach(context)
        with pytest.raises(Refused, match=r"graph.person: the key id = 'ana' occurs 2 times"):
            duck("INSERT INTO lake.graph.person VALUES ('cy', 'CY', 7), ('ana', 'ANA', 7)")
    duck = attach("master")
    with pytest.raises(Refused, match=r"dst = 'eve' refers to no row of graph.person"):
        duck("INSERT INTO lake.graph.knows VALUES (1, 'ana', 'eve')")
    duck("INSERT INTO lake.graph.knows VALUES (1, 'ana', 'bo')")
    with pytest.raises(Refused, match=r"graph.knows: dst = 'bo' refers to no row"):
        duck("DELETE FROM lake.graph.person WHERE id = 'bo'")
    duck("BEGIN")
    duck("DELETE FROM lake.graph.person WHERE id = 'bo'")
    duck("INSERT INTO lake.graph.person VALUES ('bo', 'Bo', 8)")
    duck("COMMIT")
    duck("UPDATE lake.graph.person SET age = 9 WHERE id = 'bo'")
    assert duck("SELECT name, age FROM lake.graph.person WHERE id = 'bo'") == [["Bo", 9]]
    assert (ids_of(api.store, PERSON), ids_of(api.store, KNOWS)) == (["ana", "bo"], [1])


def _newest(api: Api) -> int:
    (newest, *_) = api.admin.get("/log")
    return int(newest["publication"])
