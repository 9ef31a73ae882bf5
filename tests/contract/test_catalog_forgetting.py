"""Retention time of snapshots: it only moves forward."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from headgate.catalog.database import Database
from headgate.catalog.retention import forget_before, remembered_since
from headgate.model.ids import Instant
from headgate.tables.versions import Remembered


@pytest.fixture
def database(made_catalog_url: str) -> Iterator[Database]:
    database = Database(made_catalog_url)
    yield database
    database.close()


def test_new_store_has_forgotten_nothing(database: Database) -> None:
    assert database.read(remembered_since) == 0


def test_moment_moves_forward_and_never_back(database: Database) -> None:
    assert forget_before(database, Instant(500)) == 500
    assert forget_before(database, Instant(300)) == 500
    assert forget_before(database, Instant(700)) == 700
    assert database.read(remembered_since) == 700


def test_reader_asks_again_after_a_while(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered = Remembered(partial(database.read, remembered_since))
    assert remembered() == 0
    forget_before(database, Instant(500))
    assert remembered() == 0
    monkeypatch.setattr("headgate.tables.versions._FRESH_SECONDS", -1.0)
    assert remembered() == 500
