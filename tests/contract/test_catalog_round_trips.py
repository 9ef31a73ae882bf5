"""Round trips of a publication to PostgreSQL: few, and as many for ten datasets as for one."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from sqlalchemy import insert, make_url, select

from headgate.catalog.database import Connection, Database, pipelined
from headgate.catalog.schema import log_counter, publications
from headgate.errors import CatalogUnavailable
from headgate.store.embedded import Store
from tests.support.door import addition, knock
from tests.support.oracle import assert_store_sound
from tests.support.proxy import proxy_before
from tests.support.stores import content, files_branch, new_settings, put

# With the liveness check of the connection, BEGIN and COMMIT.
_MOST = 11


def test_publication_on_postgres_takes_few_round_trips_whatever_it_changes(
    postgres_url: str, tmp_path: Path
) -> None:
    direct = new_settings(postgres_url, tmp_path)
    with proxy_before(make_url(postgres_url).port or 5432) as proxy:
        through = make_url(postgres_url).set(port=proxy.port)
        catalog = through.render_as_string(hide_password=False)
        with Store(replace(direct, catalog=catalog)) as store:
            branches = [files_branch(store, f"raw.d{n}") for n in range(10)]
            for branch in branches:
                put(branch, a="1")
            trips: dict[int, list[int]] = {1: [], 10: []}
            # psycopg prepares a statement when it is executed for the second time.
            for count, text in product(trips, ("2", "3", "4")):
                changes = [addition(branch, "a", text) for branch in branches[:count]]
                before = proxy.round_trips
                knock(store, *changes)
                trips[count].append(proxy.round_trips - before)
            assert max(map(min, trips.values())) <= _MOST, trips
            assert [content(branch) for branch in branches] == [{"a": "4"}] * 10
            assert_store_sound(store)


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
