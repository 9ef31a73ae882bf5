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


# A new column writes no data.
_PHASES_OF = {
    "load": _PHASES,
    "merge": _PHASES,
    "schema": tuple(p for p in _PHASES if p is not Failpoint.MUTATION_DATA_WRITTEN),
}


def _work(settings: Settings, verb: str, point: Failpoint, round: int) -> None:
    with Store(settings, recover_first=False) as store:
        die_at(point)
        _do(store, verb, round)


def _do(store: Store, verb: str, round: int) -> None:
    key = f"{verb}-{round}"
    match verb:
        case "load":
            path = store.settings.root / "people.csv"
            path.write_text(f"id\nx{round}\n")
            store.load("master", {PERSON: path}, mode="overwrite", idempotency_key=key)
        case "merge":
            store.merge("feature", into="master", idempotency_key=key)
        case "schema":
            columns = f'name = "string", mail{round} = "string"'
            file = store.settings.root / "graph.toml"
            file.write_text(GRAPH.replace('name = "string"', columns))
            store.rows.apply_schema(file, branch="master", idempotency_key=key)


@pytest.mark.parametrize("verb", _PHASES_OF)
def test_o01_other_work_on_rows_killed_at_every_phase_leaves_old_or_new_and_lands_once(
    made_catalog_url: str, tmp_path: Path, verb: str
) -> None:
    settings = _prepare(made_catalog_url, tmp_path)
    for round, point in enumerate(_PHASES_OF[verb]):
        with Store(settings) as store:
            store.mutate("feature>master", f"insert into graph.person (id) values ('f{round}')")
            store.mutate("master", f"update graph.person set age = {round}")
            count, before = len(publications(store)), ids_of(store, PERSON)
        assert_killed(_work, settings, verb, point, round)
        landed = point is Failpoint.PUBLISH_COMMITTED
        with Store(settings) as store:
            assert len(publications(store)) == count + landed, point
            assert landed or ids_of(store, PERSON) == before, point
            assert_rows_sound(store)
            _do(store, verb, round)
            assert len(publications(store)) == count + 1, point
            match verb:
                case "load":
                    assert ids_of(store, PERSON) == [f"x{round}"]
                case "merge":
                    assert f"f{round}" in ids_of(store, PERSON)
                case "schema":
                    file = tmp_path / "graph.toml"
                    left = store.rows.plan_schema(file, branch="master").steps
                    assert not any(left.values()), left
