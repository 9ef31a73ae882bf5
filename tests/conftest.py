"""Fixtures and hooks of all tests: servers, catalog URLs, and the result of the session."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from headgate.spark.session import LocalSpark
from tests.support.catalogs import make_catalog
from tests.support.class_archive import options_of_jvms
from tests.support.failures import FailureRecord
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.postgres_binaries import NO_POSTGRES, find_binaries
from tests.support.skips import SkipsAreErrors
from tests.support.spark import SHARED_SPARK

pytest_plugins = [
    "pytester",
    "tests.support.api",
    "tests.support.clocks",
    "tests.support.engines",
    "tests.support.grouping",
    "tests.support.pages",
    "tests.support.projects",
    "tests.support.sockets",
    "tests.support.spark_places",
    "tests.support.working_directory",
]

# Tests with these fixtures leave the Spark of the process running for one another.
_SPARK_FIXTURES = {"local_spark", "spark_place"}

# A busy machine must not fail a property by its speed alone.
_PATIENT: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("make", **_PATIENT, print_blob=True)
hypothesis.settings.register_profile("ci", **_PATIENT, print_blob=True, max_examples=150)


def pytest_configure(config: pytest.Config) -> None:
    if "JDK_JAVA_OPTIONS" not in os.environ:
        # Every JVM started by this process reads them.
        os.environ["JDK_JAVA_OPTIONS"] = options_of_jvms()
    hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "make")
    reports_here = not hasattr(config, "workerinput")
    if reports_here and os.environ.get("HEADGATE_NO_SKIPS"):
        config.pluginmanager.register(SkipsAreErrors(), "skips-are-errors")
    if reports_here and (record := os.environ.get("HEADGATE_FAILURES")):
        config.pluginmanager.register(FailureRecord(Path(record)), "failure-record")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and _SPARK_FIXTURES.isdisjoint(item.fixturenames):
        SHARED_SPARK.stop()


def pytest_report_header() -> str:
    return f"rounds of each race: {_rounds()}"


def pytest_sessionfinish() -> None:
    SHARED_SPARK.stop()


@pytest.fixture
def local_spark() -> LocalSpark:
    """Shared Spark of this process; it keeps running for later tests."""
    return SHARED_SPARK.get()


@pytest.fixture(scope="session")
def rounds() -> int:
    """Number of tries of a race: 20 in `make test`, or HEADGATE_TEST_ROUNDS."""
    return _rounds()


def _rounds() -> int:
    return int(os.environ.get("HEADGATE_TEST_ROUNDS", "20"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """PostgreSQL of the session; one for each xdist worker. Tests must not stop it."""
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
    """URL of an empty PostgreSQL database, dropped after the test."""
    name = postgres_server.create_database()
    yield postgres_server.database_url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite catalog with empty tables, to be copied."""
    path = tmp_path_factory.mktemp("catalog") / "template.db"
    make_catalog(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The same on PostgreSQL: the name of the database."""
    name = postgres_server.create_database()
    make_catalog(postgres_server.database_url(name))
    return name


@pytest.fixture
def made_sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A new SQLite catalog with empty tables, by a copy of a file."""
    # With its mode, which the doctor checks.
    path = shutil.copy(sqlite_template, tmp_path / "made.db")
    return f"sqlite:///{path}"


@pytest.fixture
def made_postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A new PostgreSQL catalog with empty tables, copied by the server."""
    name = postgres_server.create_database(like=postgres_template)
    yield postgres_server.database_url(name)
    postgres_server.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def made_catalog_url(request: pytest.FixtureRequest) -> str:
    """A new catalog with empty tables, once on each database; `catalog_url` has no tables."""
    fixture = {"sqlite": "made_sqlite_url", "postgresql": "made_postgres_url"}[request.param]
    url: str = request.getfixturevalue(fixture)
    return url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite catalog that does not exist yet."""
    return f"sqlite:///{tmp_path / 'catalog.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog_url(request: pytest.FixtureRequest) -> str:
    """A new, empty catalog, once on each database."""
    fixture = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
    url: str = request.getfixturevalue(fixture)
    return url
