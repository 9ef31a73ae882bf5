"""A real PostgreSQL server for tests: started on a free loopback port, ended by its pid."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psycopg
from psycopg import sql

from tests.support.postgres_binaries import (
    NO_POSTGRES,
    Account,
    find_binaries,
    reachable,
    server_account,
)
from tests.support.processes import is_alive

_ROLE = "headgate"
_START_SECONDS = 120
_STOP_SECONDS = 15
# A data directory lives for one test session: what only matters after a power cut is off, what
# matters after a SIGKILL (synchronous_commit) stays on.
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "jit": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
}


class PostgresError(Exception):
    """PostgreSQL is not available; after a failed start the message ends with its log."""


class PostgresServer:
    """One server whose data directory and port outlive stop, kill and restart."""

    def __init__(self, *, binaries: Path, home: Path, account: Account) -> None:
        self._binaries = binaries
        self._home = home
        self._data = home / "data"
        self._log = home / "server.log"
        self._account = account
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self._initialise()
        self._start_on_some_port()

    @property
    def url(self) -> str:
        """URL of the server's own `postgres` database for SQLAlchemy."""
        return self.database_url("postgres")

    @property
    def plain_url(self) -> str:
        """The same URL for libpq."""
        return f"postgresql://{_ROLE}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int | None:
        """Process of the server; None while it is down."""
        return self._process.pid if self._process else None

    def database_url(self, database: str) -> str:
        return f"postgresql+psycopg://{_ROLE}@127.0.0.1:{self.port}/{database}"

    def create_database(self, *, like: str = "template0") -> str:
        """Create a database, empty or a copy of an unused one, and return its name."""
        name = f"headgate_{next(self._numbers)}"
        self._administer(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(like)
            )
        )
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, also with connections that a test left open."""
        self._administer(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def stop(self) -> None:
        """Stop in order: connections are cut, committed work is kept."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """Send SIGKILL to the server and each of its backends, as in a crash of the machine."""
        if self._process is None:
            return
        backends = _children(self._process.pid)
        self._process.kill()
        for pid in backends:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(_STOP_SECONDS)
        for pid in backends:
            _wait_until_gone(pid)
        self._process = None

    def restart(self) -> None:
        """Start again on the same data and port; return when the server accepts connections."""
        self.stop()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                return self._start()
            except PostgresError:
                # Backends of a killed server may hold its memory and port for a short time.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _initialise(self) -> None:
        initdb = [
            str(self._binaries / "initdb"),
            *("--pgdata", str(self._data), "--username", _ROLE, "--auth", "trust"),
            *("--encoding", "UTF8", "--locale", "C", "--no-sync"),
        ]
        with self._log.open("wb") as log:
            process = self._spawn(initdb, log)
        if process.wait(_START_SECONDS) != 0:
            raise PostgresError(f"initdb failed: {self._log_tail()}")

    def _start_on_some_port(self) -> None:
        for _ in range(4):
            try:
                return self._start()
            except PostgresError:
                # Another process may have taken the port between the search and the bind.
                self.port = _free_port()
        return self._start()

    def _start(self) -> None:
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        for name, value in _SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        with self._log.open("ab") as log:
            process = self._spawn(command, log)
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if process.poll() is not None:
                raise PostgresError(f"postgres ended at once: {self._log_tail()}")
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise PostgresError(f"postgres does not answer: {self._log_tail()}")
            time.sleep(0.02)
        self._process = process

    def _answers(self) -> bool:
        """Return True if the server behind the port uses this data directory."""
        try:
            with psycopg.connect(self.plain_url, connect_timeout=10) as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return row is not None and row[0] == str(self._data)

    def _administer(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.plain_url, autocommit=True) as connection:
            connection.execute(statement)

    def _spawn(self, command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self._home,
            env={"PATH": os.defpath, "LC_ALL": "C", "HOME": str(self._home)},
            # A terminal's Ctrl-C is for pytest, which then stops the server in order.
            start_new_session=True,
            user=self._account.uid,
            group=self._account.gid,
            extra_groups=self._account.groups,
        )

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


def fresh_database(server: PostgresServer) -> str:
    """Return the URL of a new, empty database."""
    return server.database_url(server.create_database())


@contextmanager
def running_postgres(binaries: Path | None = None) -> Iterator[PostgresServer]:
    """Run a server for the length of the block, and remove all of it afterwards."""
    found = binaries or find_binaries()
    if found is None:
        raise PostgresError(NO_POSTGRES)
    account = server_account()
    # Not one of pytest's own directories: another account cannot enter those.
    home = Path(tempfile.mkdtemp(prefix="headgate-pg-"))
    try:
        if account.uid is not None and account.gid is not None:
            os.chown(home, account.uid, account.gid)
        programs = reachable(found, beside=home, account=account)
        server = PostgresServer(binaries=programs, home=home, account=account)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.005)


def _children(pid: int) -> list[int]:
    """Return the child processes of a process; empty where the system does not list them."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in listed.split()]
