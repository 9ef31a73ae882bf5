"""O01 for `load --engine spark`: killed at every phase; old state or new; a retry lands once."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.model.failpoints import Failpoint
from headgate.rows.outcome import Outcome
from headgate.settings import Settings
from headgate.spark.engines import SharedJvm
from headgate.spark.jvm import GatewayAddress
from headgate.store.embedded import Store
from headgate.testing.failpoints import die_at
from tests.support.oracle import assert_rows_sound
from tests.support.processes import assert_killed
from tests.support.projects import open_there, spark_settings
from tests.support.rows import GRAPH, KNOWS, PERSON, apply_text, ids_of, publications, rows_of
from tests.support.stores import expire_leases

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

# Each of the two tables is staged by a commit of Spark.
_PHASES = (
    (Failpoint.OPEN_APPLIED, 1),
    (Failpoint.STAGE_APPLIED, 1),
    (Failpoint.STAGE_APPLIED, 2),
    (Failpoint.MUTATION_STAGED, 1),
    (Failpoint.PUBLISH_LOCKED, 1),
    (Failpoint.PUBLISH_APPLIED, 1),
    (Failpoint.PUBLISH_COMMITTED, 1),
)


def _load(store: Store, round: int) -> Outcome:
    people, edges = store.settings.root / "people.jsonl", store.settings.root / "edges.csv"
    people.write_text(f'{{"id": "a", "age": {round}}}\n{{"id": "x{round}", "name": "X"}}\n')
    edges.write_text(f"id,src,dst\n{round},x{round},a\n")
    key = f"k{round}"
    given = {PERSON: people, KNOWS: edges}
    return store.load("master", given, mode="merge", engine="spark", idempotency_key=key)


def load_and_die(
    settings: Settings, address: GatewayAddress, point: Failpoint, nth: int, round: int
) -> None:
    """Load by Spark until killed at a failpoint; entry point of a process."""
    with open_there(settings, address) as store:
        die_at(point, nth=nth)
        _load(store, round)


def test_o01_load_by_spark_killed_at_every_phase_leaves_old_or_new_and_lands_once(
    made_catalog_url: str, tmp_path: Path, jvm: SharedJvm
) -> None:
    settings = spark_settings(made_catalog_url, tmp_path / "store")
    with Store(settings, jvm=jvm) as store:
        apply_text(store, GRAPH)
        store.mutate("master", "insert into graph.person (id) values ('a')")
        for round, (point, nth) in enumerate(_PHASES):
            count, people, edges = len(publications(store)), ids_of(store, PERSON), [*range(round)]
            assert_killed(load_and_die, settings, jvm.address, point, nth, round)
            landed = point is Failpoint.PUBLISH_COMMITTED
            assert len(publications(store)) == count + landed, point
            assert ids_of(store, PERSON) == [*people, *[f"x{round}"] * landed], point
            assert ids_of(store, KNOWS) == [*edges, *[round] * landed], point
            assert_rows_sound(store)
            expire_leases(store)
            outcome = _load(store, round)
            assert outcome.replayed is landed, point
            assert (outcome.counts[PERSON].inserted, outcome.counts[PERSON].updated) == (1, 1)
            assert outcome.counts[KNOWS].inserted == 1
            assert len(publications(store)) == count + 1, point
            assert ids_of(store, KNOWS) == [*edges, round], point
            assert rows_of(store, PERSON)[0]["age"] == round, point
        assert_rows_sound(store)
