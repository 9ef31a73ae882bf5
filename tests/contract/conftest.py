"""Fixtures of task tests: a workspace in a files dataset, on a local store and a served one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.store.embedded import Store
from tests.support.serving_tasks import client_of
from tests.support.tasks import Workshop, new_workshop


@pytest.fixture(params=["sqlite", "postgresql", "served"])
def workshop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workshop]:
    """A workshop on each database, and one whose attempts run at a client of the store's server."""
    on = "made_postgres_url" if request.param == "postgresql" else "made_sqlite_url"
    made = new_workshop(request.getfixturevalue(on), tmp_path)
    if request.param != "served":
        yield made
        return
    with client_of(made, request.getfixturevalue("front")) as client:
        yield replace(made, client=client)


@pytest.fixture
def store(workshop: Workshop) -> Iterator[Store]:
    """Store of the workshop; afterwards, ended attempts must leave nothing on the disk."""
    with workshop.open() as opened:
        yield opened
        assert workshop.attempts_left() == []
