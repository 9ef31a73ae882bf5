"""The lineage page draws views, with the datasets that their queries read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.model.access import Grant, Role
from headgate.model.graph import Graph
from headgate.rows.script import names_read
from headgate.server.web.lineage_page import around, load_graph
from headgate.server.web.page import Visit
from headgate.store.embedded import Store
from tests.support.iceberg import Front, RestClient, Served
from tests.support.pipelines import build, files_spec, publish
from tests.support.stores import new_store
from tests.support.tables import create_tables
from tests.support.views import make_view, post_view, replace_view, view_version

ADMIN = Grant(actor="ana", role=Role.ADMIN)


@pytest.fixture
def served(made_sqlite_url: str, tmp_path: Path, front: Front) -> Iterator[Served]:
    with new_store(made_sqlite_url, tmp_path) as store:
        create_tables(store, "master", orders=[{"id": 1}], customers=[{"id": 1}])
        served = Served(store, front)
        with served.client() as master:
            master.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()
        yield served


def graph(store: Store, *chain: str, grant: Grant = ADMIN) -> Graph:
    visit = Visit(store=store.acting_for(grant), grant=grant)
    found = load_graph(visit, chain[0], chain[1:])
    assert found is not None
    return found


def drawn(found: Graph) -> set[tuple[str, str]]:
    """Return the edges of a graph, each dataset with its branch."""
    nodes = [f"{node.dataset} on {node.branch}" for node in found.nodes]
    assert len(nodes) == len(set(nodes))
    return {(nodes[edge.source], nodes[edge.target]) for edge in found.edges}


def make(client: RestClient, name: str, sql: str, **more: Any) -> None:
    make_view(client, name, sql, **more)


def test_lineage_shows_a_view_on_the_branch_that_has_it_with_the_tables_of_the_chain(
    served: Served,
) -> None:
    store = served.store
    with served.client() as master:
        make(master, "large", "with x as (select * from shop.orders) select id from x")
    store.dataset("shop.orders").branch("feature").create(parent="master")
    with served.client("feature>master") as feature:
        replace_view(feature, "select id from headgate.shop.customers", "large")
        make(feature, "both", "select o.id from shop.orders o join large l on o.id = l.id")
    assert drawn(graph(store, "master")) == {("shop.orders on master", "db.large on master")}
    assert drawn(graph(store, "feature", "master")) == {
        ("shop.customers on master", "db.large on feature"),
        ("shop.orders on feature", "db.both on feature"),
        ("db.large on feature", "db.both on feature"),
    }
    near = around(graph(store, "feature", "master"), "shop.customers")
    assert {str(node.dataset) for node in near.nodes} == {
        *("shop.customers", "db.large", "db.both")
    }
    store.merge(source="feature", into="master")
    assert ("db.large on master", "db.both on master") in drawn(graph(store, "master"))


def test_lineage_joins_views_and_jobs_and_drops_a_view_that_a_reset_removed(
    served: Served,
) -> None:
    store = served.store
    publish(store, "master", files_spec("s.made", "shop.orders"))
    build(store, "s.made")
    with served.client() as master:
        make(master, "v", "select id from shop.orders")
        make(master, "w", "select id from db.v")
        made = {
            ("shop.orders on master", "s.made on master"),
            ("shop.orders on master", "db.v on master"),
            ("db.v on master", "db.w on master"),
        }
        assert drawn(graph(store, "master")) == made
        assert master.call("DELETE", "namespaces/db/views/v").status_code == 204
    assert drawn(graph(store, "master")) == {("shop.orders on master", "s.made on master")}
    store.dataset("db.v").branch("master").reset(to=_first(store, "db.v"))
    assert drawn(graph(store, "master")) == made


def _first(store: Store, name: str) -> str:
    return store.dataset(name).branch("master").history()[-1].id


def test_lineage_of_a_view_names_no_dataset_that_the_visitor_may_not_read(served: Served) -> None:
    with served.client() as master:
        make(master, "v", "select o.id from shop.orders o, shop.customers c")
    limited = Grant(actor="rea", role=Role.READER, datasets=("shop.orders", "db.*"))
    found = drawn(graph(served.store, "master", grant=limited))
    assert found == {("shop.orders on master", "db.v on master")}


def test_view_of_which_no_query_can_be_parsed_has_no_edges(served: Served) -> None:
    with served.client() as master:
        queries = {"spark": "select from where (((", "nosuchdialect": "select id from shop.orders"}
        version: dict[str, Any] = {"view-version": view_version(queries)}
        reply = post_view(master, "v", **version)
        assert reply.status_code == 200
    found = graph(served.store, "master")
    assert [str(node.dataset) for node in found.nodes] == ["db.v"] and not found.edges


@pytest.mark.parametrize(
    ("sql", "dialect", "names"),
    [
        ("select * from a", "spark", [("a",)]),
        ("select * from `x y`.b.`c.d`", "spark", [("x y", "b", "c.d")]),
        ('select * from "S".t where id in (select id from u)', "trino", [("S", "t"), ("u",)]),
        ("with a as (select 1) select * from a, s.a", "spark", [("s", "a")]),
        ("select * from a union all select * from a", "spark", [("a",)]),
        ("select " + "(" * 30_000, "spark", []),
        ("select '" + "a" * 60_000 + "' from t", "spark", []),
    ],
)
def test_names_read_are_those_of_tables_and_not_of_common_table_expressions(
    sql: str, dialect: str, names: list[tuple[str, ...]]
) -> None:
    assert list(names_read(sql, dialect)) == names
