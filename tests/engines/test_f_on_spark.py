"""F02, F10, F12 and F13 on Spark with tables; `test_f05_partial_failure.py` has F05.

All of them share one store, one repository and one JVM. Each has tables and a branch of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headgate.catalog.log import list_publications
from headgate.catalog.records import list_branches, open_transactions_of
from headgate.errors import AncestryViolated
from headgate.spark.engines import SharedJvm
from headgate.store.embedded import Store
from tests.support.oracle import assert_rows_sound
from tests.support.pipelines import states
from tests.support.projects import Project, new_project, spark_sql
from tests.support.stores import branches_by_name
from tests.support.tables import create_tables, iceberg_client, read_table

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, jvm: SharedJvm) -> Iterator[Project]:
    root = tmp_path_factory.mktemp("project")
    made = new_project(f"sqlite:///{root}/catalog.db", root, jvm)
    with made.store:
        made.publish(empty="")
        yield made
        assert_rows_sound(made.store)


def _on_git_branch(project: Project, name: str, **files: str) -> None:
    """Publish these modules on a Git branch off master."""
    project.work.git("checkout", "--quiet", "-B", name, "master")
    project.publish(**files)


def _ids(store: Store, context: str, table: str) -> list[int]:
    return sorted(row["id"] for row in read_table(store, context, table))


def _state(store: Store) -> tuple[object, object]:
    return store.database.read(lambda c: (list_branches(c), list_publications(c, limit=1000)))


_F02 = """\
from headgate.transforms import Input, Output, transform_df

@transform_df(Output("shop.f02_b"), a=Input("shop.f02_a"))
def b(a):
    return a.selectExpr("id + 10 as id")

@transform_df(Output("shop.f02_c"), a=Input("shop.f02_a"))
def c(a):
    return a
"""


def test_f02_on_spark_ancestry_failure_changes_nothing_and_the_next_build_starts(
    project: Project,
) -> None:
    store, chain = project.store, {"branch": "f02", "fallback": ["develop", "master"]}
    row = [{"id": 1}]
    create_tables(store, "master", f02_a=row, f02_b=row, f02_c=row)
    for name, parent in (("f02_b", "develop"), ("f02_c", "master")):
        store.dataset(f"shop.{name}").branch("develop").create(parent="master")
        store.dataset(f"shop.{name}").branch("f02").create(parent=parent)
    _on_git_branch(project, "f02", f02=_F02)
    before = _state(store)
    with pytest.raises(AncestryViolated) as failed:
        project.build("shop.f02_b shop.f02_c", **chain)
    assert failed.value.facts["dataset"] == "shop.f02_c"
    assert failed.value.facts["pair"] == ["f02", "develop"]
    assert _state(store) == before
    assert store.database.read(lambda c: open_transactions_of(c)) == []
    assert states(project.build("shop.f02_b", **chain)) == {"shop.f02_b": "succeeded"}
    assert (_ids(store, "f02", "shop.f02_b"), _ids(store, "develop", "shop.f02_b")) == ([11], [1])


_F10_RULES = """\
def raised(frame):
    return frame.selectExpr("id + {by} as id")
"""
_F10 = """\
from f10_rules import raised
from headgate.transforms import Input, Output, transform_df

@transform_df(Output("shop.f10_one"), a=Input("shop.f10_a"))
def one(a):
    return raised(a)

@transform_df(Output("shop.f10_two"), one=Input("shop.f10_one"))
def two(one):
    return one

"""
_F10_APART = """\
from headgate.transforms import Input, Output, transform_df

@transform_df(Output("shop.f10_apart"), a=Input("shop.f10_a"))
def apart(a):
    return a
"""
_F10_ALL = ("shop.f10_one", "shop.f10_two", "shop.f10_apart")


def test_f10_on_spark_only_what_changed_is_built_again(project: Project, jvm: SharedJvm) -> None:
    store = project.store
    create_tables(store, "master", f10_a=[{"id": 1}])
    with iceberg_client(store, "master") as client:
        client.load_table("shop.f10_a").append(pa.Table.from_pylist([{"id": 2}]))

    def built(**options: Any) -> dict[str, str]:
        return states(project.build("shop.f10_two shop.f10_apart", branch="f10", **options))

    rules = _F10_RULES.format(by=10)
    _on_git_branch(project, "f10", f10=_F10, f10_apart=_F10_APART, f10_rules=rules)
    fallback = {"fallback": ["master"]}
    assert built(**fallback) == dict.fromkeys(_F10_ALL, "succeeded")
    assert set(branches_by_name(store, "shop.f10_a")) == {"master"}
    before = _state(store)
    assert built(**fallback) == dict.fromkeys(_F10_ALL, "skipped")
    assert _state(store) == before
    options = "options => map('rewrite-all', 'true')"
    compact = f"call headgate.system.rewrite_data_files(table => 'shop.f10_a', {options})"
    spark_sql(store, jvm, "master", compact)
    project.publish(f10_unrelated="# a comment\n")
    assert built(**fallback) == dict.fromkeys(_F10_ALL, "skipped")
    project.publish(f10_rules=_F10_RULES.format(by=20))
    assert built(**fallback) == {
        "shop.f10_one": "succeeded",
        "shop.f10_two": "succeeded",
        "shop.f10_apart": "skipped",
    }
    assert _ids(store, "f10", "shop.f10_two") == [21, 22]


_F12 = """\
from headgate.transforms import Input, Output, transform_df

@transform_df(Output("shop.f12_b"), a=Input("shop.f12_a"))
def b(a):
    return a.selectExpr("id + 10 as id")
"""


def test_f12_on_spark_branch_off_an_open_transaction_shows_it_after_the_commit(
    project: Project, jvm: SharedJvm
) -> None:
    store = project.store
    create_tables(store, "master", f12_a=[{"id": 1}], f12_b=[{"id": 1}])
    master = store.dataset("shop.f12_b").branch("master")
    child = master.dataset.branch("f12_child")
    with master.transaction("APPEND") as opened:
        with iceberg_client(store, f"txn:{opened.id}") as client:
            client.load_table("shop.f12_b").append(pa.Table.from_pylist([{"id": 2}]))
        child.create(parent="master")
        assert (child.load().head, child.load().view) == (opened.id, master.load().view)
        ask = "select id from shop.f12_b order by id"
        assert spark_sql(store, jvm, "f12_child", ask) == [[1]]
        _on_git_branch(project, "f12", f12=_F12)
        outcome = project.build("shop.f12_b", branch="f12", fallback=["master"])
        assert states(outcome) == {"shop.f12_b": "succeeded"}
        assert master.load().head == opened.id
    assert spark_sql(store, jvm, "f12_child", ask) == [[1], [2]]
    assert child.load().view == master.load().view == opened.id
    assert _ids(store, "f12", "shop.f12_b") == [11]


_F13 = """\
from headgate.transforms import Output, transform_df

@transform_df(Output("shop.f13_d"))
def d(ctx):
    return ctx.spark_session.range(3)
"""


def test_f13_on_spark_new_table_is_made_on_a_branch_and_adopted_by_master(
    project: Project,
) -> None:
    store, target = project.store, "shop.f13_d"
    _on_git_branch(project, "f13", f13=_F13)
    feature = {"branch": "f13", "fallback": ["master"]}
    assert states(project.build(target, **feature)) == {target: "succeeded"}
    [made] = branches_by_name(store, target).values()
    assert (made.name, made.parent) == ("f13", None)
    project.merge("f13")
    assert states(project.build(target)) == {target: "adopted"}
    assert branches_by_name(store, target)["master"].parent is None
    assert _ids(store, "master", target) == _ids(store, "f13", target) == [0, 1, 2]
    assert states(project.build(target, **feature)) == {target: "skipped"}
