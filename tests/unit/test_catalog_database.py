"""An unsupported database is rejected before any statement is sent."""

from __future__ import annotations

import sys

import pytest

from headgate.catalog.database import Database
from headgate.errors import Invalid, MissingExtra


def test_postgres_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headgate.catalog.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    database = Database("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(MissingExtra, match=r"PostgreSQL catalog.*headgate\[postgres\]"):
        database.read(lambda _: None)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("no url at all", "not a database URL"),
        ("mysql://root@127.0.0.1/x", "only SQLite and PostgreSQL"),
    ],
)
def test_url_of_something_else_is_refused(url: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        Database(url)
