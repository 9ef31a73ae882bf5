"""The program of an evaluator: reads rows and sources, and runs scripts, within limits.

The fork server calls `main`. The parent's side of the exchange is `evaluator_pool`.
"""

import base64
import contextlib
import ctypes
import json
import os
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from headgate.errors import HeadgateError
from headgate.files.objects import Digest, Objects, StoredContent
from headgate.model.ids import Instant
from headgate.model.names import DatasetName
from headgate.rows import engine, load, mutate, script
from headgate.rows import evaluator_pool as pool
from headgate.rows.branch_tables import BranchTable, BranchTables, branch_context
from headgate.rows.working_set import WorkingSet
from headgate.rows.write import OtherRows, TableWrite, prepare
from headgate.settings import ServerSettings
from headgate.storage.address import open_store
from headgate.tables.versions import TableVersions

# Of the memory that a statement may use; Arrow and Python need the rest.
_SHARE_OF_ENGINE = 0.6
# An evaluator that has grown beyond this share of it is not used again.
_SHARE_KEPT = 0.25
_PR_SET_PDEATHSIG = 1


def main(events_fd: int) -> None:
    """Carry out orders until the server closes the pipe."""
    channel = _Channel(events_fd)
    limits: ServerSettings = channel.receive()
    _limit_process(limits)
    engine.limit_memory(int(limits.statement_memory_bytes * _SHARE_OF_ENGINE))
    evaluator = _Evaluator(channel, limits)
    while True:
        channel.send(evaluator.carry_out(channel.receive()))


def _limit_process(limits: ServerSettings) -> None:
    """Set the limits of this process, which ends with the fork server."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):
        # Where the machine runs out of memory, this process is ended first.
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Private memory that can be written: libraries reserve far more addresses than they use.
    most = _memory_bytes("VmData") + limits.statement_memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _memory_bytes(name: str) -> int:
    """Return one of the kernel's numbers about this process; 0 where it has none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


class _Channel:
    """The pipes to the server. It sends pickled values; it receives nothing but JSON."""

    def __init__(self, events_fd: int) -> None:
        self._events = os.fdopen(events_fd, "wb")

    def receive(self) -> Any:
        line = sys.stdin.buffer.readline()
        if not line:
            os._exit(0)
        return pickle.loads(base64.b64decode(line))

    def send(self, event: Mapping[str, Any]) -> None:
        self._events.write(json.dumps(event, default=str).encode() + b"\n")
        self._events.flush()

    def ask(self, **what: Any) -> Any:
        self.send({pool.ASK: what})
        return self.receive()


class _RemoteTables(BranchTables):
    """The tables of a branch, found by the server."""

    def __init__(self, channel: _Channel, branch: str) -> None:
        self.context = branch_context(branch)
        self._channel = channel
        self._tables: dict[DatasetName, BranchTable | None] = {}

    def prefetch(self, names: Iterable[DatasetName]) -> None:
        missing = {str(name) for name in names if name not in self._tables}
        if missing:
            self._tables |= self._channel.ask(find=sorted(missing))

    def create(self, name: DatasetName) -> BranchTable:
        made: BranchTable = self._channel.ask(create=str(name))
        self._tables[name] = made
        return made

    def load(self, name: DatasetName, *, line: int = 0, column: int = 0) -> BranchTable:
        # The server raises, and ends this process, where the branch does not show the table.
        found: BranchTable = self._channel.ask(load=(str(name), line, column))
        self._tables[name] = found
        return found


class _Evaluator:
    """Carries out one order after the other."""

    def __init__(self, channel: _Channel, limits: ServerSettings) -> None:
        self._channel = channel
        self._limits = limits
        # A script is parsed for its tables first, and then, mostly here, to be run.
        self._parsed: tuple[str, TableWrite] | None = None
        self._kept_bytes = _memory_bytes("VmRSS") + int(limits.statement_memory_bytes * _SHARE_KEPT)

    def carry_out(self, order: pool.Order) -> dict[str, Any]:
        """Return the last event of an order."""
        try:
            event: dict[str, Any] = {pool.DONE: self._result(order)}
        except OtherRows:
            event = {pool.OTHER_ROWS: True}
        except HeadgateError as error:
            event = {pool.ERROR: error.to_json()}
        except MemoryError:
            event = {pool.OUT_OF_MEMORY: True, pool.LAST: True}
        except Exception:
            event = {pool.DEFECT: traceback.format_exc(), pool.LAST: True}
        if _memory_bytes("VmRSS") > self._kept_bytes:
            event[pool.LAST] = True
        return event

    def _result(self, order: pool.Order) -> dict[str, Any]:
        work, place = order.work, order.place
        if place is None:
            assert isinstance(work, pool.Work) and work.sql is not None, "a load names its tables"
            return {"targets": [str(name) for name in self._script(work.sql).targets]}
        versions = _versions(place.warehouse, tuple(place.options.items()), place.remembered)
        tables = _RemoteTables(self._channel, place.branch)
        with WorkingSet(tables, versions, place.options) as working:
            if not isinstance(work, pool.Work):
                return work(working)
            if work.sql is not None:
                write = self._script(work.sql)
                self._parsed = None
            else:
                write = _load(work, Objects(open_store(place.warehouse, place.options)))
            tables.prefetch(write.targets)
            return pool.write_prepared(prepare(write, working, order.removed))

    def _script(self, sql: str) -> TableWrite:
        if self._parsed is None or self._parsed[0] != sql:
            limits = script.ScriptLimits(
                size_bytes=self._limits.script_bytes,
                depth=self._limits.script_depth,
                of_server=True,
            )
            self._parsed = sql, mutate.script_write(script.parse_script(sql, limits))
        return self._parsed[1]


@cache
def _versions(
    warehouse: str, options: tuple[tuple[str, str], ...], remembered: Instant
) -> TableVersions:
    # One at a time: each has a cache.
    _versions.cache_clear()
    return TableVersions(
        open_store(warehouse, dict(options)), remembered=lambda: remembered, options=dict(options)
    )


def _load(work: pool.Work, objects: Objects) -> TableWrite:
    sources = {
        name: [
            one if isinstance(one, bytes) else StoredContent(digest=Digest(one), objects=objects)
            for one in each
        ]
        for name, each in work.sources.items()
    }
    return load.source_write(sources, load.LoadMode(work.mode), work.creation)
