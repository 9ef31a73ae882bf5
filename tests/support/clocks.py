"""A clock that a test sets: of this machine, of its databases and of the warehouse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import text

from headgate.catalog import database as catalog
from headgate.model.ids import Instant
from headgate.upkeep import cleanup, doctor
from headgate.upkeep.cleanup import Clocks

DAY_US = 86_400 * 1_000_000
# Sets all clocks this many days ahead of the real one.
SetClock = Callable[[float], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    real, own = dict(catalog.NOW), cleanup._read_own_clock

    def set_clock(days: float) -> None:
        ahead = round(days * DAY_US)
        for dialect, query in real.items():
            monkeypatch.setitem(catalog.NOW, dialect, text(f"SELECT ({query}) + {ahead}"))
        monkeypatch.setattr(cleanup, "_read_own_clock", lambda: Instant(own() + ahead))

        def read_clocks(database: catalog.Database, objects: object) -> Clocks:
            moment = database.read(catalog.now)
            return Clocks(database=moment, store=moment, here=moment)

        monkeypatch.setattr(cleanup, "read_clocks", read_clocks)
        monkeypatch.setattr(doctor, "read_clocks", read_clocks)

    return set_clock
