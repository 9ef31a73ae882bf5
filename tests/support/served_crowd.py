"""Concurrent clients of one server: their responses, their latency, and checks of both."""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from headgate.model.access import Role
from headgate.model.nouns import PublicationKind
from headgate.store.embedded import Store

DATASETS = ("crowd.a", "crowd.b", "crowd.c", "crowd.d")
# Operations that a client repeats: as many reads as writes.
_KINDS = ("publish", "read file", "upload", "read log", "publish", "read history")
_PATIENCE_SECONDS = 90.0
_PAUSE_SECONDS = 0.05
_BUSY = 503


@dataclass(frozen=True, kw_only=True)
class Told:
    """A publication that the server confirmed to a client, under its idempotency key."""

    key: str
    dataset: str
    path: str
    digest: str
    publication: int


@dataclass(kw_only=True)
class Heard:
    """All confirmed publications, and the latency of answers to first requests."""

    told: list[Told] = field(default_factory=list)
    took_ms: dict[str, list[float]] = field(default_factory=dict)
    asked_again: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Client:
    """Sends one request after another; repeats a lost one under the same key."""

    def __init__(self, url: str, token: str, number: int, heard: Heard) -> None:
        self._address = urlsplit(url).netloc
        self._headers = {"authorization": f"Bearer {token}"}
        self._connection = http.client.HTTPConnection(self._address, timeout=_PATIENCE_SECONDS)
        self._number = number
        self._dataset = DATASETS[number % len(DATASETS)]
        self._heard = heard
        self._latest: Told | None = None

    def work(self, goes_on: Callable[[int], bool]) -> None:
        done = 0
        while goes_on(done):
            kind = _KINDS[done % len(_KINDS)]
            if kind == "publish":
                self._publish(done)
            elif kind == "upload":
                self._upload(done)
            else:
                self._read(kind)
            done += 1
        self._connection.close()

    def _publish(self, turn: int) -> None:
        """Publish one file by one request."""
        data, path, key = self._new(turn)
        where = f"/files/{self._dataset}/{path}?branch=master"
        self._keep(key, path, data, self._ask("publish", "PUT", where, data, key))

    def _upload(self, turn: int) -> None:
        """Upload a larger content first, then publish the edit that names it."""
        data, path, key = self._new(turn, size=64 * 1024)
        digest = hashlib.sha256(data).hexdigest()
        self._ask("upload", "PUT", f"/contents/{digest}", data)
        put = [{"path": path, "size": len(data), "digest": digest}]
        body = json.dumps({"branch": "master", "put": put}).encode()
        self._keep(
            key, path, data, self._ask("publish", "POST", f"/files/{self._dataset}", body, key)
        )

    def _read(self, kind: str) -> None:
        if kind == "read log":
            self._ask(kind, "GET", "/log?limit=20")
        elif kind == "read history":
            self._ask(kind, "GET", f"/history/{self._dataset}?branch=master&limit=20")
        elif self._latest is not None:
            where = f"/files/{self._dataset}/{self._latest.path}?branch=master"
            found = self._ask(kind, "GET", where)
            # A client reads its own confirmed writes.
            assert hashlib.sha256(found).hexdigest() == self._latest.digest

    def _new(self, turn: int, *, size: int = 64) -> tuple[bytes, str, str]:
        name = f"{self._number}/{turn}"
        return name.encode().ljust(size, b"."), f"{name}.bin", f"crowd-{name}"

    def _keep(self, key: str, path: str, data: bytes, answer: bytes) -> None:
        digest = hashlib.sha256(data).hexdigest()
        number = int(json.loads(answer)["publication"])
        told = Told(key=key, dataset=self._dataset, path=path, digest=digest, publication=number)
        self._latest = told
        with self._heard.lock:
            self._heard.told.append(told)

    def _ask(
        self, kind: str, method: str, where: str, body: bytes | None = None, key: str | None = None
    ) -> bytes:
        headers = self._headers | ({"idempotency-key": key} if key else {})
        if method == "POST":
            headers |= {"content-type": "application/json"}
        deadline, tries = time.monotonic() + _PATIENCE_SECONDS, 0
        while True:
            began, tries = time.perf_counter(), tries + 1
            answer = self._send(method, where, body, headers)
            if answer is not None:
                self._note(kind, (time.perf_counter() - began) * 1000, tries)
                return answer
            assert time.monotonic() < deadline, f"{method} {where} was never answered"
            time.sleep(_PAUSE_SECONDS)

    def _send(
        self, method: str, where: str, body: bytes | None, headers: Mapping[str, str]
    ) -> bytes | None:
        """Return the answer; None where the connection was lost or the server is busy."""
        try:
            self._connection.request(method, f"/api/v1{where}", body, dict(headers))
            reply = self._connection.getresponse()
            text = reply.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return None
        if reply.status == _BUSY:
            return None
        assert reply.status < 300, (method, where, reply.status, text)
        return text

    def _note(self, kind: str, ms: float, tries: int) -> None:
        with self._heard.lock:
            self._heard.asked_again += tries - 1
            if tries == 1:
                self._heard.took_ms.setdefault(kind, []).append(ms)


def prepare(store: Store) -> str:
    """Create the datasets of the crowd, and return an admin's token."""
    for name in DATASETS:
        store.dataset(name).create(kind="files", branch="master")
    return str(store.create_token(actor="crowd", role=Role.ADMIN)["token"])


def run_crowd(
    url: str,
    token: str,
    *,
    clients: int,
    goes_on: Callable[[int], bool],
    meanwhile: Callable[[Heard], None],
) -> Heard:
    """Run this many clients, disturb their server meanwhile, and wait for all of them."""
    heard = Heard()
    with ThreadPoolExecutor(clients + 1) as pool:
        working = [
            pool.submit(Client(url, token, number, heard).work, goes_on)
            for number in range(clients)
        ]
        meanwhile(heard)
        for one in working:
            one.result()
    return heard


def check(store: Store, heard: Heard) -> None:
    """Assert that the store has all confirmed publications, each once, and no others."""
    told = {one.key: one for one in heard.told}
    assert len(told) == len(heard.told), "two answers for one key"
    commits: list[Any] = [
        publication
        for publication in store.publications(limit=len(told) * 2 + 100)
        if publication.kind is PublicationKind.COMMIT
    ]
    assert sorted(one.number for one in commits) == sorted(one.publication for one in heard.told)
    for name in DATASETS:
        mine = {one.path: one.digest for one in heard.told if one.dataset == name}
        branch = store.dataset(name).branch("master")
        assert {entry.path: entry.digest for entry in branch.files()} == mine
        assert len(branch.history()) == len(mine)
