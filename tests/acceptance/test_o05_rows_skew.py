"""O05 on rows: the door checks again that rows read for validation are unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import ConstraintsViolated, RowsChanged, ViewConflict
from headgate.model.failpoints import Failpoint
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.testing.failpoints import calling_at, pause_at
from tests.support.oracle import assert_rows_sound
from tests.support.processes import finish, let_go, running, wait_until_at
from tests.support.rows import KNOWS, PERSON, graph_store, ids_of, made_settings, publications

_EDGE = "insert into graph.knows values (1, 'a', 'b')"
_GONE = "delete from graph.person where id = 'b'"


def test_o05_edge_to_a_node_that_goes_meanwhile_is_refused(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        other = Store(made_settings(made_catalog_url, tmp_path, actor="bea"))
        with (
            calling_at(Failpoint.MUTATION_STAGED, lambda: _do(other, _GONE)),
            pytest.raises(ConstraintsViolated, match="dst = 'b' refers to no row"),
        ):
            store.mutate("master", _EDGE)
        assert (ids_of(store, PERSON), ids_of(store, KNOWS)) == (["a"], [])
        other.close()
        assert_rows_sound(store)


def test_o05_node_that_gets_an_edge_meanwhile_is_kept(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        with (
            calling_at(Failpoint.MUTATION_STAGED, lambda: _do(store, _EDGE)),
            pytest.raises(ConstraintsViolated),
        ):
            store.mutate("master", _GONE)
        assert (ids_of(store, PERSON), ids_of(store, KNOWS)) == (["a", "b"], [1])


def _do(store: Store, sql: str) -> None:
    store.mutate("master", sql)


def _add_edge(settings: Settings, flags: Path) -> None:
    with Store(settings, recover_first=False) as store:
        pause_at(Failpoint.MUTATION_STAGED, flags=flags)
        try:
            store.mutate("master", _EDGE)
        except ConstraintsViolated:
            raise SystemExit(2) from None


def test_o05_writer_paused_between_staging_and_publishing_revalidates(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        settings = made_settings(made_catalog_url, tmp_path)
        with running(_add_edge, settings, tmp_path) as writer:
            wait_until_at(Failpoint.MUTATION_STAGED, tmp_path)
            store.mutate("master", _GONE)
            let_go(Failpoint.MUTATION_STAGED, tmp_path)
            assert finish(writer) == 2
        assert ids_of(store, KNOWS) == []


def test_o05_update_of_a_row_that_somebody_changed_is_a_typed_conflict(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        seen = store.dataset(PERSON).branch("master").load().view
        mine = "update graph.person set age = age + 1 where id = 'a'"
        with (
            calling_at(Failpoint.MUTATION_STAGED, lambda: _do(store, mine)),
            pytest.raises(RowsChanged) as conflict,
        ):
            store.mutate("master", mine)
        assert conflict.value.facts["manifest_conflict"]["expected"] == seen
        assert (conflict.value.code, conflict.value.facts["reason"]) == ("conflict", "rows_changed")


def test_o05_update_of_another_row_prepares_again_and_passes(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        others = "update graph.person set age = 1 where id = 'b'"
        with calling_at(Failpoint.MUTATION_STAGED, lambda: _do(store, others)):
            outcome = store.mutate("master", "update graph.person set age = 2 where id = 'a'")
        assert outcome.losses == 1
        assert len(publications(store)) == 4


def test_o05_writer_without_time_gets_the_conflict_at_once(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        others = "insert into graph.person (id) values ('x')"
        with (
            calling_at(Failpoint.MUTATION_STAGED, lambda: _do(store, others)),
            pytest.raises(ViewConflict),
        ):
            store.mutate("master", "insert into graph.person (id) values ('y')", timeout_seconds=0)
        assert ids_of(store, PERSON) == ["a", "x"]
