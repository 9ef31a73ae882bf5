"""What the contract of tasks is tried on: a workspace in a files dataset, here and from afar."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.store.embedded import Store
from tests.support.iceberg import Front
from tests.support.serving_tasks import client_of
from tests.support.tasks import Workshop, new_workshop


@pytest.fixture(scope="session")
def front() -> Iterator[Front]:
    """Where the tests of this process are served, one after the other."""
    started = Front()
    yield started
    started.stop()


@pytest.fixture(params=["sqlite", "postgresql", "served"])
def workshop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workshop]:
    """On either database, and with attempts that a client of the store's server does."""
    on = "made_postgres_url" if request.param == "postgresql" else "made_sqlite_url"
    made = new_workshop(request.getfixturevalue(on), tmp_path)
    if request.param != "served":
        yield made
        return
    with client_of(made, request.getfixturevalue("front")) as client:
        yield replace(made, client=client)


@pytest.fixture
def store(workshop: Workshop) -> Iterator[Store]:
    """The workshop's store; an attempt that ended has left nothing on the disk."""
    with workshop.open() as opened:
        yield opened
        assert workshop.attempts_left() == []
