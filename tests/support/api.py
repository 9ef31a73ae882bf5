"""A served store for tests over HTTP, and clients with different rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.model.access import Role
from headgate.server.app import create_server
from headgate.settings import ServerSettings, load_settings
from headgate.store.embedded import Store
from tests.support.iceberg import Front
from tests.support.stores import new_store


class Api:
    """A store behind its server: clients by name, each with a token of its own."""

    def __init__(self, store: Store, front: Front, *, limits: ServerSettings | None = None) -> None:
        self.store = store
        self.url = front.url
        self.app = create_server(store, limits=limits)
        front.app = self.app
        self._clients: list[httpx.Client] = []

    @cached_property
    def admin(self) -> ApiClient:
        return self.client("ana", Role.ADMIN)

    @cached_property
    def reader(self) -> ApiClient:
        return self.client("rea", Role.READER)

    @cached_property
    def writer(self) -> ApiClient:
        """Client that may write `walt/*` only."""
        return self.client("walt", Role.WRITER, "walt/*")

    def client(self, actor: str, role: Role, *branches: str) -> ApiClient:
        return self.bearing(self.token(actor, role, *branches))

    def token(self, actor: str, role: Role, *branches: str) -> str:
        made = self.store.create_token(actor=actor, role=role, branches=branches or ("*",))
        return str(made["token"])

    def bearing(self, token: str | None) -> ApiClient:
        """Return a client with this token, or without one."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        # No connection uses TLS; reading the machine's certificates is slower than most tests.
        base = f"{self.url}/api/v1"
        # A busy machine must not fail a test by its speed alone.
        http = httpx.Client(base_url=base, headers=headers, verify=False, timeout=60)
        self._clients.append(http)
        return ApiClient(http)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.app.state.builds.close()


class ApiClient:
    """HTTP client that sends requests exactly as a test writes them."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.http.request(method, path, **more)

    def ok(self, method: str, path: str, **more: Any) -> Any:
        """Return the document of a call that must succeed."""
        reply = self.call(method, path, **more)
        assert reply.is_success, (reply.status_code, reply.text)
        return reply.json()

    def error(self, status: int, method: str, path: str, **more: Any) -> str:
        """Return the error code of a call that must fail."""
        reply = self.call(method, path, **more)
        assert reply.status_code == status, (reply.status_code, reply.text)
        assert reply.json()["error"]
        return str(reply.json()["code"])

    def get(self, path: str, /, **params: Any) -> Any:
        return self.ok("GET", path, params=params)

    def post(self, path: str, /, **body: Any) -> Any:
        return self.ok("POST", path, json=body)

    def make_files(self, dataset: str = "raw.scans", branch: str = "master") -> None:
        """Create an empty files dataset."""
        self.post("/datasets", dataset=dataset, kind="files", branch=branch, create=True)

    def put(self, path: str, content: bytes = b"hello", *, branch: str = "master") -> Any:
        """Publish one file."""
        where = f"/files/raw.scans/{path}"
        return self.ok("PUT", where, params={"branch": branch}, content=content)


# Fixtures


@pytest.fixture(scope="session")
def front() -> Iterator[Front]:
    """Loopback server for all tests of this process, one after the other."""
    started = Front()
    yield started
    started.stop()


@pytest.fixture
def api(made_catalog_url: str, tmp_path: Path, front: Front) -> Iterator[Api]:
    """A new store behind its whole server, once on each database."""
    with new_store(made_catalog_url, tmp_path) as store:
        served = Api(store, front)
        yield served
        served.close()


@pytest.fixture
def small_api(made_sqlite_url: str, tmp_path: Path, front: Front) -> Iterator[Api]:
    """The same on SQLite only, where the database does not matter."""
    with new_store(made_sqlite_url, tmp_path) as store:
        served = Api(store, front)
        yield served
        served.close()


@contextmanager
def served_to_the_command_line(
    directory: Path, front: Front, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Make `headgate` the client of a server of the store in this directory."""
    with Store(load_settings(directory)) as store:
        served = Api(store, front)
        monkeypatch.setenv("HEADGATE_URL", served.url)
        monkeypatch.setenv("HEADGATE_TOKEN", served.token("ana", Role.ADMIN))
        yield
        served.close()
