"""The PostgreSQL server of the tests behaves as they assume."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from psycopg.errors import OperationalError

from tests.support.postgres import PostgresServer, fresh_database


def test_fresh_database_twice_gives_two_empty_ones(postgres_server: PostgresServer) -> None:
    first, second = fresh_database(postgres_server), fresh_database(postgres_server)
    with psycopg.connect(_plain(first)) as connection:
        connection.execute("CREATE TABLE only_here (number int)")
    assert first != second
    assert _tables(first) == ["only_here"]
    assert _tables(second) == []


def test_server_killed_and_restarted_keeps_what_was_committed(
    own_postgres: PostgresServer,
) -> None:
    url = fresh_database(own_postgres)
    before = own_postgres.pid
    with psycopg.connect(_plain(url)) as connection:
        connection.execute("CREATE TABLE kept (number int)")
    # Closed, not committed, at the end: a broken socket may leave it in the middle of a command.
    with closing(psycopg.connect(_plain(url))) as open_one:
        open_one.execute("CREATE TABLE lost (number int)")
        own_postgres.kill()
        with pytest.raises(OperationalError):
            open_one.execute("SELECT 1")
    own_postgres.restart()
    assert own_postgres.pid != before
    assert _tables(url) == ["kept"]


def test_server_stopped_refuses_until_restarted(own_postgres: PostgresServer) -> None:
    own_postgres.stop()
    with pytest.raises(OperationalError):
        psycopg.connect(own_postgres.plain_url, connect_timeout=2)
    own_postgres.restart()
    assert _tables(own_postgres.url) == []


def test_catalog_url_on_each_database_is_fresh(catalog_url: str) -> None:
    assert catalog_url.startswith(("sqlite:///", "postgresql+psycopg://"))
    if catalog_url.startswith("postgresql"):
        assert _tables(catalog_url) == []


def _tables(url: str) -> list[str]:
    with psycopg.connect(_plain(url)) as connection:
        rows = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
    return [row[0] for row in rows]


def _plain(url: str) -> str:
    return url.replace("+psycopg", "")
