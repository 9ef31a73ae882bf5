"""E05: rules of rows bind every engine: here PyIceberg, on a branch, in a unit, beside others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError

from headgate.catalog.consistency import check_rules
from headgate.errors import ConstraintsViolated, MergeConflict, StatementStopped
from headgate.model.rules import RULES_FACT
from headgate.rows.rules import CommitRules
from tests.support.iceberg import Front, Served
from tests.support.rows import GRAPH, KNOWS, PERSON, apply_text, ids_of, insert_people, rows_of
from tests.support.stores import new_store


@pytest.fixture
def graph(made_catalog_url: str, tmp_path: Path, front: Front) -> Iterator[Served]:
    """A store with the tables of a graph on master, and two people, behind its endpoint."""
    with new_store(made_catalog_url, tmp_path) as store:
        apply_text(store, GRAPH)
        store.mutate("master", insert_people("ana", "bo"))
        yield Served(store, front)


def people(*ids: str) -> pa.Table:
    """Return rows of people; `id` is required."""
    schema = pa.schema(
        [pa.field("id", pa.string(), nullable=False), ("name", pa.string()), ("age", pa.int32())]
    )
    return pa.table([list(ids), [id.upper() for id in ids], [7] * len(ids)], schema=schema)


def edges(*rows: tuple[int, str, str]) -> pa.Table:
    """Return rows of edges; `id` is required."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("src", pa.string()), ("dst", pa.string())]
    )
    columns = list(zip(*rows, strict=True))
    return pa.table([list(column) for column in columns], schema=schema)


def connect(served: Served, context: str = "master") -> RestCatalog:
    return RestCatalog("headgate", uri=served.url, warehouse=context, token=served.token)


def state_of(served: Served, name: str = PERSON, branch: str = "master") -> Any:
    """Return what the newest transaction records about the rows."""
    return (served.history(name, branch)[-1].provenance.get(RULES_FACT) or {}).get("state")


def test_e05_second_row_with_a_known_key_is_refused_with_the_row_named(graph: Served) -> None:
    table = connect(graph).load_table(PERSON)
    table.append(people("cy"))
    assert state_of(graph) == "hold"
    before = graph.publications
    with pytest.raises(BadRequestError, match=r"graph.person: the key id = 'ana' occurs 2 times"):
        connect(graph).load_table(PERSON).append(people("dag", "ana"))
    assert (ids_of(graph.store, PERSON), graph.publications) == (["ana", "bo", "cy"], before)


def test_e05_update_that_deletes_and_inserts_a_key_is_accepted(graph: Served) -> None:
    table = connect(graph).load_table(PERSON)
    table.overwrite(people("ana"), overwrite_filter="id = 'ana'")
    assert ids_of(graph.store, PERSON) == ["ana", "bo"]
    assert state_of(graph) == "hold"


def test_e05_edge_to_a_missing_node_and_delete_of_a_node_with_edges_are_refused(
    graph: Served,
) -> None:
    catalog = connect(graph)
    with pytest.raises(BadRequestError, match=r"dst = 'eve' refers to no row of graph.person"):
        catalog.load_table(KNOWS).append(edges((1, "ana", "eve")))
    catalog.load_table(KNOWS).append(edges((1, "ana", "bo")))
    with pytest.raises(BadRequestError, match=r"graph.knows: dst = 'bo' refers to no row"):
        catalog.load_table(PERSON).delete("id = 'bo'")
    assert ids_of(graph.store, PERSON) == ["ana", "bo"]
    catalog.load_table(KNOWS).delete("id = 1")
    catalog.load_table(PERSON).delete("id = 'bo'")
    assert ids_of(graph.store, PERSON) == ["ana"]


def test_e05_unique_columns_and_limits_of_rows_hold(graph: Served) -> None:
    knows = connect(graph).load_table(KNOWS)
    knows.append(edges((1, "ana", "bo")))
    with pytest.raises(BadRequestError, match=r"unique value src = 'ana', dst = 'bo' occurs 2"):
        connect(graph).load_table(KNOWS).append(edges((2, "ana", "bo")))
    graph.store.mutate("master", insert_people("cy", "dag", "eve"))
    with pytest.raises(BadRequestError, match=r"4 rows have src = 'ana', at most 3 may"):
        connect(graph).load_table(KNOWS).append(
            edges((2, "ana", "cy"), (3, "ana", "dag"), (4, "ana", "eve"))
        )
    assert ids_of(graph.store, KNOWS) == [1]


def test_e05_unit_with_a_parent_and_its_child_is_validated_as_a_whole(graph: Served) -> None:
    store = graph.store
    with store.transaction(branch="master") as unit:
        catalog = connect(graph, unit.context)
        catalog.load_table(KNOWS).append(edges((1, "ana", "cy")))
        catalog.load_table(PERSON).append(people("cy"))
    assert (ids_of(store, KNOWS), ids_of(store, PERSON)) == ([1], ["ana", "bo", "cy"])
    assert state_of(graph, KNOWS) == state_of(graph) == "hold"
    with (
        pytest.raises(ConstraintsViolated, match="'eve' refers to no row"),
        store.transaction(branch="master") as unit,
    ):
        connect(graph, unit.context).load_table(KNOWS).append(edges((2, "ana", "eve")))
    assert ids_of(store, KNOWS) == [1]


def test_e05_rules_are_those_of_the_branch(graph: Served) -> None:
    store = graph.store
    store.dataset(PERSON).branch("loose").create(parent="master")
    loose = connect(graph, "loose").load_table(PERSON)
    with loose.transaction() as change:
        change.set_properties({"headgate.enforce": "off"})
    connect(graph, "loose").load_table(PERSON).append(people("ana"))
    assert ids_of(store, PERSON, "loose") == ["ana", "ana", "bo"]
    with pytest.raises(BadRequestError, match="'ana' occurs 2 times"):
        connect(graph).load_table(PERSON).append(people("ana"))


def test_e05_table_that_flags_marks_the_transaction_and_a_merge_refuses_its_rows(
    graph: Served,
) -> None:
    store = graph.store
    store.dataset(PERSON).branch("feature").create(parent="master")
    with connect(graph, "feature").load_table(PERSON).transaction() as change:
        change.set_properties({"headgate.enforce": "flag"})
    connect(graph, "feature").load_table(PERSON).append(people("ana"))
    marked = graph.history(PERSON, "feature")[-1].provenance[RULES_FACT]
    assert (marked["state"], marked["total"]) == ("flagged", 1)
    assert "key id = 'ana' occurs 2 times" in marked["violations"][0]["text"]
    with pytest.raises(MergeConflict):
        store.merge("feature", into="master")
    assert ids_of(store, PERSON) == ["ana", "bo"]


def test_e05_rows_of_unknown_origin_are_flagged_until_the_schema_is_applied_again(
    graph: Served,
) -> None:
    store = graph.store
    # As an old store has it, or one in which an engine wrote while the rules were off.
    with connect(graph).load_table(PERSON).transaction() as change:
        change.set_properties({"headgate.enforce": "off"})
    connect(graph).load_table(PERSON).append(people("cy"))
    with connect(graph).load_table(PERSON).transaction() as change:
        change.remove_properties("headgate.enforce")
    connect(graph).load_table(PERSON).append(people("cy"))
    assert state_of(graph) == "flagged"
    with pytest.raises(ConstraintsViolated, match="'cy' occurs 2 times"):
        apply_text(store, GRAPH)
    store.mutate("master", "delete from graph.person where id = 'cy'")
    assert "validate the rows" in apply_text(store, GRAPH).steps[PERSON]
    with pytest.raises(BadRequestError, match="'ana' occurs 2 times"):
        connect(graph).load_table(PERSON).append(people("ana"))
    assert apply_text(store, GRAPH).publication is None


def test_e05_after_a_reset_the_rows_of_then_count(graph: Served) -> None:
    store = graph.store
    start = store.dataset(PERSON).branch("master").load().view
    connect(graph).load_table(PERSON).append(people("cy"))
    assert start is not None
    store.dataset(PERSON).branch("master").reset(to=start)
    connect(graph).load_table(PERSON).append(people("cy"))
    with pytest.raises(BadRequestError, match="'cy' occurs 2 times"):
        connect(graph).load_table(PERSON).append(people("cy"))
    assert ids_of(store, PERSON) == ["ana", "bo", "cy"]


def test_e05_append_that_the_server_moves_is_validated_on_the_newest_rows(graph: Served) -> None:
    first, second = connect(graph).load_table(PERSON), connect(graph).load_table(PERSON)
    third = connect(graph).load_table(PERSON)
    first.append(people("cy"))
    second.append(people("dag"))
    with pytest.raises(BadRequestError, match="'cy' occurs 2 times"):
        third.append(people("cy"))
    assert ids_of(graph.store, PERSON) == ["ana", "bo", "cy", "dag"]


def test_e05_edge_and_delete_of_its_node_by_two_engines_are_not_both_accepted(
    graph: Served,
) -> None:
    """The edge is validated, then the node is deleted, then the edge is published."""
    rules = graph.service.rules
    once = iter([True])

    def validate(*arguments: Any) -> Any:
        verdict = rules(*arguments)
        if next(once, False):
            graph.store.mutate("master", "delete from graph.person where id = 'bo'")
        return verdict

    object.__setattr__(graph.service, "rules", validate)
    with pytest.raises(BadRequestError, match="'bo' refers to no row"):
        connect(graph).load_table(KNOWS).append(edges((1, "ana", "bo")))
    assert (ids_of(graph.store, KNOWS), ids_of(graph.store, PERSON)) == ([], ["ana"])


def test_e05_same_key_by_two_engines_at_the_same_time_is_accepted_once(graph: Served) -> None:
    """Both are validated before either is published."""
    rules = graph.service.rules
    both = threading.Barrier(2)
    first = threading.local()

    def validate(*arguments: Any) -> Any:
        verdict = rules(*arguments)
        if not hasattr(first, "seen"):
            first.seen = True
            both.wait(60)
        return verdict

    object.__setattr__(graph.service, "rules", validate)
    tables = [connect(graph).load_table(PERSON) for _ in range(2)]

    def append(table: Any) -> str:
        try:
            table.append(people("cy", f"of-{id(table)}"))
        except BadRequestError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as writers:
        refusals = sorted(writers.map(append, tables))
    assert refusals[0] == "" and "key id = 'cy' occurs 2 times" in refusals[1]
    assert ids_of(graph.store, PERSON).count("cy") == 1
    assert len(ids_of(graph.store, PERSON)) == 4


def test_e05_same_key_by_an_engine_and_a_script_at_the_same_time_is_accepted_once(
    graph: Served,
) -> None:
    rules = graph.service.rules
    once = iter([True])

    def validate(*arguments: Any) -> Any:
        verdict = rules(*arguments)
        if next(once, False):
            graph.store.mutate("master", insert_people("cy"))
        return verdict

    object.__setattr__(graph.service, "rules", validate)
    with pytest.raises(BadRequestError, match="key id = 'cy' occurs 2 times"):
        connect(graph).load_table(PERSON).append(people("cy"))
    assert ids_of(graph.store, PERSON) == ["ana", "bo", "cy"]


def test_e05_renamed_table_still_rejects(graph: Served) -> None:
    catalog = connect(graph)
    catalog.rename_table(KNOWS, "graph.follows")
    catalog.load_table("graph.follows").append(edges((1, "ana", "bo")))
    with pytest.raises(BadRequestError, match="key id = 1 occurs 2 times"):
        catalog.load_table("graph.follows").append(edges((1, "bo", "ana")))
    assert rows_of(graph.store, "graph.follows") == [{"id": 1, "src": "ana", "dst": "bo"}]


# A flag stays until all rows were validated


def flag_twice_ana(graph: Served, branch: str = "master") -> None:
    """Let an engine write a second row 'ana' into a table that flags."""
    with connect(graph, branch).load_table(PERSON).transaction() as change:
        change.set_properties({"headgate.enforce": "flag"})
    connect(graph, branch).load_table(PERSON).append(people("ana"))
    assert is_flagged(graph, branch=branch)


def is_flagged(graph: Served, name: str = PERSON, branch: str = "master") -> bool:
    """Return whether the newest transaction and `doctor` report the two rows 'ana'."""
    fact = graph.history(name, branch)[-1].provenance.get(RULES_FACT) or {"state": "none"}
    texts = [one["text"] for one in fact.get("violations", [])]
    flagged = bool(fact["state"] == "flagged")
    assert flagged == (texts == ["graph.person: the key id = 'ana' occurs 2 times"])
    reported = [f.where for f in graph.store.database.read(lambda c: [*check_rules(c)])]
    assert flagged == (f"{name}@{branch}" in reported)
    return flagged


def fail_to_read(*_: Any) -> Any:
    raise StatementStopped(reason="takes too long", setting="statement_seconds", limit=1)


def publish_other_rows(graph: Served) -> Iterator[str]:
    """Publish other rows and properties of the table in every way, one after the other."""
    store = graph.store
    connect(graph).load_table(PERSON).append(people("cy"))
    yield "engine"
    with connect(graph).load_table(PERSON).transaction() as change:
        change.set_properties({"owner": "ana"})
    yield "property"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitRules, "_validate", fail_to_read)
        connect(graph).load_table(PERSON).append(people("dag"))
    yield "rows that were not validated"
    with store.transaction(branch="master") as unit:
        connect(graph, unit.context).load_table(PERSON).append(people("eve"))
    yield "unit"
    first, second = connect(graph).load_table(PERSON), connect(graph).load_table(PERSON)
    first.append(people("fay"))
    second.append(people("gus"))
    yield "append that the server moved"
    store.mutate("master", insert_people("hal"))
    yield "script"
    store.load("master", {PERSON: pa.table({"id": ["ian"]})})
    yield "load"
    assert store.rows.optimize(PERSON, branch="master").publication is not None
    yield "optimize"
    store.dataset(PERSON).branch("feature").create(parent="master")
    store.mutate("feature", insert_people("jo"))
    store.mutate("master", insert_people("kim"))
    store.merge("feature", into="master")
    yield "merge"
    store.dataset(PERSON).branch("topic").create(parent="master")
    store.mutate("topic", insert_people("lea"))
    store.merge("topic", into="master")
    yield "merge of one side's changes"
    with connect(graph).load_table(PERSON).transaction() as change:
        change.set_properties({"headgate.enforce": "off"})
    connect(graph).load_table(PERSON).append(people("mo"))
    yield "engine while the rules are off"


def test_e05_flag_stays_when_other_rows_are_published(graph: Served) -> None:
    flag_twice_ana(graph)
    before = graph.publications
    for way in publish_other_rows(graph):
        assert graph.publications > before, way
        assert is_flagged(graph), way
        before = graph.publications


def test_e05_second_violation_is_added_to_the_first_and_known_ones_are_not_repeated(
    graph: Served,
) -> None:
    flag_twice_ana(graph)
    connect(graph).load_table(PERSON).append(people("bo"))
    marked = graph.history(PERSON)[-1].provenance[RULES_FACT]
    texts = [f"graph.person: the key id = '{id}' occurs 2 times" for id in ("ana", "bo")]
    assert (marked["total"], [one["text"] for one in marked["violations"]]) == (2, texts)
    connect(graph).load_table(PERSON).delete("name = 'BO' and age = 7 and id = 'bo'")
    connect(graph).load_table(PERSON).append(people("cy", "bo", "bo"))
    again = graph.history(PERSON)[-1].provenance[RULES_FACT]
    assert (again["total"], again["violations"]) == (2, marked["violations"])


def test_e05_flag_ends_when_the_corrected_rows_were_validated(graph: Served) -> None:
    flag_twice_ana(graph)
    graph.store.mutate("master", "delete from graph.person where id = 'ana'")
    assert is_flagged(graph), "a delete does not validate the rows that stay"
    apply_text(graph.store, GRAPH)
    assert not is_flagged(graph)
    graph.store.mutate("master", insert_people("cy"))
    assert not is_flagged(graph)


def test_e05_reset_and_branches_show_the_flag_of_their_rows(graph: Served) -> None:
    store = graph.store
    clean = store.dataset(PERSON).branch("master").load().view
    assert clean is not None
    flag_twice_ana(graph)
    marked = store.dataset(PERSON).branch("master").load().view
    assert marked is not None
    store.dataset(PERSON).branch("master").reset(to=clean)
    store.mutate("master", insert_people("cy"))
    assert not is_flagged(graph)
    store.dataset(PERSON).branch("master").reset(to=marked)
    store.mutate("feature>master", insert_people("cy"))
    assert is_flagged(graph, branch="feature")


def test_e05_renamed_table_keeps_its_flag(graph: Served) -> None:
    flag_twice_ana(graph)
    connect(graph).rename_table(PERSON, "graph.people")
    connect(graph).load_table("graph.people").append(people("cy"))
    assert is_flagged(graph, "graph.people")


def test_e05_merge_of_a_rename_keeps_the_flag_of_the_rows_that_stay(graph: Served) -> None:
    graph.store.dataset(PERSON).branch("feature").create(parent="master")
    connect(graph, "feature").rename_table(PERSON, "graph.people")
    flag_twice_ana(graph)
    graph.store.merge("feature", into="master")
    assert ids_of(graph.store, "graph.people") == ["ana", "ana", "bo"]
    assert is_flagged(graph, "graph.people")


def test_e05_flag_for_another_table_stays_until_that_table_was_validated(graph: Served) -> None:
    """The deletion of a person is flagged, and the edge that it breaks belongs to another table."""
    with connect(graph).load_table(KNOWS).transaction() as change:
        change.set_properties({"headgate.enforce": "flag"})
    connect(graph).load_table(KNOWS).append(edges((1, "ana", "bo")))
    connect(graph).load_table(PERSON).delete("id = 'bo'")
    assert state_of(graph) == "flagged"
    with pytest.raises(ConstraintsViolated, match="dst = 'bo' refers to no row"):
        apply_text(graph.store, GRAPH)
    connect(graph).load_table(PERSON).delete("id = 'ana'")
    graph.store.mutate("master", insert_people("ana"))
    assert state_of(graph) == "flagged"
    graph.store.mutate("master", insert_people("bo"))
    apply_text(graph.store, GRAPH)
    assert state_of(graph) is None
