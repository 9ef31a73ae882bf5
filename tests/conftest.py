"""What every tier of tests shares: servers, catalog URLs, and how the session is judged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.postgres import PostgresServer, running_postgres
from tests.support.postgres_binaries import NO_POSTGRES, find_binaries
from tests.support.skips import SkipsAreErrors

pytest_plugins = ["pytester"]

# A busy machine must not fail a property by its speed alone.
hypothesis.settings.register_profile("make", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, max_examples=500)


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "make")
    reports_here = not hasattr(config, "workerinput")
    if reports_here and os.environ.get("HEADGATE_NO_SKIPS"):
        config.pluginmanager.register(SkipsAreErrors(), "skips-are-errors")


@pytest.fixture(scope="session")
def rounds() -> int:
    """How often a race is tried: 20 in `make test`, more where `HEADGATE_TEST_ROUNDS` says so."""
    return int(os.environ.get("HEADGATE_TEST_ROUNDS", "20"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The session's PostgreSQL; one for each xdist worker. Not to be stopped by a test."""
    if find_binaries() is None:
        pytest.skip(NO_POSTGRES)
    with running_postgres() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for one test alone, which it may stop, kill and restart."""
    if find_binaries() is None:
        pytest.skip(NO_POSTGRES)
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty PostgreSQL database, gone after the test."""
    name = postgres_server.create_database()
    yield postgres_server.database_url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite catalog that does not exist yet."""
    return f"sqlite:///{tmp_path / 'catalog.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog_url(request: pytest.FixtureRequest) -> str:
    """A fresh, empty catalog, once on each database."""
    fixture = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
    url: str = request.getfixturevalue(fixture)
    return url
