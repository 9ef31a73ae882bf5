"""Fixtures for tests of pipelines: a store and a branch per test, one Spark for all of them.

Loaded by pytest wherever Headgate is installed, so nothing heavy is imported before a fixture that
needs it is asked for.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headgate.spark.workplace import SparkSession
    from headgate.store.embedded import Store
    from headgate.testing.faults import Failpoints
    from headgate.testing.project import Project, SparkOfTests

_ROOT = "headgate_root"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_ROOT, "Directory of the project whose transforms are tested.", default=".")


@pytest.fixture(scope="session")
def headgate_spark_conf() -> dict[str, str]:
    """Settings of the shared Spark; a project overrides this to add its own."""
    return {}


@pytest.fixture(scope="session")
def headgate_shared_spark(headgate_spark_conf: dict[str, str]) -> Iterator[SparkOfTests]:
    """The one Spark of this test session, or of each xdist worker; started when needed."""
    from headgate.testing.project import SparkOfTests  # noqa: PLC0415  (slow: HTTP, Spark)

    shared = SparkOfTests(headgate_spark_conf)
    yield shared
    shared.stop()


@pytest.fixture
def headgate_spark(headgate_shared_spark: SparkOfTests) -> SparkSession:
    """A SparkSession of the test's own, for transforms that are called on DataFrames."""
    return headgate_shared_spark.session()


@pytest.fixture
def headgate_store(tmp_path: Path, headgate_shared_spark: SparkOfTests) -> Iterator[Store]:
    """An empty store of the test's own, whose builds and sessions use the shared Spark."""
    root = tmp_path / "store"
    root.mkdir()
    with _open(root, headgate_shared_spark) as store:
        yield store


@pytest.fixture
def headgate_branch(request: pytest.FixtureRequest) -> str:
    """The name of a branch of the test's own, made of the test's name."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name).strip("-")
    return f"test/{name[:150]}"


@pytest.fixture
def headgate_failpoints() -> Failpoints:
    """Lets attempts of the test's builds die, or live on as zombies."""
    from headgate.testing.faults import Failpoints  # noqa: PLC0415  (slow: the catalog)

    return Failpoints()


@pytest.fixture(scope="session")
def headgate_published(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    headgate_shared_spark: SparkOfTests,
) -> Path:
    """The project in a repository, and a store that has its JobSpecs; copied for each test."""
    from headgate.testing.project import (  # noqa: PLC0415  (slow: the store)
        PRIMARY,
        copy_project,
    )

    root = tmp_path_factory.mktemp("headgate")
    source = request.config.rootpath / str(request.config.getini(_ROOT))
    copy_project(source.resolve(), root / "repository", branch=PRIMARY)
    (root / "store").mkdir()
    with _open(root / "store", headgate_shared_spark) as store:
        store.publish_jobspecs(root / "repository")
    return root


@pytest.fixture
def headgate_project(
    headgate_published: Path,
    headgate_shared_spark: SparkOfTests,
    headgate_branch: str,
    headgate_failpoints: Failpoints,
    tmp_path: Path,
) -> Iterator[Project]:
    """The project as it stands, published on the primary branch of a store of the test's own."""
    from headgate.testing.project import Project  # noqa: PLC0415  (slow: HTTP, Spark)

    root = tmp_path / "headgate"
    shutil.copytree(headgate_published, root)
    with _open(root / "store", headgate_shared_spark) as store:
        yield Project(store, root / "repository", headgate_branch, headgate_failpoints)


def _open(root: Path, shared: SparkOfTests) -> Store:
    from headgate.catalog.database import Database  # noqa: PLC0415  (slow: SQL)
    from headgate.catalog.migrate import ensure_schema  # noqa: PLC0415  (slow: SQL)
    from headgate.store.embedded import Store  # noqa: PLC0415  (slow: SQL)
    from headgate.testing.project import settings_of_tests  # noqa: PLC0415  (slow: HTTP, Spark)

    settings = settings_of_tests(root)
    database = Database(settings.catalog)
    ensure_schema(database, create=True)
    database.close()
    return Store(settings, jvm=shared.jvm)
