"""Trino, unmodified and set up as its page says, on the contexts of a served store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from headgate.model.access import Role
from tests.support import trino_engine
from tests.support.api import Api
from tests.support.engine_packages import blocks_of_page
from tests.support.rows import GRAPH, KNOWS, PERSON, apply_text, ids_of, insert_people
from tests.support.trino_engine import Catalog, Refused, Trino, running_trino

pytestmark = [pytest.mark.xdist_group("trino"), pytest.mark.timeout(900)]

Attach = Callable[..., Catalog]


@pytest.fixture(scope="module")
def trino(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trino]:
    """One Trino for all tests; each test has catalogs of its own."""
    if (server := trino_engine.find()) is None:
        pytest.skip(trino_engine.NOT_FETCHED)
    with running_trino(server, tmp_path_factory.mktemp("trino")) as running:
        yield running


@pytest.fixture
def attach(small_api: Api, trino: Trino) -> Iterator[Attach]:
    """Create a catalog on a context of the served store, with a token of its own."""
    with ExitStack() as opened:

        def start(context: str, *, role: Role = Role.WRITER, branches: str = "*") -> Catalog:
            token = small_api.token("ana", role, branches)
            made = trino.attached(url=small_api.url, token=token, context=context)
            return opened.enter_context(made)

        yield start


@pytest.fixture
def shop(attach: Attach) -> Attach:
    """`attach`, where master shows a table of two rows."""
    master = attach("master")
    master("CREATE SCHEMA shop")
    master("CREATE TABLE shop.orders AS SELECT * FROM (VALUES (1, 10), (2, 20)) t (id, amount)")
    return attach


def test_statements_of_the_page_work_in_their_order(attach: Attach, small_api: Api) -> None:
    lake = attach("trial>master")
    statements = ";".join(blocks_of_page("trino", "sql")).split(";")
    for statement in filter(str.strip, statements):
        lake(statement.replace("lake.", ""))
    assert lake("SELECT * FROM shop.orders ORDER BY id") == [
        [1, 10.0, None],
        [3, 30.0, None],
        [4, 40.0, None],
    ]
    assert lake("SELECT id FROM shop.big ORDER BY id") == [[3], [4]]
    assert lake("SHOW TABLES FROM shop") == [["big"], ["ids"], ["orders"]]
    assert attach("master")("SHOW TABLES FROM shop") == []
    log = small_api.admin.get("/log", limit=100)
    assert {move["branch"] for one in log for move in one["moves"]} == {"trial"}


def test_rows_written_on_a_branch_are_not_on_master_and_its_chain_reads_the_fallback(
    shop: Attach, small_api: Api
) -> None:
    master, feature = shop("master"), shop("feature>master")
    start = _log(small_api)
    feature("UPDATE shop.orders SET amount = 11 WHERE id = 1")
    feature("DELETE FROM shop.orders WHERE id = 2")
    feature(
        "MERGE INTO shop.orders o USING (VALUES (1), (3)) n (id) ON o.id = n.id "
        "WHEN MATCHED THEN UPDATE SET amount = o.amount + 100 "
        "WHEN NOT MATCHED THEN INSERT VALUES (n.id, 30)"
    )
    feature("CREATE TABLE shop.large AS SELECT * FROM shop.orders WHERE amount > 100")
    assert feature("SELECT * FROM shop.orders ORDER BY id") == [[1, 111], [3, 30]]
    assert feature("SELECT * FROM shop.large") == [[1, 111]]
    assert master("SELECT * FROM shop.orders ORDER BY id") == [[1, 10], [2, 20]]
    with pytest.raises(Refused, match="TABLE_NOT_FOUND"):
        master("SELECT * FROM shop.large")
    moves = [move for one in _log(small_api)[: -len(start)] for move in one["moves"]]
    assert {move["branch"] for move in moves} == {"feature"}
    assert ids_of(small_api.store, "shop.orders") == [1, 2]
    small_api.store.merge("feature", into="master")
    assert master("SELECT * FROM shop.orders ORDER BY id") == [[1, 111], [3, 30]]


def test_columns_names_and_drops_of_a_branch_leave_the_other_branch(shop: Attach) -> None:
    master, feature = shop("master"), shop("feature>master")
    feature("ALTER TABLE shop.orders ADD COLUMN note VARCHAR")
    feature("ALTER TABLE shop.orders RENAME COLUMN amount TO total")
    feature("ALTER TABLE shop.orders ALTER COLUMN total SET DATA TYPE BIGINT")
    feature("COMMENT ON TABLE shop.orders IS 'of the branch'")
    feature("INSERT INTO shop.orders VALUES (3, 30000000000, 'large')")
    feature("ALTER TABLE shop.orders RENAME TO shop.sold")
    assert feature("SELECT id, total, note FROM shop.sold WHERE id > 1 ORDER BY id") == [
        [2, 20, None],
        [3, 30000000000, "large"],
    ]
    assert [row[:2] for row in master("DESCRIBE shop.orders")] == [
        ["id", "integer"],
        ["amount", "integer"],
    ]
    assert feature("SHOW TABLES FROM shop") == [["sold"]]
    feature("DROP TABLE shop.sold")
    assert feature("SHOW TABLES FROM shop") == []
    assert master("SELECT count(*) FROM shop.orders") == [[2]]
    master("DROP TABLE shop.orders")
    master("CREATE TABLE shop.orders (name VARCHAR)")
    master("INSERT INTO shop.orders VALUES 'new'")
    assert master("SELECT * FROM shop.orders") == [["new"]]


def test_view_of_a_branch_reads_the_tables_of_its_branch(shop: Attach, small_api: Api) -> None:
    master, feature = shop("master"), shop("feature>master")
    feature("INSERT INTO shop.orders VALUES (3, 30)")
    feature("CREATE VIEW shop.large AS SELECT id FROM shop.orders WHERE amount > 10")
    assert feature("SELECT * FROM shop.large ORDER BY id") == [[2], [3]]
    with pytest.raises(Refused, match="TABLE_NOT_FOUND"):
        master("SELECT * FROM shop.large")
    feature("CREATE OR REPLACE VIEW shop.large AS SELECT id FROM shop.orders WHERE amount > 20")
    feature("ALTER VIEW shop.large RENAME TO shop.huge")
    shown = small_api.admin.get("/datasets/shop.huge/content", context="feature")
    assert shown["kind"] == "view" and list(shown["queries"]) == ["trino"]
    small_api.store.merge("feature", into="master")
    feature("DROP VIEW shop.huge")
    with pytest.raises(Refused, match="TABLE_NOT_FOUND"):
        feature("SELECT * FROM shop.huge")


def test_time_is_travelled_by_snapshots_of_a_table_and_by_a_moment_of_all(
    shop: Attach, small_api: Api
) -> None:
    feature = shop("feature>master")
    then = _log(small_api)[0]["publication"]
    ((snapshot, time),) = feature(
        'SELECT snapshot_id, CAST(committed_at AS VARCHAR) FROM shop."orders$snapshots" '
        "ORDER BY committed_at DESC LIMIT 1"
    )
    feature("DELETE FROM shop.orders WHERE id = 1")
    feature("INSERT INTO shop.orders VALUES (3, 30)")
    for version in (f"VERSION AS OF {snapshot}", f"TIMESTAMP AS OF TIMESTAMP '{time}'"):
        assert feature(f"SELECT id FROM shop.orders FOR {version} ORDER BY id") == [[1], [2]]
    past = shop(f"master@{then}")
    shop("master")("DROP TABLE shop.orders")
    assert past("SELECT id FROM shop.orders ORDER BY id") == [[1], [2]]
    with pytest.raises(Refused, match="is a moment in the past and can only be read"):
        past("INSERT INTO shop.orders VALUES (4, 40)")
    assert feature("SELECT id FROM shop.orders ORDER BY id") == [[2], [3]]


def test_unit_is_one_publication_of_two_tables_or_none(shop: Attach, small_api: Api) -> None:
    master = shop("master")
    with small_api.store.transaction(branch="master") as unit:
        inside = shop(unit.context)
        inside("INSERT INTO shop.orders VALUES (3, 30)")
        inside("CREATE TABLE shop.counts AS SELECT count(*) AS n FROM shop.orders")
        assert inside("SELECT n FROM shop.counts") == [[3]]
        assert master("SHOW TABLES FROM shop") == [["orders"]]
        assert master("SELECT count(*) FROM shop.orders") == [[2]]
    (newest, *_) = _log(small_api)
    assert {move["dataset"] for move in newest["moves"]} == {"shop.orders", "shop.counts"}
    assert master("SELECT n FROM shop.counts") == [[3]]
    aborted = small_api.store.transaction(branch="master")
    shop(aborted.context)("TRUNCATE TABLE shop.orders")
    aborted.abort()
    assert master("SELECT count(*) FROM shop.orders") == [[3]]


def test_refused_write_names_the_reason_and_changes_nothing(shop: Attach, small_api: Api) -> None:
    before = _log(small_api)
    reader, limited = shop("master", role=Role.READER), shop("master", branches="ana/*")
    with pytest.raises(Refused, match=r"ana is a reader and may not write.*role_denied"):
        reader("INSERT INTO shop.orders VALUES (3, 30)")
    with pytest.raises(Refused, match="may not write branch 'master'"):
        limited("DELETE FROM shop.orders WHERE id = 1")
    # Trino's message has no reason here; its causes have it.
    with pytest.raises(Refused, match="Failed to create transaction") as refused:
        limited("CREATE TABLE shop.large AS SELECT 1 AS id")
    assert "may not write branch 'master'" in refused.value.causes
    feature = shop("feature>master")
    feature("DROP TABLE shop.orders")
    with pytest.raises(Refused, match=r"Namespace is not empty: shop.*shop.orders on branch"):
        feature("DROP SCHEMA shop")
    assert shop("master")("SELECT id FROM shop.orders ORDER BY id") == [[1], [2]]
    assert [one for one in _log(small_api) if "master" in _branches(one)] == before


def test_of_updates_at_once_one_wins_and_inserts_all_do(shop: Attach) -> None:
    master = shop("master")

    def run(statement: str) -> str:
        try:
            master(statement)
        except Refused as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as pool:
        steps = (1, 100, 10000, 1000000)
        told = list(
            pool.map(run, (f"UPDATE shop.orders SET amount = amount + {one}" for one in steps))
        )
        added = list(pool.map(run, (f"INSERT INTO shop.orders VALUES ({id}, 0)" for id in "3456")))
    kept = sum(step for step, error in zip(steps, told, strict=True) if not error)
    assert kept and all(error.startswith("ICEBERG_COMMIT_ERROR") for error in told if error)
    assert added == [""] * 4
    assert master("SELECT id, amount FROM shop.orders ORDER BY id") == [
        [1, 10 + kept],
        [2, 20 + kept],
        *([id, 0] for id in (3, 4, 5, 6)),
    ]


def test_e05_rules_of_rows_bind_trino(attach: Attach, small_api: Api) -> None:
    store = small_api.store
    apply_text(store, GRAPH)
    store.mutate("master", insert_people("ana", "bo"))
    master, feature = attach("master"), attach("feature>master")
    for lake in (master, feature):
        with pytest.raises(Refused, match=r"the key id = 'ana' occurs 2 times.*constraints_viol"):
            lake("INSERT INTO graph.person (id) VALUES 'cy', 'ana'")
    with pytest.raises(Refused, match=r"'bo' occurs 2 times"):
        feature(
            "MERGE INTO graph.person p USING (VALUES 'bo') n (id) ON p.id = n.id AND p.age = 99 "
            "WHEN NOT MATCHED THEN INSERT (id) VALUES (n.id)"
        )
    with pytest.raises(Refused, match=r"dst = 'eve' refers to no row of graph.person"):
        master("INSERT INTO graph.knows VALUES (1, 'ana', 'eve')")
    master("INSERT INTO graph.knows VALUES (1, 'ana', 'bo')")
    with pytest.raises(Refused, match=r"graph.knows: dst = 'bo' refers to no row"):
        master("DELETE FROM graph.person WHERE id = 'bo'")
    # As Iceberg has it, an update deletes the row and inserts one of the same key.
    master("UPDATE graph.person SET name = 'Bo' WHERE id = 'bo'")
    assert ids_of(store, PERSON) == ["ana", "bo"]
    assert ids_of(store, KNOWS) == [1]
    assert master("SELECT name FROM graph.person WHERE id = 'bo'") == [["Bo"]]


def test_files_of_other_branches_are_not_deleted(shop: Attach, small_api: Api) -> None:
    shop("feature>master")("INSERT INTO shop.orders VALUES (3, 30)")
    master = shop("master")
    for procedure, reason in (
        ("remove_orphan_files", "shorter than the minimum retention configured in the system"),
        ("expire_snapshots", "GC is disabled"),
    ):
        with pytest.raises(Refused, match=reason):
            master(f"ALTER TABLE shop.orders EXECUTE {procedure} (retention_threshold => '20000d')")
    master("ALTER TABLE shop.orders EXECUTE optimize")
    master("TRUNCATE TABLE shop.orders")
    master("DROP TABLE shop.orders")
    assert shop("feature")("SELECT id FROM shop.orders ORDER BY id") == [[1], [2], [3]]


@pytest.mark.parametrize("name", ['"with space"', '"50% + x/y"', '"ta.ble"'])
def test_names_that_need_quotes_work(shop: Attach, name: str) -> None:
    feature = shop("feature>master")
    feature('CREATE SCHEMA "shop.of many"')
    place = f'"shop.of many".{name}'
    feature(f'CREATE TABLE {place} AS SELECT 1 AS "a b"')
    feature(f"INSERT INTO {place} VALUES 2")
    assert feature(f'SELECT "a b" FROM {place} ORDER BY 1') == [[1], [2]]
    assert feature('SHOW TABLES FROM "shop.of many"') == [[name.strip('"')]]
    feature(f"DROP TABLE {place}")


def _log(api: Api) -> list[dict[str, Any]]:
    """Return the publications, newest first."""
    found: list[dict[str, Any]] = api.admin.get("/log", limit=100)
    return found


def _branches(publication: dict[str, Any]) -> set[str]:
    return {move["branch"] for move in publication["moves"]}
