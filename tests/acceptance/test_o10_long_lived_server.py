"""O10: one long-lived server: objects that cleanup keeps; upkeep and damage block no writer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import update

from headgate.catalog.schema import intents
from headgate.model.failpoints import Failpoint
from headgate.store.embedded import Store
from tests.support import lakefs_tasks
from tests.support.api import Api, ApiClient
from tests.support.iceberg import Front
from tests.support.lakefs_tasks import lakefs_place
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.processes import assert_killed, run
from tests.support.rows import PERSON, graph_store, ids_of, insert_people
from tests.support.stores import DATASET, content, files_branch, new_store, put
from tests.support.upkeep import is_expired, let_days_pass

_WRITERS = 4
_WRITES = 5


@contextmanager
def _served(store: Store) -> Iterator[ApiClient]:
    """Serve the store, and return a client of an administrator."""
    front = Front()
    api = Api(store, front)
    try:
        yield api.admin
    finally:
        api.close()
        front.stop()


def _clean_twice(admin: ApiClient, store: Store) -> int:
    """Condemn, sweep a day later, and return the number of deleted objects."""
    admin.post("/cleanup")
    let_days_pass(store, 1.1)
    return int(admin.post("/cleanup")["deleted"])


def test_o10_cleanup_keeps_all_that_a_pending_intent_names(
    catalog_url: str, tmp_path: Path
) -> None:
    """An intent names an attempt, and thereby the branch that it staged in lakeFS."""
    with lakefs_place(catalog_url, tmp_path) as place:
        assert run(lakefs_tasks.publish, place, {"lost": "x"}) == 0
        assert_killed(lakefs_tasks.publish_until, place, Failpoint.INTENT_RECORDED)
        with place.open() as store, _served(store) as admin:
            let_days_pass(store, 400)
            [staged] = place.harness(store).staging_left(place.given)
            _clean_twice(admin, store)
            assert place.harness(store).staging_left(place.given) == [staged]
            assert len(admin.post("/recover")["rolled_back"]) == 1
            _clean_twice(admin, store)
            assert place.harness(store).staging_left(place.given) == []
            assert_store_sound(store)


def test_o10_version_that_any_view_needs_is_kept_however_old(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store, _served(store) as admin:
        master = files_branch(store)
        first = put(master, a="1")
        store.dataset("raw.scans").branch("early").create(parent="master")
        passed_over = put(master, a="2")
        put(master, a="3")
        let_days_pass(store, 400)
        assert _clean_twice(admin, store) > 0
        assert content(master) == {"a": "3"}
        assert content(store.dataset("raw.scans").branch("early")) == {"a": "1"}
        assert is_expired(master, passed_over) and not is_expired(master, first)
        assert_store_sound(store)


def test_o10_upkeep_beside_writers_loses_its_own_races_and_blocks_nobody(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store, _served(store) as admin:
        done = Event()

        def keep_up() -> set[str]:
            states: set[str] = set()
            while not done.is_set():
                states.add(admin.post("/optimize", dataset=PERSON, branch="master")["state"])
                admin.post("/cleanup")
            return states

        def write(writer: int) -> None:
            for number in range(_WRITES):
                sql = insert_people(f"w{writer}-{number}")
                admin.post("/mutate", branch="master", sql=sql)

        with ThreadPoolExecutor(_WRITERS + 1) as pool:
            keeping = pool.submit(keep_up)
            writing = [pool.submit(write, writer) for writer in range(_WRITERS)]
            try:
                for one in writing:
                    one.result()
            finally:
                done.set()
            assert keeping.result() <= {"optimized", "unchanged", "lost", "skipped"}
        written = {f"w{w}-{n}" for w in range(_WRITERS) for n in range(_WRITES)}
        assert set(ids_of(store, PERSON)) == {"a", *written}
        assert_rows_sound(store)


@pytest.mark.parametrize("damage", ["{", '{"action": "merge"}'])
def test_o10_corrupt_intent_blocks_no_branch(catalog_url: str, tmp_path: Path, damage: str) -> None:
    with lakefs_place(catalog_url, tmp_path) as place:
        assert_killed(lakefs_tasks.publish_until, place, Failpoint.INTENT_RECORDED)
        with place.open() as store, _served(store) as admin:
            store.database.write(lambda c: c.execute(update(intents).values(body=damage)))
            let_days_pass(store, 1)
            where, text = f"/files/{DATASET}/x", {"content": b"1"}
            admin.ok("PUT", where, params={"branch": "master"}, **text)
            kept = admin.post("/recover")["kept"]
            assert [one["why"] for one in kept] == ["its intent cannot be read"]
            place.work(store, lakefs_tasks.NEW)
            assert_rows_sound(store)
