"""Rows over HTTP: Headgate's server beside Nessie, a bare application and files with one commit."""

from __future__ import annotations

import itertools
import os
import sqlite3
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from bench.cases import Scale, Tell, Unavailable
from bench.clients import Talk, converse, given, repeated, reply, request_of
from bench.endpoint import Desk, make_desk
from bench.peer_systems import Nessie, running_nessie
from bench.peers import OURS, Row, Side, Target, in_turns, medians, per_second
from bench.pipelines import open_store
from bench.reads import bare_server, fill_small, load_of_table
from headgate.storage.local import LocalStore
from headgate.store.embedded import Store
from headgate.tables.versions import TableVersions
from tests.support.postgres import fresh_database, running_postgres
from tests.support.postgres_binaries import NO_POSTGRES, find_binaries
from tests.support.serving import ServerProcess

_WRITERS, _CLIENTS = 8, 16
_FILES = "g.files"


class Served:
    """A store, its server, and the requests of its clients."""

    def __init__(self, root: Path, store: Store, token: str, url: str) -> None:
        self._store, self._token, self._url = store, token, url
        self._tables = TableVersions(LocalStore(root / "warehouse"))
        self._numbers = itertools.count()
        self.port = urlsplit(url).port or 0
        self.load = load_of_table(token)
        self.content = request_of("GET", "/api/v1/branches/g.t/master", token)

    def desks(self) -> list[Desk]:
        """Create a table for each writer."""
        return [
            make_desk(
                *(self._store.database, self._tables, f"t{next(self._numbers)}"),
                url=f"{self._url}/iceberg",
                token=self._token,
                snapshots=1,
            )
            for _ in range(_WRITERS)
        ]

    def commits(self, desk: Desk, count: int) -> Talk:
        """Append to one table."""
        for body in [desk.next_commit() for _ in range(count)]:
            yield request_of("POST", desk.path, self._token, body)

    def metadata_bytes(self, desk: Desk) -> int:
        """Return the size of the newest metadata file of a table."""
        files = Path(desk.location.removeprefix("file://")).rglob("*.metadata.json")
        return max(file.stat().st_size for file in files)

    def branches(self, count: int) -> Talk:
        for _ in range(count):
            new = {"dataset": "g.t", "name": f"b{next(self._numbers)}", "parent": "master"}
            yield request_of("POST", "/api/v1/branches", self._token, orjson.dumps(new))

    def puts(self, count: int) -> Talk:
        """Publish new files on one branch, one by one."""
        for _ in range(count):
            path = f"/api/v1/files/{_FILES}/{next(self._numbers)}.txt?branch=master"
            kind = "application/octet-stream"
            yield request_of("PUT", path, self._token, b"content\n", kind)


@contextmanager
def _served(root: Path, catalog: str | None = None) -> Iterator[Served]:
    root.mkdir()
    with open_store(root, catalog) as store:
        token = fill_small(store)
        store.dataset(_FILES).create(kind="files", branch="master")
        with ServerProcess(root) as server:
            yield Served(root, store, token, server.url)


class _Floor:
    """Files written and synced as a commit does, and one SQLite COMMIT for all that wait."""

    def __init__(self, home: Path, content: bytes) -> None:
        self._home, self._content = home, content
        self._guard, self._turn = threading.Lock(), threading.Lock()
        self._waiting: list[tuple[int, str, threading.Event]] = []
        self._database = sqlite3.connect(
            home / "floor.db", isolation_level=None, check_same_thread=False
        )
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, location TEXT)")
        self._numbers = itertools.count()
        for writer in range(_WRITERS):
            (home / str(writer)).mkdir()

    def close(self) -> None:
        self._database.close()

    def commits(self, count: int) -> None:
        with ThreadPoolExecutor(_WRITERS) as pool:
            list(pool.map(self._commits, range(_WRITERS), itertools.repeat(count)))

    def _commits(self, writer: int, count: int) -> None:
        folder = self._home / str(writer)
        for _ in range(count):
            path = folder / f"{next(self._numbers)}.json"
            with path.open("xb") as file:
                file.write(self._content)
                file.flush()
                os.fsync(file.fileno())
            descriptor = os.open(folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
            self._publish(writer, str(path))

    def _publish(self, writer: int, path: str) -> None:
        """Commit all that wait, unless another thread has committed this one."""
        done = threading.Event()
        with self._guard:
            self._waiting.append((writer, path, done))
        with self._turn:
            if done.is_set():
                return
            with self._guard:
                group, self._waiting = self._waiting, []
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "INSERT OR REPLACE INTO t VALUES (?, ?)", [one[:2] for one in group]
            )
            self._database.execute("COMMIT")
            for *_, event in group:
                event.set()


def http_rows(scale: Scale, tell: Tell) -> list[Row]:
    """Measure a store on SQLite behind HTTP."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        note = ""
        nessie: Nessie | None = None
        try:
            nessie = stack.enter_context(running_nessie(home, tell))
        except Unavailable as missing:
            note = str(missing)
        served = stack.enter_context(_served(home / "store"))
        # One for each request, with the bytes of its reply.
        bare = {
            request: stack.enter_context(bare_server(home, reply(served.port, request)))
            for request in (served.load, served.content)
        }
        return [
            *_reads(scale, served, bare, nessie, note),
            _commits(scale, home, served, nessie, note),
            _branches(scale, served, nessie, note),
        ]


def _reads(
    scale: Scale, served: Served, bare: Mapping[bytes, int], nessie: Nessie | None, note: str
) -> Iterator[Row]:
    count, rounds = scale.of(1600, 400), scale.of(9, 3)
    what = {"load a table": served.load, "read a branch of a table (API)": served.content}
    for name, request in what.items():
        sent = {OURS: (served.port, request), "bare Starlette": (bare[request], request)}
        if nessie is not None:
            sent["Nessie (read a content)"] = (nessie.port, nessie.content())
        for connections in (16, 1):
            each = count // connections

            def side(port: int, request: bytes, n: int = connections, each: int = each) -> Side:
                talks = [request] * n
                many = lambda: converse(port, [repeated(one, each) for one in talks])  # noqa: E731
                return many if n == 1 else lambda: per_second(n * each, many)

            found = medians(in_turns({s: side(*to) for s, to in sent.items()}, rounds, warm_ups=2))
            if connections == 1:
                target = Target(text="ms", value=found[OURS], limit=0.9)
                yield Row(
                    what=f"{name}, 1 connection, p50",
                    unit="ms",
                    figures=found,
                    targets=[target],
                    note=note,
                )
            else:
                ratio = found[OURS] / found["bare Starlette"]
                target = Target(text="× Starlette", value=ratio, limit=0.1, least=True)
                yield Row(
                    what=f"{name}, {connections} connections",
                    unit="requests/s",
                    figures=found,
                    targets=[target],
                    note=note,
                )


def _commits(scale: Scale, home: Path, served: Served, nessie: Nessie | None, note: str) -> Row:
    each, rounds = scale.of(20, 8), scale.of(7, 3)
    [desk, *_] = desks = served.desks()
    converse(served.port, [served.commits(one, each) for one in desks])
    with closing(_Floor(home, b"x" * served.metadata_bytes(desk))) as floor:
        sides = {
            OURS: _writers(served.port, each, lambda: _appends(served, each)),
            "floor": lambda: per_second(_WRITERS * each, lambda: floor.commits(each)),
        }
        if nessie is not None:
            at = nessie
            sides["Nessie (one branch, no files)"] = _writers(
                at.port, each, lambda: [at.commits(table, each) for table in range(_WRITERS)]
            )
        found = medians(in_turns(sides, rounds))
    target = Target(text="× floor", value=found[OURS] / found["floor"], limit=0.5, least=True)
    what = f"{_WRITERS} writers on {_WRITERS} tables"
    return Row(what=what, unit="commits/s", figures=found, targets=[target], note=note)


def _appends(served: Served, each: int) -> list[Talk]:
    """Return conversations over new tables, whose requests are made before they are sent."""
    return [given(list(served.commits(desk, each))) for desk in served.desks()]


def _writers(port: int, each: int, talks: Callable[[], list[Talk]]) -> Side:
    def side() -> list[float]:
        prepared = talks()
        return per_second(len(prepared) * each, lambda: converse(port, prepared))

    return side


def _branches(scale: Scale, served: Served, nessie: Nessie | None, note: str) -> Row:
    each, rounds = scale.of(40, 10), scale.of(9, 3)
    numbers = itertools.count()
    sides: dict[str, Side] = {OURS: lambda: converse(served.port, [served.branches(each)])}
    if nessie is not None:
        at = nessie
        sides["Nessie"] = lambda: converse(
            at.port, [at.branches([f"b{next(numbers)}" for _ in range(each)])]
        )
    found = medians(in_turns(sides, rounds))
    target = Target(text="ms", value=found[OURS], limit=2.0)
    return Row(what="create a branch, p50", unit="ms", figures=found, targets=[target], note=note)


def crowd_rows(scale: Scale, tell: Tell) -> list[Row]:
    """Measure clients of one branch whose changes are disjoint, on both databases."""
    each, rounds = scale.of(20, 8), scale.of(5, 2)
    note = "release 0.1.0 cannot be installed: Git has no tag or commit of it"
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        stores = {"SQLite": stack.enter_context(_served(home / "sqlite"))}
        if find_binaries() is None:
            note = f"{note}; {NO_POSTGRES}"
        else:
            url = fresh_database(stack.enter_context(running_postgres()))
            stores["PostgreSQL"] = stack.enter_context(_served(home / "postgres", url))
        waits: dict[str, list[float]] = {name: [] for name in stores}

        def side(name: str) -> Side:
            def publish() -> list[float]:
                talks = [stores[name].puts(each) for _ in range(_CLIENTS)]
                waits[name] = waits[name][-each * _CLIENTS * rounds :]
                return per_second(
                    each * _CLIENTS,
                    lambda: waits[name].extend(converse(stores[name].port, talks)),
                )

            return publish

        found = medians(in_turns({name: side(name) for name in stores}, rounds))
    return [
        Row(
            what=f"{_CLIENTS} clients on one branch, disjoint files, {name}",
            unit="publications/s",
            figures={OURS: found[name]},
            targets=[
                Target(
                    text="× median, the worst wait",
                    value=max(waits[name]) / statistics.median(waits[name]),
                    limit=10,
                )
            ],
            note=f"median wait {statistics.median(waits[name]):.0f} ms; {note}",
        )
        for name in stores
    ]
