"""One JVM for all builds of a test session; their stores keep the builds apart."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import pytest

import headgate
from headgate.builds.report import BuildOutcome
from headgate.settings import Settings, load_settings
from headgate.spark.engines import SharedJvm
from headgate.spark.jvm import GatewayAddress, JvmProcess, open_gateway
from headgate.spark.session import catalog_conf, configure, launch_request
from headgate.spark.workplace import EmbeddedEndpoint
from headgate.store.embedded import Store
from tests.support.processes import run
from tests.support.repositories import Work, new_repository
from tests.support.stores import new_settings


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedJvm]:
    """A JVM with Spark, started once per session."""
    place = tmp_path_factory.mktemp("jvm")
    with SharedJvm.start(launch_request(_machine(place), place / "jvm.log")) as shared:
        yield shared


def spark_settings(catalog_url: str, root: Path) -> Settings:
    """Return the settings of an empty store whose builds run on this machine's Spark."""
    root.mkdir(parents=True, exist_ok=True)
    made, machine = new_settings(catalog_url, root), _machine(root)
    return Settings(
        root=made.root,
        catalog=made.catalog,
        warehouse=made.warehouse,
        actor=made.actor,
        environ=machine.environ,
        cache=machine.cache,
    )


def _machine(root: Path) -> Settings:
    """This machine's Java, jars and Python; without bytecode every process would compile pandas."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environ |= {
        "PYTHONPATH": str(Path(headgate.__path__[0]).parent),
        "HEADGATE_STORE_CATALOG": "unused.db",
    }
    return load_settings(root, environ)


@dataclass(frozen=True, kw_only=True)
class Project:
    """A Git repository with transforms, and a store whose builds run on Spark."""

    work: Work
    store: Store

    def publish(self, message: str = "change", **files: str) -> None:
        """Write modules, commit them and publish what they declare on the Git branch."""
        self.work.write(**files)
        self.work.commit(message)
        self.store.publish_jobspecs(self.work.root)

    def merge(self, source: str, *, into: str = "master") -> None:
        """Merge in Git, and publish what the target branch then declares."""
        self.work.git("checkout", "--quiet", into)
        self.work.git("merge", "--quiet", "--no-ff", "--no-edit", source)
        self.store.publish_jobspecs(self.work.root)

    def build(self, targets: str, **options: Any) -> BuildOutcome:
        """Build on master, with everything upstream of the targets, by default."""
        return self.store.build(
            targets.split(), **{"branch": "master", "upstream": True, **options}
        )


def new_project(catalog_url: str, root: Path, jvm: SharedJvm | None) -> Project:
    settings = spark_settings(catalog_url, root / "store")
    work = new_repository(root / "repository")
    return Project(work=work, store=Store(settings, jvm=jvm))


class JoinedJvm(SharedJvm):
    """A JVM that another process started; `stop` only disconnects from it."""

    def __init__(self, address: GatewayAddress) -> None:
        gateway = open_gateway(address)
        context = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
        super().__init__(cast(JvmProcess, SimpleNamespace(address=address)), gateway, context)

    @property
    def alive(self) -> bool:
        return True

    def stop(self) -> None:
        self._late.close()
        self._gateway.close(keep_callback_server=True)


def open_there(settings: Settings, address: GatewayAddress) -> Store:
    """Open the same store in another process, with builds on the session's JVM."""
    return Store(settings, jvm=JoinedJvm(address))


def spark_sql(store: Store, jvm: SharedJvm, context: str, text: str) -> list[Any]:
    """Return rows of Spark SQL on a context, as lists, from a process of its own in that JVM."""
    with TemporaryDirectory() as directory:
        answer = Path(directory) / "answer.json"
        endpoint = EmbeddedEndpoint(
            store.database, store.tables, store.rules, store.settings.environ
        )
        try:
            token = endpoint.tokens.issue(store.settings.actor)
            conf = catalog_conf(uri=endpoint.url, warehouse=context, token=token)
            assert run(_ask, jvm.address, conf, text, answer) == 0
        finally:
            endpoint.stop()
        found: list[Any] = json.loads(answer.read_text())
        return found


def _ask(address: GatewayAddress, conf: Mapping[str, str], text: str, answer: Path) -> None:
    """Entry point of that process."""
    from headgate.spark.job_session import join

    session = configure(join(address), conf)
    rows = [list(row) for row in session.sql(text).collect()]
    answer.write_text(json.dumps(rows, default=str))
