"""Tasks at a client of a server, over HTTP to the store of a workshop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headgate.client.store import RemoteStore
from headgate.model.access import Role
from headgate.settings import load_settings, with_server
from tests.support.api import Api
from tests.support.iceberg import Front
from tests.support.tasks import Workshop


@contextmanager
def client_of(workshop: Workshop, front: Front) -> Iterator[RemoteStore]:
    """Return a client of a server of the workshop's store, with a cache of its own."""
    with workshop.open() as store:
        api = Api(store, front)
        with connected(workshop, api.url, api.token("ana", Role.ADMIN)) as client:
            yield client
        api.close()


def connected(workshop: Workshop, url: str, token: str) -> RemoteStore:
    environ = {"HEADGATE_CACHE": str(workshop.directory / "cache")}
    settings = load_settings(workshop.directory, environ, server_url=url)
    return RemoteStore(with_server(settings, url=url, token=token))
