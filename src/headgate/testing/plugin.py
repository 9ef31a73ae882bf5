"""Pytest fixtures for pipelines: a store and a branch per test, one Spark for all tests.

Pytest loads this plugin wherever Headgate is installed, so fixtures import heavy modules when they
are used.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headgate.spark.session import SparkSession
    from headgate.store.embedded import Store
    from headgate.testing.faults import Failpoints
    from headgate.testing.project import Project, SharedSpark

_ROOT = "headgate_root"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_ROOT, "Directory of the project whose transforms are tested.", default=".")


@pytest.fixture(scope="session")
def headgate_spark_conf() -> dict[str, str]:
    """Settings of the shared Spark; override this fixture to add settings."""
    return {}


@pytest.fixture(scope="session")
def headgate_shared_spark(headgate_spark_conf: dict[str, str]) -> Iterator[SharedSpark]:
    """The Spark of this test session, or of each xdist worker; started at its first use."""
    from headgate.testing.project import SharedSpark  # noqa: PLC0415  (slow: HTTP, Spark)

    shared = SharedSpark(headgate_spark_conf)
    yield shared
    shared.stop()


@pytest.fixture
def headgate_spark(headgate_shared_spark: SharedSpark) -> SparkSession:
    """A SparkSession of the test, for transforms that are called on DataFrames."""
    return headgate_shared_spark.session()


@pytest.fixture
def headgate_store(tmp_path: Path, headgate_shared_spark: SharedSpark) -> Iterator[Store]:
    """An empty store of the test, whose builds and sessions use the shared Spark."""
    root = tmp_path / "store"
    root.mkdir()
    with _open(root, headgate_shared_spark) as store:
        yield store


@pytest.fixture
def headgate_branch(request: pytest.FixtureRequest) -> str:
    """Name of a branch for the test, derived from the test's name."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name).strip("-")
    return f"test/{name[:150]}"


@pytest.fixture
def headgate_failpoints() -> Failpoints:
    """Faults in the builds of the test: killed or superseded attempts."""
    from headgate.testing.faults import Failpoints  # noqa: PLC0415  (slow: the catalog)

    return Failpoints()


@pytest.fixture(scope="session")
def headgate_published(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    headgate_shared_spark: SharedSpark,
) -> Path:
    """Directory with the project's repository and a store with its JobSpecs, copied per test."""
    from headgate.testing.project import PRIMARY, copy_project  # noqa: PLC0415  (slow: a store)

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
    headgate_shared_spark: SharedSpark,
    headgate_branch: str,
    headgate_failpoints: Failpoints,
    tmp_path: Path,
) -> Iterator[Project]:
    """The project, published on the primary branch of a store of the test."""
    from headgate.testing.project import Project  # noqa: PLC0415  (slow: HTTP, Spark)

    root = tmp_path / "headgate"
    shutil.copytree(headgate_published, root)
    with _open(root / "store", headgate_shared_spark) as store:
        yield Project(store, root / "repository", headgate_branch, headgate_failpoints)


def _open(root: Path, shared: SharedSpark) -> Store:
    from headgate.catalog.database import Database  # noqa: PLC0415  (slow: SQL)
    from headgate.catalog.migrate import ensure_schema  # noqa: PLC0415  (slow: SQL)
    from headgate.store.embedded import Store  # noqa: PLC0415  (slow: SQL)
    from headgate.testing.project import embedded_settings  # noqa: PLC0415  (slow: HTTP, Spark)

    settings = embedded_settings(root)
    database = Database(settings.catalog)
    ensure_schema(database, create=True)
    database.close()
    return Store(settings, jvm=shared.jvm)
