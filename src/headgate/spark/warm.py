"""A warm Spark: a JVM that a process of its own, the keeper, holds for the commands of a store.

`headgate spark up` starts the keeper. Its record has the JVM's address, and commands with the same
settings join the JVM as the jobs of a build do. Every user of the JVM holds a lock on a file of its
own, which lists the tags of its Spark jobs: the keeper cancels the jobs of users that have gone,
however they ended, and ends itself after a time without users.

It is not a Spark Connect server: a transform may use the SparkContext, and must not behave in
another way when Spark is warm.
"""

import fcntl
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from headgate.errors import Invalid, SparkStopped
from headgate.settings import Settings
from headgate.spark.engines import SharedJvm
from headgate.spark.java import coordinates_for
from headgate.spark.jvm import (
    GatewayAddress,
    JvmProcess,
    Launch,
    open_gateway,
    spark_home,
    startup_failed,
)
from headgate.spark.session import launch_request
from headgate.storage.local import make_private_directory

IDLE_SECONDS = 30 * 60

_LOOK_SECONDS = 0.5
# Longer than a JVM takes to end by itself.
_DOWN_SECONDS = 30
# Variables that a JVM and its Python workers read.
_READ_VARIABLES = ("AWS_", "HADOOP_", "JAVA_", "PYTHON", "SPARK_")


@dataclass(frozen=True, kw_only=True)
class Record:
    """The keeper and its JVM, as written in a file that only the user can read."""

    pid: int
    port: int
    secret: str
    fingerprint: str
    since: float
    idle_seconds: int
    log: str
    # Why the JVM ended without a request; None while it runs.
    ended: str | None = None


def fingerprint(settings: Settings) -> str:
    """Return a digest of all that decides how a JVM for these settings behaves."""
    read = {k: v for k, v in settings.environ.items() if k.startswith(_READ_VARIABLES)}
    jars = coordinates_for(settings.warehouse)
    release = version("headgate")
    parts = (release, sys.executable, str(spark_home()), jars, asdict(settings.spark), read)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


# --- users ----------------------------------------------------------------------------------


class _KeptProcess(JvmProcess):
    """The JVM of a keeper, as its users see it."""

    def __init__(self, directory: Path, record: Record) -> None:
        self.address = GatewayAddress(port=record.port, secret=record.secret)
        self._directory = directory
        self._record = record

    @property
    def alive(self) -> bool:
        return _running(self._directory) == self._record

    def find_end(self, patience_seconds: float = 0) -> SparkStopped | None:
        deadline = time.monotonic() + patience_seconds
        while self.alive:
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.05)
        return SparkStopped(
            reason="the warm Spark of this store stopped",
            remedy=f"`headgate spark status` says why, and its log is {self._record.log}. "
            "Commands now start a Spark of their own; `headgate spark up` starts another for all.",
        )

    def end(self) -> None:
        """Do nothing: other commands use it."""


class WarmJvm(SharedJvm):
    """The JVM of a keeper, joined by this process; `stop` leaves it."""

    is_borrowed = True

    def __init__(self, process: _KeptProcess, lease: IO[str]) -> None:
        gateway = open_gateway(process.address)
        # Creates nothing: a record is written only when the SparkContext exists.
        super().__init__(process, gateway, gateway.jvm.org.apache.spark.SparkContext.getOrCreate())
        self._lease = lease

    def lend(self, tag: str) -> None:
        self._lease.write(f"{tag}\n")
        self._lease.flush()

    def stop(self) -> None:
        self._late.close()
        self._gateway.close(keep_callback_server=True)
        self._lease.close()


def join_warm(settings: Settings, directory: Path) -> WarmJvm | None:
    """Join the warm Spark of a directory; None if none runs with these settings."""
    record = _running(directory)
    if record is None or record.fingerprint != fingerprint(settings):
        return None
    users = _users(directory)
    path = users / f"{os.getpid()}-{secrets.token_hex(4)}"
    lease = path.open("x")
    fcntl.flock(lease, fcntl.LOCK_EX)
    # The keeper removes its record before it looks for users a last time.
    if not path.exists() or _running(directory) != record:
        lease.close()
        return None
    try:
        return WarmJvm(_KeptProcess(directory, record), lease)
    except Exception:
        lease.close()
        if _KeptProcess(directory, record).find_end(_LOOK_SECONDS * 2):
            return None
        raise


# --- up, down, status -----------------------------------------------------------------------


def start_warm(settings: Settings, directory: Path, idle_seconds: int) -> bool:
    """Start a warm Spark for the commands of this store; False if one runs already."""
    if settings.spark.remote is not None:
        raise Invalid(
            f"the Spark of this store is the Connect server {settings.spark.remote}, in [spark] "
            "remote: it is always warm, and its operator starts and stops it."
        )
    make_private_directory(directory)
    # Of two that start one at the same time, the second finds that of the first.
    with _locked(directory / "spark-up.lock"):
        record = _running(directory)
        if record is not None:
            if record.fingerprint == fingerprint(settings):
                return False
            raise Invalid(
                "the warm Spark of this store runs with other settings ([spark], variables, or "
                "another release). `headgate spark down` ends it; then start it again."
            )
        _spawn(settings, directory, idle_seconds)
        return True


def end_warm(directory: Path) -> bool:
    """End the warm Spark, with everything that runs in it; False if none runs."""
    record = _running(directory)
    if record is None:
        _record_path(directory).unlink(missing_ok=True)
        return False
    deadline = time.monotonic() + _DOWN_SECONDS
    wanted = signal.SIGTERM
    while _is_held(directory / "spark-keeper.lock"):
        # Without its keeper the JVM ends too: see JvmProcess.
        wanted = signal.SIGKILL if time.monotonic() > deadline else wanted
        with suppress(ProcessLookupError):
            os.kill(record.pid, wanted)
        time.sleep(0.05)
    _record_path(directory).unlink(missing_ok=True)
    return True


def describe_warm(settings: Settings, directory: Path) -> dict[str, Any]:
    """Return the state of the warm Spark as a document."""
    record = _read_record(directory)
    if record is None:
        return {"state": "none"}
    is_running = _running(directory) is not None
    reason = record.ended or "its process was killed"
    return {
        "state": "running" if is_running else "stopped",
        "reason": None if is_running else reason,
        "pid": record.pid,
        "since": record.since,
        "idle_seconds": record.idle_seconds,
        "users": sum(map(_is_held, _users(directory).iterdir())) if is_running else 0,
        "same_settings": record.fingerprint == fingerprint(settings),
        "log": record.log,
    }


def _spawn(settings: Settings, directory: Path, idle_seconds: int) -> None:
    log = directory / "spark-warm.log"
    log.unlink(missing_ok=True)
    request = launch_request(settings, log)
    order = {
        "java_home": str(request.java_home),
        "conf": dict(request.conf),
        "environ": dict(request.environ),
        "idle_seconds": idle_seconds,
        "fingerprint": fingerprint(settings),
    }
    log.touch(mode=0o600)
    with log.open("ab") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "headgate.spark.warm", str(directory)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=dict(request.environ),
            cwd=settings.root,
            # Ctrl-C on the terminal is not for a Spark that later commands use.
            start_new_session=True,
        )
    assert keeper.stdin is not None
    # Credentials are in it: a command line is readable by every user.
    with suppress(BrokenPipeError), keeper.stdin as stdin:
        stdin.write(json.dumps(order).encode())
    try:
        while (record := _running(directory)) is None or record.pid != keeper.pid:
            if keeper.poll() is not None:
                raise startup_failed("its JVM", log)
            time.sleep(0.05)
        # This process does not wait for its end.
        keeper.returncode = 0
    except KeyboardInterrupt:
        keeper.terminate()
        keeper.wait()
        raise


# --- files ----------------------------------------------------------------------------------


def _record_path(directory: Path) -> Path:
    return directory / "spark.json"


def _users(directory: Path) -> Path:
    make_private_directory(directory / "spark-users")
    return directory / "spark-users"


def _read_record(directory: Path) -> Record | None:
    try:
        return Record(**json.loads(_record_path(directory).read_bytes()))
    except (OSError, ValueError, TypeError):
        # Not there, or written by another release.
        return None


def _write_record(directory: Path, record: Record) -> None:
    draft = directory / f".spark-{os.getpid()}.json"
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(asdict(record)))
    draft.replace(_record_path(directory))


def _running(directory: Path) -> Record | None:
    """Return the record of a keeper that runs; a keeper that was killed holds no lock."""
    record = _read_record(directory)
    if record is None or record.ended or not _is_held(directory / "spark-keeper.lock"):
        return None
    return record


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_held(path: Path) -> bool:
    """Return whether a living process holds the lock of a file."""
    try:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


# --- the keeper -----------------------------------------------------------------------------


def main() -> int:
    """Keep a JVM until it is not wanted any more: `python -m headgate.spark.warm DIRECTORY`."""
    directory, order = Path(sys.argv[1]), json.load(sys.stdin)
    wanted_down = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: wanted_down.set())
    log = directory / "spark-warm.log"
    request = Launch(
        java_home=Path(order["java_home"]),
        conf=order["conf"],
        environ=order["environ"],
        log_path=log,
    )
    with _locked(directory / "spark-keeper.lock"), SharedJvm.start(request) as jvm:
        record = Record(
            pid=os.getpid(),
            port=jvm.address.port,
            secret=jvm.address.secret,
            fingerprint=order["fingerprint"],
            since=time.time(),
            idle_seconds=order["idle_seconds"],
            log=str(log),
        )
        _write_record(directory, record)
        return _keep(jvm, record, directory, wanted_down)


def _keep(jvm: SharedJvm, record: Record, directory: Path, wanted_down: threading.Event) -> int:
    used, before = time.monotonic(), 0
    while not wanted_down.wait(_LOOK_SECONDS):
        if stopped := jvm.find_end(None):
            _write_record(directory, replace(record, ended=stopped.message))
            return 1
        users = _count_users(directory, jvm)
        if before and not users:
            # Jobs of builds have tags that no file lists.
            jvm.cancel_all()
        if users or before:
            used = time.monotonic()
        before = users
        if time.monotonic() - used > record.idle_seconds:
            _record_path(directory).unlink()
            if not _count_users(directory, jvm):
                return 0
            _write_record(directory, record)
    _record_path(directory).unlink()
    return 0


def _count_users(directory: Path, jvm: SharedJvm) -> int:
    """Return how many processes use the JVM; cancel the jobs of those that have gone."""
    users = 0
    for path in _users(directory).iterdir():
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                users += 1
                continue
            path.unlink()
            jvm.cancel(file.read().split())
    return users


if __name__ == "__main__":
    sys.exit(main())
