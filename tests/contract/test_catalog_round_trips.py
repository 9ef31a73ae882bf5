"""Round trips of a publication to PostgreSQL: few, and as many for ten datasets as for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from sqlalchemy import insert, make_url, select, text

from headgate.catalog.database import Connection, Database
from headgate.catalog.records import pipelined
from headgate.catalog.schema import log_counter, publications
from headgate.errors import CatalogUnavailable
from headgate.model.changes import OperationKey
from headgate.store.embedded import Store
from tests.support.api import Api
from tests.support.door import addition, knock
from tests.support.iceberg import Front
from tests.support.oracle import assert_store_sound
from tests.support.proxy import Proxy, proxy_before
from tests.support.stores import DATASET, content, files_branch, new_settings, put

# BEGIN with the check of the schema; locks and reads; writes; COMMIT.
_PUBLICATION = 4
# The same with an operation key, which is claimed first.
_WITH_KEY = _PUBLICATION + 1
# With the key's lookup, the reads that prepare the version, and their BEGINs and COMMITs.
_PUT_BY_SERVER = 40


@contextmanager
def _counted(url: str, root: Path) -> Iterator[tuple[Store, Proxy]]:
    """Yield a store behind a proxy, which counts its round trips to the database."""
    direct = new_settings(url, root)
    with proxy_before(make_url(url).port or 5432) as proxy:
        through = make_url(url).set(port=proxy.port)
        catalog = through.render_as_string(hide_password=False)
        with Store(replace(direct, catalog=catalog)) as store:
            yield store, proxy


@pytest.mark.parametrize("keyed", [False, True])
def test_publication_on_postgres_takes_few_round_trips_whatever_it_changes(
    postgres_url: str, tmp_path: Path, *, keyed: bool
) -> None:
    with _counted(postgres_url, tmp_path) as (store, proxy):
        branches = [files_branch(store, f"raw.d{n}") for n in range(10)]
        for branch in branches:
            put(branch, a="1")
        trips: dict[int, list[int]] = {1: [], 10: []}
        # psycopg prepares a statement when it is executed for the second time.
        for count, value in product(trips, ("2", "3", "4")):
            changes = [addition(branch, "a", value) for branch in branches[:count]]
            key = OperationKey(
                principal="ana",
                kind="put",
                branch="master",
                key=f"k{count}-{value}",
                request_hash="one",
            )
            before = proxy.round_trips
            knock(store, *changes, operation=key if keyed else None)
            trips[count].append(proxy.round_trips - before)
        most = _WITH_KEY if keyed else _PUBLICATION
        assert max(map(min, trips.values())) <= most, trips
        assert [content(branch) for branch in branches] == [{"a": "4"}] * 10
        assert_store_sound(store)


def test_put_by_a_server_takes_no_more_round_trips_as_files_and_publications_grow(
    postgres_url: str, tmp_path: Path, front: Front
) -> None:
    with _counted(postgres_url, tmp_path) as (store, proxy):
        api = Api(store, front)
        writer = api.admin
        writer.make_files()
        trips: list[int] = []
        for number in range(12):
            before = proxy.round_trips
            writer.put(f"f{number}")
            trips.append(proxy.round_trips - before)
        api.close()
        assert min(trips[-4:]) <= min(_PUT_BY_SERVER, max(trips[2:6])), trips
        assert len(content(store.dataset(DATASET).branch("master"))) == 12


def test_connections_that_broke_while_they_were_idle_are_replaced(
    postgres_url: str, tmp_path: Path
) -> None:
    with _counted(postgres_url, tmp_path) as (store, _):
        master = files_branch(store)
        put(master, a="1")
        ending = text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        for act in (lambda: put(master, b="2"), master.load, lambda: content(master)):
            other = Database(postgres_url)
            with closing(other), other.raw() as connection:
                connection.execute(ending)
            act()
        with closing(Database(postgres_url)) as other, other.raw() as connection:
            connection.execute(ending)
        with store.database.raw() as connection:
            assert connection.execute(text("SELECT 1")).scalar_one() == 1
        assert content(master) == {"a": "1", "b": "2"}


def test_writes_that_fail_together_change_nothing_and_are_reported(
    made_postgres_url: str,
) -> None:
    row = {"number": 1, "at": 1, "actor": "ana", "kind": "commit", "operation_id": "o"}
    with closing(Database(made_postgres_url)) as database:

        def twice(connection: Connection) -> None:
            with pipelined(connection):
                connection.execute(insert(publications), [row])
                connection.execute(insert(publications), [row])

        with pytest.raises(CatalogUnavailable, match="duplicate key"):
            database.write(twice)
        assert database.read(lambda c: c.execute(select(publications)).all()) == []
        assert database.read(lambda c: c.execute(select(log_counter.c.number)).scalar_one()) == 0
