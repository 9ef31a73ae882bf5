"""O01 and O06 for rows: killed at every phase; the write of a disconnected client lands once."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.model.failpoints import Failpoint
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.testing.failpoints import die_at
from tests.support.oracle import assert_rows_sound
from tests.support.processes import assert_killed
from tests.support.rows import (
    GRAPH,
    KNOWS,
    PERSON,
    apply_text,
    graph_store,
    ids_of,
    made_settings,
    publications,
)

_PHASES = (
    Failpoint.MUTATION_PREPARED,
    Failpoint.MUTATION_DATA_WRITTEN,
    Failpoint.MUTATION_VERSION_STAGED,
    Failpoint.MUTATION_STAGED,
    Failpoint.PUBLISH_LOCKED,
    Failpoint.PUBLISH_APPLIED,
    Failpoint.PUBLISH_COMMITTED,
)
_SCRIPT = """
insert into graph.person (id) values ('x');
insert into graph.knows values (1, 'x', 'a');
update shop.item set n = n + 1
"""
_SHOP = '[dataset."shop.item"]\ncolumns = {id = "int", n = "int"}\nkey = ["id"]\nbuckets = 1\n'


def _prepare(catalog_url: str, root: Path) -> Settings:
    with graph_store(catalog_url, root, "a") as store:
        apply_text(store, _SHOP)
        store.mutate("master", "insert into shop.item values (1, 1)")
    return made_settings(catalog_url, root)


def _mutate(settings: Settings, point: Failpoint, nth: int) -> None:
    with Store(settings, recover_first=False) as store:
        die_at(point, nth=nth)
        store.mutate("master", _SCRIPT, actor="bea", idempotency_key="k")


def _state(store: Store) -> tuple[object, ...]:
    items = store.mutate("master", "delete from shop.item where n = 0").counts
    assert not items
    return ids_of(store, PERSON), ids_of(store, KNOWS)


@pytest.mark.parametrize("point", _PHASES)
def test_o01_mutation_killed_leaves_old_or_new_and_its_retry_lands_once(
    made_catalog_url: str, tmp_path: Path, point: Failpoint
) -> None:
    settings = _prepare(made_catalog_url, tmp_path)
    nth = 2 if point in {Failpoint.MUTATION_VERSION_STAGED} else 1
    assert_killed(_mutate, settings, point, nth)
    with Store(settings) as store:
        landed = point is Failpoint.PUBLISH_COMMITTED
        before: tuple[list[str], list[int]] = (["a"], [])
        after = (["a", "x"], [1])
        assert _state(store) == (after if landed else before)
        assert_rows_sound(store)
        outcome = store.mutate("master", _SCRIPT, actor="bea", idempotency_key="k")
        assert outcome.replayed is landed
        assert outcome.counts[PERSON].inserted == 1
        assert _state(store) == after
        mine = [p for p in publications(store) if p.actor == "bea"]
        assert [p.number for p in mine] == [outcome.publication]
        assert {str(m.dataset) for m in mine[0].moves} == {PERSON, KNOWS, "shop.item"}


def _work(settings: Settings, verb: str, point: Failpoint) -> None:
    with Store(settings, recover_first=False) as store:
        die_at(point)
        _do(store, verb)


def _do(store: Store, verb: str) -> None:
    path = store.settings.root / "people.csv"
    path.write_text("id\nx\n")
    match verb:
        case "load":
            store.load("master", {PERSON: path}, mode="overwrite")
        case "merge":
            store.merge("feature", into="master")
        case "schema":
            apply_text(store, GRAPH.replace('name = "string"', 'name = "string", mail = "string"'))


@pytest.mark.parametrize("verb", ["load", "schema", "merge"])
@pytest.mark.parametrize("point", [Failpoint.MUTATION_STAGED, Failpoint.PUBLISH_APPLIED])
def test_o01_other_work_on_rows_killed_leaves_the_old_state(
    made_catalog_url: str, tmp_path: Path, verb: str, point: Failpoint
) -> None:
    settings = _prepare(made_catalog_url, tmp_path)
    with Store(settings) as store:
        store.mutate("feature>master", "insert into graph.person (id) values ('f')")
        store.mutate("master", "update graph.person set age = 1")
        count = len(publications(store))
    assert_killed(_work, settings, verb, point)
    with Store(settings) as store:
        assert len(publications(store)) == count
        assert ids_of(store, PERSON) == ["a"]
        assert_rows_sound(store)
        _do(store, verb)
        assert len(publications(store)) == count + 1
