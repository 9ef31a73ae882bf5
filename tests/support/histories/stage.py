"""Servers, a database and proxies for one history, and the faults that its seed chooses."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog

import headgate
from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema
from headgate.cli.init import settings_text
from headgate.model.access import Role
from headgate.store.embedded import Store
from tests.support.histories import places
from tests.support.histories.checker import Witness
from tests.support.histories.network import FaultyProxy
from tests.support.histories.places import DEV, MASTER
from tests.support.histories.records import Operation, read_operations
from tests.support.histories.store_log import StoreLog
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.serving import ServerProcess

ROOT = Path(__file__).parents[3]
_CALM_RATE, _STORMY_RATE = 0.01, 0.3
_PAUSE_SECONDS = (1.0, 4.0)
_STOP_SECONDS = (0.5, 4.0)
# A client ends its last operation within this time.
_END_SECONDS = 90


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a history is made of."""

    seed: str
    database: str
    seconds: float
    http: int = 6
    commands: int = 1
    iceberg: int = 2
    spark: int = 1


@dataclass(frozen=True, kw_only=True)
class History:
    """A recorded run."""

    operations: list[Operation]
    witness: Witness
    faults: Counter[str]
    seconds: float


@dataclass(kw_only=True)
class _Client:
    role: str
    name: str
    process: subprocess.Popen[bytes]


@dataclass(kw_only=True)
class Stage:
    """One store behind one or two servers, each behind a proxy."""

    plan: Plan
    folder: Path
    servers: list[ServerProcess]
    proxies: list[FaultyProxy]
    postgres: PostgresServer | None
    token: str
    faults: Counter[str] = field(default_factory=Counter)
    clients: list[_Client] = field(default_factory=list)
    # Threads that start servers again, by URL.
    starting: dict[str, threading.Thread] = field(default_factory=dict)
    started: int = 0
    until: float = 0.0

    def run(self) -> History:
        """Run the clients under faults, and return what they recorded and what is true."""
        log = StoreLog(self.servers[0].url, self.token)
        start, contents, views = log.newest(), log.contents(), log.views()
        log.close()
        began = time.monotonic()
        self.until = began + self.plan.seconds
        plan = self.plan
        roles = ["http"] * plan.http + ["command"] * plan.commands
        roles += ["pyiceberg"] * plan.iceberg + ["spark"] * plan.spark
        for role in roles:
            self._start(role)
        nemesis = threading.Thread(target=self._disturb)
        nemesis.start()
        nemesis.join()
        self._end_clients()
        seconds = time.monotonic() - began
        for proxy in self.proxies:
            self.faults.update(proxy.counts())
        # Requests that are still executed end with the servers.
        for server in self.servers:
            server.end()
        self.servers[0].start()
        log = StoreLog(self.servers[0].url, self.token)
        witness = log.witness(start, contents, views)
        log.close()
        operations = read_operations(sorted((self.folder / "records").glob("*.jsonl")))
        return History(operations=operations, witness=witness, faults=self.faults, seconds=seconds)

    # Clients

    def _start(self, role: str) -> None:
        self.started += 1
        name = f"{role}{self.started}"
        given = {
            "role": role,
            "client": name,
            "seed": f"{self.plan.seed}-{name}",
            "urls": [proxy.url for proxy in self.proxies],
            "token": self.token,
            "folder": str(self.folder),
            "until": self.until,
        }
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.histories.other_clients", json.dumps(given)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.clients.append(_Client(role=role, name=name, process=process))

    def _end_clients(self) -> None:
        deadline = time.monotonic() + _END_SECONDS
        for client in self.clients:
            try:
                code = client.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                client.process.kill()
                code = client.process.wait()
            if code not in (0, -signal.SIGKILL):
                log = (self.folder / f"{client.name}.log").read_text()
                raise AssertionError(f"{client.name} ended with {code}:\n{log[-3000:]}")

    # Faults

    def _disturb(self) -> None:
        """Cause one fault after another, until the clients end."""
        chance = random.Random(f"{self.plan.seed}-faults")
        kinds: list[tuple[Callable[[random.Random], None], int]] = [
            (self._kill_server, 3),
            (self._pause_server, 3),
            (self._storm, 4),
            (self._kill_client, 2),
        ]
        if self.postgres is not None:
            kinds.append((self._kill_postgres, 3))
        acts, weights = zip(*kinds, strict=True)
        self._set_rate(_CALM_RATE)
        while time.monotonic() + _PAUSE_SECONDS[1] < self.until:
            time.sleep(chance.uniform(*_PAUSE_SECONDS))
            chance.choices(acts, weights)[0](chance)
        self._set_rate(0.0)
        for starting in self.starting.values():
            starting.join()

    def _kill_server(self, chance: random.Random) -> None:
        if (server := self._running(chance)) is None:
            return
        self.faults["server killed"] += 1
        server.end(signal.SIGKILL)
        time.sleep(chance.uniform(0.0, 1.5))
        # A start takes seconds: other faults happen meanwhile.
        starting = threading.Thread(target=server.start)
        self.starting[server.url] = starting
        starting.start()

    def _running(self, chance: random.Random) -> ServerProcess | None:
        """Return a server that does not start at present."""
        found = [one for one in self.servers if not self._is_starting(one)]
        return chance.choice(found) if found else None

    def _is_starting(self, server: ServerProcess) -> bool:
        return server.url in self.starting and self.starting[server.url].is_alive()

    def _pause_server(self, chance: random.Random) -> None:
        if (server := self._running(chance)) is None:
            return
        self.faults["server paused"] += 1
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(chance.uniform(*_STOP_SECONDS))
        finally:
            os.kill(pid, signal.SIGCONT)

    def _kill_postgres(self, chance: random.Random) -> None:
        assert self.postgres is not None
        if any(self._is_starting(one) for one in self.servers):
            # A server that finds no database when it starts ends.
            return
        self.faults["postgres killed"] += 1
        self.postgres.kill()
        time.sleep(chance.uniform(0.0, 2.0))
        self.postgres.restart()

    def _storm(self, chance: random.Random) -> None:
        self.faults["network disturbed"] += 1
        self._set_rate(_STORMY_RATE)
        time.sleep(chance.uniform(*_STOP_SECONDS))
        self._set_rate(_CALM_RATE)

    def _kill_client(self, chance: random.Random) -> None:
        """Kill a client in the middle of an operation, and start another one."""
        running = [one for one in self.clients if one.role == "http" and one.process.poll() is None]
        if running:
            self.faults["client killed"] += 1
            victim = chance.choice(running)
            victim.process.kill()
            victim.process.wait()
            self._start("http")

    def _set_rate(self, rate: float) -> None:
        for proxy in self.proxies:
            proxy.rate = rate


@contextmanager
def open_stage(plan: Plan, folder: Path) -> Iterator[Stage]:
    """Yield a new store: on SQLite with one server, on PostgreSQL with two."""
    (folder / "records").mkdir(parents=True)
    with ExitStack() as stack:
        postgres = None
        catalog = f"sqlite:///{folder / 'catalog.db'}"
        roots = [folder / "store"]
        if plan.database == "postgres":
            postgres = stack.enter_context(running_postgres())
            catalog = postgres.database_url(postgres.create_database())
            roots.append(folder / "store-2")
        for root in roots:
            root.mkdir()
            text = settings_text(
                catalog=catalog, warehouse=str(folder / "warehouse"), branch=MASTER
            )
            (root / "headgate.toml").write_text(text)
        database = Database(catalog)
        ensure_schema(database, create=True)
        database.close()
        token = _prepare(roots[0])
        servers = [stack.enter_context(ServerProcess(root)) for root in roots]
        _create_events(servers[0].url, token)
        proxies = []
        for number, server in enumerate(servers):
            proxy = FaultyProxy(urlsplit(server.url).port or 0, f"{plan.seed}-network-{number}")
            stack.callback(proxy.close)
            proxies.append(proxy)
        yield Stage(
            plan=plan,
            folder=folder,
            servers=servers,
            proxies=proxies,
            postgres=postgres,
            token=token,
        )


def _prepare(root: Path) -> str:
    """Create the datasets and their first content, and return an admin's token."""
    with headgate.open(root, actor="history") as store:
        assert isinstance(store, Store)
        for name in places.TREES:
            made = store.dataset(name).create(kind="files", branch=MASTER).branch(MASTER)
            first = root / "first"
            first.write_text(name)
            made.put(first, "first")
        store.dataset(places.TREE).branch(DEV).create(MASTER)
        schema = root / "schema.toml"
        schema.write_text(places.SCHEMA)
        store.rows.apply_schema(schema, branch=MASTER)
        rows = ", ".join(f"('{row}', 0, 'first')" for row in places.ROWS)
        inserts = "; ".join(f"insert into {name} values {rows}" for name in places.TABLES)
        store.mutate(MASTER, inserts)
        return str(store.create_token(actor="clients", role=Role.ADMIN)["token"])


def _create_events(url: str, token: str) -> None:
    catalog = RestCatalog("headgate", uri=f"{url}/iceberg", warehouse=MASTER, token=token)
    schema = pa.schema([pa.field("id", pa.string())])
    catalog.create_table(places.EVENTS, schema)
