"""A project whose store is behind a server, and a client that builds with its own Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.builds.report import BuildOutcome
from headgate.client.store import RemoteStore
from headgate.model.access import Role
from headgate.server.app import create_server
from headgate.server.builds import ServerBuilds
from headgate.settings import with_server
from headgate.spark.engines import SharedJvm
from tests.support.api import Api
from tests.support.iceberg import Front
from tests.support.projects import Project, new_project, spark_settings


@dataclass(frozen=True, kw_only=True)
class Afar:
    """The project with its store, the API of its server, and the client."""

    project: Project
    api: Api
    client: RemoteStore

    def build(self, targets: str, **options: Any) -> BuildOutcome:
        """Build from the client, on master by default."""
        given = {"branch": "master", "upstream": True, **options}
        return self.client.build(targets.split(), **given)


@contextmanager
def afar(root: Path, front: Front, jvm: SharedJvm, *, silent_seconds: float = 60) -> Iterator[Afar]:
    """Serve a project; the client's Spark executes the jobs, and the store's own never starts."""
    project = new_project(f"sqlite:///{root / 'catalog.db'}", root, None)
    with project.store as store:
        api = Api(store, front)
        builds = ServerBuilds(store, silent_seconds=silent_seconds)
        front.app = api.app = create_server(store, builds_on_server=builds)
        settings = spark_settings(f"sqlite:///{root / 'unused.db'}", root / "client")
        served = with_server(settings, url=api.url, token=api.token("ana", Role.ADMIN))
        with RemoteStore(served, jvm=jvm) as client:
            yield Afar(project=project, api=api, client=client)
        api.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; the limit is far above the time of a busy machine."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
